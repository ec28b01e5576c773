"""What kept people hold: things that stand out, touch somebody who is kept, and move as they do.

Every few frames a network says what stands out of somebody's surroundings. Parts of that which nobody's matte holds are
things; one that touches a kept person is theirs unless it stays with the background while the person moves. Between two
looks, things are carried by the film's motion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.segmentation.people.motion import MotionField

__all__ = ["FindSalient", "HeldThings"]

FloatMap = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Picture = npt.NDArray[np.uint8]
FindSalient = Callable[[Picture], FloatMap]
"""How much each pixel of a picture, uint8 [h, w, 3], stands out: float32 [h, w], 0..1."""

_FRAMES_BETWEEN_LOOKS: Final = 8
_REACH = 0.35
"""How far around kept people things are looked for, as a share of their box's longer side."""
_SOLID = 0.5
_LEAST_AREA = 0.0004
"""Share of the picture below which a part is no thing."""
_MOST_AREA = 0.8
"""A thing is smaller than this share of who holds it."""
_RIM = 1 / 120
"""Share of the picture's shorter side: a part that is narrower than twice that is the rim of a matte."""
_TOUCH = 1 / 40
"""Share of the picture's shorter side within which a thing touches somebody."""
_MOVES = 1 / 100
"""Share of the picture's shorter side by which somebody must move between two looks to say anything about a thing."""
_STAYS = 0.3
"""Share of that movement by which a thing that stays with the background may move, too."""
_MOST_HOLE = 0.25
"""Share of a thing; larger holes in it are seen through."""
_NEW = 0.6
"""How much of a thing's outline is that of the new look, rather than the carried one."""


class HeldThings:
    """Follows what kept people hold through a film, eye by eye.

    Args:
        find: Finds what stands out.
        every: Frames from one look to the next.
    """

    def __init__(self, find: FindSalient, *, every: int = _FRAMES_BETWEEN_LOOKS) -> None:
        self._find, self._every = find, every
        self._frames_to_look = 0
        self._eyes: list[_Eye] = []

    def added(
        self, rgb: FloatMap, alpha: FloatMap, share: FloatMap | None, *, starts_shot: bool
    ) -> FloatMap | None:
        """What is held in the next frame: float32 [E, h, w], 0..1; None for nothing.

        Args:
            rgb: float32 [E, 3, h, w], 0..1.
            alpha: Everybody's matte, float32 [E, h, w], 0..1.
            share: How much of it is kept, float32 [E, h, w], 0..1; None where all is.
            starts_shot: Nothing before this frame counts.
        """
        if starts_shot or len(self._eyes) != len(rgb):
            self._eyes = [_Eye(alpha.shape[1:]) for _ in rgb]
            self._frames_to_look = 0
        looks = self._frames_to_look == 0
        self._frames_to_look = (self._frames_to_look or self._every) - 1
        found = []
        for at, eye in enumerate(self._eyes):
            picture = np.ascontiguousarray(np.rint(rgb[at].clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0))
            eye.carry(picture)
            if looks:
                eye.look(picture, alpha[at], None if share is None else share[at], self._find)
            found.append(eye.held)
        return np.stack(found) if any(held.any() for held in found) else None


class _Eye:
    """The things of one eye's pictures."""

    def __init__(self, size: Sequence[int]) -> None:
        self._motion = MotionField((size[0], size[1]))
        self._grid = np.dstack([self._motion.columns, self._motion.rows])
        self._grey: Any = None
        self._origin = self._grid
        """Where each pixel was when things were last looked for, x and y."""
        self._stays = np.zeros(size, np.float32)
        """What stayed behind when who touches it moved, carried."""
        self.held = np.zeros(size, np.float32)

    def carry(self, picture: Picture) -> None:
        """Carry all that is known into the next frame."""
        grey: Any = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        if self._grey is not None:
            place = self._motion.place(grey, self._grey)
            self._origin = self._motion.carried(self._origin, place)
            if self.held.any():
                self.held = np.clip(0.5 + 1.2 * (self._motion.carried(self.held, place) - 0.5), 0, 1)
            if self._stays.any():
                self._stays = self._motion.carried(self._stays, place)
        self._grey = grey

    def look(self, picture: Picture, alpha: FloatMap, share: FloatMap | None, find: FindSalient) -> None:
        """See what is held, and remember it."""
        moved, self._origin = self._grid - self._origin, self._grid
        kept = (alpha if share is None else alpha * share) > _SOLID
        if not kept.any():
            self.held = np.zeros_like(self.held)
            return
        stands_out = _around(picture, kept, find)
        held, stays = np.zeros_like(self.held), np.zeros_like(self.held)
        least, side = _LEAST_AREA * alpha.size, min(alpha.shape)
        nobody = alpha < _SOLID
        parts: Any
        candidates = cv2.morphologyEx(
            ((stands_out > _SOLID) & nobody).astype(np.uint8), cv2.MORPH_OPEN, _disc(_RIM * side)
        )
        count, parts, stats, _ = cv2.connectedComponentsWithStats(candidates, connectivity=4)
        for part in range(1, count):
            area = int(stats[part, cv2.CC_STAT_AREA])
            if area < least or area > _MOST_AREA * kept.sum():
                continue
            inside = parts == part
            near = _grown(inside, _TOUCH * side)
            touching = near & kept
            others = near & ~nobody & ~kept
            was_held = float(self.held[inside].mean()) > 0.5
            if not was_held and (touching.sum() < 0.02 * area or others.sum() > touching.sum()):
                continue
            if self._stays_behind(inside, touching, nobody & (stands_out < _SOLID), moved, side):
                stays[inside] = 1
                continue
            own = _filled(inside, _MOST_HOLE)
            soft: Any = cv2.GaussianBlur(_grown(own, _RIM * side).astype(np.float32), (0, 0), 1.0)
            held = np.maximum(held, np.maximum(stands_out, own & ~inside) * soft)
        was = self.held * (_grown(stays > 0, _TOUCH * side) == 0)
        self.held = np.clip(_NEW * held + (1 - _NEW) * was, 0, 1).astype(np.float32)
        self._stays = stays

    def _stays_behind(
        self, inside: Mask, touching: Mask, background: Mask, moved: FloatMap, side: int
    ) -> bool:
        """True for a thing that moves as the background does, and not as who touches it."""
        known = float(self._stays[inside].mean()) > 0.5
        ring = _grown(inside, 4 * _TOUCH * side) & background
        if not touching.any() or not ring.any():
            return known
        own, person, behind = (np.median(moved[cells], axis=0) for cells in (inside, touching, ring))
        way = float(np.hypot(*(person - behind)))
        if way < _MOVES * side:
            return known
        return float(np.hypot(*(own - behind))) < _STAYS * way


def _around(picture: Picture, kept: Mask, find: FindSalient) -> FloatMap:
    """What stands out of the surroundings of kept people, float32 [h, w], 0..1."""
    rows, columns = np.flatnonzero(kept.any(axis=1)), np.flatnonzero(kept.any(axis=0))
    margin = round(_REACH * max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1)
    top, left = max(rows[0] - margin, 0), max(columns[0] - margin, 0)
    here = slice(top, rows[-1] + margin), slice(left, columns[-1] + margin)
    found = np.zeros(kept.shape, np.float32)
    found[here] = find(np.ascontiguousarray(picture[here]))
    return found


def _disc(radius: float) -> Any:
    side = 2 * max(round(radius), 1) + 1
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side))


def _grown(mask: Mask, radius: float) -> Mask:
    grown: Mask = cv2.dilate(mask.astype(np.uint8), _disc(radius)) > 0
    return grown


def _filled(mask: Mask, most: float) -> Mask:
    """A part without its smaller holes."""
    contours: Any
    contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    whole = cv2.drawContours(np.zeros(mask.shape, np.uint8), contours, -1, 1, -1)
    count, holes, stats, _ = cv2.connectedComponentsWithStats(((whole > 0) & ~mask).astype(np.uint8), connectivity=4)
    small = [hole for hole in range(1, count) if stats[hole, cv2.CC_STAT_AREA] < most * mask.sum()]
    return mask | np.isin(holes, small)
