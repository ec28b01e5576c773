"""What ``--metrics-port`` and ``--metrics-host`` do, in every command that has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from vitascope.errors import DeviceError, MissingDependencyError, UsageError, one_line

if TYPE_CHECKING:
    from vitascope.observe.metrics import Metrics

__all__ = ["MetricsAddress", "metrics_address", "serving_metrics", "watch_gpus"]


class MetricsAddress(NamedTuple):
    """Where to serve metrics."""

    port: int
    host: str | None
    """None is this machine alone."""


def metrics_address(port: int | None, host: str | None) -> MetricsAddress | None:
    """What the two flags ask for; None when nothing.

    Raises:
        UsageError: A host without a port.
    """
    if port is not None:
        return MetricsAddress(port, host)
    if host is not None:
        raise UsageError("--metrics-host says where --metrics-port is served: name the port, too")
    return None


@contextmanager
def serving_metrics(
    address: MetricsAddress | None, *, screen: Console, quiet: bool
) -> Iterator[Metrics | None]:
    """Metrics that can be asked for, before anything is opened or written; None where nobody wants them.

    Args:
        address: Where.
        screen: Told the address.
        quiet: Tell nothing.

    Raises:
        MissingDependencyError: ``prometheus-client`` is not installed.
        OutputError: The port is in use.
    """
    if address is None:
        yield None
        return
    from vitascope.observe.metrics import Metrics
    from vitascope.observe.metrics_server import LOOPBACK, MetricsServer

    with (
        Metrics() as metrics,
        MetricsServer(metrics, port=address.port, host=address.host or LOOPBACK) as server,
    ):
        if not quiet:
            screen.print(f"metrics: {server.url}")
        yield metrics


def watch_gpus(metrics: Metrics | None, gpus: Sequence[int]) -> str | None:
    """Export figures of these GPUs, too; a note that says why not, where that cannot be done."""
    if metrics is None or not gpus:
        return None
    try:
        metrics.watch_gpus(gpus)
    except (MissingDependencyError, DeviceError) as error:
        return f"the metrics have no figures of the GPU: {one_line(error)}"
    return None
