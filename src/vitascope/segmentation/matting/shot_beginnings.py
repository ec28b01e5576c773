"""Holding a shot's first frames back until enough of them are there for the network to look ahead."""

from __future__ import annotations

from collections.abc import Sequence

from vitascope.segmentation.matting.batch import Batch

__all__ = ["ShotBeginnings"]


class ShotBeginnings:
    """Lets batches through; where a shot begins near the end of one, the rest waits for the frames that follow.

    So every batch that comes out and begins a shot has the shot's first ``frames`` frames, or all that it has. What is
    held back is less than that, whatever the size of batches.

    Args:
        frames: First frames of a shot that shall come together; 0 and 1 hold nothing back.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._held: list[Batch] = []
        self._is_new = True

    def add(self, batch: Batch) -> list[Batch]:
        """Take the next frames; what need not wait any longer.

        Args:
            batch: With ``starts_shot``. Without ``images`` nothing of it is shown to the network: it goes through, and
                the next frame that has one begins anew.

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
        """No more frames follow: what is left, a shot that may be cut short."""
        left = self._let_out([])
        for batch in left:
            batch.is_cut_short = True
        return left

    def _let_out(self, batches: Sequence[Batch]) -> list[Batch]:
        held, self._held = [*self._held, *batches], []
        return [Batch.joined(held)] if held else []
