"""One video shared by worker processes: segments go out, stretches of packets come back and wait for their turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import TracebackType

from vitascope.errors import CorruptInputError
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.segmentation.processes.joining import join_pipeline_reports
from vitascope.segmentation.processes.messages import (
    Ask,
    CloseFilm,
    Encoded,
    Enough,
    Failed,
    FilmClosed,
    FilmJob,
    FilmOpened,
    OpenFilm,
    Progress,
    StretchDone,
    Take,
    is_encoded,
    unpack,
)
from vitascope.segmentation.processes.pool import WorkerPool, remote
from vitascope.segmentation.processes.segments import Assignment, FilmSegment, WorkSharing
from vitascope.segmentation.processes.spool import Spool

__all__ = ["SharedFilm", "Stretch"]


@dataclass(slots=True, eq=False)
class Stretch:
    """Neighbouring segments that one worker does in one go."""

    first: int
    """Number of its first segment."""
    last: int
    """Number of the last one that it was given so far."""
    spool: Spool
    message_count: int = 0
    """Messages with encoded frames so far."""
    progress: PipelineReport | None = None
    done: StretchDone | None = None


@dataclass(slots=True)
class _Desk:
    """What the run knows of one worker."""

    stretch: Stretch | None = None
    next: Assignment | None = None
    """What it begins when its stretch is done."""
    closed: FilmClosed | None = None


class SharedFilm:
    """Hands a video's segments to the workers of a pool, and gives what they encode in the order of the video.

    A context manager; one at a time for a pool, whose processes end with it when they are not done.

    Args:
        pool: Open.
        job: The video.
        segments: The plan.
        workers: How many of the pool's take part, the first ones.
        beginning: As of ``WorkSharing``.
        max_corrupt_frames: Damaged pictures that are tolerated, in all stretches together.
        tolerant: Damage ends the video where it lies, instead of the run at once.
        spool_folder: Where packets that wait for their turn may go.
    """

    def __init__(
        self,
        pool: WorkerPool,
        job: FilmJob,
        segments: Sequence[FilmSegment],
        *,
        workers: int,
        beginning: int,
        max_corrupt_frames: int,
        tolerant: bool,
        spool_folder: Path,
    ) -> None:
        self._pool = pool
        self._job = job
        self._segments = segments
        self._max_corrupt_frames = max_corrupt_frames
        self._tolerant = tolerant
        self._spool_folder = spool_folder
        # Fewer segments than workers leave some without work; these do not even open the video.
        self._desks = [_Desk() for _ in range(min(workers, len(segments)))]
        self._sharing = WorkSharing(len(segments), workers=len(self._desks), beginning=beginning)
        self._changed = threading.Condition()
        self._stretches: dict[int, Stretch] = {}
        self._failure: BaseException | None = None
        self._began_at = perf_counter()
        self._ended_at = 0.0

    def __enter__(self) -> SharedFilm:
        """Let the workers open the video."""
        self._pool.listen(self._receive)
        for number in range(len(self._desks)):
            self._pool.send(number, OpenFilm(self._job))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop what still waits; workers in the middle of something that nobody wants any more end."""
        self._pool.listen(None)
        if not self._ended_at:
            self._pool.kill()
        for stretch in self._stretches.values():
            stretch.spool.close()

    def encoded(self) -> Iterator[Encoded]:
        """What the workers encode, in the order of the video.

        Raises:
            VitascopeError: What failed in a worker.
            WorkerError: A worker ended by itself.
            CorruptInputError: The video stops being decodable; everything before was given out.
        """
        number = corrupt_count = 0
        while number < len(self._segments):
            stretch = self._wait_for(number)
            while (content := self._next_of(stretch)) is not None:
                yield unpack(content)
            assert stretch.done is not None  # its spool was ended with it
            if stretch.done.damage is not None:
                raise stretch.done.damage
            corrupt_count += stretch.done.corrupt_count
            if corrupt_count > self._max_corrupt_frames:
                raise CorruptInputError(
                    f"{self._job.video}: too much damage: {corrupt_count} frames could not be decoded "
                    f"(at most {self._max_corrupt_frames} are skipped)"
                )
            number = stretch.last + 1

    def finish(self) -> list[FilmClosed]:
        """Wait until all workers have closed the video; what each has to say.

        Raises:
            VitascopeError: As ``encoded``.
        """
        with self._changed:
            self._wait(lambda: all(desk.closed is not None for desk in self._desks))
            self._ended_at = perf_counter()
            return [desk.closed for desk in self._desks if desk.closed is not None]

    @property
    def stretches(self) -> list[Stretch]:
        """All of them so far, in the order of the video."""
        with self._changed:
            return [self._stretches[first] for first in sorted(self._stretches)]

    @property
    def worker_count(self) -> int:
        """Workers that take part."""
        return len(self._desks)

    def snapshot(self) -> PipelineReport:
        """See ``Measured``: all stretches so far, as if one pipeline had done them."""
        stretches = self.stretches
        reports = [s.done.pipeline if s.done is not None else s.progress for s in stretches]
        frames = sum(s.message_count if s.done is None else s.done.frame_count for s in stretches)
        return join_pipeline_reports(
            [report for report in reports if report is not None],
            processes=len(self._desks),
            frame_count=frames,
            wall_seconds=(self._ended_at or perf_counter()) - self._began_at,
            finished=bool(self._ended_at),
        )

    def interrupt(self) -> None:
        """End the run as Ctrl-C does, from any thread; whoever waits for it gets a ``KeyboardInterrupt``."""
        self._fail(KeyboardInterrupt())

    def _wait_for(self, number: int) -> Stretch:
        with self._changed:
            self._wait(lambda: number in self._stretches)
            return self._stretches[number]

    def _next_of(self, stretch: Stretch) -> bytes | None:
        with self._changed:
            self._wait(stretch.spool.has_news)
            return stretch.spool.take()

    def _wait(self, is_so: Callable[[], bool]) -> None:
        """Wait, with ``changed`` held; Ctrl-C ends it, and so does a failure."""
        while not is_so():
            if self._failure is not None:
                raise self._failure
            self._changed.wait(INTERRUPT_CHECK_SECONDS)

    def _receive(self, worker: int, content: bytes | None) -> None:
        """Take what a worker sent; on the thread that listens to it."""
        try:
            if content is None:
                self._fail(self._pool.loss(worker))
            elif is_encoded(content):
                self._keep(worker, content)
            else:
                with self._changed:
                    self._handle(worker, unpack(content))
                    self._changed.notify_all()
        except BaseException as error:  # it must reach the run, whatever it is
            self._fail(error)

    def _keep(self, worker: int, content: bytes) -> None:
        stretch = self._desks[worker].stretch
        if stretch is not None:
            stretch.message_count += 1
            stretch.spool.put(content)

    def _handle(self, worker: int, message: object) -> None:
        desk = self._desks[worker]
        match message:
            case FilmOpened():
                self._begin(worker, self._sharing.next_for(worker))
            case Ask():
                self._answer(worker)
            case Progress(report) if desk.stretch is not None:
                desk.stretch.progress = report
            case StretchDone() if desk.stretch is not None:
                self._end_stretch(desk.stretch, message)
                following, desk.next = desk.next, None
                self._begin(worker, following or self._sharing.next_for(worker))
            case FilmClosed():
                desk.closed = message
            case Failed():
                raise remote(message, self._pool.label(worker))

    def _begin(self, worker: int, assignment: Assignment | None) -> None:
        desk = self._desks[worker]
        desk.stretch = None
        if assignment is None:
            self._pool.send(worker, CloseFilm())
            return
        number = assignment.number
        target = self._job.outputs[0].path
        spool = Spool(self._spool_folder, target=target, changed=self._changed)
        desk.stretch = self._stretches[number] = Stretch(number, number, spool)
        self._pool.send(worker, Take(self._segments[number]))

    def _answer(self, worker: int) -> None:
        desk = self._desks[worker]
        assert desk.stretch is not None  # only who has a segment asks for its neighbour
        assignment = self._sharing.next_for(worker)
        if assignment is not None and assignment.goes_on:
            desk.stretch.last = assignment.number
            self._pool.send(worker, Take(self._segments[assignment.number]))
        else:
            desk.next = assignment
            self._pool.send(worker, Enough())

    def _end_stretch(self, stretch: Stretch, done: StretchDone) -> None:
        stretch.done = done
        stretch.spool.end()
        if done.damage is not None and not self._tolerant:
            raise done.damage

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()
