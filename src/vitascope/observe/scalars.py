"""Figures of running jobs as curves for TensorBoard: the readings of the Prometheus exporter, once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from vitascope.observe.event_file import EventFile, run_folder
from vitascope.observe.readings import Readings

__all__ = ["ScalarRecorder", "scalars_of"]

_INTERVAL_SECONDS = 1.0
_PREFIX = "vitascope_"
_FRAMES = "vitascope_frames_total"
_LATENCY = "vitascope_frame_latency_seconds"
_COUNTERS = (
    "vitascope_dropped_frames_total",
    "vitascope_damaged_frames_total",
    "vitascope_captured_frames_total",
    "vitascope_repeated_frames_total",
    "vitascope_faceless_frames_total",
)
_CONSTANT = (
    "vitascope_build_info",
    "vitascope_job_expected_frames",
    "vitascope_stage_workers",
    "vitascope_gpu_memory_limit_bytes",
    "vitascope_gpu_power_limit_watts",
)
"""Gauges that make no curve."""


def scalars_of(now: Readings, before: Readings, *, seconds: float) -> dict[str, float]:
    """Values by tag: the metric's name without ``vitascope_``, and its labels.

    Speed and mean latency are those of the time between the two looks, percentiles those of the job so far; the rest
    is as the exporter has it.

    Args:
        now: The newer look.
        before: The older one.
        seconds: Between the two, above 0.
    """
    frames = _count(now, _FRAMES) - _count(before, _FRAMES)
    scalars = {"frames_per_second": frames / seconds}
    latency = now.latencies.get((_LATENCY, ()))
    if latency is not None and latency.count:
        scalars |= {
            "frame_latency_seconds/p50": latency.p50_seconds,
            "frame_latency_seconds/p95": latency.p95_seconds,
            "frame_latency_seconds/p99": latency.p99_seconds,
        }
    if frames > 0:
        scalars["frame_latency_seconds/mean"] = (_count(now, _LATENCY) - _count(before, _LATENCY)) / frames
    for (name, labels), values in now.counts.items():
        if name in _COUNTERS:
            scalars[_tag(name, labels)] = float(values[0])
    for (name, labels), value in now.gauges.items():
        if name not in _CONSTANT:
            scalars[_tag(name, labels)] = value
    return scalars


class ScalarRecorder:
    """Looks once a second, and writes what it sees into an event file of a folder of its own. A context manager.

    The thread is called ``vitascope-scalars`` and is joined on leaving, which looks once more.

    Args:
        look: What is there now; ``JobCounts.look``.
        folder: Of many runs: this one gets a folder in it, named after the time of day.
        interval_seconds: Between two looks.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(
        self, look: Callable[[], Readings], folder: Path, *, interval_seconds: float = _INTERVAL_SECONDS
    ) -> None:
        self._look = look
        self._interval_seconds = interval_seconds
        self._file = EventFile(run_folder(folder))
        self.folder = self._file.path.parent
        """Where this run's file lies."""
        self._before, self._at = look(), time.monotonic()
        self._done = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="vitascope-scalars", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look once more, and close the file.

        Raises:
            OutputError: It could not be written to the end; not where the block itself failed.
        """
        self._done.set()
        self._thread.join()
        with self._file:
            if self._failure is None:
                self._failure = self._attempt()
        if self._failure is not None and error is None:
            raise self._failure

    def _watch(self) -> None:
        while self._failure is None and not self._done.wait(self._interval_seconds):
            self._failure = self._attempt()

    def _attempt(self) -> Exception | None:
        try:
            self._record()
        except Exception as error:  # the run goes on, and whoever leaves the block is told
            return error
        return None

    def _record(self) -> None:
        now, at = self._look(), time.monotonic()
        seconds = max(at - self._at, 1e-6)
        self._file.add(
            scalars_of(now, self._before, seconds=seconds),
            step=round(_count(now, _FRAMES)),
            wall_seconds=time.time(),
        )
        self._before, self._at = now, at


def _count(readings: Readings, name: str) -> float:
    """A counter's value, or the sum of a histogram; 0 before the first job."""
    values = readings.counts.get((name, ()))
    return 0.0 if values is None else float(values[0])


def _tag(name: str, labels: tuple[str, ...]) -> str:
    return "/".join((name.removeprefix(_PREFIX), *labels))
