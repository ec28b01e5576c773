"""A queue of videos for several makers: longest first, short ones whole, many at a time."""

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
from vitascope.segmentation.film_run import Started
from vitascope.segmentation.plan import PlannedVideo, wanted_seconds
from vitascope.segmentation.processes.film_joiner import join_pipeline_reports
from vitascope.segmentation.processes.hands import Hands, Piece, PlaceCounts
from vitascope.segmentation.processes.port import StretchProgress, WholeFilm
from vitascope.segmentation.report import SegmentReport

_SHARED_AT_ONCE = 16
"""Most videos whose files are open here at a time."""

WriteFilm = Callable[[Hands, PlannedVideo, int, Callable[[Started], object]], SegmentReport]
"""Writes a video whose stretches the hands make: told its rank, and whom to tell when it begins."""


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
    """Expected; None where it does not say."""
    work: float
    """Pixels of all its frames; without end where that is not known."""
    gpu_bytes: int
    """Memory without which a GPU need not begin it."""
    rank: int = 0
    """Position in the queue."""
    measured: Interruptible | None = None
    """While its stretches are made."""
    progress: StretchProgress | None = None
    """While it is made whole."""


class FilmQueue:
    """Makes videos with all makers, until each is done or has failed.

    Videos of several stretches are begun when there is less to do than hands, so few are open at a time; videos of one
    stretch go to one maker whole, which reads and writes the files itself.

    Args:
        hands: Who works.
        planned: The videos.
        stretch_count: Told frames; how many stretches so many are.
        gpu_bytes: Told height and width, and bytes of a sample; memory without which a GPU need not begin.
        write: Writes a video of several stretches.
        trim: Which part of each video is wanted.
        resume: Take stretches that earlier runs left.
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
        """Expected frames of all videos; None where one does not say."""
        self.places: dict[str, PlaceCounts] = hands.counts
        """What was done, by place."""

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
            on_start: Called as each begins, from this thread.

        Raises:
            KeyboardInterrupt: ``interrupt``.
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
        """See ``Measured``: all videos so far."""
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
        """A video to begin, where hands may soon have nothing to do: for whom all that waits is too large, a smaller.

        Returns:
            None while all have something.
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
        """Let one maker make a video whole."""
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
        """Write a video whose stretches all make, on a thread of its own."""
        is_opening = True

        def started(event: Started) -> None:
            nonlocal is_opening
            film.measured = event.pipeline
            if self._is_over:  # it ended while this one was being opened
                event.pipeline.interrupt()
            self._opening -= is_opening
            is_opening = False
            self._events.put(lambda: _told(on_start, film.planned, event))

        try:
            report = self._write(self._hands, film.planned, film.rank, started)
        except BaseException as error:  # it must reach the run, whatever it is
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
    """How much there is to do for a video, by what its headers say.

    Raises:
        InputError: It cannot be opened.
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
    if size is None:  # images, of which one is decoded soon
        first = probe(planned.video)
        size, sample_bytes = (first.height, first.width), first.format.dtype.itemsize
    return _Film(planned, count, float(count * prod(size)), gpu_bytes(size, sample_bytes))
