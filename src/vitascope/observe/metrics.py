"""Metrics of running jobs for Prometheus, and a small server for them: ``http://127.0.0.1:9100/metrics``.

They are read on request, never pushed by the work. The metrics and their labels are in ``job_counts.py``; the text
format is that of ``prometheus-client`` (https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vitascope.errors import MissingDependencyError, OutputError, UsageError
from vitascope.gpu.profiling.utilisation import NvmlGpu
from vitascope.http_server import GuardedHandler, GuardedServer
from vitascope.media.live_loop import LiveLoop
from vitascope.observe.job_counts import BUCKET_BOUNDS_SECONDS, FAMILIES, Family, JobCounts, Readings, Series

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


class Metrics(JobCounts):
    """Serves the figures of ``JobCounts`` to Prometheus. A context manager.

    Args:
        gpus: GPUs to read as well, by number; closed with this object. See ``watch_gpus``.

    Raises:
        MissingDependencyError: ``prometheus-client`` is not installed.
    """

    def __init__(self, *, gpus: Mapping[int, NvmlGpu] | None = None) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise MissingDependencyError(
                "metrics need prometheus-client: pip install 'vitascope[metrics]'"
            ) from error
        super().__init__(gpus=gpus)
        self.registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
        """Contains only these metrics."""
        self.registry.register(self)

    def text(self) -> str:
        """The current readings in Prometheus's text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode("utf-8")

    def collect(self) -> Iterator[Metric]:
        """Collect all metric families, including those without samples; the registry calls it."""
        found = self.look()
        for family in FAMILIES:
            yield _filled(family, found)


def live_metrics(run: LiveLoop[Any], *, gpus: Mapping[int, NvmlGpu] | None = None) -> Metrics:
    """Make the metrics of a live run, such as ``animation.live.session.LiveSession``.

    Args:
        run: The run; its ``report`` is read on each request.
        gpus: GPUs to read as well; see also ``Metrics.watch_gpus``.

    Raises:
        MissingDependencyError: ``prometheus-client`` is not installed.
    """
    metrics = Metrics(gpus=gpus)
    metrics.follow_live(run)
    return metrics


def _filled(family: Family, found: Readings) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds: dict[str, Any] = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    made = kinds[family.kind](family.name, family.help, labels=family.labels)
    held: Mapping[Series, Any] = found.gauges if family.kind == "gauge" else found.counts
    for (name, labels), value in held.items():
        if name != family.name:
            continue
        if family.kind == "gauge":
            made.add_metric(labels, value)
        elif family.kind == "counter":
            made.add_metric(labels, float(value[0]))
        else:
            bounds = [*(f"{bound:.6f}".rstrip("0") for bound in BUCKET_BOUNDS_SECONDS), "+Inf"]
            cumulative = np.cumsum(value[1:]).tolist()
            made.add_metric(labels, list(zip(bounds, cumulative, strict=True)), float(value[0]))
    return made


LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.1


class MetricsServer:
    """Answers every GET with current readings. A context manager; listens from the start.

    Its threads are named ``vitascope-metrics``; the readings are taken on the thread of each request.

    Args:
        metrics: The metrics to serve; not closed here.
        port: Port; 0 takes a free one, see ``url``.
        host: Address to listen on, by default only this machine's own. Anyone who reaches it can read everything.

    Raises:
        UsageError: The port is invalid.
        OutputError: The port is in use, or the address is not this machine's.
    """

    def __init__(self, metrics: Metrics, *, port: int, host: str = LOOPBACK) -> None:
        from prometheus_client import MetricsHandler

        handler = type("_Handler", (GuardedHandler, MetricsHandler.factory(metrics.registry)), {})
        if not 0 <= port <= 65535:
            raise UsageError(f"expected a port from 0 to 65535, not {port}")
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = GuardedServer(address, handler, family=family, name=host)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OutputError(
                f"metrics cannot be served at {host}, port {port}: {reason}; "
                "choose another --metrics-port or --metrics-host"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="vitascope-metrics", daemon=True
        )
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"
        """Its address for Prometheus."""

    def __enter__(self) -> Self:
        """Start answering."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and release the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
