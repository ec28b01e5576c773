"""The studio's job queue, on its own thread: searches for people, cuts, animated portraits.

Jobs survive a restart. A job runs the command's function (``find_people``, ``Segmenter.write`` or ``animate_file``)
with the video's corrections at its start. Stretches and mattes are kept on disk, so a second cut of a video makes
only the stretches that a correction changes, without running the network for them.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vitascope.animation.offline import animate_file
from vitascope.config import OutputKind, PlayerName, Settings, SettingsSource
from vitascope.errors import OutputError, UsageError, VitascopeError, let_go, one_line
from vitascope.file_lock import exclusive_lock, write_atomically
from vitascope.gpu.pipeline.report import Interruptible
from vitascope.media.reading.discovery import FoundVideo
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import Started
from vitascope.segmentation.people.scan import find_people
from vitascope.segmentation.plan import PlannedVideo, plan_outputs, refuse_clashes
from vitascope.segmentation.segmenter import Segmenter
from vitascope.studio.corrections import read_corrections
from vitascope.studio.previews import settings_of
from vitascope.vr.file_names import without_vr_words

_MOST_JOBS = 200
"""Number of finished jobs kept; beyond it the oldest are dropped."""
_SUFFIXES: Final[dict[str, str]] = {"alpha": ".mov"}
"""Suffixes of cuts other than ``.mp4``."""

State = Literal["waiting", "running", "done", "failed", "stopped"]


class QueueFullError(UsageError):
    """The queue is full: no further job can wait."""


class NoSuchJobError(UsageError):
    """A job that never existed, or was removed from the list."""


class _Kept(BaseModel):
    # JSON has no infinite numbers: the list of jobs could not be sent, nor read after a restart.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Order(_Kept):
    """A request for a job."""

    task: Literal["people", "cut", "animate"]
    kind: OutputKind = "key"
    player: PlayerName | None = None
    """The headset player that packed alpha is made for."""
    background: Path | None = None
    key_color: str | None = None
    begin_seconds: float = 0.0
    end_seconds: float | None = None
    portrait: Path | None = None
    """The portrait."""
    expression: Annotated[float, Field(ge=0, le=4)] = 1.0
    pose: Annotated[float, Field(ge=0, le=4)] = 1.0


class Job(_Kept):
    """A job, from the queue to its result."""

    id: str
    film: Path
    order: Order
    state: State = "waiting"
    made: tuple[Path, ...] = ()
    said: tuple[str, ...] = ()
    """The run's notes."""
    error: str | None = None
    added_at: float = 0.0
    """Seconds since 1970."""

    @property
    def is_over(self) -> bool:
        """True if the job has ended."""
        return self.state in ("done", "failed", "stopped")


class _File(_Kept):
    format: Literal[1] = 1
    jobs: tuple[Job, ...] = ()


class Progress(BaseModel):
    """Progress of the running job."""

    frames: int = 0
    of_frames: int | None = None
    frames_per_second: float = 0.0
    loads: tuple[tuple[str, float], ...] = ()
    """The load of each stage, 0 to 1."""
    limit: str | None = None
    """The stage that sets the pace and the reason, in a sentence."""
    is_scan: bool = False
    fetching: str | None = None
    """The network being downloaded, with its progress."""


class Queue:
    """Jobs in the order in which they were added.

    Args:
        path: File of the queue.
        source: Settings of the studio.
        store: The store of networks.
        may_use: True for a video in a given folder; jobs for others wait.
        on_news: Called after any change, from any thread.

    Raises:
        OutputError: The file cannot be read, is not a queue, or is in use by another studio.
    """

    def __init__(
        self,
        path: Path,
        source: SettingsSource,
        *,
        store: ModelStore,
        may_use: Callable[[Path], bool],
        on_news: Callable[[], object],
    ) -> None:
        self._path, self._source, self._store = path, source, store
        self._may_use, self._on_news = may_use, on_news
        self._changed = threading.Condition()
        self._held = ExitStack()
        self._hold()
        try:
            self._jobs = _read(path)
        except BaseException:
            self._held.close()
            raise
        self._pipeline: Interruptible | None = None
        self._started: Started | None = None
        self._fetching: str | None = None
        self._stopping: str | None = None
        self._is_over = False
        self.problem: str | None = None
        """Why the queue would be lost if the program ended now."""
        self._thread = threading.Thread(target=self._work, name="vitascope-jobs", daemon=True)

    def start(self) -> None:
        """Start the first waiting job."""
        self._thread.start()

    def close(self) -> None:
        """Stop the running job, which starts again next time."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            if self._pipeline is not None:
                self._pipeline.interrupt()
        if self._thread.is_alive():
            self._thread.join()
        self._held.close()

    def jobs(self) -> list[Job]:
        """All jobs, the oldest first."""
        with self._changed:
            return list(self._jobs)

    def find(self, job_id: str) -> Job:
        """Find a job.

        Raises:
            NoSuchJobError: It does not exist.
        """
        with self._changed:
            for job in self._jobs:
                if job.id == job_id:
                    return job
        raise NoSuchJobError("there is no such job")

    def add(self, film: Path, order: Order) -> Job:
        """Append a job.

        Raises:
            OutputError: The queue cannot be saved.
            QueueFullError: No further job can wait.
        """
        job = Job(id=secrets.token_hex(8), film=film, order=order, added_at=time.time())
        with self._changed:
            over = [one for one in self._jobs if one.is_over]
            if len(self._jobs) - len(over) >= _MOST_JOBS:
                raise QueueFullError(f"{_MOST_JOBS} jobs are waiting already; try again later")
            if len(self._jobs) >= _MOST_JOBS:
                self._jobs.remove(over[0])
            self._jobs.append(job)
            self._keep()
            if self.problem is not None:
                self._jobs.remove(job)
                raise OutputError(self.problem)
            self._changed.notify_all()
        self._on_news()
        return job

    def stop(self, job_id: str) -> None:
        """Stop the running job, or remove a waiting or finished one from the list; its files stay.

        Raises:
            NoSuchJobError: It does not exist.
        """
        job = self.find(job_id)
        with self._changed:
            if job.state == "running":
                self._stopping = job.id
                if self._pipeline is not None:
                    self._pipeline.interrupt()
            elif job in self._jobs:
                self._jobs.remove(job)
                self._keep()
        self._on_news()

    def progress(self) -> Progress | None:
        """Progress of the running job; None if no job is running."""
        started = self._started
        if started is None:
            return None if self._fetching is None else Progress(fetching=self._fetching)
        report = started.pipeline.snapshot()
        return Progress(
            frames=report.items,
            of_frames=started.expected_frame_count,
            frames_per_second=report.items_per_second,
            loads=tuple((stage.name, stage.load) for stage in report.stages),
            limit=None if report.bottleneck is None else report.bottleneck.evidence,
            is_scan=started.is_scan,
            fetching=self._fetching,
        )

    def _hold(self) -> None:
        """Lock the queue: two studios running its jobs would both write their results."""

        def refuse() -> None:
            raise OutputError(
                f"{self._path}: another studio is using this queue; quit it, or give this one its own VITASCOPE_HOME"
            )

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(exclusive_lock(self._path.with_suffix(".lock"), on_wait=refuse))
        except OSError as error:
            raise OutputError(
                f"{self._path}: the queue cannot be saved: {error.strerror or error}"
            ) from error

    def _work(self) -> None:
        while True:
            job = self._begin()
            if job is None:
                return
            self._on_news()
            self._run(job)
            with self._changed:
                self._pipeline = self._started = self._fetching = None
                if job.state == "stopped" and self._stopping != job.id:
                    job.state = "waiting"  # only the end of the program stopped it
                self._stopping = None
                self._keep()
            self._on_news()

    def _begin(self) -> Job | None:
        """The next job, waiting for one if necessary; None when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._next() is not None)
            job = None if self._is_over else self._next()
            if job is not None:
                job.state = "running"
                self._keep()
            return job

    def _next(self) -> Job | None:
        return next((job for job in self._jobs if job.state == "waiting" and self._may_use(job.film)), None)

    def _run(self, job: Job) -> None:
        try:
            {"people": self._look, "cut": self._cut, "animate": self._animate}[job.order.task](job)
            job.state = "done"
        except KeyboardInterrupt:  # the pipeline was interrupted
            job.state = "stopped"
        except (VitascopeError, MemoryError) as error:
            let_go(error)
            job.state = "failed"
            job.error = one_line(error) if isinstance(error, VitascopeError) else f"out of memory: {error}"
        except Exception as error:  # a bug, which must not affect the following jobs
            logging.getLogger(__name__).exception("job %s of %s failed", job.id, job.film)
            job.state, job.error = "failed", f"an internal error: {type(error).__name__}: {error}"

    def _look(self, job: Job) -> None:
        loaded = self._source.load()
        table = find_people(
            job.film, loaded, store=self._store, fetch_progress=self._fetched, on_start=self._has_started
        )
        job.said = table.facts.notes

    def _cut(self, job: Job) -> None:
        order = job.order
        values: dict[str, Any] = {
            "output.kinds": [order.kind],
            "video.start_seconds": order.begin_seconds,
            "video.end_seconds": order.end_seconds,
            "processing.enable_caching": True,
        }
        if order.background is not None:
            values["output.background"] = order.background
        if order.key_color is not None:
            values["output.key_color"] = order.key_color
        if order.kind == "packed-alpha":
            values["output.player"] = order.player or "heresphere"
        loaded = settings_of(self._source, read_corrections(job.film), job.film, values)
        planned = self._planned(job, loaded.settings)
        refuse_clashes([planned], settings=loaded.settings)
        with Segmenter(loaded=loaded, store=self._store, fetch_progress=self._fetched) as segmenter:
            report = segmenter.write(
                planned.video, planned.outputs, on_start=self._has_started, in_stretches=True
            )
        job.made = tuple(output.path for output in report.outputs)
        levers = [] if report.levers is None else report.levers.lines(report.frame_count)
        job.said = (*levers, *report.notes)

    def _animate(self, job: Job) -> None:
        order = job.order
        assert order.portrait is not None  # required when the job is added
        values = {
            "animation.expression": order.expression,
            "animation.pose": order.pose,
            "video.start_seconds": order.begin_seconds,
            "video.end_seconds": order.end_seconds,
        }
        portrait, driver = order.portrait, job.film
        report = animate_file(
            portrait,
            driver,
            self._free(portrait.with_name(f"{portrait.stem}_{driver.stem}.mp4")),
            loaded=self._source.load(values, chosen_by="vitascope studio"),
            store=self._store,
            on_start=self._has_started,
            fetch_progress=self._fetched,
        )
        job.made = tuple(file.path for file in report.files)
        job.said = report.notes

    def _planned(self, job: Job, settings: Settings) -> PlannedVideo:
        """Name a cut: it goes beside its video, under a free name."""
        film, kind = job.film, job.order.kind

        def plan(name: str, out: str | Path) -> PlannedVideo:
            found = [FoundVideo(film, Path(name))]
            output = settings.output
            (planned,) = plan_outputs(found, out, output.kinds, codec=output.codec, settings=settings)
            return planned

        if kind != "packed-alpha":
            free = self._free(film.with_name(f"{film.stem}_{kind}{_SUFFIXES.get(kind, '.mp4')}"))
            return plan(film.name, free)
        # A player's own name needs a folder and is derived from the video's, so the number goes before the player's
        # words.
        taken = {path for one in self.jobs() for path in one.made}
        plain = without_vr_words(film.stem)
        names = chain([film.name], (f"{plain}_{number}{film.suffix}" for number in count(2)))
        plans = (plan(name, f"{film.parent}/") for name in names)
        return next(
            one for one in plans if not one.existing() and taken.isdisjoint(path for _, path in one.outputs)
        )

    def _free(self, wanted: Path) -> Path:
        """An unused name, as similar to this one as possible."""
        taken = {path for one in self.jobs() for path in one.made}
        names = (
            wanted.with_stem(wanted.stem + ending) for ending in chain([""], map("_{}".format, count(2)))
        )
        return next(path for path in names if not path.exists() and path not in taken)

    def _has_started(self, started: Started) -> None:
        with self._changed:
            self._started, self._pipeline = started, started.pipeline
            self._fetching = None
            is_unwanted = self._is_over or self._stopping is not None
        if is_unwanted:
            started.pipeline.interrupt()
        self._on_news()

    def _fetched(self, model: str, done_bytes: int, total_bytes: int) -> None:
        is_there = done_bytes >= total_bytes
        self._fetching = (
            None
            if is_there
            else f"{model}: {done_bytes / max(total_bytes, 1):.0%} of {total_bytes // 10**6} MB"
        )

    def _keep(self) -> None:
        """Save the queue; after a crash, a running job counts as waiting."""
        content = _File(jobs=tuple(self._jobs)).model_dump_json(indent=1)
        try:
            write_atomically(self._path, content.encode())
            self.problem = None
        except OSError as error:
            self.problem = f"{self._path}: the queue cannot be saved: {error.strerror or error}"


def _read(path: Path) -> list[Job]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise OutputError(f"{path}: the queue cannot be read: {error.strerror or error}") from error
    try:
        jobs = list(_File.model_validate_json(content).jobs)
    except ValidationError as error:
        raise OutputError(
            f"{path}: is not a queue of this version of Vitascope; move it away to start with an empty one"
        ) from error
    for job in jobs:
        if job.state == "running":
            job.state = "waiting"
    return jobs
