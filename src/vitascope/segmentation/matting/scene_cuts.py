"""Finds scene cuts, despite flashes, lamps, pans and running people."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise, product
from statistics import median
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

Luma = npt.NDArray[np.float32]
"""[rows, columns], 0..1: mean luma of a picture's tiles."""

LOOK_AHEAD_FRAMES: Final = 3
"""Number of frames to wait for after a possible cut: after a flash of at most this length, the picture is as before."""

# All fitted on benchmarks/shot_quality, on seeds that its rows leave out (below 200).
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_BLOCK_TILES = 9
_REACH_TILES = 5
"""Search radius for a block from one frame to the next, in tiles: a tenth of the picture."""
_FLAT = 0.02
"""Standard deviation below which a picture or a block has too little structure to compare."""
_CLEAR = 0.5
"""Minimum excess of a contrast over ``_FLAT`` to be beyond doubt, as a share of it."""
_DARK = 0.08
"""Mean brightness, 0..1, below which a picture is dark."""
_BLOWN_OUT, _MOST_BLOWN_OUT = 0.93, 0.2
_BLOWN_OUT_SHARE = 0.5
"""Minimum share of blown-out tiles for the whole picture to count as blown out."""
_LEAST_KNOWN, _WELL_KNOWN = 0.2, 0.5
"""Shares of comparable blocks: below the first they tell nothing; from there up to the second they count in
proportion."""
_SUSPICIOUS = 0.06
"""Minimum mean difference between frames, in standard deviations of the picture, for a closer comparison."""
_HARDLY_NEW = 0.05
_MOTION_WEIGHT = 2.0
_FAST = 0.1
"""Newness from frame to frame above which the camera is being swung."""
_FLASHES_FRAMES = 8
"""Maximum length of several flashes in a row, in frames."""
MUCH_NEW: Final = 0.18
"""Minimum newness of a frame within a shot in which much is new, as when people come out from behind a passing thing.
On clips of ``benchmarks/matte_quality`` it is then 0.2 to 0.4, sometimes 0.2 for people who cross, else less; in four
videos of people at most 0.1."""
_LARGE = 0.3
"""Minimum newness of a change that needs no further evidence; a smaller one must stand out against all motion before
it."""
_STEPS_REMEMBERED = 12
_OTHER_LIGHT = 1.25
"""Ratio of brightness that at least half of the tiles must reach for a change of light: light is everywhere, another
person is in one place."""
_DISSOLVE_CONTRAST = 0.35
_DISSOLVE_FRAMES = (8, 16, 24)
_COMPARED_AS_A_RULE = (1, *_DISSOLVE_FRAMES)
_DISSOLVE_CHANGE, _DISSOLVE_UNMATCHED, _DISSOLVE_PROGRESS = 0.5, 0.3, 0.1
_DISSOLVE_MISFIT, _MOST_DISSOLVE_MISFIT = 0.3, 0.4
"""Maximum misfit of a mixture in a dissolve, and its upper limit: a moving camera adds to it; the more has no
counterpart, the more is allowed."""
_DISSOLVE_STEP = 0.25
"""Maximum step of a dissolve in one frame; a lamp is switched on in a larger one."""
_QUIET_FRAMES, _QUIET_AFTER_DISSOLVE = 10, 24


class Change(Enum):
    """How a frame differs from the frames before it. ``Change(True)`` starts a shot, ``Change(False)`` does not."""

    SMALL = 0
    NEW_SHOT = 1
    MUCH_IS_NEW = 2
    """The shot goes on, but much of the picture is new, apart from motion."""

    @property
    def starts_shot(self) -> bool:
        """True if the frame starts a shot."""
        return self is Change.NEW_SHOT


class _Block(NamedTuple):
    """A part of a picture that is searched for in others."""

    rows: slice
    columns: slice
    level: float
    """Mean."""
    contrast: float
    """Standard deviation."""
    is_blown_out: bool


@dataclass(frozen=True, eq=False)
class _Picture:
    number: int
    """Index among the frames so far."""
    luma: Luma
    level: float
    """Mean."""
    spread: float
    """Standard deviation."""
    is_blown_out: bool
    apart: dict[int, float]
    """Mean absolute difference to earlier frames, by distance, for those that are usually compared."""

    @property
    def is_dark(self) -> bool:
        return self.level < _DARK

    @property
    def has_structure(self) -> bool:
        """False where black, fog or a flash left nothing to compare."""
        is_dim = self.is_dark and self.spread < 2 * _FLAT  # it fades, and only noise is left
        return self.spread >= _FLAT and not is_dim and not self.is_blown_out

    @cached_property
    def blocks(self) -> list[_Block]:
        """All blocks, row by row; computed once, however many pictures it is compared with."""
        rows, columns = _borders(self.luma.shape[0]), _borders(self.luma.shape[1])
        samples = np.diff(rows) * np.diff(columns).T

        def means(of: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
            across = np.add.reduceat(of, [begin for begin, _ in columns], axis=1, dtype=np.float64)
            found: npt.NDArray[np.float64] = (
                np.add.reduceat(across, [begin for begin, _ in rows], axis=0) / samples
            )
            return found

        levels = means(self.luma)
        contrasts = np.sqrt(np.maximum(means(np.square(self.luma, dtype=np.float64)) - levels**2, 0))
        blown_out = means(self.luma > _BLOWN_OUT) > _MOST_BLOWN_OUT
        return [
            _Block(slice(*across), slice(*along), *looks)
            for (across, along), *looks in zip(
                product(rows, columns),
                levels.ravel().tolist(),
                contrasts.ravel().tolist(),
                blown_out.ravel().tolist(),
                strict=True,
            )
        ]


class SceneCutDetector:
    """Decides for each frame of a stream whether it starts a shot, using only small pictures.

    Structure is compared, not colour: each block of a picture is searched for near its place in another picture by
    correlation, which ignores brightness and contrast. Newness is the share of blocks without a counterpart. A frame
    begins a shot if it and the frames after it are new to *all* of the last frames before it (after a flash the picture
    is as before), by more than twice the newness from frame to frame on either side (a pan, running people). Between
    two frames that stand still, a person who is suddenly somewhere else is enough.

    A dissolve is found while it lasts: the frames of the last third of a second, up to a second, are mixtures of their
    first and their last frame, with more and more of the last, and these two have little in common. A fade is found
    where the next picture appears, as black resembles everything.

    Only frames that may begin a shot wait for later frames, three at most; decisions do not depend on how frames are
    batched. Not thread-safe.

    Args:
        threshold: Minimum newness of a cut, apart from motion, 0 to 1; 0 switches detection off.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._waiting: deque[_Picture] = deque()
        self._before: deque[_Picture] = deque(maxlen=max(_DISSOLVE_FRAMES))
        self._flat_before: _Picture | None = None
        self._flat_frames = 0
        """Frames without structure since the last one of ``_before``."""
        self._steps: deque[float] = deque(maxlen=_STEPS_REMEMBERED)
        self._step: float | None = None
        """Newness of the first waiting frame; None until it is compared."""
        self._number = 0
        self._quiet_until = LOOK_AHEAD_FRAMES
        self._seen_count = 0
        self._rows: npt.NDArray[np.float32] | None = None
        """Luma of the last frames, [frames, samples]."""

    def see(self, tiles: npt.NDArray[np.float32]) -> list[list[Change]]:
        """Look at the next frames.

        Args:
            tiles: float32 [frames, 3, rows, columns], RGB 0..1, rows and columns the same throughout: means of the
                pictures' tiles (``tile_means``), in the host's memory.

        Returns:
            For each frame, the decisions that it completes, in frame order. Empty while frames wait for later ones;
            then several at once. The first frame starts no shot.
        """
        if self._threshold <= 0:
            return [[Change.SMALL] for _ in tiles]
        decided = []
        for picture in self._pictures(tiles):
            self._waiting.append(picture)
            decided.append(self._decisions(is_last=False))
        return decided

    def finish(self) -> list[Change]:
        """Decide on the frames that still wait, at the end of the stream."""
        return self._decisions(is_last=True)

    def _pictures(self, tiles: npt.NDArray[np.float32]) -> list[_Picture]:
        """Summarise the pictures in as few NumPy calls as possible.

        Each call releases the interpreter's lock and waits for it again. On a GPU, the other stages need it, too, and
        waiting takes longer than the call.
        """
        count, _, *size = tiles.shape
        rows: npt.NDArray[np.float32] = np.matmul(_LUMA, tiles.reshape(count, 3, -1))
        samples = rows.shape[1]
        means = np.add.reduce(rows, axis=1) / samples
        off = rows - means[:, np.newaxis]
        spreads = np.sqrt(np.matmul(off[:, np.newaxis], off[:, :, np.newaxis]).reshape(count) / samples)
        blown_out = [False] * count
        if (means > _BLOWN_OUT_SHARE * _BLOWN_OUT).any():
            blown_out = (np.count_nonzero(rows > _BLOWN_OUT, axis=1) >= _BLOWN_OUT_SHARE * samples).tolist()
        earlier = 0 if self._rows is None else len(self._rows)
        both = rows if self._rows is None else np.concatenate([self._rows, rows])
        pairs = [
            (at, frames) for frames in _COMPARED_AS_A_RULE for at in range(max(frames - earlier, 0), count)
        ]
        apart: list[dict[int, float]] = [{} for _ in rows]
        if pairs:
            here = np.array([earlier + at for at, _ in pairs])
            change = both[here]
            change -= both[here - [frames for _, frames in pairs]]
            np.abs(change, out=change)
            sums = np.add.reduce(change, axis=1) / samples
            for (at, frames), mean in zip(pairs, sums.tolist(), strict=True):
                apart[at][frames] = mean
        self._rows = both[-max(_COMPARED_AS_A_RULE) :]
        begin, self._seen_count = self._seen_count, self._seen_count + count
        return [
            _Picture(number, luma, level, spread, blown, differences)
            for number, luma, level, spread, blown, differences in zip(
                range(begin, self._seen_count),
                rows.reshape(count, *size),
                means.tolist(),
                spreads.tolist(),
                blown_out,
                apart,
                strict=True,
            )
        ]

    def _decisions(self, *, is_last: bool) -> list[Change]:
        decided: list[Change] = []
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
            goes_on = Change.MUCH_IS_NEW if self._step >= MUCH_NEW else Change.SMALL
            decided.append(Change.NEW_SHOT if starts else goes_on)
            self._pass(self._waiting.popleft(), self._step, starts=starts)
            self._step = None
        return decided

    def _last_like(self, here: _Picture) -> _Picture | None:
        if not here.has_structure:
            return self._flat_before
        if self._flat_before is not None and self._flat_before.is_dark and self._before:
            return max(self._before, key=lambda one: one.spread)  # before it faded
        return self._before[-1] if self._before else None

    def _motion_before(self, step: float) -> float:
        """Newness of the pictures before this one."""
        motion = median(list(self._steps)[-5:]) if self._steps else 0.0
        if step < _LARGE and len(self._steps) > 2:
            motion = max(motion, sorted(self._steps)[-3])  # two of them may be a flash
        return motion

    def _stands_out(self, last: _Picture, here: _Picture, step: float, motion: float) -> bool:
        """False if no later frame could make it a cut."""
        if step - _MOTION_WEIGHT * motion < self._threshold:
            return False
        return step >= _LARGE or (self._number >= self._quiet_until and not _is_lit_otherwise(last, here))

    def _is_new_to_all(self, last: _Picture, here: _Picture, step: float, motion: float) -> bool:
        """True if all later frames are new to all earlier ones, beyond the motion of either."""
        to_come = list(self._waiting)[1 : 1 + LOOK_AHEAD_FRAMES]
        after = [one for one in to_come if one.has_structure == here.has_structure]
        if not after and (step < _LARGE or any(one.is_blown_out for one in to_come)):
            return False
        earlier = list(self._before)[-2:-5:-1] if self._before and last is self._before[-1] else []
        cross = step
        for one, other in product([last, *earlier], [here, *after]):
            if one is not last or other is not here:
                cross = min(cross, _newness(one, other))
            if cross - _MOTION_WEIGHT * motion < self._threshold:
                return False
        if earlier:
            motion = max(motion, min(_newness(one, last) for one in earlier))
        if earlier and 0 < self._flat_frames <= _FLASHES_FRAMES:
            # Motion went on meanwhile.
            as_long_ago = self._before[max(-2 - self._flat_frames, -len(self._before))]
            motion = max(motion, _newness(as_long_ago, last))
        if after:
            motion = max(motion, min(_newness(here, one) for one in after))
            later = median(_newness(one, other) for one, other in pairwise([here, *after]))
            motion = max(motion, later if later > _FAST else 0.0)
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
            between = list(self._before)[1 - frames :]
            contrasts = sorted((first.spread, here.spread))
            if contrasts[0] < _DISSOLVE_CONTRAST * contrasts[1]:
                continue  # a fade
            # Most pictures are no mixture at all, which is known sooner than what is new.
            if not _is_mixture(first, between, here, most_misfit=_MOST_DISSOLVE_MISFIT):
                continue
            new = _newness(first, here)
            misfit = min(_DISSOLVE_MISFIT + (new - _DISSOLVE_UNMATCHED) / 3, _MOST_DISSOLVE_MISFIT)
            if new >= _DISSOLVE_UNMATCHED and _is_mixture(first, between, here, most_misfit=misfit):
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
            self._flat_frames = 0
        else:
            self._flat_frames += 1
        self._flat_before = None if picture.has_structure else picture


def _is_lit_otherwise(first: _Picture, second: _Picture) -> bool:
    """True if the light changed so much that shadows changed, too."""
    ratio = float(np.median((second.luma + 0.01) / (first.luma + 0.01)))
    return max(ratio, 1 / ratio) > _OTHER_LIGHT


def _difference(first: _Picture, second: _Picture) -> float:
    mean = second.apart.get(second.number - first.number)
    if mean is None:
        mean = float(np.abs(first.luma - second.luma).mean())
    return mean / max(min(first.spread, second.spread), _FLAT)


def _newness(first: _Picture, second: _Picture) -> float:
    """Share of the picture without a counterpart, 0 to 1; the smaller of both directions."""
    if not first.has_structure or not second.has_structure:
        # Two flat pictures differ only in brightness, and a blown-out one has no brightness of its own.
        if first.is_blown_out or second.is_blown_out:
            return 0.0
        return abs(first.level - second.level)
    share = _unmatched(first, second)
    return share if share < _HARDLY_NEW else min(share, _unmatched(second, first))


def _unmatched(first: _Picture, second: _Picture) -> float:
    """Share of the second picture's blocks that are not found near their place in the first."""
    known, new = 0, 0.0
    for before, block in zip(first.blocks, second.blocks, strict=True):
        if block.is_blown_out or before.is_blown_out:
            continue
        # Blocks with hardly any structure in either picture have it by chance.
        weight = min((max(block.contrast, before.contrast) / _FLAT - 1) / _CLEAR, 1.0)
        if block.contrast < _FLAT:
            # Blocks that were flat, or became black or white, tell nothing; structure that became plain is gone.
            if before.contrast >= _FLAT and 0.04 < block.level < 0.9:
                known, new = known + 1, new + weight
            continue
        window = first.luma[
            max(block.rows.start - _REACH_TILES, 0) : block.rows.stop + _REACH_TILES,
            max(block.columns.start - _REACH_TILES, 0) : block.columns.stop + _REACH_TILES,
        ]
        sought = np.ascontiguousarray(second.luma[block.rows, block.columns])
        likeness = float(cv2.matchTemplate(window, sought, cv2.TM_CCOEFF_NORMED).max())
        known, new = known + 1, new + weight * (1 - min(max(likeness, 0.0), 1.0))
    blocks = len(second.blocks)
    return new / max(known, _WELL_KNOWN * blocks) if known >= _LEAST_KNOWN * blocks else 0.0


def _borders(length: int) -> list[tuple[int, int]]:
    blocks = max(round(length / _BLOCK_TILES), 1)
    return [(length * at // blocks, length * (at + 1) // blocks) for at in range(blocks)]


def _is_mixture(first: _Picture, between: list[_Picture], last: _Picture, *, most_misfit: float) -> bool:
    """True if pictures are mixtures of the first and the last, with more of the last from quarter to quarter."""
    way = last.luma - first.luma
    length = float((way * way).sum())
    shares = [0.0]
    for number, picture in enumerate(between, start=1):
        gone = picture.luma - first.luma
        shares.append(float((gone * way).sum()) / length)
        is_quarter = number * 4 % (len(between) + 1) == 0
        if is_quarter and float(np.square(gone - shares[-1] * way).sum()) > most_misfit**2 * length:
            return False
    if max(later - sooner for sooner, later in pairwise([*shares, 1.0])) > _DISSOLVE_STEP:
        return False
    quarters = shares[:: len(shares) // 4][1:]
    return min(later - sooner for sooner, later in pairwise(quarters)) > _DISSOLVE_PROGRESS
