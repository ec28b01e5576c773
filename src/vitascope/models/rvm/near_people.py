"""RVM on the CPU, computing its large levels only near people or where the picture changed.

::

    picture ── stem ──> to 1/4 ── deep ──> to 1/16, r4 ── middle ──> to 1/8, r3 ── fine ──> r1, r2, gain, offset
               window             whole                   window                   window

The decoder's levels above a sixteenth of the picture, and the encoder's above a quarter, take five sixths of
the time and have a reach of only some twenty samples. So they are computed in one window, the same for both
eyes; elsewhere features, memory and results are kept. The window covers everyone seen in the previous frame,
and each tile that changed since it was last computed, by more than noise and more than a share of its
brightness. No new person is detected outside the window, where the deep part reads the features of an earlier
frame: someone who enters without changing a tile is found when everything is computed again, every 24th
frame.

A frame's pictures are computed in parallel: two threads with an eye each need not wait for each other after
every operator. Further cores help both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import cv2
import numpy as np
import numpy.typing as npt
import onnx

from vitascope.device import available_cores
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.gpu.engines.onnx_network import ancestors, sub_network
from vitascope.models.rvm.blocked_decoder import NO_CROPS, Crops, blocked_layout, crops_of
from vitascope.models.rvm.state import FollowedPeople, state_sizes

FloatArray = npt.NDArray[np.float32]
T = TypeVar("T")

_MIDDLE_STEP: Final = 8
"""Samples of the picture per sample of the middle part."""
_TILE: Final = 16
_HALO, _MIDDLE_HALO = 1, 3
"""Tiles around the kept part of a window: beyond its border neighbours are zero. In the stem and the fine
part, influence from farther in, up to 34 samples, hardly matters, and another tile lies between it and
people. A sample of the middle part covers eight of the picture's, and it has a reach of three."""
_CHANGE_SHARE: Final = 0.05
"""Change of a tile's mean that triggers computing it again, as a share of the darker of both means."""
_LEAST_CHANGE, _MOST_CHANGE = 0.003, 0.02
"""Bounds of that change, as shares of full scale: noise of two codes makes 0.0017."""
_NOBODY: Final = 0.02
"""Highest alpha of a tile without people."""
_WHOLE_FRAMES: Final = 6
"""First frames of a shot, computed whole: the memory does not cover everyone yet."""
_WHOLE_EVERY: Final = 24
"""Interval, in frames, of computing the whole picture."""
_MIDDLE_WHOLE_FRAMES, _MIDDLE_WHOLE_EVERY = 12, 8
"""The same for the middle part, which is cheap: with an old r3, a person who enters looks different at first."""
_WORTH: Final = 0.8
"""Share of the picture above which a window is not worth its copies."""
NEAR_RULES: Final = (
    *(_TILE, _HALO, _MIDDLE_HALO, _CHANGE_SHARE, _LEAST_CHANGE, _MOST_CHANGE, _NOBODY, _WORTH),
    *(_WHOLE_FRAMES, _WHOLE_EVERY, _MIDDLE_WHOLE_FRAMES, _MIDDLE_WHOLE_EVERY),
)
"""Parameters that mattes depend on when only people's surroundings are computed."""


class Parts(NamedTuple):
    """Four serialised networks that form one, and the names of the tensors between them."""

    stem: bytes
    deep: bytes
    middle: bytes
    fine: bytes
    half: str
    """The stem's features at half size."""
    quarter: str
    """The stem's features at quarter size."""
    pooled: str
    """The picture at an eighth, with a fourth channel of zeros; input of the middle part."""
    sixteenth: str
    """Output of the deep part for the middle one, at a sixteenth."""
    skipped: str
    """The encoder's features at an eighth, also an input of the middle part."""
    eighth: str
    """Output of the middle part for the fine one, at an eighth."""


def cut_parts(encoder: bytes, decoder: bytes, state_channels: Sequence[int], crops: Crops) -> Parts:
    """Join encoder and decoder, and cut them where their large levels end.

    Args:
        encoder: Result of ``cut_official_graph``.
        decoder: Result of ``cut_official_graph``.
        state_channels: Channels of r1 to r4.
        crops: Result of ``crops_of``. The fine part has the crops of the picture, its half and its quarter,
            the middle part that of the eighth.
    """
    first = onnx.load_from_string(encoder)
    second = onnx.load_from_string(blocked_layout(decoder, state_channels, crops))
    known = {name for node in first.graph.node for name in node.output}
    weights = {tensor.name for tensor in first.graph.initializer}
    first.graph.node.extend(node for node in second.graph.node if not known.intersection(node.output))
    first.graph.initializer.extend(one for one in second.graph.initializer if one.name not in weights)
    nodes = first.graph.node
    pools = [node.output[0] for node in nodes if node.op_type == "AveragePool"]
    half, quarter = (
        next(node.input[-2] for node in nodes if node.op_type == "Concat" and node.input[-1] == pool)
        for pool in pools[:2]
    )
    eighth, sixteenth = (
        next(node.output[0] for node in nodes if node.op_type == "Concat" and node.input[-1] == state)
        for state in ("r3o", "r4o")
    )
    picture, pooled = "small_rgb", pools[2]
    skipped = next(node.input[-2] for node in nodes if node.op_type == "Concat" and node.input[-1] == pooled)

    def part(inputs: list[str], outputs: list[str]) -> bytes:
        return sub_network(first, ancestors(first.graph, outputs, stop=set(inputs)), inputs, outputs)

    return Parts(
        stem=part([picture], [half, quarter]),
        deep=part([quarter, "r4i"], [sixteenth, skipped, "r4o"]),
        middle=part([sixteenth, skipped, pooled, "r3i"], [eighth, "r3o"]),
        fine=part([picture, half, quarter, eighth, "r1i", "r2i"], ["gain", "offset", "r1o", "r2o"]),
        half=half,
        quarter=quarter,
        pooled=pooled,
        sixteenth=sixteenth,
        skipped=skipped,
        eighth=eighth,
    )


class _Window(NamedTuple):
    """A part of both eyes' pictures, in tiles; a picture's last tiles may be smaller."""

    top: int
    bottom: int
    left: int
    right: int

    def at(self, step: int) -> tuple[Any, ...]:
        """Slice rows and columns of planes with one sample per ``step`` samples of the picture."""
        times = _TILE // step
        rows, columns = (slice(first * times, last * times) for first, last in (self[:2], self[2:]))
        return ..., rows, columns

    def covers(self, size: Sequence[int]) -> bool:
        """Whether it is the whole picture of (rows, columns) of tiles."""
        return self == (0, size[0], 0, size[1])

    def samples(self, size: Sequence[int]) -> tuple[int, int]:
        """Rows and columns, in samples, within a picture of (height, width)."""
        rows, columns = (
            min(last * _TILE, side) - first * _TILE
            for side, first, last in zip(size, self[::2], self[1::2], strict=True)
        )
        return rows, columns

    def wider(self, tiles: int, size: Sequence[int]) -> _Window:
        """Expand by tiles on every side, within the picture of (rows, columns) of tiles."""
        return _Window(
            max(self.top - tiles, 0),
            min(self.bottom + tiles, size[0]),
            max(self.left - tiles, 0),
            min(self.right + tiles, size[1]),
        )

    def within(self, outer: _Window) -> _Window:
        """Convert to coordinates of an enclosing window."""
        return _Window(
            self.top - outer.top, self.bottom - outer.top, self.left - outer.left, self.right - outer.left
        )


class _Engines(NamedTuple):
    """The four parts on ONNX Runtime."""

    stem: OnnxRuntimeEngine
    deep: OnnxRuntimeEngine
    middle: OnnxRuntimeEngine
    fine: OnnxRuntimeEngine


class _Pictures(NamedTuple):
    """The windows of a frame, and its pictures."""

    part: FloatArray
    """float32 [E, 3, h, w]: the pictures in the window ``shown``."""
    pooled: FloatArray
    """The whole pictures, at an eighth."""
    shown: _Window
    """Window to compute."""
    kept: _Window
    """Part of ``shown`` to keep."""
    seen: _Window
    """Window that the middle part computes."""
    moved: _Window
    """Part of ``seen`` to keep."""


class _Answer(NamedTuple):
    """Outputs of the four parts for some of a frame's pictures."""

    half: FloatArray
    """The stem's features at half size, in the window."""
    quarter: FloatArray
    """The stem's features at quarter size, of the whole pictures; modified in place if the window is a part."""
    r4: FloatArray
    """The deep part's state."""
    r3: FloatArray
    """The middle part's state, in its window."""
    fine: dict[str, Any]
    """The fine part's outputs, in the window."""


class NearPeople:
    """The four parts on ONNX Runtime.

    Args:
        cut: Returns the parts of the network for windows with these crops; see ``cut_parts``.
        threads: Threads per frame; 0 uses every core.

    Raises:
        EngineError: ONNX Runtime cannot load a part.
    """

    def __init__(self, cut: Callable[[Crops], Parts], *, threads: int) -> None:
        self._cut, self._usual = cut, cut(NO_CROPS)
        self._threads = threads or available_cores()
        self._engines: dict[tuple[str, int, Crops], OnnxRuntimeEngine] = {}
        """Open engines, by part, threads and crops: with two eyes, one of the threads is a caller's; a window
        at a picture's lower or right end may need crops that others do not."""
        self._others: ThreadPoolExecutor | None = None
        """Computes all pictures but the first."""

    def begin(self, eyes: int, size: tuple[int, int]) -> FollowedPeople:
        """Start a stream without any frames."""
        half, quarter, _, tiles = state_sizes(size)
        return FollowedPeople(
            half=np.empty((eyes, 0, *half), np.float32),
            quarter=np.empty((eyes, 0, *quarter), np.float32),
            gain=np.zeros((eyes, 1, *size), np.float32),
            offset=np.zeros((eyes, 1, *size), np.float32),
            tiles=np.zeros((eyes, 3, *tiles), np.float32),
            people=np.ones(tiles, np.bool_),
        )

    def step(
        self, picture: FloatArray, memory: list[FloatArray], known: FollowedPeople
    ) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """Compute the next frame; a failed call changes nothing.

        Args:
            picture: float32 [E, 3, h, w], RGB 0..1.
            memory: r1 to r4; r1 to r3 may be modified in place.
            known: The stream's data; modified in place.

        Returns:
            Gain and offset, float32 [E, 1, h, w], owned by the caller, and r1 to r4.
        """
        pooled = _pooled(picture, _MIDDLE_STEP)
        tiles = _pooled(pooled, _TILE // _MIDDLE_STEP)
        shown, kept = self._windows(tiles, known)
        size = int(tiles.shape[2]), int(tiles.shape[3])
        is_whole = known.frames < _MIDDLE_WHOLE_FRAMES or known.frames % _MIDDLE_WHOLE_EVERY == 0
        seen, moved = (kept.wider(max(size) if is_whole else more, size) for more in (_MIDDLE_HALO, _HALO))
        pictures = _Pictures(np.ascontiguousarray(picture[shown.at(1)]), pooled, shown, kept, seen, moved)
        shares = _shares(len(picture), self._threads)
        # A session's threads are its callers and workers, which all callers share.
        engines = self._opened(
            self._threads - len(shares) + 1, *(window.samples(picture.shape[2:]) for window in (shown, seen))
        )
        before = known.quarter[kept.at(4)].copy()
        try:
            answers = self._side_by_side(
                [partial(self._answer, engines, pictures, memory, known, share) for share in shares]
            )
        except BaseException:
            known.quarter[kept.at(4)] = before
            raise
        # Only now: no further engine runs that might fail.
        known.half = _put(known.half, [answer.half for answer in answers], shown, kept, 2)
        if shown.covers(size):
            known.quarter = _joined([answer.quarter for answer in answers])
        new = [
            _put(memory[number], [answer.fine[name] for answer in answers], shown, kept, step)
            for number, (name, step) in enumerate((("r1o", 2), ("r2o", 4)))
        ]
        new.append(_put(memory[2], [answer.r3 for answer in answers], seen, moved, _MIDDLE_STEP))
        gain, offset = ([answer.fine[name][:, -1:] for answer in answers] for name in ("gain", "offset"))
        known.gain = _put(known.gain.copy(), gain, shown, kept, 1)
        known.offset = _put(known.offset.copy(), offset, shown, kept, 1)
        known.tiles[kept.at(_TILE)] = tiles[kept.at(_TILE)]
        known.people[kept.at(_TILE)] = self._somebody(picture, known, kept)
        known.frames += 1
        return known.gain, known.offset, [*new, _joined([answer.r4 for answer in answers])]

    def _answer(
        self,
        engines: _Engines,
        pictures: _Pictures,
        memory: Sequence[FloatArray],
        known: FollowedPeople,
        share: slice,
    ) -> _Answer:
        """Compute some pictures of a frame; of ``known`` only the quarter-size features change."""
        names, part, shown, kept, seen = self._usual, pictures.part[share], *pictures[2:5]
        features = engines.stem.run({"small_rgb": part})
        half = features[names.half]
        if shown != kept:  # the stem has a reach of 13 samples: less than the halo
            half, inside = known.half[share][shown.at(2)].copy(), kept.within(shown).at(2)
            half[inside] = features[names.half][inside]
        quarter = _put(known.quarter[share], [features[names.quarter]], shown, kept, 4)
        deep = engines.deep.run({names.quarter: quarter, "r4i": memory[3][share]})
        small = pictures.pooled[share][seen.at(_MIDDLE_STEP)]
        middle = engines.middle.run(
            {
                names.sixteenth: np.ascontiguousarray(deep[names.sixteenth][seen.at(_TILE)]),
                names.skipped: np.ascontiguousarray(deep[names.skipped][seen.at(_MIDDLE_STEP)]),
                names.pooled: np.concatenate([small, np.zeros_like(small[:, :1])], axis=1),
                "r3i": np.ascontiguousarray(memory[2][share][seen.at(_MIDDLE_STEP)]),
            }
        )
        fine = engines.fine.run(
            {
                "small_rgb": part,
                names.half: half,
                names.quarter: np.ascontiguousarray(quarter[shown.at(4)]),
                names.eighth: np.ascontiguousarray(middle[names.eighth][shown.within(seen).at(_MIDDLE_STEP)]),
                "r1i": np.ascontiguousarray(memory[0][share][shown.at(2)]),
                "r2i": np.ascontiguousarray(memory[1][share][shown.at(4)]),
            }
        )
        return _Answer(features[names.half], quarter, deep["r4o"], middle["r3o"], fine)

    def _opened(self, threads: int, shown: Sequence[int], seen: Sequence[int]) -> _Engines:
        """Open the parts with this many threads each, for windows of (height, width)."""
        return _Engines(
            stem=self._engine("stem", threads, NO_CROPS),
            deep=self._engine("deep", threads, NO_CROPS),
            middle=self._engine("middle", threads, (*NO_CROPS[:-1], crops_of(seen)[-1])),
            fine=self._engine("fine", threads, (*crops_of(shown)[:-1], NO_CROPS[-1])),
        )

    def _engine(self, part: str, threads: int, crops: Crops) -> OnnxRuntimeEngine:
        """Get a part's engine, opened on first use."""
        key = part, threads, crops
        if key not in self._engines:
            parts = self._usual if crops == NO_CROPS else self._cut(crops)
            self._engines[key] = OnnxRuntimeEngine(getattr(parts, part), threads=threads)
        return self._engines[key]

    def _side_by_side(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run all calls on threads and return their results; on failure, wait for the others before raising."""
        if len(calls) == 1:
            return [calls[0]()]
        if self._others is None:
            self._others = ThreadPoolExecutor(self._threads, thread_name_prefix="vitascope-eye")
        others = [self._others.submit(call) for call in calls[1:]]
        try:
            first = calls[0]()
        finally:
            wait(others)
        return [first, *(other.result() for other in others)]

    def close(self) -> None:
        """Free the engines; idempotent."""
        if self._others is not None:
            self._others.shutdown()
            self._others = None
        for engine in self._engines.values():
            engine.close()

    @staticmethod
    def _windows(tiles: FloatArray, known: FollowedPeople) -> tuple[_Window, _Window]:
        """Choose the windows of a frame to compute and to keep."""
        rows, columns = tiles.shape[2:]
        whole = _Window(0, rows, 0, columns)
        if known.frames < _WHOLE_FRAMES or known.frames % _WHOLE_EVERY == 0:
            return whole, whole
        wanted = cv2.dilate(known.people.astype(np.uint8), np.ones((3, 3), np.uint8)) + _changed(
            tiles, known.tiles
        )
        x, y, width, height = cv2.boundingRect(wanted.astype(np.uint8))
        if not width:
            x, y, width, height = columns // 2, rows // 2, 1, 1
        kept = _Window(y, y + height, x, x + width)
        shown = kept.wider(_HALO, (rows, columns))
        share = (shown.bottom - shown.top) * (shown.right - shown.left) / (rows * columns)
        return (whole, whole) if share > _WORTH else (shown, kept)

    @staticmethod
    def _somebody(picture: FloatArray, known: FollowedPeople, kept: _Window) -> npt.NDArray[np.bool_]:
        """Find tiles of a window with people in either eye."""
        place = kept.at(1)
        red, green, blue = np.split(picture[place], 3, axis=1)
        grey = (red + green + blue) / np.float32(3)  # NumPy's mean of three planes takes far longer
        alpha = (known.gain[place] * grey + known.offset[place]).max(axis=(0, 1))
        for axis in range(2):
            alpha = np.maximum.reduceat(alpha, range(0, alpha.shape[axis], _TILE), axis=axis)
        seen: npt.NDArray[np.bool_] = alpha > _NOBODY
        return seen


def _changed(tiles: FloatArray, before: FloatArray) -> npt.NDArray[np.bool_]:
    """Find tiles [rows, columns] where either eye's picture changed, from means [E, 3, rows, columns]."""
    darker = np.minimum(tiles, before).mean(axis=1)
    enough = (_CHANGE_SHARE * darker).clip(_LEAST_CHANGE, _MOST_CHANGE)
    changed: npt.NDArray[np.bool_] = (np.abs(tiles - before).mean(axis=1) > enough).any(axis=0)
    return changed


def _pooled(planes: FloatArray, step: int) -> FloatArray:
    """Average squares of planes [E, C, h, w]; the side is a power of two.

    Halves step by step, like the network: a half square at the lower or right end counts as a whole one.
    """
    eyes, channels, height, width = planes.shape
    small = list(planes.reshape(-1, height, width))
    while step > 1:
        small = [_halved(plane) for plane in small]
        step //= 2
    return np.asarray(small, np.float32).reshape(eyes, channels, *small[0].shape)


def _halved(plane: FloatArray) -> FloatArray:
    rows, columns = plane.shape
    even: Any = plane
    if rows % 2 or columns % 2:
        even = cv2.copyMakeBorder(plane, 0, rows % 2, 0, columns % 2, cv2.BORDER_REPLICATE)
    return cast(FloatArray, cv2.resize(even, (-(-columns // 2), -(-rows // 2)), interpolation=cv2.INTER_AREA))


def _shares(pictures: int, threads: int) -> list[slice]:
    """Divide a frame's pictures equally among threads."""
    most = max(each for each in range(1, pictures + 1) if pictures % each == 0 and each <= threads)
    length = pictures // most
    return [slice(first, first + length) for first in range(0, pictures, length)]


def _joined(parts: Sequence[FloatArray]) -> FloatArray:
    """Concatenate the planes of all pictures."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _put(
    whole: FloatArray, parts: Sequence[FloatArray], shown: _Window, kept: _Window, step: int
) -> FloatArray:
    """Copy the kept part of new planes into the old ones; new planes of the whole picture replace them."""
    if parts[0].shape[2:] == whole.shape[2:]:
        return _joined(parts)
    first = 0
    for part in parts:
        whole[first : first + len(part)][kept.at(step)] = part[kept.within(shown).at(step)]
        first += len(part)
    return whole
