"""Flags shared by several commands: settings, and where metrics are served or recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Group, Parameter

from vitascope.errors import DeviceError, MissingDependencyError, OutputError, UsageError, one_line
from vitascope.observe.terminal import Page, Screen, on_one_line

if TYPE_CHECKING:
    from vitascope.observe.job_counts import JobCounts

INPUT, OUTPUT, PEOPLE, MATTE, STEREO, FACE, LIVE, QUALITY, DEVICE, MONITORING, SETTINGS = (
    Group(name, sort_key=number)
    for number, name in enumerate(
        (
            "Input",
            "Output",
            "People",
            "Matte",
            "VR and stereo",
            "Face",
            "Live",
            "Quality",
            "Device",
            "Monitoring",
            "Settings",
        )
    )
)
"""The groups in ``--help`` of commands with many flags, in order."""

Many = Parameter(negative="", consume_multiple=False, show_default=False)
"""A flag that may be given several times, each time with one value."""
Switch = Annotated[bool, Parameter(negative="", show_default=False)]
"""A flag without a value or a ``--no-`` form: off unless given."""
ConfigFiles = Annotated[tuple[Path, ...], Many, Parameter(alias="-c")]
"""``-c FILE``: settings files."""
Assignments = Annotated[tuple[str, ...], Many, Parameter(name="--set")]
"""``--set key=value``."""


Overwrite = Annotated[bool | None, Parameter(name=["--overwrite", "-y"], negative=["--no-overwrite", "-n"])]
"""Replace existing outputs, or refuse to; None asks on a terminal, see ``may_replace``."""
Stereo = Annotated[str | None, Parameter(name=["--stereo", "--layout"])]
"""How two eyes share a frame, under either name."""


def files_of_sinks(sinks: Sequence[str]) -> list[Path]:
    """Files that live outputs would be written to."""
    from vitascope.media.remote import local_path_of  # not needed without sinks

    return [local_path_of(spec.partition(":")[2]) for spec in sinks if spec.startswith("file:")]


def may_replace(
    existing: Sequence[Path], *, overwrite: bool | None, screen: Screen, otherwise: str = ""
) -> None:
    """Ask before replacing files; refuse if nobody can be asked.

    Args:
        existing: Outputs that exist.
        overwrite: Replace them, or refuse to; None asks on a terminal.
        screen: Where to ask.
        otherwise: Another way out, to end the message.

    Raises:
        OutputError: An output exists and may not be replaced.
    """
    if overwrite or not existing:
        return
    what = f"{existing[0]} already exists"
    if len(existing) > 1:
        what += f", and {len(existing) - 1} more outputs"
    if overwrite is None and sys.stdin.isatty() and screen.is_terminal:
        screen.print(f"{on_one_line(what)}. Replace? [y/N] ", end="")
        answer = ""
        try:
            answer = sys.stdin.readline()
        finally:
            if not answer.endswith("\n"):  # Ctrl-D and Ctrl-C leave the cursor behind the question
                screen.print()
        if answer.strip().lower() in ("y", "yes"):
            return
    raise OutputError(f"{what}; -y replaces {'it' if len(existing) == 1 else 'them'}{otherwise}")


class MetricsAddress(NamedTuple):
    """Address at which metrics are served."""

    port: int
    host: str | None
    """None means only this machine."""


def metrics_address(port: int | None, host: str | None) -> MetricsAddress | None:
    """Read ``--metrics-port`` and ``--metrics-host``; None when neither is given.

    Raises:
        UsageError: A host was given without a port.
    """
    if port is not None:
        return MetricsAddress(port, host)
    if host is not None:
        raise UsageError("--metrics-host needs --metrics-port")
    return None


@contextmanager
def serving_metrics(
    address: MetricsAddress | None, *, screen: Page | Screen, quiet: bool, tensorboard: Path | None = None
) -> Iterator[JobCounts | None]:
    """Serve and record metrics, starting before anything else is opened; None if neither is requested.

    Args:
        address: Where to serve them.
        screen: Where to print their address.
        quiet: Print nothing.
        tensorboard: Folder of runs to record them in, for TensorBoard.

    Raises:
        MissingDependencyError: They are to be served, but ``prometheus-client`` is not installed.
        OutputError: The port is in use, or the folder cannot be written.
    """
    if address is None and tensorboard is None:
        yield None
        return
    from vitascope.observe.job_counts import JobCounts

    told = []
    with ExitStack() as stack:
        counts: JobCounts
        if address is None:
            counts = stack.enter_context(JobCounts())
        else:
            from vitascope.observe.metrics import LOOPBACK, Metrics, MetricsServer

            counts = metrics = stack.enter_context(Metrics())
            host = address.host or LOOPBACK
            server = stack.enter_context(MetricsServer(metrics, port=address.port, host=host))
            told.append(f"metrics: {server.url}")
        if tensorboard is not None:
            from vitascope.observe.tensorboard import ScalarRecorder

            recorder = stack.enter_context(ScalarRecorder(counts.look, tensorboard))
            told.append(f"metrics: {recorder.folder}; tensorboard --logdir {tensorboard} shows them")
        if not quiet:
            screen.print_lines(*told)
        yield counts


def watch_gpus(metrics: JobCounts | None, gpus: Sequence[int]) -> str | None:
    """Also export metrics of these GPUs; returns a note if that is impossible."""
    if metrics is None or not gpus:
        return None
    try:
        metrics.watch_gpus(gpus)
    except (MissingDependencyError, DeviceError) as error:
        return f"metrics of the GPU are missing: {one_line(error)}"
    return None
