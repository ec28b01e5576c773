"""People as layers of the picture: what each looks like cell by cell, hidden cells included, carried by their motion.

Where one hides another, cells of the hidden one keep their colours and move on with the rest of them. So a cell that
both may cover is given to whose colours it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.segmentation.people.motion import MotionField

FloatMap = npt.NDArray[np.float32]
Picture = npt.NDArray[np.uint8]

_SPREAD = 20.0
"""Codes by which a cell's colour differs from what was carried there, beyond its neighbours', of the same person."""
_WORST_FIT = 4.5
UNKNOWN_FIT = -2.0
"""Log-likelihood of a cell's colour for somebody who was never seen there."""
_LEARN = 0.7
"""Share of a cell's colour that is new in each frame; smaller ones let more of the other show when two cross."""
_SPEED_KEPT = 0.8
_HIDDEN_COST = 1.0
"""What a cell behind others counts in the search for where somebody moved: a little worse than one that fits."""
_HASTE = 0.01
"""Cost of moving otherwise than before, for each cell squared. Without it somebody is drawn along by whoever hides them
and looks like them; with much of it, somebody who turns round quickly is lost."""
_GROWTH = 0.5
"""How quickly a cell beside somebody else becomes a part of a person. At 1, somebody who comes out from behind
somebody alike is taken for a part of them."""
_NOT_THERE = 0.7
"""Share of a person that is kept from frame to frame where nothing was matted."""

_AROUND = np.ones((3, 3), np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """Somebody in a frame, as a layer."""

    rgb: FloatMap
    """Colours, 0..255, float32 [h, w, 3]; of no meaning where the person is not."""
    whole: FloatMap
    """How surely they are where, hidden or not, float32 [h, w], 0..1."""
    seen: FloatMap
    """Where they are seen, float32 [h, w], 0..1."""
    speed: npt.NDArray[np.float64]
    """Cells from a frame to the next (x, y)."""


def carried_body(
    body: Body,
    rgb: Picture,
    place: FloatMap,
    motion: MotionField,
    *,
    others: FloatMap | None = None,
) -> Body:
    """A person as they should be in the next frame.

    Args:
        body: In the frame before.
        rgb: The next frame, uint8 [h, w, 3].
        place: Where each cell of the next frame lies in the frame before, as ``MotionField.place`` gives it.
        motion: Of the grid.
        others: How surely somebody else shows in each cell of the next frame, float32 [h, w], 0..1; None for who
            meets nobody.
    """
    grid = np.dstack([motion.columns, motion.rows])
    moved = place - grid
    seen = motion.carried(body.seen, place)
    if others is None:
        cells = seen > 0.5
        shift = np.median(moved[cells], axis=0) if cells.any() else -body.speed
        return Body(
            motion.carried(body.rgb, place), seen, seen, _SPEED_KEPT * body.speed - (1 - _SPEED_KEPT) * shift
        )
    inner = cv2.erode((seen > 0.5).astype(np.float32), _AROUND, iterations=2)
    guesses = [-body.speed]
    if inner.any():
        guesses.append(np.median(moved[inner > 0], axis=0))
    shift = _shift(body, rgb, others, guesses)
    near: Any = cv2.GaussianBlur(inner, (0, 0), 1.0)
    field = shift + near[..., None] * (moved - shift)
    there = (grid + field).astype(np.float32)
    speed = _SPEED_KEPT * body.speed - (1 - _SPEED_KEPT) * shift
    return Body(motion.carried(body.rgb, there), motion.carried(body.whole, there), seen, speed)


def _shift(
    body: Body, rgb: Picture, others: FloatMap, guesses: Sequence[npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
    """Where the cells of a person lie in the frame before, by colour, whatever hides them: x and y in half cells.

    Cells where others show say nothing: somebody behind who looks like them would be drawn along by who is before them.

    Args:
        body: In the frame before.
        rgb: The frame, uint8 [h, w, 3].
        others: How surely somebody else shows in each cell of it.
        guesses: Where the search begins; the first is how they moved until now.
    """
    rows, columns = np.flatnonzero(body.whole.max(axis=1) > 0.5), np.flatnonzero(body.whole.max(axis=0) > 0.5)
    if not len(rows):
        return guesses[0]
    here = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    there, inside = body.rgb[here], body.whole[here] > 0.5
    picture = np.dstack([rgb.astype(np.float32), others])
    costs: dict[tuple[int, int], float] = {}

    def cost(halves: tuple[int, int]) -> float:
        if halves not in costs:
            moved = np.array([[1, 0, columns[0] - halves[0] / 2], [0, 1, rows[0] - halves[1] / 2]])
            seen = cv2.warpAffine(
                picture,
                moved,
                there.shape[1::-1],
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REPLICATE,
            )
            apart = seen[..., :3] - there
            apart = np.einsum("rcp,rcp->rc", apart, apart) * np.float32(0.5 / _SPREAD**2)
            fits = np.minimum(apart, _WORST_FIT)
            fits += seen[..., 3] * (_HIDDEN_COST - fits)
            haste = float(np.square(np.array(halves) / 2 - guesses[0]).sum())
            costs[halves] = float(fits[inside].mean()) + _HASTE * haste
        return costs[halves]

    best = min(((round(2 * x), round(2 * y)) for x, y in guesses), key=cost)
    for step in (2, 2, 1, 1):
        best = min(
            ((best[0] + step * x, best[1] + step * y) for y in (0, -1, 1) for x in (0, -1, 1)), key=cost
        )
    return np.array(best) / 2


def fit(body: Body, rgb: Picture) -> FloatMap:
    """How well a frame's colours are those of a person, as a log-likelihood, 0 and less, float32 [h, w].

    Args:
        body: Carried to that frame.
        rgb: uint8 [h, w, 3].
    """
    low, high = cv2.erode(body.rgb, _AROUND), cv2.dilate(body.rgb, _AROUND)
    beyond = np.maximum(rgb - high, low - rgb).clip(0, None)
    cost = (beyond * beyond).sum(axis=2) * np.float32(0.5 / _SPREAD**2)
    known = np.minimum(body.whole * 2, 1)
    found: FloatMap = known * -np.minimum(cost, np.float32(_WORST_FIT)) + (1 - known) * np.float32(
        UNKNOWN_FIT
    )
    return found


def learned_body(
    body: Body | None, rgb: Picture, own: npt.NDArray[np.bool_], hidden: npt.NDArray[np.bool_] | None
) -> Body:
    """A person after whose each cell is was decided.

    Args:
        body: Carried to this frame; None for somebody who was not there.
        rgb: The frame, uint8 [h, w, 3].
        own: bool [h, w]: cells that are theirs.
        hidden: bool [h, w]: cells of others, behind whom they may be; None where nobody hides them.
    """
    seen = own.astype(np.float32)
    if body is None or hidden is None:
        return Body(rgb.astype(np.float32), seen, seen, np.zeros(2) if body is None else body.speed)
    inner = cv2.erode(seen, _AROUND)
    share = np.where(own & (body.whole < 0.5), np.float32(1), np.float32(_LEARN) * inner)[..., None]
    beside = cv2.dilate(hidden.astype(np.uint8), _AROUND, iterations=2) > 0
    grown = np.where(beside, body.whole + np.float32(_GROWTH) * (1 - body.whole), np.float32(1))
    whole = np.where(own, grown, body.whole * np.where(hidden, np.float32(1), np.float32(_NOT_THERE)))
    return Body(body.rgb + share * (rgb - body.rgb), whole, seen, body.speed)


def joined_body(body: Body, part: Body) -> Body:
    """A person, and what turned out to be a part of them."""
    return Body(
        np.where(part.seen[..., None] > 0.5, part.rgb, body.rgb),
        np.maximum(body.whole, part.whole),
        np.maximum(body.seen, part.seen),
        body.speed,
    )
