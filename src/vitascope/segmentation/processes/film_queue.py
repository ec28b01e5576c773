"""A queue of videos for several makers: longest first, short ones whole."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod
from queue import Empty, SimpleQueue

from vitascope.config import VideoSettings
from vitascope.errors import InputError, VitascopeError, let_go
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS
from vitascope.gpu.pipeline.report import Interruptible, PipelineReport
from vitascope.media.reading.reader import probe, read_headers
from vitascope.observe.report_values import Started
from vitascope.segmentation.plan import PlannedVideo, wanted_seconds
from vitascope.segmentation.processes.film_joiner import join_pipeline_reports
from vitascope.segmentation.processes.hands import Hands, Piece, PlaceCounts
from vitascope.segmentation.processes.port import StretchProgress, WholeFilm
from vitascope.segmentation.report import SegmentReport

_SHARED_AT_ONCE = 16
"""Maximum number of videos whose files are open here at the same time."""

WriteFilm = Callable[[Hands, PlannedVideo, int, Callable[[Started], object]], SegmentReport]
"""Writes a video from stretches; gets the hands, the video, its rank and the function to call when it begins."""


@dataclass(frozen=True, slots=True)
class FilmEnded:
    """The outcome of a video: either a report or an error."""

    planned: PlannedVideo
    report: SegmentReport | None = None
    error: VitascopeError | None = None


@dataclass(slots=True, eq=False)
class _Film:
    """A video of the queue."""

    planned: PlannedVideo
    frame_count: int | None
    """Expected frames; None if unknown."""
    work: float
    """Pixels of all frames; infinite if unknown."""
    gpu_bytes: int
    """GPU memory that a maker must have."""
    rank: int = 0
    """Position in the queue."""
    measured: Interruptible | None = None
    """Set while its stretches are made."""
    progress: StretchProgress | None = None
    """Set while it is made whole."""


class FilmQueue:
    """Makes videos with all makers, until each is done or has failed.

    A video of several stretches is begun when there is less work than makers, so few are open at a time. A video of
    one stretch goes whole to one maker, which reads and writes the files itself.

    Args:
        hands: Distributes the work among makers.
        planned: The videos.
        stretch_count: Returns the number of stretches for a number of frames.
        gpu_bytes: Returns the GPU memory that a maker must have, given (height, width) and bytes per sample.
        write: Writes a video of several stretches.
        trim: The requested part of each video.
        resume: Use stretches that earlier runs left.
    """

    def __init__(
        self,
        hands: Hands,
        planned: Sequence[PlannedVideo],
        *,
        stretch_count: Callable[[int], int],
        gpu_bytes: Callable[[tuple[int, int], int], int] = lambda *_: 0,
        write: WriteFilm,
        trim: VideoSettings,
        resume: bool,
    ) -> None:
        self._hands, self._stretch_count, self._write, self._resume = hands, stretch_count, write, resume
        self._events: SimpleQueue[Callable[[], FilmEnded | None]] = SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}
        self._opening = 0
        self._running: dict[int, _Film] = {}
        self._frames_done = 0
        self._interrupted = threading.Event()
        self._is_over = False
        self.done_count = self.failed_count = 0
        self.video_count = len(planned)
        self._unreadable: list[FilmEnded] = []
        films = []
        for one in planned:
            try:
                films.append(_weighed(one, trim, gpu_bytes))
            except InputError as error:
                let_go(error)
                self._unreadable.append(FilmEnded(one, error=error))
        films.sort(key=lambda film: -film.work)
        for rank, film in enumerate(films):
            film.rank = rank
        self._waiting = deque(films)
        self._waiting_needs = Counter(film.gpu_bytes for film in films)
        counts = [film.frame_count for film in films]
        self.frame_count = None if None in counts else sum(count for count in counts if count is not None)
        """Expected frames of all videos; None if one is unknown."""
        self.places: dict[str, PlaceCounts] = hands.counts
        """Counts of the work done, by place."""

    @property
    def waiting_count(self) -> int:
        """Videos not started yet."""
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Videos in progress."""
        return len(self._running)

    def counts(self) -> dict[str, int]:
        """Number of videos by state."""
        return {
            "videos": self.video_count,
            "videos_done": self.done_count,
            "videos_failed": self.failed_count,
            "videos_running": self.running_count,
        }

    def pace(self) -> str:
        """Progress and speed, in a few words."""
        return (
            f"{self.done_count + self.failed_count}/{self.video_count} videos, "
            f"{self.snapshot().items_per_second:.1f} fps"
        )

    def run(self, on_start: Callable[[PlannedVideo, Started], object]) -> Iterator[FilmEnded]:
        """Make all videos; yields the outcome of each as it ends.

        Args:
            on_start: Called as each video begins, from this thread.

        Raises:
            KeyboardInterrupt: ``interrupt`` was called.
        """
        for ended in self._unreadable:
            self.failed_count += 1
            yield ended
        try:
            while self._waiting or self._running:
                while (film := self._next_film()) is not None:
                    self._begin(film, on_start)
                try:
                    ended_now = self._events.get(timeout=INTERRUPT_CHECK_SECONDS)()
                except Empty:
                    continue
                finally:
                    if self._interrupted.is_set():
                        raise KeyboardInterrupt
                if ended_now is not None:
                    yield ended_now
        finally:
            self._is_over = True
            for film in list(self._running.values()):
                if film.measured is not None:
                    film.measured.interrupt()
            for thread in list(self._threads.values()):
                thread.join()

    def interrupt(self) -> None:
        """End the run as Ctrl-C does, from any thread."""
        self._interrupted.set()

    def snapshot(self) -> PipelineReport:
        """See ``Measured``: the progress of all videos."""
        frames = self._frames_done
        for film in list(self._running.values()):
            if film.measured is not None:
                frames += film.measured.snapshot().items
            elif (progress := film.progress) is not None:
                frames += progress.frame_count
        return join_pipeline_reports(
            (),
            processes=len(self._hands),
            frame_count=frames,
            wall_seconds=self._hands.seconds,
            finished=False,
        )

    def _next_film(self) -> _Film | None:
        """The next video to begin, if makers may soon be idle; a smaller one if the first is too large for them.

        Returns:
            None while all makers have work.
        """
        hands = self._hands
        if not self._waiting or self._opening or len(self._threads) >= _SHARED_AT_ONCE:
            return None
        film = self._waiting[0]
        if hands.waiting_count >= len(hands):
            room = hands.idle_room()
            if not room or min(self._waiting_needs) > room:
                return None
            film = next(film for film in self._waiting if film.gpu_bytes <= room)
        self._waiting.remove(film)
        self._waiting_needs -= Counter([film.gpu_bytes])
        return film

    def _begin(self, film: _Film, on_start: Callable[[PlannedVideo, Started], object]) -> None:
        self._running[film.rank] = film
        if film.frame_count is not None and self._stretch_count(film.frame_count) == 1:
            self._hand_in(film, on_start)
            return
        self._opening += 1
        thread = threading.Thread(
            target=self._share, args=(film, on_start), name=f"vitascope-film-{film.rank}", daemon=True
        )
        self._threads[film.rank] = thread
        thread.start()

    def _hand_in(self, film: _Film, on_start: Callable[[PlannedVideo, Started], object]) -> None:
        """Let one maker make a whole video."""
        planned, makers = film.planned, self._hands.makers
        there = replace(
            planned,
            video=planned.video.absolute(),
            outputs=tuple((kind, path.absolute()) for kind, path in planned.outputs),
            preview=None if planned.preview is None else planned.preview.absolute(),
        )
        order = WholeFilm(there, self._resume)
        has_begun = False

        def do(number: int) -> int:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                self._events.put(lambda: _told(on_start, planned, Started(self, film.frame_count)))
            film.progress = None
            report = makers.make_film(number, order, tell=partial(setattr, film, "progress"))
            if small := self._hands.notes_on(planned.video.name, film.gpu_bytes):
                report = replace(report, notes=(*report.notes, *small))
            self._end(film, report)
            return report.frame_count

        self._hands.hand_in(
            [
                Piece(
                    planned.video.name,
                    (film.rank, 0),
                    do,
                    partial(self._fail, film),
                    makers.interrupt,
                    film.gpu_bytes,
                )
            ]
        )

    def _share(self, film: _Film, on_start: Callable[[PlannedVideo, Started], object]) -> None:
        """Write a video from the stretches of all makers, on its own thread."""
        is_opening = True

        def started(event: Started) -> None:
            nonlocal is_opening
            film.measured = event.pipeline
            if self._is_over:  # it ended while this video was being opened
                event.pipeline.interrupt()
            self._opening -= is_opening
            is_opening = False
            self._events.put(lambda: _told(on_start, film.planned, event))

        try:
            report = self._write(self._hands, film.planned, film.rank, started)
        except BaseException as error:  # any error must reach the run
            self._opening -= is_opening
            self._fail(film, error)
        else:
            self._end(film, report)

    def _end(self, film: _Film, report: SegmentReport) -> None:
        def tell() -> FilmEnded:
            self._forget(film)
            self._frames_done += report.frame_count
            self.done_count += 1
            return FilmEnded(film.planned, report)

        self._events.put(tell)

    def _fail(self, film: _Film, error: BaseException) -> None:
        def tell() -> FilmEnded:
            self._forget(film)
            self.failed_count += 1
            if not isinstance(error, VitascopeError):
                raise error
            let_go(error)
            return FilmEnded(film.planned, error=error)

        self._events.put(tell)

    def _forget(self, film: _Film) -> None:
        del self._running[film.rank]
        thread = self._threads.pop(film.rank, None)
        if thread is not None:
            thread.join()


def _told(on_start: Callable[[PlannedVideo, Started], object], planned: PlannedVideo, event: Started) -> None:
    on_start(planned, event)


def _weighed(
    planned: PlannedVideo, trim: VideoSettings, gpu_bytes: Callable[[tuple[int, int], int], int]
) -> _Film:
    """Estimate the work for a video from its headers.

    Raises:
        InputError: The video cannot be opened.
    """
    headers = read_headers(planned.video)
    count = headers.frame_count_estimate
    if count is None:
        needed = 0 if headers.size is None else gpu_bytes(headers.size, headers.sample_bytes)
        return _Film(planned, None, inf, needed)
    if headers.duration_seconds:
        share = max(wanted_seconds(headers.duration_seconds, trim), 0) / headers.duration_seconds
        count = round(count * min(share, 1))
    size, sample_bytes = headers.size, headers.sample_bytes
    if size is None:  # images; the first is decoded soon
        first = probe(planned.video)
        size, sample_bytes = (first.height, first.width), first.format.dtype.itemsize
    return _Film(planned, count, float(count * prod(size)), gpu_bytes(size, sample_bytes))
