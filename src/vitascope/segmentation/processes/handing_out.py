"""One video shared by some who make its stretches: they are handed in, and their files come in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from time import perf_counter
from types import TracebackType
from typing import Any

from vitascope.device import peak_memory_bytes
from vitascope.errors import CorruptInputError, VitascopeError
from vitascope.gpu.pipeline.queues import INTERRUPT_CHECK_SECONDS
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.segmentation.processes.hands import Hands, Piece
from vitascope.segmentation.processes.joining import join_pipeline_reports
from vitascope.segmentation.processes.kept_stretches import KeptStretches
from vitascope.segmentation.processes.port import FilmOrder, StretchMade, StretchOrder, StretchProgress
from vitascope.segmentation.processes.stretch_file import StretchFile
from vitascope.segmentation.processes.stretches import FilmStretch
from vitascope.segmentation.processes.work_folder import WorkFolder


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


class SharedFilm:
    """Hands a video's stretches in, and gives their files in the order of the video. A context manager.

    Args:
        hands: Let makers make them.
        film: The video.
        plan: Its stretches.
        folder: Where their files go; those that are there already are used as they are.
        made_by: What makes a stretch.
        kept: Stretches of earlier runs, for this one and later ones; None keeps none.
        max_corrupt_frames: Damaged pictures that are tolerated, in all stretches together.
        tolerant: Damage ends the video where it lies, instead of the run at once.
        rank: Place among several videos; the smallest comes first.
        gpu_bytes: Memory without which a GPU need not begin a stretch.
    """

    def __init__(
        self,
        hands: Hands,
        film: FilmOrder,
        plan: Sequence[FilmStretch],
        *,
        folder: WorkFolder,
        made_by: Callable[[FilmStretch], Mapping[str, Any]],
        kept: KeptStretches | None = None,
        max_corrupt_frames: int,
        tolerant: bool,
        rank: int = 0,
        gpu_bytes: int = 0,
    ) -> None:
        self._hands = hands
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
        waiting = [stretch for stretch in self._stretches if not stretch.is_there]
        self._pieces = [
            Piece(
                f"stretch {stretch.plan.number}",
                (rank, stretch.plan.number),
                partial(self._make, stretch),
                self._fail,
                hands.makers.drop,
                gpu_bytes,
            )
            for stretch in waiting
        ]
        self.maker_count = min(hands.count_for(gpu_bytes), len(waiting))
        """How many take part."""
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._is_over = False
        self._began_at = perf_counter()
        self._ended_at = 0.0

    def __enter__(self) -> SharedFilm:
        """Begin."""
        self._hands.hand_in(self._pieces)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Makers in the middle of something that nobody wants any more end."""
        self._is_over = True
        self._hands.withdraw(self._pieces)

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

    def _make(self, stretch: _Stretch, number: int) -> int:
        """Let a maker make a stretch; the frames of it.

        Raises:
            VitascopeError: It cannot be made.
        """

        def tell(progress: StretchProgress) -> None:
            stretch.progress = progress

        try:
            made = self._hands.makers.make(number, stretch.order, tell=tell)
        except VitascopeError:
            stretch.progress = None
            raise
        if self._kept is not None and made.damage is None:
            self._kept.keep(stretch.order.made_by, stretch.order.file)
        with self._changed:
            stretch.made, stretch.maker, stretch.is_there, stretch.progress = made, number, True, None
            self._changed.notify_all()
        if made.damage is not None and not self._tolerant:
            raise made.damage
        return made.frame_count

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None and not self._is_over:
                self._failure = error
            self._changed.notify_all()
        self._hands.withdraw(self._pieces)
