"""The live progress line of a job: frames, speed, remaining time, and the load of each stage."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from vitascope.gpu.pipeline.report import Measured, PipelineReport
from vitascope.observe.terminal import escaped

_REFRESH_SECONDS = 0.25
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_TOLD = 1.0
# In columns of the terminal.
_FIGURES_WIDTH = len(" 100000/100000 1234.5 fps 0:00:00")
_LOADS_WIDTH = len(" decode 100% prep 100% infer 100% post 100% encode 100%")
_WIDTH_WITH_LOADS = 130
_SHORT_NAMES = {"preprocess": "prep", "postprocess": "post"}


class JobProgress:
    """Shows jobs one after another: a live line on a terminal; in a pipe or log file a line every ten seconds.

    A context manager. Its own thread reads the pipeline's counters four times a second.

    Args:
        console: Where to draw; stderr, so that stdout stays free for results.
        visible: False shows nothing, whatever the console.
        tell: Called once a second with plain values, instead of showing anything.
    """

    def __init__(
        self,
        console: Console,
        *,
        visible: bool = True,
        tell: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        self._tell = tell
        has_loads = console.width >= _WIDTH_WITH_LOADS
        bar_width = min(24, console.width // 5)
        others = bar_width + _FIGURES_WIDTH + (_LOADS_WIDTH if has_loads else 0)
        # long names are cut to leave room for the figures
        name = Column(no_wrap=True, overflow="ellipsis", max_width=max(console.width - others, 8))
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=name),
            BarColumn(bar_width=bar_width),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}", markup=False),
            TimeRemainingColumn(compact=True),
            *([TextColumn("{task.fields[load]}", style="dim", markup=False)] if has_loads else []),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not (visible and console.is_terminal),
        )
        self._console = console
        self._visible = visible
        self._watched: tuple[Measured, TaskID] | None = None
        self._job = _Job("", None)
        self._told_at = 0.0
        """When a line was last printed or told, by ``time.monotonic``."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="vitascope-progress", daemon=True)

    def __enter__(self) -> JobProgress:
        """Start drawing."""
        self._progress.start()
        if self._visible or self._tell is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing and remove the line."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._progress.stop()

    def show(
        self,
        name: str,
        pipeline: Measured,
        *,
        frame_count: int | None,
        pace: Callable[[], str] | None = None,
        counts: Callable[[], dict[str, int]] | None = None,
    ) -> None:
        """Follow a pipeline that is about to run, replacing the previous one.

        Args:
            name: Name to show.
            pipeline: The pipeline; its ``snapshot`` is read.
            frame_count: Expected frames; None shows an indefinite bar.
            pace: Returns the speed in a few words; frames per second when omitted.
            counts: Returns more values for ``tell``, by name.
        """
        self.clear()
        # Set first, so that the watch thread prints nothing about the new job with the old one's frames.
        self._told_at = monotonic()
        self._job = _Job(name, frame_count, pace, counts)
        self.go_on(pipeline)

    def go_on(self, pipeline: Measured) -> None:
        """Follow the last pipeline again after ``clear``."""
        job = self._job
        task = self._progress.add_task(escaped(job.name), total=job.frame_count, pace="", load="")
        self._watched = pipeline, task

    def fetched(self, model: str, done_bytes: int, total_bytes: int) -> None:
        """Show the progress of a network's download, in megabytes."""
        label = f"fetching {model} (MB)"
        task = next((task for task in self._progress.tasks if task.description == label), None)
        task_id = task.id if task else self._progress.add_task(label, total=None, pace="", load="")
        self._progress.update(task_id, completed=done_bytes // 10**6, total=max(total_bytes // 10**6, 1))
        self._progress.refresh()
        if done_bytes >= total_bytes:
            self._progress.remove_task(task_id)

    def clear(self) -> None:
        """Remove the current line before something is printed."""
        watched, self._watched = self._watched, None
        if watched is not None:
            self._progress.remove_task(watched[1])
            self._progress.refresh()

    def _watch(self) -> None:
        while not self._done.wait(_REFRESH_SECONDS):
            watched = self._watched
            if watched is None:
                continue
            if self._tell is not None:
                self._tell_now_and_then(watched[0], self._tell)
                continue
            if self._progress.disable:
                self._print_now_and_then(watched[0])
                continue
            report = watched[0].snapshot()
            try:
                pace = self._job.paced(report)
                self._progress.update(watched[1], completed=report.items, pace=pace, load=stage_loads(report))
            except KeyError:  # the job ended between the two lines
                continue
            self._progress.refresh()

    def _print_now_and_then(self, pipeline: Measured) -> None:
        job = self._job
        if monotonic() - self._told_at < _SECONDS_BETWEEN_LINES:
            return
        self._told_at = monotonic()
        report = pipeline.snapshot()
        pace = report.items_per_second
        line = f"{job.name}: {report.items}"
        if job.frame_count is not None:
            line += f" of {job.frame_count}"
        line += f" frames, {job.paced(report)}"
        if job.frame_count is not None and pace > 0:
            line += f", about {timedelta(seconds=round(max(job.frame_count - report.items, 0) / pace))} left"
        self._console.print(line)

    def _tell_now_and_then(self, pipeline: Measured, tell: Callable[[dict[str, Any]], object]) -> None:
        job = self._job
        if monotonic() - self._told_at < _SECONDS_BETWEEN_TOLD:
            return
        self._told_at = monotonic()
        report = pipeline.snapshot()
        tell(
            {
                "event": "progress",
                "input": job.name,
                "frame_count": report.items,
                "expected_frame_count": job.frame_count,
                "frames_per_second": round(report.items_per_second, 2),
                **({} if job.counts is None else job.counts()),
            }
        )


class _Job(NamedTuple):
    """The job to follow where there is no terminal."""

    name: str
    frame_count: int | None
    pace: Callable[[], str] | None = None
    counts: Callable[[], dict[str, int]] | None = None

    def paced(self, report: PipelineReport) -> str:
        """The speed in a few words; "starting" until the first frame is done."""
        if self.pace is not None:
            return self.pace()
        # A GPU's first video waits for kernels to be compiled: 0.0 fps would look as if nothing happened.
        return f"{report.items_per_second:.1f} fps" if report.items else "starting"


def stage_loads(report: PipelineReport) -> str:
    """The load of each stage, for example ``decode 12% prep 4% infer 99%``."""
    return " ".join(f"{_SHORT_NAMES.get(stage.name, stage.name)} {stage.load:.0%}" for stage in report.stages)
