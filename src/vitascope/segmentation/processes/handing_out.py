"""One video shared by some who make its stretches: who is free gets the next one, and their files come in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from time import perf_counter
from types import TracebackType
from typing import Any

from vitascope.device import peak_memory_bytes
from vitascope.errors import CorruptInputError, InputError, UsageError, VitascopeError, WorkerError
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.segmentation.processes.joining import join_pipeline_reports
from vitascope.segmentation.processes.kept_stretches import KeptStretches
from vitascope.segmentation.processes.port import (
    FilmOrder,
    MakerGoneError,
    StretchMade,
    StretchMakers,
    StretchOrder,
    StretchProgress,
)
from vitascope.segmentation.processes.stretch_file import StretchFile
from vitascope.segmentation.processes.stretches import FilmStretch
from vitascope.segmentation.processes.work_folder import WorkFolder

__all__ = ["SharedFilm"]

_MOST_TRIES = 2
_OF_THE_FILM = frozenset({UsageError.exit_code, InputError.exit_code})
"""Exit codes of errors that would only come again."""


@dataclass(slots=True)
class _Stretch:
    """What the run knows of one stretch."""

    plan: FilmStretch
    order: StretchOrder
    file: StretchFile
    is_there: bool = False
    made: StretchMade | None = None
    """What it cost; None where an earlier run made it."""
    maker: int = -1
    """Who made it."""
    progress: StretchProgress | None = None
    """While somebody makes it."""
    failed_with: list[int] = field(default_factory=list)
    """Who could not make it."""


class SharedFilm:
    """Hands a video's stretches to makers, again where one fails, and gives their files in the order of the video.

    A context manager; one at a time for some makers, who are ended with it when they are not done.

    Args:
        makers: Open.
        film: The video.
        plan: Its stretches.
        folder: Where their files go; those that are there already are used as they are.
        made_by: What makes a stretch.
        kept: Stretches of earlier runs, for this one and later ones; None keeps none.
        max_corrupt_frames: Damaged pictures that are tolerated, in all stretches together.
        tolerant: Damage ends the video where it lies, instead of the run at once.
    """

    def __init__(
        self,
        makers: StretchMakers,
        film: FilmOrder,
        plan: Sequence[FilmStretch],
        *,
        folder: WorkFolder,
        made_by: Callable[[FilmStretch], Mapping[str, Any]],
        kept: KeptStretches | None = None,
        max_corrupt_frames: int,
        tolerant: bool,
    ) -> None:
        self._makers = makers
        self._video = film.video
        self._max_corrupt_frames = max_corrupt_frames
        self._tolerant = tolerant
        self._kept = kept
        self._stretches = []
        for stretch in plan:
            path = folder.file_of(stretch.number)
            order = StretchOrder(film, stretch, path, made_by(stretch))
            file = StretchFile(path)
            is_there = path.exists() and file.is_whole(made_by=order.made_by)
            if not is_there and kept is not None:
                is_there = kept.take(order.made_by, path) and file.is_whole(made_by=order.made_by)
            self._stretches.append(_Stretch(stretch, order, file, is_there))
        self.found_count = sum(stretch.is_there for stretch in self._stretches)
        """Stretches that an earlier run made."""
        self._waiting = [stretch for stretch in self._stretches if not stretch.is_there]
        # Who would get nothing does not even open the video.
        self._threads = [
            threading.Thread(
                target=self._work, args=(number,), name=f"vitascope-stretches-{number}", daemon=True
            )
            for number in range(min(len(makers), len(self._waiting)))
        ]
        self.maker_count = len(self._threads)
        """How many take part."""
        self._at_work = self.maker_count
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._last_loss: WorkerError = WorkerError(f"{film.video}: nobody is left to work on it")
        self._is_over = False
        self._began_at = perf_counter()
        self._ended_at = 0.0

    def __enter__(self) -> SharedFilm:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Makers in the middle of something that nobody wants any more end."""
        with self._changed:
            self._is_over = True
            is_done = not self._at_work
            self._changed.notify_all()
        if not is_done:
            self._makers.kill()
        for thread in self._threads:
            thread.join()

    def files(self) -> Iterator[StretchFile]:
        """The file of each stretch, in the order of the video, as soon as it is there.

        Raises:
            VitascopeError: Why a stretch could not be made.
            CorruptInputError: The video stops being decodable; everything before was given out.
        """
        corrupt_count = 0
        for stretch in self._stretches:
            self._wait(partial(attrgetter("is_there"), stretch))
            yield stretch.file
            if stretch.made is not None and stretch.made.damage is not None:
                raise stretch.made.damage
            assert stretch.file.summary is not None  # read by whoever joined it
            corrupt_count += stretch.file.summary.corrupt_count
            if corrupt_count > self._max_corrupt_frames:
                raise CorruptInputError(
                    f"{self._video}: too much damage: {corrupt_count} frames could not be decoded "
                    f"(at most {self._max_corrupt_frames} are skipped)"
                )
        self._wait(lambda: not self._at_work)
        self._ended_at = perf_counter()

    @property
    def made(self) -> list[StretchMade]:
        """What each stretch that was made in this run cost, in the order of the video."""
        return [stretch.made for stretch in self._stretches if stretch.made is not None]

    def peak_memory_bytes(self) -> int | None:
        """Memory of this process and of all makers, as if each had its most at the same time; None if not known."""
        peaks: dict[int, int | None] = {-1: peak_memory_bytes()}
        for stretch in self._stretches:
            if stretch.made is not None:
                peaks[stretch.maker] = stretch.made.peak_memory_bytes  # it only grows
        known = [peak for peak in peaks.values() if peak is not None]
        return sum(known) if len(known) == len(peaks) else None

    def snapshot(self) -> PipelineReport:
        """See ``Measured``: all stretches so far, as if one pipeline had done them."""
        reports, frames = [], 0
        for stretch in self._stretches:
            if (measured := stretch.made or stretch.progress) is not None:
                reports.append(measured.pipeline)
                frames += measured.frame_count
            elif stretch.is_there and stretch.file.summary is not None:
                frames += stretch.file.summary.frame_count
        return join_pipeline_reports(
            reports,
            processes=self.maker_count,
            frame_count=frames,
            wall_seconds=(self._ended_at or perf_counter()) - self._began_at,
            finished=bool(self._ended_at),
        )

    def interrupt(self) -> None:
        """End the run as Ctrl-C does, from any thread; whoever waits for it gets a ``KeyboardInterrupt``."""
        self._fail(KeyboardInterrupt())

    def _wait(self, is_so: Callable[[], bool]) -> None:
        """Wait; Ctrl-C ends it, and so does a failure."""
        with self._changed:
            while not is_so():
                if self._failure is not None:
                    raise self._failure
                self._changed.wait(INTERRUPT_CHECK_SECONDS)

    def _work(self, number: int) -> None:
        """Let one maker make stretches until there are no more; on a thread of its own."""
        failures = 0
        try:
            while (stretch := self._next_for(number)) is not None:
                failures = 0 if self._make(number, stretch) else failures + 1
                if failures == _MOST_TRIES and self._at_work > 1:  # better without it
                    break
        except MakerGoneError as error:
            self._last_loss = error
        except BaseException as error:  # it must reach the run, whatever it is
            self._fail(error)
        finally:
            with self._changed:
                self._at_work -= 1
                nobody_is_left = not self._at_work and any(
                    not stretch.is_there for stretch in self._stretches
                )
                self._changed.notify_all()
            if nobody_is_left:
                self._fail(self._last_loss)

    def _next_for(self, number: int) -> _Stretch | None:
        """The first stretch that waits; one that this maker failed with rather goes to another."""
        with self._changed:
            while not self._is_over and self._failure is None:
                for stretch in self._waiting:
                    if number not in stretch.failed_with or self._at_work == 1:
                        self._waiting.remove(stretch)
                        return stretch
                if all(stretch.is_there for stretch in self._stretches):  # else one in hand may come back
                    return None
                self._changed.wait(INTERRUPT_CHECK_SECONDS)
        return None

    def _make(self, number: int, stretch: _Stretch) -> bool:
        """Let a maker make a stretch; False where another one shall try.

        Raises:
            VitascopeError: It cannot be made.
        """

        def tell(progress: StretchProgress) -> None:
            stretch.progress = progress

        try:
            made = self._makers.make(number, stretch.order, tell=tell)
        except MakerGoneError:
            with self._changed:
                self._waiting.insert(0, stretch)
            raise
        except VitascopeError as error:
            with self._changed:
                stretch.progress = None
                stretch.failed_with.append(number)
                if (
                    self._is_over
                    or len(stretch.failed_with) >= _MOST_TRIES
                    or error.exit_code in _OF_THE_FILM
                ):
                    if len(stretch.failed_with) >= _MOST_TRIES:
                        error.add_note(f"stretch {stretch.plan.number} failed twice")
                    raise
                self._waiting.insert(0, stretch)
                self._changed.notify_all()
            return False
        if self._kept is not None and made.damage is None:
            self._kept.keep(stretch.order.made_by, stretch.order.file)
        with self._changed:
            stretch.made, stretch.maker, stretch.is_there, stretch.progress = made, number, True, None
            self._changed.notify_all()
        if made.damage is not None and not self._tolerant:
            raise made.damage
        return True

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None and not self._is_over:
                self._failure = error
            self._changed.notify_all()
