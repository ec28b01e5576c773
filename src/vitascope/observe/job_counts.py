"""Counters and gauges of the jobs of one process: read on demand, never pushed by the work itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from vitascope import __version__, errors
from vitascope.closing import Closing
from vitascope.gpu.pipeline.report import Measured
from vitascope.gpu.profiling.nvml import GpuLimits, NvmlGpu
from vitascope.gpu.profiling.utilisation import resident_bytes
from vitascope.observe.readings import (
    LiveFigures,
    QueueFigures,
    Readings,
    gpu_readings,
    live_readings,
    pipeline_readings,
    queue_readings,
)

JobStatus = Literal["done", "skipped", "failed", "stopped"]
_Kind = Literal["job", "live", "queue"]


class LiveRun(Protocol):
    """A live run that can be asked how it is; ``animation.live.session.LiveSession`` is one."""

    def report(self) -> LiveFigures:
        """The run so far; callable from any thread."""
        ...


@dataclass(slots=True)
class _Followed:
    """A run that is read, and the last look at it."""

    read: Callable[[], Readings]
    found: Readings = field(default_factory=Readings)

    def update(self) -> None:
        """Read it; a count that seems to fall, because threads count while we read, stays as it was."""
        found = self.read()
        for series, values in self.found.counts.items():
            now = found.counts.get(series)
            if now is None or _weight(now) < _weight(values):
                found.counts[series] = values
        self.found = found


class JobCounts(Closing):
    """Counters and gauges of one process: of its jobs, one after another, and of a live run beside. A context manager.

    Nothing is measured for it: each look reads the counters that a pipeline keeps anyway, on the thread of whoever
    looks. Counters go on from run to run and never fall; a job and a live run at one time are added up. If both
    have a gauge, the job's counts.

    Args:
        gpus: Looked at, too, by number; closed with it. See ``watch_gpus``.
    """

    def __init__(self, *, gpus: Mapping[int, NvmlGpu] | None = None) -> None:
        self._lock = threading.Lock()
        self._gpu_lock = threading.Lock()  # a driver may take its time, which no job has to wait for
        self._gpus: dict[int, tuple[NvmlGpu, GpuLimits]] = {}
        self._followed: dict[_Kind, _Followed] = {}
        self._past = Readings()
        for status in ("done", "failed", "skipped", "stopped"):
            self._past.count("vitascope_jobs_total", 0, status)
        self._past.count("vitascope_damaged_frames_total", 0)
        for kind in _ERROR_KINDS:
            self._past.count("vitascope_errors_total", 0, kind)
        self._add_gpus(gpus or {})

    def close(self) -> None:
        """Release the GPUs."""
        with self._gpu_lock:
            gpus, self._gpus = self._gpus, {}
        for gpu, _ in gpus.values():
            gpu.close()

    def watch_gpus(self, numbers: Sequence[int]) -> None:
        """Include GPUs: each reading then takes 40 ms a GPU, because PCIe is averaged.

        Args:
            numbers: As CUDA counts them.

        Raises:
            MissingDependencyError: ``nvidia-ml-py`` is not installed.
            DeviceError: There is no such GPU.
        """
        opened: dict[int, NvmlGpu] = {}
        try:
            for number in numbers:
                opened[number] = NvmlGpu(number)
        except BaseException:
            for gpu in opened.values():
                gpu.close()
            raise
        self._add_gpus(opened)

    def follow(self, pipeline: Measured, *, expected_frames: int | None = None) -> None:
        """A job begins: read this pipeline from now on, and keep what the one before has counted.

        Args:
            pipeline: Its ``snapshot`` is read.
            expected_frames: None when the input does not say.
        """
        self._begin("job", lambda: pipeline_readings(pipeline.snapshot(), expected_frames=expected_frames))

    def follow_live(self, run: LiveRun) -> None:
        """A live run begins: read its ``report`` from now on, and keep what the one before has counted."""
        self._begin("live", lambda: live_readings(run.report()))

    def follow_queue(self, queue: QueueFigures) -> None:
        """A queue of videos begins: read it from now on; its videos are no jobs to follow, but end as such."""
        self._begin("queue", lambda: queue_readings(queue))

    def queue_ended(self) -> None:
        """Note that the followed queue ended."""
        with self._lock:
            self._keep("queue")

    def live_ended(self) -> None:
        """Note that the followed live run ended, or failed before it could be followed; the job goes on."""
        with self._lock:
            self._keep("live")

    def job_ended(
        self, status: JobStatus, *, error: BaseException | None = None, damaged_frames: int = 0
    ) -> None:
        """Note that the followed job ended, or failed before it could be followed.

        Args:
            error: Why, when it failed; its class becomes a label when it is one of ``vitascope.errors``.
            damaged_frames: What could not be decoded.
        """
        with self._lock:
            self._keep("job")
            self._past.count("vitascope_jobs_total", 1, status)
            self._past.count("vitascope_damaged_frames_total", damaged_frames)
            if error is not None:
                kind = type(error).__name__
                self._past.count("vitascope_errors_total", 1, kind if kind in _ERROR_KINDS else "other")

    def look(self) -> Readings:
        """A look now: everything counted so far, and all gauges."""
        with self._gpu_lock:
            looks = {number: (gpu.figures(), limits) for number, (gpu, limits) in self._gpus.items()}
        with self._lock:
            together = Readings(dict(self._past.counts), latencies=dict(self._past.latencies))
            kinds: tuple[_Kind, ...] = ("live", "queue", "job")  # the job last: what both have is the job's
            for kind in kinds:
                run = self._followed.get(kind)
                if run is not None:
                    run.update()
                    _add(together, run.found)
                    together.gauges |= run.found.gauges
            together.gauge("vitascope_build_info", 1, __version__)
            together.gauge("vitascope_job_running", bool(self._followed))
            together.gauge("vitascope_resident_memory_bytes", resident_bytes())
            together.gauges |= gpu_readings(looks).gauges
            return together

    def _add_gpus(self, gpus: Mapping[int, NvmlGpu]) -> None:
        limits = {number: (gpu, gpu.limits()) for number, gpu in gpus.items()}
        with self._gpu_lock:
            self._gpus |= limits

    def _begin(self, kind: _Kind, read: Callable[[], Readings]) -> None:
        with self._lock:
            self._keep(kind)
            self._followed[kind] = _Followed(read)

    def _keep(self, kind: _Kind) -> None:
        """The last look at a run, added to what was before it."""
        run = self._followed.pop(kind, None)
        if run is not None:
            run.update()
            _add(self._past, run.found)


def _add(sum_of: Readings, found: Readings) -> None:
    """Add counters and histograms; percentiles become those of what is added."""
    for series, values in found.counts.items():
        before = sum_of.counts.get(series)
        sum_of.counts[series] = values if before is None else before + values
    sum_of.latencies |= found.latencies


def _weight(values: npt.NDArray[np.float64]) -> float:
    """A counter's value, or how many a histogram has counted."""
    return float(values[0] if len(values) == 1 else values[1:].sum())


_ERROR_KINDS = (*(name for name in errors.__all__ if name != "one_line"), "other")
