"""Reuses the last matte while nothing moves, without running the network."""

from __future__ import annotations

import numpy as np

from vitascope.gpu.toolkit.temporal import StillnessGate
from vitascope.models.network import MatteEstimate
from vitascope.segmentation.matting.batch import Batch, Estimator
from vitascope.segmentation.report import Tally

MOST_REUSES = 30
"""A second: what moves too little to be seen is looked at that often all the same."""


class SkipStatic:
    """Asks only for frames in which some tile changed since the frame that was last asked for.

    The last *asked* frame, not the one before: whoever moves slowly adds up until the network looks. The largest change
    of any tile counts, not the mean: a hand before a still wall is not averaged away. What is used again are the guided
    filter's coefficients, which are evaluated against each new frame.

    A recurrent network does not see the frames that are left out; its memory stays what it was after the last frame
    that it saw, as in a video in which repeated pictures were dropped.

    Args:
        inner: Asked for the others.
        threshold: Change of a tile's mean, in shares of full scale, from which the network sees a frame.
        tally: Counts those that were not.
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
            assert self._last is not None  # the gate lets the first frame through
            estimates.append(self._last)
        return estimates

    @staticmethod
    def _is_asked(gate: StillnessGate, tiles: np.ndarray, *, starts_shot: bool) -> bool:
        if starts_shot:
            gate.forget()
        return not gate.is_still(tiles)
