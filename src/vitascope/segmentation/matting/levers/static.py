"""Reuses the last matte while nothing moves, without running the network."""

from __future__ import annotations

import numpy as np

from vitascope.gpu.toolkit.temporal import StillnessGate
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.matting.batch import Batch, Estimator
from vitascope.segmentation.report import Tally

MOST_REUSES = 30
"""Maximum consecutive reuses, about a second: motion too small to be noticed is caught by then."""


class SkipStatic:
    """Passes on only frames in which some tile changed since the last one passed on.

    Frames are compared with the last frame that the network saw, not with the one before, so that slow motion adds up.
    The largest change of any tile counts, not the mean, so that a hand before a still wall is not averaged away. The
    guided filter's coefficients are reused and evaluated against each new frame.

    A recurrent network does not see skipped frames: its memory stays as after the last frame that it saw, as in a video
    without the repeated frames.

    Args:
        inner: Gives mattes for changed frames.
        threshold: Minimum change of a tile's mean, as a share of full scale, for the network to see a frame.
        tally: Counts the skipped frames.
    """

    def __init__(self, inner: Estimator, *, threshold: float, tally: Tally) -> None:
        self._inner = inner
        self._threshold = threshold
        self._tally = tally
        self._gate: StillnessGate | None = None
        self._last: MatteEstimate | None = None

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """The mattes of the next frames; a still frame gets the same object as the frame before."""
        assert batch.tiles is not None  # made for every lever that wants them
        if self._gate is None:
            rows, columns = batch.tiles.shape[-2:]
            self._gate = StillnessGate(self._threshold, most_reuses=MOST_REUSES, tiles=(rows, columns))
        asked = [
            index
            for index, (tiles, starts) in enumerate(zip(batch.tiles, batch.starts_shot, strict=True))
            if self._is_asked(self._gate, tiles, starts_shot=starts)
        ]
        answers = iter(self._inner.estimate(batch.take(asked)) if asked else ())
        self._tally.reused_frames += len(batch) - len(asked)
        new = set(asked)
        estimates = []
        for index in range(len(batch)):
            if index in new:
                self._last = next(answers)
            assert self._last is not None  # the first frame is always passed on
            estimates.append(self._last)
        return estimates

    @staticmethod
    def _is_asked(gate: StillnessGate, tiles: np.ndarray, *, starts_shot: bool) -> bool:
        if starts_shot:
            gate.forget()
        return not gate.is_still(tiles)
