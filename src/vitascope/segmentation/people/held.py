"""Finds what kept people hold: objects that stand out, touch a kept person, and move with them.

Every few frames a network finds what stands out from a person's surroundings. Parts of this that are in nobody's
matte are things; a thing that touches a kept person belongs to them, unless it stays with the background while the
person moves. If a part consists of two things, one staying and one moving along, they are separated. Between two
looks, things follow the video's motion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.segmentation.people.small_frames import MotionField

FloatMap = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Picture = npt.NDArray[np.uint8]
Movement = Literal["none", "with them", "with the background", "unclear"]
FindSalient = Callable[[Picture], FloatMap]
"""Finds how much each pixel of a picture, uint8 [h, w, 3], stands out: float32 [h, w], 0..1."""

_FRAMES_BETWEEN_LOOKS: Final = 8
_REACH = 0.35
"""Distance around kept people within which things are searched for, as a share of their box's longer side."""
_SOLID = 0.5
_LEAST_AREA = 0.0004
"""Minimum area of a thing, as a share of the picture."""
_MOST_AREA = 0.8
"""Maximum area of a thing, as a share of the person who holds it."""
_LEAST_TOUCH = 0.02
"""Minimum contact with a person, in pixels, as a share of the thing's own."""
_RIM = 1 / 120
"""Half the minimum width of a part, as a share of the picture's shorter side; narrower parts are rims of a matte."""
_TOUCH = 1 / 30
"""Distance, as a share of the picture's shorter side, within which a thing touches a person."""
_LEAST_TOUCH_PX = 2
_MOVES = 1 / 100
"""Minimum motion of a person between two looks that tells anything about a thing, as a share of the picture's shorter
side."""
_SURE = 0.7
"""Largest ratio of a thing's change under one motion to its change under another for it to have moved that
way."""
_STAYED = 0.1
"""Share of a thing that stayed behind above which none of it counts as held, until that is forgotten."""
_PIECE = 0.15
"""Share of a part from which some of it is another thing, if it moved differently from the rest."""
_NOISE = 1.0
"""Noise of the pictures, in codes."""
_MOST_HOLE = 0.25
"""Largest hole that is filled, as a share of the thing; larger holes show the background."""
_STANDS_OUT, _STOOD_OUT = 0.5, 0.25
"""Minimum salience of a pixel of a thing, and of one that was held before."""
_HASTE = 1 / 24
"""Maximum motion of a thing from frame to frame for which it is searched as a whole, as a share of the picture's
shorter side."""
_STIFF = 1 / 40
"""Distance over which a thing moves as one, as a share of the picture's shorter side."""
_PATIENCE_LOOKS = 3
"""Number of looks for which a thing that no longer stands out is still carried."""


class HeldThings:
    """Follows what kept people hold through a video, eye by eye.

    Args:
        find: Finds what stands out.
        every: Frames between two looks.
    """

    def __init__(self, find: FindSalient, *, every: int = _FRAMES_BETWEEN_LOOKS) -> None:
        self._find, self._every = find, every
        self._frames_to_look = 0
        self._eyes: list[_Eye] = []

    def added(
        self, rgb: FloatMap, alpha: FloatMap, share: FloatMap | None, *, starts_shot: bool
    ) -> FloatMap | None:
        """Things held in the next frame: float32 [E, h, w], 0..1; None if there are none.

        Args:
            rgb: float32 [E, 3, h, w], 0..1.
            alpha: Everybody's matte, float32 [E, h, w], 0..1.
            share: Share of it that is kept, float32 [E, h, w], 0..1; None if all is.
            starts_shot: True if a shot begins: forget all earlier frames.
        """
        if starts_shot or len(self._eyes) != len(rgb):
            self._eyes = [_Eye(alpha.shape[1:]) for _ in rgb]
            self._frames_to_look = 0
        looks = self._frames_to_look == 0
        self._frames_to_look = (self._frames_to_look or self._every) - 1
        found = []
        for at, eye in enumerate(self._eyes):
            picture = np.ascontiguousarray(
                np.rint(rgb[at].clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)
            )
            own = alpha[at] if share is None else alpha[at] * share[at]
            eye.carry(picture)
            if looks:
                eye.look(picture, alpha[at], own > _SOLID, self._find)
            else:
                eye.judge(alpha[at], own > _SOLID)
            found.append(eye.held)
        return np.stack(found) if any(held.any() for held in found) else None


class _Eye:
    """The things in one eye's pictures."""

    def __init__(self, size: Sequence[int]) -> None:
        self._motion = MotionField((size[0], size[1]))
        self._grid = np.dstack([self._motion.columns, self._motion.rows])
        self._grey: Any = None
        self._origin = self._grid
        """Place of each pixel at the last look, x and y."""
        self._looked_at: Any = None
        """Picture of the last look, uint8 [h, w]."""
        self._stays = np.zeros(size, np.float32)
        """Parts that stayed behind when the person touching them moved; carried along."""
        self._missed = np.zeros(size, np.float32)
        """Number of looks since a thing last stood out; carried along."""
        self._proven = np.zeros(size, np.float32)
        """Held things that were seen to move with the person touching them; carried along."""
        self.held = np.zeros(size, np.float32)

    def carry(self, picture: Picture) -> None:
        """Carry all maps into the next frame."""
        grey: Any = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
        if self._grey is not None:
            place = self._motion.place(grey, self._grey)
            self._origin = self._motion.carried(self._origin, place)
            if self.held.any():
                along = self._along(place, grey)
                self.held = np.clip(0.5 + 1.2 * (self._motion.carried(self.held, along) - 0.5), 0, 1)
                self._missed = self._motion.carried(self._missed, along)
                self._proven = self._motion.carried(self._proven, along)
            if self._stays.any():
                self._stays = self._motion.carried(self._stays, place)
        self._grey = grey

    def _along(self, place: FloatMap, grey: Any) -> FloatMap:
        """Place of each pixel in the previous frame, if held things moved as wholes.

        A thing is searched for in its previous form, since optical flow, which at its edges is half the background's,
        would wear these off. If it changed, for example by turning, flow fits better; it is then smoothed over the
        thing.
        """
        shares: Any = self._motion.carried(self.held, place)
        sigma = _STIFF * min(shares.shape)
        near: Any = cv2.GaussianBlur(shares, (0, 0), sigma)
        moved: Any = cv2.GaussianBlur((place - self._grid) * shares[..., None], (0, 0), sigma)
        even = np.where(near[..., None] > 1e-3, moved / np.maximum(near, 1e-3)[..., None], place - self._grid)
        along = np.asarray(self._grid + even, np.float32)
        flowed = cv2.absdiff(self._motion.carried(self._grey, along), grey)
        reach = max(round(_HASTE * min(shares.shape)), 2)
        count, parts, stats, _ = cv2.connectedComponentsWithStats((self.held > _SOLID).astype(np.uint8))
        for part in range(1, count):
            left, top, width, height = (int(side) for side in stats[part, :4])
            here = (
                slice(max(top - reach, 0), top + height + reach),
                slice(max(left - reach, 0), left + width + reach),
            )
            own = np.ascontiguousarray(
                (parts == part)[top : top + height, left : left + width].astype(np.uint8)
            )
            before = np.ascontiguousarray(self._grey[top : top + height, left : left + width])
            costs = cv2.matchTemplate(np.ascontiguousarray(grey[here]), before, cv2.TM_SQDIFF, mask=own)
            least, _, (x, y), _ = cv2.minMaxLoc(costs)
            shift = x + here[1].start - left, y + here[0].start - top
            moved_part = parts == part
            there = np.roll(moved_part, shift[::-1], axis=(0, 1))
            by_flow = self._motion.carried(moved_part.astype(np.float32), along) > _SOLID
            error = float(np.square(flowed[by_flow].astype(np.float32)).mean()) if by_flow.any() else np.inf
            if least / own.sum() < error:
                wide = _grown(there, reach)
                along[wide] = (self._grid - np.array(shift, np.float32))[wide]
        return along

    def judge(self, alpha: FloatMap, kept: Mask) -> None:
        """Drop objects that turn out to stay with the background, without running the network again."""
        side, nobody = min(alpha.shape), alpha < _SOLID
        held = self.held > _SOLID
        for part in _parts(held & nobody, rim=_RIM * side, least=_LEAST_AREA * alpha.size):
            touching = _reached(part) & kept
            things = self._things(part, touching, nobody & ~held, side)
            if len(things) > 1:  # little moved since the last look, so reflections look like things
                continue
            ((_, movement),) = things
            if movement == "with them":
                self._proven[part] = 1
            elif movement == "with the background":
                self.held = np.where(_reached(part), np.float32(0), self.held)
                self._stays = np.maximum(self._stays, part.astype(np.float32))

    def look(self, picture: Picture, alpha: FloatMap, kept: Mask, find: FindSalient) -> None:
        """Find what is held, and store it.

        Args:
            picture: uint8 [h, w, 3].
            alpha: Everybody's matte, float32 [h, w], 0..1.
            kept: bool [h, w]: the kept people's pixels.
            find: Finds what stands out.
        """
        if not kept.any():
            self.held = np.zeros_like(self.held)
            return
        side, nobody = min(alpha.shape), alpha < _SOLID
        before = self.held > _SOLID
        salient = _around(picture, kept, find)
        stands_out = salient > np.where(before, np.float32(_STOOD_OUT), np.float32(_STANDS_OUT))
        held, stays, proven = (np.zeros(alpha.shape, bool) for _ in range(3))
        for part in _parts(stands_out & nobody, rim=_RIM * side, least=_LEAST_AREA * alpha.size):
            area = part.sum()
            near = _reached(part)
            touching, others = near & kept, near & ~nobody & ~kept
            if area > _MOST_AREA * kept.sum():
                continue
            if before[part].mean() <= 0.5 and (
                touching.sum() < _LEAST_TOUCH * area or others.sum() > touching.sum()
            ):
                continue
            for inside, movement in self._things(part, touching, nobody & ~stands_out, side):
                is_proven = before[inside].mean() > 0.5 and self._proven[inside].mean() > 0.5
                stayed = self._stays[inside].mean() > _STAYED
                if movement == "with the background" or (stayed and not is_proven):
                    stays |= inside
                    continue
                if movement == "unclear" and not is_proven:
                    continue
                own = _filled(inside, _MOST_HOLE) & ~(part & ~inside)
                own |= _grown(own, _RIM * side) & kept
                held |= own
                proven[own] = is_proven or movement == "with them"
        gone = _reached(held | stays)
        missed = np.zeros_like(self._missed)
        for thing in _parts(before & nobody, rim=_RIM * side, least=_LEAST_AREA * alpha.size):
            looks = float(self._missed[thing].mean()) + 1
            if looks <= _PATIENCE_LOOKS and (thing & gone).sum() < 0.3 * thing.sum():
                own = thing | (_grown(thing, _RIM * side) & kept)
                held |= own
                proven[own] = self._proven[thing].mean() > 0.5
                missed[thing] = looks
        self.held = np.asarray(cv2.GaussianBlur(held.astype(np.float32), (0, 0), 1.0))
        self._missed, self._stays, self._proven = (
            missed,
            stays.astype(np.float32),
            proven.astype(np.float32),
        )
        self._looked_at, self._origin = self._grey, self._grid

    def _things(self, part: Mask, touching: Mask, background: Mask, side: int) -> list[tuple[Mask, Movement]]:
        """Split a part by its motion: one thing, or a part that moves along and one that stays behind.

        A part already seen to move along as a whole is one thing.
        """
        shifts = self._shifts(part, touching, background, side)
        staying, going = self._stays > _SOLID, self._proven > _SOLID
        movement: Movement = "none"
        if shifts is not None:
            whole = _grown(part, _RIM * side)
            with_person, with_background = (self._change(shift) for shift in shifts)
            least, most = sorted(float(one[whole].mean()) + _NOISE for one in (with_person, with_background))
            if least > _SURE * most:
                movement = "unclear"
            elif with_person[whole].mean() < with_background[whole].mean():
                movement = "with them"
            else:
                movement = "with the background"
            along, behind = (
                _mean_within(one, part, _STIFF * side) + _NOISE for one in (with_person, with_background)
            )
            # Pixels that show no motion now keep their earlier verdict.
            goes, stays = along < _SURE * behind, behind < _SURE * along
            staying, going = (staying & ~goes) | stays, (going & ~stays) | goes
        behind_part, along_part = (
            cv2.morphologyEx((one & part).astype(np.uint8), cv2.MORPH_OPEN, _disc(_RIM * side))
            for one in (staying & ~going, going & ~staying)
        )
        # A reflection stays while the thing moves along; on polished things it is half of the part.
        is_known = self._proven[part].mean() > _SOLID and self._stays[part].mean() <= _STAYED
        if is_known or min(behind_part.sum(), along_part.sum()) < _PIECE * part.sum():
            return [(part, movement)]
        to_along, to_behind = (
            cv2.distanceTransform(1 - one, cv2.DIST_L2, 3) for one in (along_part, behind_part)
        )
        own = part & (to_along <= to_behind)
        return [(own, "none" if shifts is None else "with them"), (part & ~own, "with the background")]

    def _shifts(
        self, part: Mask, touching: Mask, background: Mask, side: int
    ) -> tuple[FloatMap, FloatMap] | None:
        """Motion (x, y) since the last look of the person touching a part, and of the background; None if alike."""
        ring = _reached(part, times=4) & background
        if self._looked_at is None or not touching.any() or not ring.any():
            return None
        moved = self._grid - self._origin
        person, behind = (np.median(moved[cells], axis=0) for cells in (touching, ring))
        if float(np.hypot(*(person - behind))) < _MOVES * side:
            return None
        return person, behind

    def _change(self, shift: FloatMap) -> FloatMap:
        """How much each pixel changed since the last look, in codes, if it moved by a shift (x, y)."""
        assert self._looked_at is not None
        moved = np.array([[1, 0, -shift[0]], [0, 1, -shift[1]]], np.float64)
        before: Any = cv2.warpAffine(
            self._looked_at,
            moved,
            self._looked_at.shape[::-1],
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        return np.asarray(cv2.absdiff(before, self._grey), np.float32)


def _mean_within(values: FloatMap, mask: Mask, sigma: float) -> FloatMap:
    """The mean around each pixel, over a mask's pixels only."""
    inside = mask.astype(np.float32)
    total: Any = cv2.GaussianBlur(values * inside, (0, 0), sigma)
    count: Any = cv2.GaussianBlur(inside, (0, 0), sigma)
    return np.asarray(total / np.maximum(count, 1e-3), np.float32)


def _around(picture: Picture, kept: Mask, find: FindSalient) -> FloatMap:
    """What stands out from the surroundings of kept people, float32 [h, w], 0..1."""
    rows, columns = np.flatnonzero(kept.any(axis=1)), np.flatnonzero(kept.any(axis=0))
    margin = round(_REACH * max(rows[-1] - rows[0], columns[-1] - columns[0]) + 1)
    top, left = max(rows[0] - margin, 0), max(columns[0] - margin, 0)
    here = slice(top, rows[-1] + margin + 1), slice(left, columns[-1] + margin + 1)
    found = np.zeros(kept.shape, np.float32)
    found[here] = find(np.ascontiguousarray(picture[here]))
    return found


def _parts(mask: Mask, *, rim: float, least: float) -> list[Mask]:
    """Connected parts, without rims narrower than twice ``rim`` and without parts smaller than ``least``."""
    labels: Any
    solid = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_OPEN, _disc(rim))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(solid, connectivity=4)
    return [labels == part for part in range(1, count) if stats[part, cv2.CC_STAT_AREA] >= least]


def _disc(radius: float) -> Any:
    side = 2 * max(round(radius), 1) + 1
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (side, side))


def _grown(mask: Mask, radius: float) -> Mask:
    grown: Mask = cv2.dilate(mask.astype(np.uint8), _disc(radius)) > 0
    return grown


def _reached(mask: Mask, times: int = 1) -> Mask:
    """Grow a part by the distance at which things touch, or a multiple of it."""
    return _grown(mask, times * max(_TOUCH * min(mask.shape), _LEAST_TOUCH_PX))


def _filled(mask: Mask, most: float) -> Mask:
    """A part without its smaller holes."""
    contours: Any
    contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    whole = cv2.drawContours(np.zeros(mask.shape, np.uint8), contours, -1, 1, -1)
    count, holes, stats, _ = cv2.connectedComponentsWithStats(
        ((whole > 0) & ~mask).astype(np.uint8), connectivity=4
    )
    small = [hole for hole in range(1, count) if stats[hole, cv2.CC_STAT_AREA] < most * mask.sum()]
    return mask | np.isin(holes, small)
