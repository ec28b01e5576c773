"""Runs jobs of ``segment`` one after another while the prompt stays usable, and shows them in a table."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Self

from rich.table import Table

from vitascope.cli.printing import facts
from vitascope.config import LoadedSettings
from vitascope.errors import VitascopeError
from vitascope.gpu.pipeline.report import Interruptible, PipelineReport
from vitascope.gpu.profiling.utilisation import UtilisationSample
from vitascope.observe.job_counts import JobCounts
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.segmenter import Segmenter, Started

JobState = Literal["waiting", "running", "done", "failed", "stopped"]


@dataclass(slots=True, eq=False)
class Job:
    """One video and its progress."""

    number: int
    planned: PlannedVideo
    loaded: LoadedSettings
    """The settings at its start."""
    state: JobState = "waiting"
    report: SegmentReport | None = None
    """The report once it is done."""
    error: VitascopeError | None = None
    """The reason if it failed."""
    kept: str = ""
    """Part of the output kept when the job was stopped."""
    expected_frame_count: int | None = None
    run: Interruptible | None = field(default=None, repr=False)
    """The run, once everything is open."""
    is_unwanted: bool = False
    """True once it was stopped by the user."""

    @property
    def has_ended(self) -> bool:
        """True if the job has ended."""
        return self.state not in ("waiting", "running")


class JobLine:
    """Runs jobs one after another on its own thread. A context manager; leaving it stops unfinished jobs.

    Jobs run one at a time, because one keeps the whole machine busy and two would need twice the memory. The network
    stays open between jobs with the same settings.

    Args:
        on_end: Called with each ended job: from that thread, or by the caller of ``stop`` if it had not started.
        metrics: Metrics that follow the jobs.
    """

    def __init__(
        self, *, on_end: Callable[[Job], object] | None = None, metrics: JobCounts | None = None
    ) -> None:
        self._on_end = on_end
        self._metrics = metrics
        self._changed = threading.Condition()
        self._jobs: list[Job] = []
        self._is_closing = False
        self._segmenter: Segmenter | None = None
        self._segmenter_settings: LoadedSettings | None = None
        self._thread = threading.Thread(target=self._work, name="vitascope-jobs", daemon=True)

    def __enter__(self) -> Self:
        """Start working."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop unfinished jobs, and wait for them."""
        with self._changed:
            self._is_closing = True
            jobs = list(self._jobs)
        for job in jobs:
            self.stop(job)
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    @property
    def jobs(self) -> list[Job]:
        """All jobs in the order in which they were added."""
        with self._changed:
            return list(self._jobs)

    def start(self, planned: PlannedVideo, loaded: LoadedSettings) -> Job:
        """Append a video to the line."""
        with self._changed:
            job = Job(len(self._jobs) + 1, planned, loaded)
            self._jobs.append(job)
            self._changed.notify_all()
            return job

    def stop(self, job: Job) -> None:
        """End a job as Ctrl-C would: what was written stays as a ``.part`` file. Returns at once."""
        with self._changed:
            if job.has_ended:
                return
            job.is_unwanted = True
            if has_not_begun := job.state == "waiting":
                job.state = "stopped"
            elif job.run is not None:
                job.run.interrupt()
            self._changed.notify_all()
        if has_not_begun and self._on_end is not None:
            self._on_end(job)

    def wait(self, *, timeout_seconds: float | None = None) -> bool:
        """Wait until every job has ended; False after the timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(job.has_ended for job in self._jobs), timeout=timeout_seconds
            )

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._do(job)
                if self._on_end is not None:
                    self._on_end(job)
        finally:
            self._close_segmenter()

    def _next(self) -> Job | None:
        """The next job; None at the end. Frees the network before waiting."""
        with self._changed:
            waiting = self._first_waiting()
            if waiting is None and not self._is_closing:
                self._close_segmenter()
            while waiting is None and not self._is_closing:
                self._changed.wait()
                waiting = self._first_waiting()
            if waiting is not None:
                waiting.state = "running"
            return waiting

    def _first_waiting(self) -> Job | None:
        return next((job for job in self._jobs if job.state == "waiting"), None)

    def _do(self, job: Job) -> None:
        report, error, kept = None, None, ""
        try:
            plan = job.planned
            report = self._opened(job).write(
                plan.video,
                plan.outputs,
                preview=plan.preview,
                on_start=lambda started: self._began(job, started),
            )
        except VitascopeError as failure:
            error = failure
        except Exception as failure:  # a bug, which must not end the jobs behind it
            error = VitascopeError(f"{type(failure).__name__}: {failure}")
            error.__cause__ = failure
        except KeyboardInterrupt as interrupt:  # raised in a run by ``interrupt``
            kept = str(interrupt)
        state: Literal["done", "failed", "stopped"]
        state = "done" if report is not None else "stopped" if error is None else "failed"
        if self._metrics is not None:
            damaged = 0 if report is None else report.corrupt_count
            self._metrics.job_ended(state, error=error, damaged_frames=damaged)
        with self._changed:
            job.run = None
            job.report, job.error, job.kept, job.state = report, error, kept, state
            self._changed.notify_all()

    def _began(self, job: Job, started: Started) -> None:
        run = started.pipeline
        with self._changed:
            if job.is_unwanted:
                raise KeyboardInterrupt
            job.run = run
            job.expected_frame_count = started.expected_frame_count
        if self._metrics is not None:
            self._metrics.follow(run, expected_frames=started.expected_frame_count)

    def _opened(self, job: Job) -> Segmenter:
        if self._segmenter is not None and self._segmenter_settings is job.loaded:
            return self._segmenter
        self._close_segmenter()
        self._segmenter = Segmenter(loaded=job.loaded)
        self._segmenter_settings = job.loaded
        return self._segmenter

    def _close_segmenter(self) -> None:
        segmenter, self._segmenter = self._segmenter, None
        if segmenter is not None:
            segmenter.close()


def job_row(job: Job) -> tuple[str, str, str, str, str]:
    """Number, state, frames, video and outputs."""
    done = _frames_done(job)
    expected = job.expected_frame_count
    frames = "" if done is None else f"{done} of {expected}" if expected is not None else str(done)
    outputs = ", ".join(str(path) for _, path in job.planned.outputs)
    return str(job.number), job.state, frames, str(job.planned.video), outputs


def stats_table(job: Job | None, *, sample: UtilisationSample | None) -> Table:
    """Make a table of a job's speed and of the load of the machine.

    Args:
        job: The job; None if there is none.
        sample: The latest sample of CPU and GPU.
    """
    rows = [("job", "none runs")] if job is None else _of_job(job)
    return facts([*rows, *([] if sample is None else _of_machine(sample))])


def _of_job(job: Job) -> list[tuple[str, str]]:
    number, state, frames, video, _ = job_row(job)
    rows = [("job", f"{number}, {state}: {video}")]
    report = _pipeline(job)
    if report is None:
        return rows
    latency = report.latency
    rows.append(("frames", f"{frames}, {report.items_per_second:.1f} a second"))
    if report.items_per_second and job.expected_frame_count and state == "running":
        left = max(job.expected_frame_count - report.items, 0) / report.items_per_second
        rows.append(("time left", f"{left:.0f} s"))
    rows.append(
        (
            "delay",
            f"{latency.p50_seconds * 1e3:.0f} ms p50, {latency.p95_seconds * 1e3:.0f} p95, "
            f"{latency.p99_seconds * 1e3:.0f} p99, queues included",
        )
    )
    rows.append(("stages", ", ".join(f"{stage.name} {stage.load:.0%}" for stage in report.stages)))
    rows.append(("queues", ", ".join(f"{queue.name}: {queue.occupancy}" for queue in report.queues)))
    if report.bottleneck is not None:
        rows.append(("bottleneck", f"{report.bottleneck.stage}: {report.bottleneck.evidence}"))
    return rows


def _of_machine(sample: UtilisationSample) -> list[tuple[str, str]]:
    rows = []
    machine = (
        ""
        if sample.machine_cpu_percent is None
        else f"; the machine is {sample.machine_cpu_percent:.0f} % busy"
    )
    rows.append(("CPU", f"{sample.process_cores:.1f} cores by this process{machine}"))
    if sample.resident_bytes is not None:
        rows.append(("memory", f"{sample.resident_bytes / 2**20:.0f} MiB"))
    gpu = sample.gpu
    if gpu is None:
        return rows
    told = (
        (gpu.gpu_percent, "{:.0f} % busy"),
        (gpu.decoder_percent, "decoder {:.0f} %"),
        (gpu.encoder_percent, "encoder {:.0f} %"),
        (None if gpu.memory_used_bytes is None else gpu.memory_used_bytes / 2**30, "{:.1f} GiB in use"),
        (gpu.power_watts, "{:.0f} W"),
        (gpu.temperature_celsius, "{:.0f} °C"),
    )
    parts = [text.format(value) for value, text in told if value is not None]
    if gpu.throttling:
        parts.append(f"held back by {', '.join(gpu.throttling)}")
    rows.append(("GPU", ", ".join(parts)))
    return rows


def _pipeline(job: Job) -> PipelineReport | None:
    if job.report is not None:
        return job.report.pipeline
    run = job.run  # read once, because the job may end at any time
    return None if run is None else run.snapshot()


def _frames_done(job: Job) -> int | None:
    if job.report is not None:
        return job.report.frame_count
    report = _pipeline(job)
    return None if report is None else report.items
