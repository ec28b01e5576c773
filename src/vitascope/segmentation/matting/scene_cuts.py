"""Finds where one shot of a video ends and the next begins, despite flashes, lamps, pans and people who run."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["LOOK_AHEAD_FRAMES", "SceneCutDetector"]

Luma = npt.NDArray[np.float32]
"""[rows, columns], 0..1: the means of a picture's tiles."""

LOOK_AHEAD_FRAMES: Final = 3
"""A flash of that many frames is over then, and the picture is as before."""

# All fitted on benchmarks/shot_quality, on seeds that its rows leave out.
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_BLOCK_TILES = 9
_REACH_TILES = 5
"""A tenth of the picture: how far a block may have moved from one frame to the next."""
_FLAT = 0.02
"""Standard deviation below which a picture or a block has no structure to compare."""
_BLOWN_OUT, _MOST_BLOWN_OUT = 0.93, 0.2
_LEAST_KNOWN = 0.25
_SUSPICIOUS = 0.06
"""Mean difference, in standard deviations of the picture, from which a second look is worth its time."""
_HARDLY_NEW = 0.05
_MOTION_WEIGHT = 2.0
_LARGE = 0.3
"""A change that needs no further witness; smaller ones stand out against all motion before them, or do not count."""
_STEPS_REMEMBERED = 12
_OTHER_LIGHT = 1.25
_DISSOLVE_CONTRAST = 0.35
_DISSOLVE_FRAMES = (8, 16, 24)
_COMPARED_AS_A_RULE = (1, *_DISSOLVE_FRAMES)
_DISSOLVE_CHANGE, _DISSOLVE_UNMATCHED, _DISSOLVE_MISFIT, _DISSOLVE_PROGRESS = 0.5, 0.3, 0.3, 0.1
_QUIET_FRAMES, _QUIET_AFTER_DISSOLVE = 16, 24


@dataclass(frozen=True, slots=True, eq=False)
class _Picture:
    number: int
    """Place among the frames that were seen."""
    luma: Luma
    spread: float
    """Standard deviation."""
    has_structure: bool
    """False where black, fog or a flash left nothing to compare."""
    apart: dict[int, float]
    """Mean absolute difference to the frames that many before it, for those that are compared as a rule."""


class SceneCutDetector:
    """Decides for each frame of a stream whether a shot begins with it, from small pictures alone.

    Structure is compared, not colour: each block of a picture is searched for near its place in another picture, by
    correlation, which knows neither brightness nor contrast. The share of blocks without a counterpart is how much is
    new. A frame begins a shot when it and the frames after it are new to *all* of the last frames before it (after a
    flash the picture is as before), by more than twice what is new from frame to frame on either side (a pan, people
    who run). Between two frames that stand still, a person who is suddenly somewhere else is enough.

    A dissolve is found while it lasts: the frames of the last third of a second, up to a second, mix their first and
    their last, more and more of the last, and these two have little in common. Fades are found where the next picture
    appears: black is like everything.

    Only frames that may begin a shot wait for the frames after them, three at most; decisions do not depend on how
    frames are gathered. Not thread-safe.

    Args:
        threshold: Share of the picture that must be new, 0 to 1, motion taken off; 0 finds nothing.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._waiting: deque[_Picture] = deque()
        self._before: deque[_Picture] = deque(maxlen=max(_DISSOLVE_FRAMES))
        self._flat_before: _Picture | None = None
        self._steps: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._step: float | None = None
        """Newness of the frame that waits first; None until it is compared."""
        self._number = 0
        self._quiet_until = LOOK_AHEAD_FRAMES
        self._seen_count = 0
        self._lumas: Luma | None = None
        """[frames, rows, columns]: the last ones."""

    def see(self, tiles: npt.NDArray[np.float32]) -> list[list[bool]]:
        """Look at the next frames.

        Args:
            tiles: float32 [frames, 3, rows, columns], RGB 0..1, rows and columns the same throughout: means of the
                pictures' tiles (``tile_means``), in the host's memory.

        Returns:
            For each frame what is decided once it is seen, of the frames in order: True where a shot begins. Nothing
            while a frame waits for those after it; then several at once. The first frame begins none.
        """
        if self._threshold <= 0:
            return [[False] for _ in tiles]
        decided = []
        for picture in self._pictures(tiles):
            self._waiting.append(picture)
            decided.append(self._decisions(is_last=False))
        return decided

    def finish(self) -> list[bool]:
        """Decide of the frames that still wait, because no more come."""
        return self._decisions(is_last=True)

    def _pictures(self, tiles: npt.NDArray[np.float32]) -> list[_Picture]:
        """All at once: on a GPU each call into NumPy gives the interpreter to the threads of the other stages."""
        red, green, blue = tiles[:, 0], tiles[:, 1], tiles[:, 2]
        lumas: Luma = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
        rows = lumas.reshape(len(lumas), -1)
        spreads = rows.std(axis=1).tolist()
        blown_out = (rows > _BLOWN_OUT).mean(axis=1).tolist()
        earlier = 0 if self._lumas is None else len(self._lumas)
        both = lumas if self._lumas is None else np.concatenate([self._lumas, lumas])
        apart: list[dict[int, float]] = [{} for _ in lumas]
        for frames in _COMPARED_AS_A_RULE:
            first = max(frames, earlier)
            if first < len(both):
                change = np.abs(both[first:] - both[first - frames : len(both) - frames])
                means = change.reshape(len(change), -1).mean(axis=1).tolist()
                for at, mean in enumerate(means, first - earlier):
                    apart[at][frames] = mean
        self._lumas = both[-max(_COMPARED_AS_A_RULE) :]
        begin, self._seen_count = self._seen_count, self._seen_count + len(lumas)
        return [
            _Picture(number, luma, spread, spread >= _FLAT and blown < 0.5, differences)
            for number, luma, spread, blown, differences in zip(
                range(begin, self._seen_count), lumas, spreads, blown_out, apart, strict=True
            )
        ]

    def _decisions(self, *, is_last: bool) -> list[bool]:
        decided: list[bool] = []
        while self._waiting:
            here = self._waiting[0]
            last = self._last_like(here)
            if self._step is None:
                is_new = last is not None and _difference(last, here) >= _SUSPICIOUS
                self._step = _newness(last, here) if is_new and last is not None else 0.0
            motion = self._motion_before(self._step)
            starts = False
            if last is not None and self._stands_out(last, here, self._step, motion):
                if not is_last and len(self._waiting) <= LOOK_AHEAD_FRAMES:
                    break
                starts = self._is_new_to_all(last, here, self._step, motion)
            starts = starts or (here.has_structure and self._is_dissolved(here))
            decided.append(starts)
            self._pass(self._waiting.popleft(), self._step, starts=starts)
            self._step = None
        return decided

    def _last_like(self, here: _Picture) -> _Picture | None:
        if not here.has_structure:
            return self._flat_before
        return self._before[-1] if self._before else None

    def _motion_before(self, step: float) -> float:
        """Newness of the pictures before this one."""
        motion = median(list(self._steps)[-5:]) if self._steps else 0.0
        if step < _LARGE and len(self._steps) > 2:
            motion = max(motion, sorted(self._steps)[-3])  # two of them may be a flash
        return motion

    def _stands_out(self, last: _Picture, here: _Picture, step: float, motion: float) -> bool:
        """False where no frame to come could make a cut of it."""
        if step - _MOTION_WEIGHT * motion < self._threshold:
            return False
        return step >= _LARGE or (self._number >= self._quiet_until and not _is_lit_otherwise(last, here))

    def _is_new_to_all(self, last: _Picture, here: _Picture, step: float, motion: float) -> bool:
        """True where all that follows is new to all before it, beyond the motion of either."""
        after = [
            one
            for one in list(self._waiting)[1 : 1 + LOOK_AHEAD_FRAMES]
            if one.has_structure == here.has_structure
        ]
        if step < _LARGE and not after:
            return False
        earlier = list(self._before)[-2:-5:-1] if here.has_structure else []
        cross = step
        for one, other in product([last, *earlier], [here, *after]):
            if one is not last or other is not here:
                cross = min(cross, _newness(one, other))
            if cross - _MOTION_WEIGHT * motion < self._threshold:
                return False
        if earlier:
            motion = max(motion, min(_newness(one, last) for one in earlier))
        if after:
            motion = max(motion, min(_newness(here, one) for one in after))
        return cross - _MOTION_WEIGHT * motion >= self._threshold

    def _is_dissolved(self, here: _Picture) -> bool:
        if self._number < self._quiet_until or self._number % 2:
            return False
        for frames in _DISSOLVE_FRAMES:
            if len(self._before) < frames:
                return False
            first = self._before[-frames]
            if _difference(first, here) < _DISSOLVE_CHANGE:
                continue
            between = [self._before[-frames + frames * quarter // 4] for quarter in (1, 2, 3)]
            contrasts = sorted((first.spread, here.spread))
            if contrasts[0] < _DISSOLVE_CONTRAST * contrasts[1]:
                continue  # a fade
            if _is_mixture(first, between, here) and _newness(first, here) >= _DISSOLVE_UNMATCHED:
                self._quiet_until = self._number + _QUIET_AFTER_DISSOLVE
                return True
        return False

    def _pass(self, picture: _Picture, step: float, *, starts: bool) -> None:
        self._steps.append(step)
        if starts:
            self._before.clear()
            self._steps.clear()
            self._quiet_until = max(self._quiet_until, self._number + _QUIET_FRAMES)
        self._number += 1
        if picture.has_structure:
            self._before.append(picture)
        self._flat_before = None if picture.has_structure else picture


def _is_lit_otherwise(first: _Picture, second: _Picture) -> bool:
    """True where light changed enough to change shadows, too."""
    darker, lighter = sorted((float(first.luma.mean()), float(second.luma.mean())))
    return lighter > _OTHER_LIGHT * darker


def _difference(first: _Picture, second: _Picture) -> float:
    mean = second.apart.get(second.number - first.number)
    if mean is None:
        mean = float(np.abs(first.luma - second.luma).mean())
    return mean / max(min(first.spread, second.spread), _FLAT)


def _newness(first: _Picture, second: _Picture) -> float:
    """The share of the picture without a counterpart, 0 to 1, in the direction in which it is less."""
    if not first.has_structure or not second.has_structure:
        # Two flat pictures have nothing but their brightness, and one that is blown out has none of its own.
        levels = float(first.luma.mean()), float(second.luma.mean())
        return abs(levels[0] - levels[1]) if max(levels) <= _BLOWN_OUT else 0.0
    share = _unmatched(first.luma, second.luma)
    return share if share < _HARDLY_NEW else min(share, _unmatched(second.luma, first.luma))


def _unmatched(first: Luma, second: Luma) -> float:
    """The share of the second picture's blocks that are not near their place in the first."""
    rows, columns = _borders(second.shape[0]), _borders(second.shape[1])
    known, new = 0, 0.0
    for (top, bottom), (left, right) in product(rows, columns):
        block, before = second[top:bottom, left:right], first[top:bottom, left:right]
        if any(np.count_nonzero(part > _BLOWN_OUT) > _MOST_BLOWN_OUT * part.size for part in (block, before)):
            continue
        if float(block.std()) < _FLAT:
            # What was flat tells nothing, nor what went black or white; a structure that became plain is gone.
            if float(before.std()) >= _FLAT and 0.04 < float(block.mean()) < 0.9:
                known, new = known + 1, new + 1
            continue
        window: Any = first[
            max(top - _REACH_TILES, 0) : bottom + _REACH_TILES,
            max(left - _REACH_TILES, 0) : right + _REACH_TILES,
        ]
        likeness = float(cv2.matchTemplate(window, np.ascontiguousarray(block), cv2.TM_CCOEFF_NORMED).max())
        known, new = known + 1, new + 1 - min(max(likeness, 0.0), 1.0)
    return new / known if known >= _LEAST_KNOWN * len(rows) * len(columns) else 0.0


def _borders(length: int) -> list[tuple[int, int]]:
    blocks = max(round(length / _BLOCK_TILES), 1)
    return [(length * at // blocks, length * (at + 1) // blocks) for at in range(blocks)]


def _is_mixture(first: _Picture, between: list[_Picture], last: _Picture) -> bool:
    """True where pictures are sums of the first and the last, each with more of the last than the one before it."""
    way = last.luma - first.luma
    length = float((way * way).sum())
    shares = []
    for picture in between:
        gone = picture.luma - first.luma
        share = float((gone * way).sum()) / length
        if float(np.square(gone - share * way).sum()) > _DISSOLVE_MISFIT**2 * length:
            return False
        shares.append(share)
    return min(later - sooner for sooner, later in pairwise(shares)) > _DISSOLVE_PROGRESS
