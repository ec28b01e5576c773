"""Counters and gauges of a process's jobs, read on demand rather than pushed by the work.

Names follow https://prometheus.io/docs/practices/naming/: base units in the name; counters end with
``_total``. Labels have at most as many values as there are stages, queues, sinks, GPUs or kinds of errors;
files get no label.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from vitascope import __version__, errors
from vitascope.closing import Closing
from vitascope.gpu.pipeline.report import Latency, Measured, PipelineReport
from vitascope.gpu.profiling.utilisation import GpuFigures, GpuLimits, NvmlGpu, resident_bytes
from vitascope.media.live_loop import LiveLoop, RunReport


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, with all values of its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    """One sentence."""


FAMILIES = (
    Family("vitascope_build_info", "gauge", ("version",), "1, with the version in a label."),
    Family("vitascope_jobs_total", "counter", ("status",), "Ended jobs: done, skipped, failed or stopped."),
    Family("vitascope_job_running", "gauge", (), "1 while a job runs."),
    Family("vitascope_job_frames", "gauge", (), "Finished frames of the running job."),
    Family("vitascope_job_expected_frames", "gauge", (), "Frames that the running job will have, if known."),
    Family("vitascope_frames_total", "counter", (), "Finished frames."),
    Family("vitascope_frame_latency_seconds", "histogram", (), "Time of a frame through all stages and queues."),
    Family("vitascope_captured_frames_total", "counter", (), "Live: pictures captured by the camera."),
    Family("vitascope_repeated_frames_total", "counter", (), "Live: pictures repeated while nothing moved."),
    Family("vitascope_faceless_frames_total", "counter", (), "Live: pictures without a face."),
    Family("vitascope_dropped_frames_total", "counter", ("place",), "Pictures replaced by newer ones."),
    Family("vitascope_damaged_frames_total", "counter", (), "Frames of inputs that could not be decoded."),
    Family("vitascope_errors_total", "counter", ("kind",), "Failed jobs, by the name of the error."),
    Family("vitascope_videos", "gauge", ("state",), "Videos shared by several processes: waiting, running."),
    Family("vitascope_place_busy", "gauge", ("place",), "Stretches and whole videos being made there."),
    Family("vitascope_place_tries_total", "counter", ("place", "status"), "Tries that ended there: done or failed."),
    Family("vitascope_place_frames_total", "counter", ("place",), "Frames made there."),
    Family("vitascope_stage_workers", "gauge", ("stage",), "Threads of a stage."),
    Family("vitascope_stage_items_total", "counter", ("stage",), "Items taken by a stage, or given by a source."),
    Family("vitascope_stage_busy_seconds_total", "counter", ("stage",), "Working time, summed over threads."),
    Family("vitascope_stage_busy_ratio", "gauge", ("stage",), "Share of the job's time that a stage works, 0 to 1."),
    Family("vitascope_stage_latency_seconds", "histogram", ("stage",), "Time of a stage for one item."),
    Family("vitascope_queue_items", "gauge", ("queue",), "Items waiting between two stages."),
    Family("vitascope_queue_put_wait_seconds_total", "counter", ("queue",), "Time waiting for room in a queue."),
    Family("vitascope_queue_get_wait_seconds_total", "counter", ("queue",), "Time waiting for an item in a queue."),
    Family("vitascope_sink_frames_total", "counter", ("sink",), "Live: pictures sent to a sink."),
    Family("vitascope_sink_up", "gauge", ("sink",), "Live: 1 while a sink takes pictures, else 0."),
    Family("vitascope_cpu_seconds_total", "counter", (), "CPU time of jobs, worker processes included."),
    Family("vitascope_resident_memory_bytes", "gauge", (), "Main memory of this process."),
    Family("vitascope_gpu_memory_bytes", "gauge", ("gpu",), "Memory of a GPU in use, by all processes."),
    Family("vitascope_gpu_memory_limit_bytes", "gauge", ("gpu",), "Total memory of a GPU."),
    Family(
        "vitascope_gpu_busy_ratio",
        "gauge",
        ("gpu", "unit"),
        "Load of a GPU's kernels, memory bus, decoder and encoder, 0 to 1, over the driver's last period.",
    ),
    Family("vitascope_gpu_pcie_bytes_per_second", "gauge", ("gpu", "direction"), "PCIe traffic, to and from a GPU."),
    Family("vitascope_gpu_power_watts", "gauge", ("gpu",), "Power draw of a GPU."),
    Family("vitascope_gpu_power_limit_watts", "gauge", ("gpu",), "Power limit of a GPU."),
    Family("vitascope_gpu_temperature_celsius", "gauge", ("gpu",), "Temperature of a GPU."),
    Family("vitascope_gpu_sm_clock_hertz", "gauge", ("gpu",), "Clock of a GPU's multiprocessors."),
    Family("vitascope_gpu_throttled", "gauge", ("gpu",), "1 while heat or power slows a GPU."),
)  # fmt: skip
"""All metrics, in export order."""


Series = tuple[str, tuple[str, ...]]
"""Name of a metric, and its labels' values."""

_FIRST_OCTAVE, _LAST_OCTAVE = 6, 25
BUCKET_BOUNDS_SECONDS = tuple(2.0 ** (n + 1) / 1e6 for n in range(_FIRST_OCTAVE, _LAST_OCTAVE + 1))
"""Upper bounds of all histograms' buckets: 128 µs to 67 s, each twice the previous one."""
_MOST_NAMES = 64
"""Exported values per label; the rest is summed as ``other``."""


@dataclass(slots=True)
class Readings:
    """Readings of a run."""

    counts: dict[Series, npt.NDArray[np.float64]] = field(default_factory=dict)
    """Counters: float64 [1]. Histograms: float64 [22], the sum in seconds, then the buckets, not cumulative."""
    gauges: dict[Series, float] = field(default_factory=dict)
    latencies: dict[Series, Latency] = field(default_factory=dict)
    """Latencies behind the newest job's histograms: their percentiles are finer than the buckets."""

    def count(self, name: str, value: float, *labels: str) -> None:
        """Add to a counter."""
        self._add((name, labels), np.array([value]))

    def distribution(self, name: str, latency: Latency, *labels: str) -> None:
        """Add to a histogram."""
        octaves = np.array(latency.octave_counts, np.float64)
        buckets = np.zeros(len(BUCKET_BOUNDS_SECONDS) + 1)
        places = np.clip(np.arange(len(octaves)) - _FIRST_OCTAVE, 0, len(buckets) - 1)
        np.add.at(buckets, places, octaves)
        self._add((name, labels), np.array([latency.mean_seconds * octaves.sum(), *buckets]))
        self.latencies[name, labels] = latency

    def add(self, found: Readings) -> None:
        """Add counters and histograms of other readings; percentiles become theirs."""
        for series, values in found.counts.items():
            self._add(series, values)
        self.latencies |= found.latencies

    def gauge(self, name: str, value: float | None, *labels: str) -> None:
        """Set a gauge; None (unknown) leaves it out."""
        if value is not None:
            self.gauges[name, labels] = float(value)

    def _add(self, series: Series, values: npt.NDArray[np.float64]) -> None:
        before = self.counts.get(series)
        self.counts[series] = values if before is None else before + values


class PlaceFigures(Protocol):
    """Counts for one place of work, such as ``segmentation.processes.hands.PlaceCounts``."""

    busy: int
    """Pieces of work in progress."""
    done: int
    failed: int
    frames: int


class QueueFigures(Protocol):
    """Figures of a queue of videos, such as ``segmentation.processes.film_queue.FilmQueue``."""

    @property
    def waiting_count(self) -> int:
        """Waiting videos."""
        ...

    @property
    def running_count(self) -> int:
        """Videos in progress."""
        ...

    @property
    def frame_count(self) -> int | None:
        """Expected frames of all videos; None if any is unknown."""
        ...

    @property
    def places(self) -> Mapping[str, PlaceFigures]:
        """Figures by the names of nodes or processes."""
        ...

    def snapshot(self) -> PipelineReport:
        """Report of all videos so far."""
        ...


def pipeline_readings(report: PipelineReport, *, expected_frames: int | None = None) -> Readings:
    """Read a run of ``segment``.

    Args:
        report: Result of ``snapshot``.
        expected_frames: None if the input does not tell.
    """
    readings = _stages_and_queues(report)
    readings.count("vitascope_frames_total", report.items)
    readings.distribution("vitascope_frame_latency_seconds", report.latency)
    readings.gauge("vitascope_job_frames", report.items)
    readings.gauge("vitascope_job_expected_frames", expected_frames)
    return readings


def queue_readings(queue: QueueFigures) -> Readings:
    """Read a queue of videos."""
    readings = pipeline_readings(queue.snapshot(), expected_frames=queue.frame_count)
    readings.gauge("vitascope_videos", queue.waiting_count, "waiting")
    readings.gauge("vitascope_videos", queue.running_count, "running")
    busy: dict[str, int] = {}
    for place, name in zip(queue.places.values(), _bounded(queue.places), strict=True):
        busy[name] = busy.get(name, 0) + place.busy
        readings.count("vitascope_place_tries_total", place.done, name, "done")
        readings.count("vitascope_place_tries_total", place.failed, name, "failed")
        readings.count("vitascope_place_frames_total", place.frames, name)
    for name, count in busy.items():
        readings.gauge("vitascope_place_busy", count, name)
    return readings


def live_readings(report: RunReport) -> Readings:
    """Read a live run."""
    readings = _stages_and_queues(report.pipeline)
    readings.count("vitascope_frames_total", report.shown)
    readings.distribution("vitascope_frame_latency_seconds", report.latency)
    readings.gauge("vitascope_job_frames", report.shown)
    readings.count("vitascope_captured_frames_total", report.captured)
    readings.count("vitascope_repeated_frames_total", report.repeated)
    readings.count("vitascope_faceless_frames_total", report.lost)
    taken = report.pipeline.stages[0].items if report.pipeline.stages else 0
    readings.count("vitascope_dropped_frames_total", max(report.captured - taken, 0), "camera")
    for sink, name in zip(report.sinks, _bounded(sink.name for sink in report.sinks), strict=True):
        readings.count("vitascope_sink_frames_total", sink.sent, name)
        readings.count("vitascope_dropped_frames_total", sink.dropped, f"sink {name}")
        readings.gauge("vitascope_sink_up", sink.state in ("starting", "running"), name)
    return readings


def gpu_readings(gpus: Mapping[int, tuple[GpuFigures, GpuLimits]]) -> Readings:
    """Read GPU samples, by GPU number."""
    readings = Readings()
    for number, (figures, limits) in gpus.items():
        gpu = str(number)
        readings.gauge("vitascope_gpu_memory_bytes", figures.memory_used_bytes, gpu)
        readings.gauge("vitascope_gpu_memory_limit_bytes", limits.memory_bytes, gpu)
        for unit, percent in (
            ("kernels", figures.gpu_percent),
            ("memory_bus", figures.memory_bus_percent),
            ("decoder", figures.decoder_percent),
            ("encoder", figures.encoder_percent),
        ):
            readings.gauge("vitascope_gpu_busy_ratio", None if percent is None else percent / 100, gpu, unit)
        for direction, rate in (
            ("to_gpu", figures.pcie_to_gpu_bytes_per_second),
            ("from_gpu", figures.pcie_from_gpu_bytes_per_second),
        ):
            readings.gauge("vitascope_gpu_pcie_bytes_per_second", rate, gpu, direction)
        readings.gauge("vitascope_gpu_power_watts", figures.power_watts, gpu)
        readings.gauge("vitascope_gpu_power_limit_watts", limits.power_watts, gpu)
        readings.gauge("vitascope_gpu_temperature_celsius", figures.temperature_celsius, gpu)
        clock = figures.sm_clock_mhz
        readings.gauge("vitascope_gpu_sm_clock_hertz", None if clock is None else clock * 1e6, gpu)
        readings.gauge("vitascope_gpu_throttled", bool(figures.throttling), gpu)
    return readings


def _stages_and_queues(report: PipelineReport) -> Readings:
    readings = Readings()
    readings.count("vitascope_cpu_seconds_total", report.cores_busy * report.wall_seconds)
    for stage, name in zip(report.stages, _bounded(stage.name for stage in report.stages), strict=True):
        readings.gauge("vitascope_stage_workers", stage.workers, name)
        readings.count("vitascope_stage_items_total", stage.items, name)
        readings.count("vitascope_stage_busy_seconds_total", stage.busy_seconds, name)
        readings.gauge("vitascope_stage_busy_ratio", stage.load, name)
        readings.distribution("vitascope_stage_latency_seconds", stage.latency, name)
    for queue, name in zip(report.queues, _bounded(queue.name for queue in report.queues), strict=True):
        readings.gauge("vitascope_queue_items", queue.occupancy, name)
        readings.count("vitascope_queue_put_wait_seconds_total", queue.put_wait_seconds, name)
        readings.count("vitascope_queue_get_wait_seconds_total", queue.get_wait_seconds, name)
        readings.count("vitascope_dropped_frames_total", queue.dropped, name)
    return readings


def _bounded(names: Iterable[str]) -> list[str]:
    return [name if n < _MOST_NAMES else "other" for n, name in enumerate(names)]


JobStatus = Literal["done", "skipped", "failed", "stopped"]
_Kind = Literal["job", "live", "queue"]


@dataclass(slots=True)
class _Followed:
    """A run being read, and its last readings."""

    read: Callable[[], Readings]
    found: Readings = field(default_factory=Readings)

    def update(self) -> None:
        """Read the run; counts never decrease, although threads count meanwhile."""
        found = self.read()
        for series, values in self.found.counts.items():
            now = found.counts.get(series)
            if now is None or _weight(now) < _weight(values):
                found.counts[series] = values
        self.found = found


class JobCounts(Closing):
    """Counters and gauges of a process's jobs, in sequence, and of a concurrent live run. A context manager.

    Nothing is measured for it: each reading takes the counters that a pipeline keeps anyway, on the reader's
    thread. Counters continue from run to run and never decrease; those of a job and a concurrent live run are
    summed. If both have a gauge, the job's is used.

    Args:
        gpus: GPUs to read as well, by number; closed with this object. See ``watch_gpus``.
    """

    def __init__(self, *, gpus: Mapping[int, NvmlGpu] | None = None) -> None:
        self._lock = threading.Lock()
        self._gpu_lock = threading.Lock()  # a driver may be slow, and no job should wait for it
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
        """Include GPUs: each reading then takes 40 ms per GPU, because PCIe is averaged.

        Args:
            numbers: CUDA's numbers of the GPUs.

        Raises:
            MissingDependencyError: ``nvidia-ml-py`` is not installed.
            DeviceError: A GPU does not exist.
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
        """Follow a new job's pipeline, and keep the counts of the previous one.

        Args:
            pipeline: The pipeline, read through ``snapshot``.
            expected_frames: None if the input does not tell.
        """
        self._begin("job", lambda: pipeline_readings(pipeline.snapshot(), expected_frames=expected_frames))

    def follow_live(self, run: LiveLoop[Any]) -> None:
        """Follow a new live run through its ``report``, and keep the counts of the previous one."""
        self._begin("live", lambda: live_readings(run.report()))

    def follow_queue(self, queue: QueueFigures) -> None:
        """Follow a new queue of videos; its videos are not jobs to follow, but end like them."""
        self._begin("queue", lambda: queue_readings(queue))

    def queue_ended(self) -> None:
        """Record the end of the followed queue."""
        with self._lock:
            self._keep("queue")

    def live_ended(self) -> None:
        """Record that the followed live run ended, or failed before it could be followed; the job continues."""
        with self._lock:
            self._keep("live")

    def job_ended(
        self, status: JobStatus, *, error: BaseException | None = None, damaged_frames: int = 0
    ) -> None:
        """Record that the followed job ended, or failed before it could be followed.

        Args:
            status: Outcome of the job.
            error: Error of a failed job; its class becomes a label if it is one of ``vitascope.errors``.
            damaged_frames: Number of frames that could not be decoded.
        """
        with self._lock:
            self._keep("job")
            self._past.count("vitascope_jobs_total", 1, status)
            self._past.count("vitascope_damaged_frames_total", damaged_frames)
            if error is not None:
                kind = type(error).__name__
                self._past.count("vitascope_errors_total", 1, kind if kind in _ERROR_KINDS else "other")

    def look(self) -> Readings:
        """Read all counts so far, and all gauges."""
        with self._gpu_lock:
            looks = {number: (gpu.figures(), limits) for number, (gpu, limits) in self._gpus.items()}
        with self._lock:
            together = Readings(dict(self._past.counts), latencies=dict(self._past.latencies))
            kinds: tuple[_Kind, ...] = ("live", "queue", "job")  # the job last: what both have is the job's
            for kind in kinds:
                run = self._followed.get(kind)
                if run is not None:
                    run.update()
                    together.add(run.found)
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
        """Add a run's last readings to the earlier ones."""
        run = self._followed.pop(kind, None)
        if run is not None:
            run.update()
            self._past.add(run.found)


def _weight(values: npt.NDArray[np.float64]) -> float:
    """A counter's value, or a histogram's count."""
    return float(values[0] if len(values) == 1 else values[1:].sum())


_ERROR_KINDS = (*(name for name in errors.__all__ if name != "one_line"), "other")
