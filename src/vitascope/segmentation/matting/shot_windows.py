"""Holds frames of a shot until later ones arrive, for look-ahead or for both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vitascope.frames import Frame
from vitascope.segmentation.matting.batch import Batch


class ShotBeginnings:
    """Passes batches on; if a shot begins near the end of a batch, holds its frames until more arrive.

    So every output batch that begins a shot has the shot's first ``frames`` frames, or all of a shorter
    shot's. Fewer than ``frames`` are held, whatever the size of batches.

    Args:
        frames: Number of a shot's first frames that must come together; 0 and 1 hold nothing.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._held: list[Batch] = []
        self._is_new = True

    def add(self, batch: Batch) -> list[Batch]:
        """Add the next frames; returns those that need not wait longer.

        Args:
            batch: With ``starts_shot``. Without ``images``, which means that the network sees none of it, it is passed
                on, and the next batch with images counts as the beginning of a shot.

        Returns:
            None, one, or two batches, in order.
        """
        if batch.images is None:
            self._is_new = True
            return [*self._let_out([]), batch]
        begins = [at for at, starts in enumerate(batch.starts_shot) if starts]
        if self._is_new:
            begins, self._is_new = begins or [0], False
        last = begins[-1] if begins else None
        if last is None:
            if sum(map(len, self._held)) + len(batch) >= self._frames or not self._held:
                return self._let_out([batch])
            self._held.append(batch)
            return []
        if len(batch) - last >= self._frames:
            return self._let_out([batch])
        out = self._let_out([batch.take(range(last))] if last else [])
        self._held = [batch.take(range(last, len(batch)))]
        return out

    def flush(self) -> list[Batch]:
        """Return the remaining frames at the end, of a shot that may be cut short."""
        left = self._let_out([])
        for batch in left:
            batch.is_cut_short = True
        return left

    def _let_out(self, batches: Sequence[Batch]) -> list[Batch]:
        held, self._held = [*self._held, *batches], []
        return [Batch.joined(held)] if held else []


WINDOW_FRAMES: Final = 24
FOLLOWING_FRAMES: Final = 8
"""Number of the shot's next frames with which the backward pass begins: a network with memory knows a person after
about six."""
_FEWEST_HELD = 2 * FOLLOWING_FRAMES
_MOST_BYTES = 1 << 30
"""Maximum bytes held at a time, unless the fewest frames need more: an 8K frame with 10 bits takes 100 MB."""


class ShotWindows:
    """Holds frames until a window of a shot and the frames after it are complete.

    Every output batch lies in one shot, and all but the last of a shot have the same length, counted from its
    beginning: mattes do not depend on how frames are batched. One window and the frames after it are held, however long
    the video is.
    """

    def __init__(self) -> None:
        self._held: list[Batch] = []
        self._frames = WINDOW_FRAMES

    def add(self, batch: Batch) -> list[Batch]:
        """Add the next frames; returns the windows that are complete, in order.

        Args:
            batch: With ``starts_shot``. Without ``images``, which means that the network sees none of it, it is passed
                on after the held frames.
        """
        if batch.images is None:
            return [*self._let_out(is_end=True), batch]
        self._frames = _window_frames(batch.frames[0])
        self._held.append(batch)
        return self._let_out(is_end=False)

    def flush(self) -> list[Batch]:
        """Return the remaining frames at the end, of a shot that may be cut short."""
        left = self._let_out(is_end=True)
        for window in left:
            window.is_cut_short = True
        return left

    def _let_out(self, *, is_end: bool) -> list[Batch]:
        windows = []
        while self._held:
            starts = [one for batch in self._held for one in batch.starts_shot]
            shot_end = next((at for at in range(1, len(starts)) if starts[at]), None)
            if shot_end is None and is_end:
                shot_end = len(starts)
            if shot_end is None and len(starts) < self._frames + FOLLOWING_FRAMES:
                break
            end = self._frames if shot_end is None else min(self._frames, shot_end)
            follow = end + FOLLOWING_FRAMES if shot_end is None else min(end + FOLLOWING_FRAMES, shot_end)
            window = Batch.joined(self._taken(end))
            window.following = self._first(follow - end)
            windows.append(window)
        return windows

    def _taken(self, count: int) -> list[Batch]:
        """Remove the first held frames, in the batches that they came in."""
        taken: list[Batch] = []
        while count:
            batch = self._held.pop(0)
            if len(batch) > count:
                self._held.insert(0, batch.take(range(count, len(batch))))
                batch = batch.take(range(count))
            taken.append(batch)
            count -= len(batch)
        return taken

    def _first(self, count: int) -> Sequence[Frame]:
        return [frame for batch in self._held for frame in batch.frames][:count]


def _window_frames(frame: Frame) -> int:
    """Length of a window, for frames of this size."""
    held = max(_FEWEST_HELD, min(_MOST_BYTES // frame.nbytes, WINDOW_FRAMES + FOLLOWING_FRAMES))
    return held - FOLLOWING_FRAMES
