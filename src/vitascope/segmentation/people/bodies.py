"""Models people as layers: the look of each in every cell, hidden or not, carried along by their motion.

Where one person hides another, the hidden cells keep their colours and move on with the rest of that person.
So a cell that either may cover goes to the person whose colours it shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.segmentation.people.small_frames import MotionField

FloatMap = npt.NDArray[np.float32]

_SPREAD = 20.0
"""Spread, in codes, of a cell's colour around the carried one, beyond that of its neighbours, for the same person."""
_WORST_FIT = 4.5
UNKNOWN_FIT = -2.0
"""Log-likelihood of a cell's colour for a person who was never seen in that cell."""
_LEARN = 0.7
"""Share of a cell's colour that is learned anew in each frame; a smaller share shows more of the other person when
two cross."""
_SPEED_KEPT = 0.8
_HIDDEN_COST = 1.0
"""Cost of a cell behind others in the search for a person's motion: a little more than that of a cell that fits."""
_HASTE = 0.01
"""Cost of a change of motion, per cell squared. With 0, a person is dragged along by somebody similar in front of
them; with a large cost, a person who turns round quickly is lost."""
_GROWTH = 0.5
"""Rate at which a cell beside another person becomes a part of a person. At 1, somebody who comes out from behind a
similar person is taken for a part of them."""
_NOT_THERE = 0.7
"""Factor, per frame, on a person's presence in cells without matte."""

_MOST_CELLS = 300
"""Maximum cells of a person compared in the search; larger people are sampled evenly."""

_AROUND = np.ones((3, 3), np.uint8)
_BESIDE = [(x, y) for y in (0, -1, 1) for x in (0, -1, 1)]
"""Offsets of a cell and its neighbours, the cell itself first."""


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A person in a frame, as a layer."""

    rgb: FloatMap
    """Colours, 0..255, float32 [h, w, 3]; undefined where the person is not."""
    whole: FloatMap
    """Presence in each cell, visible or hidden, float32 [h, w], 0..1."""
    seen: FloatMap
    """Visibility in each cell, float32 [h, w], 0..1."""
    speed: npt.NDArray[np.float64]
    """Motion per frame (x, y), in cells."""

    def cut(self, box: tuple[slice, slice]) -> Body:
        """The part of a person within some rows and columns."""
        return Body(self.rgb[box], self.whole[box], self.seen[box], self.speed)


def carried_bodies(
    bodies: Mapping[int, Body], rgb: FloatMap, place: FloatMap, motion: MotionField, *, alone: Collection[int]
) -> dict[int, Body]:
    """Predict people's layers in the next frame.

    Args:
        bodies: Layers in the previous frame, by number.
        rgb: The next frame, 0..255, float32 [h, w, 3].
        place: Position of each cell of the next frame in the previous one, from ``MotionField.place``.
        motion: The grid's motion.
        alone: Numbers of the people who touch nobody.
    """
    seen = {number: motion.carried(body.seen, place) for number, body in bodies.items()}
    carried: dict[int, Body] = {}
    meeting = [number for number in bodies if number not in alone]
    if meeting:
        total = np.sum(list(seen.values()), axis=0)
        for number in meeting:
            others = np.clip(total - seen[number], 0, 1)
            carried[number] = _carried_among(others, bodies[number], seen[number], rgb, place, motion)
    pictures: dict[int, FloatMap] = {}  # people who are alone share the colours of one picture
    for number in bodies.keys() - carried.keys():
        body = bodies[number]
        if id(body.rgb) not in pictures:
            pictures[id(body.rgb)] = motion.carried(body.rgb, place)
        shift = _median_move(seen[number] > 0.5, place, motion)
        speed = body.speed if shift is None else _SPEED_KEPT * body.speed - (1 - _SPEED_KEPT) * shift
        carried[number] = Body(pictures[id(body.rgb)], seen[number], seen[number], speed)
    return {number: carried[number] for number in bodies}


def _carried_among(
    others: FloatMap, body: Body, seen: FloatMap, rgb: FloatMap, place: FloatMap, motion: MotionField
) -> Body:
    inner = cv2.erode((seen > 0.5).astype(np.uint8), _AROUND, iterations=2)
    guesses = [-body.speed]
    if (median := _median_move(inner, place, motion)) is not None:
        guesses.append(median)
    shift = _shift(body, rgb, others, guesses)
    near: Any = cv2.GaussianBlur(inner.astype(np.float32), (0, 0), 1.0)
    # OpenCV: NumPy takes several times as long to broadcast over pairs.
    add: Any = cv2.add  # its stubs do not know that one number per channel is allowed
    there = add(motion.grid, (*shift.tolist(), 0, 0))
    there += cv2.merge([near, near]) * (place - there)
    speed = _SPEED_KEPT * body.speed - (1 - _SPEED_KEPT) * shift
    return Body(motion.carried(body.rgb, there), motion.carried(body.whole, there), seen, speed)


def _median_move(
    cells: npt.NDArray[Any], place: FloatMap, motion: MotionField
) -> npt.NDArray[np.float64] | None:
    """Median motion (x, y) of some cells back to the previous frame; None without cells.

    Args:
        cells: bool or uint8 [h, w]: the cells.
        place: float32 [h, w, 2], from ``MotionField.place``.
        motion: The grid's motion.
    """
    which = np.flatnonzero(cells)
    if not len(which):
        return None
    moved = place.reshape(-1, 2).take(which, axis=0) - motion.grid.reshape(-1, 2).take(which, axis=0)
    middle = len(which) // 2
    return np.array([np.partition(along, middle)[middle] for along in moved.T], np.float64)


def _shift(
    body: Body, rgb: FloatMap, others: FloatMap, guesses: Sequence[npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
    """Find a person's motion back to the previous frame by colour, even if partly hidden: x and y in half cells.

    Cells in which others are visible do not count; otherwise a person behind somebody similar would be dragged along
    by them.

    Args:
        body: Layer in the previous frame.
        rgb: The frame, 0..255, float32 [h, w, 3].
        others: Probability that another person is visible in each cell, float32 [h, w].
        guesses: Starting points of the search; the first is the current motion.
    """
    cells = np.flatnonzero(body.whole > 0.5)
    if not len(cells):
        return guesses[0]
    if len(cells) > _MOST_CELLS:
        cells = cells[np.linspace(0, len(cells) - 1, _MOST_CELLS).astype(np.intp)]
    there = body.rgb.reshape(-1, 3).take(cells, axis=0)
    rows, columns = (at.astype(np.float32) for at in np.divmod(cells, body.whole.shape[1]))

    expected_x, expected_y = guesses[0].tolist()
    costs: dict[tuple[int, int], float] = {}

    def best_of(moves: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The best of some moves, in half cells (x, y); the first of equals."""
        if new := [move for move in moves if move not in costs]:
            left, up = np.array(new, np.float32).T[:, :, None] / 2
            moved: Any = cv2.merge([columns - left, rows - up])
            apart = MotionField.carried(rgb, moved)
            apart -= there
            fits = np.einsum("kcp,kcp->kc", apart, apart)
            fits *= np.float32(0.5 / _SPREAD**2)
            np.minimum(fits, _WORST_FIT, out=fits)
            fits += MotionField.carried(others, moved) * (_HIDDEN_COST - fits)
            for (x, y), cost in zip(new, fits.mean(axis=1).tolist(), strict=True):
                costs[x, y] = cost + _HASTE * ((x / 2 - expected_x) ** 2 + (y / 2 - expected_y) ** 2)
        return min(moves, key=costs.__getitem__)

    best = best_of([(round(2 * x), round(2 * y)) for x, y in guesses])
    for step in (2, 1):
        for _ in range(2):
            x, y = before = best
            best = best_of([(x + step * right, y + step * down) for right, down in _BESIDE])
            if best == before:
                break
    return np.array(best) / 2


def fit(body: Body, rgb: FloatMap) -> FloatMap:
    """Log-likelihood that a frame's colours belong to a person, at most 0, float32 [h, w].

    Args:
        body: Layer carried to that frame.
        rgb: The frame, 0..255, float32 [h, w, 3].
    """
    low, high = cv2.erode(body.rgb, _AROUND), cv2.dilate(body.rgb, _AROUND)
    beyond = np.maximum(rgb - high, low - rgb).clip(0, None)
    cost = np.einsum("hwp,hwp->hw", beyond, beyond) * np.float32(0.5 / _SPREAD**2)
    known = np.minimum(body.whole * 2, 1)
    found: FloatMap = known * -np.minimum(cost, np.float32(_WORST_FIT)) + (1 - known) * np.float32(
        UNKNOWN_FIT
    )
    return found


def learned_body(
    body: Body | None, rgb: FloatMap, own: npt.NDArray[np.bool_], hidden: npt.NDArray[np.bool_] | None
) -> Body:
    """Update a person's layer once the owner of each cell is decided.

    Args:
        body: Layer carried to this frame; None for a person who was not there.
        rgb: The frame, 0..255, float32 [h, w, 3].
        own: bool [h, w], the person's cells.
        hidden: bool [h, w], other people's cells that may hide the person; None if nobody does.
    """
    seen = own.astype(np.float32)
    if body is None or hidden is None:
        return Body(rgb, seen, seen, np.zeros(2) if body is None else body.speed)
    inner = cv2.erode(seen, _AROUND)
    cells = np.flatnonzero(own)
    share = np.where(body.whole.flat[cells] < 0.5, np.float32(1), np.float32(_LEARN) * inner.flat[cells])
    colors = body.rgb.copy()
    before = colors.reshape(-1, 3).take(cells, axis=0)
    new = rgb.reshape(-1, 3).take(cells, axis=0) - before
    new *= np.repeat(share, 3).reshape(-1, 3)
    colors.reshape(-1, 3)[cells] = before + new
    beside = cv2.dilate(hidden.astype(np.uint8), _AROUND, iterations=2) > 0
    grown = np.where(beside, body.whole + np.float32(_GROWTH) * (1 - body.whole), np.float32(1))
    whole = np.where(own, grown, body.whole * np.where(hidden, np.float32(1), np.float32(_NOT_THERE)))
    return Body(colors, whole, seen, body.speed)


def joined_body(body: Body, part: Body) -> Body:
    """Merge a person with a layer that turned out to be a part of them."""
    return Body(
        np.where(part.seen[..., None] > 0.5, part.rgb, body.rgb),
        np.maximum(body.whole, part.whole),
        np.maximum(body.seen, part.seen),
        body.speed,
    )
