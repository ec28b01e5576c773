"""Draws what an expression does to the skin: folds beside a smile, furrows between brows, lines above them, lips.

Moving points bends a portrait's picture, but does not change its light. So for each side of a smile, for lowered brows
and for raised brows, the portrait is prepared once as it would be lit with folded skin: its own relief (what is darker
or lighter than its surroundings) is deepened, and folds are drawn where faces have them, in its own colours. Each frame
mixes these with the portrait according to the motion of its points. Areas without the colour of skin, such as hair on
the forehead or glasses, get no folds. A portrait that shows its teeth also gets a version with lips that can meet:
without teeth and dark corners, which closed lips would show as a rim, and with the dark line in which lips meet.
Another version has lips drawn together: a narrowing mouth takes its corners along, and leaves neither dark ends of the
line between its lips nor a smile's folds in the cheeks. Where brows hide the upper lids, a closing lid gets the skin
below the eye, as the hair or shade of the brow would be stretched over it. Lashes on a lid and fine detail along it
would be stretched, too, so it closes without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    LEFT_BROW,
    MOUTH_CORNERS,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
    RIGHT_BROW,
    TO_PICTURE,
    EyeLandmarks,
)
from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.mesh.head import CutPortrait
from vitascope.animation.mesh.layers import Patch, median_at, opening_mask, patch_around, smooth_outline
from vitascope.animation.mesh.lips import lips_met, shown_apart, width_cm
from vitascope.animation.mesh.rig import PortraitRig
from vitascope.animation.mesh.rims import Rim

CREASES = 9
"""Number of creases: smile at the right, at the left, brows down, brows up; lips drawn together, lips that meet, both;
closing lid of the right and of the left eye."""
_REACH_CM = 1.6
"""Margin of a patch around the points of its folds."""
_OWN_RELIEF = 0.9
"""Increase of the portrait's own relief in a full expression."""
_FINE_CM, _COARSE_CM = 0.06, 0.35
"""Range of widths that count as relief: finer detail is grain and lashes, coarser is the face's shape."""
_RELIEF = (-0.25, 0.08)
"""Minimum and maximum relief: skin folds into dark lines; a light line beside a nose in the sun is no fold."""
_HAIRLINE_PX = 1.6
"""Minimum width of a fold; narrower ones in a small portrait would look like scratches."""
_SKIN_POINTS = (50, 280, 205, 425, 4, 151, 117, 346)
_SKIN_SPREAD = 0.16
"""Difference of a colour's shares from the skin's at which a fold has faded to a third."""
_DARKEST = 0.55
_FOLDS = {
    # From the wing of the nose around the mouth's corner; below the eye, from the inner corner outward.
    "right": ((129, 203, 206, 216, 212), (31, 228, 229, 230, 231, 232)),
    "left": ((358, 423, 426, 436, 432), (261, 448, 449, 450, 451, 452)),
}
_CHEEK = {"right": 50, "left": 280}
_FOREHEAD = (104, 69, 108, 151, 337, 299, 333)
_FOREHEAD_LINES_CM = (-0.35, 0.2, 0.75)
_INNER_BROWS = (55, 107, 285, 336)
_CORNER_CM, _CORNER_LIGHT = 0.55, 0.72
"""Within this distance of a mouth's corner, pixels darker than that share of the lips' light are the inside of the
mouth."""
_SHADED_CM, _SHADED_LIGHT = 0.55, 0.85
"""Within this distance of the corner, pixels darker than that share of their surroundings are the shade of a smile."""
_MISSED_CM, _INSIDE_LIGHT, _GREYER = 0.35, 0.6, 0.5
"""Within this distance of the opening, pixels belong to it if they are darker than the second value, a share of the
lips' light, or have less than the third, a share of the lips' colour."""
_LIP_EDGE_CM, _SPECKS_CM = 0.05, 0.25
"""Distance from the opening at which lips begin; and the distance within which spots half as narrow are specks."""
_LINE_CM, _LEAST_LINE_PX, _LINE_LIGHT = 0.07, 1.2, 0.6
"""The line in which lips meet: its softness on either lip, the minimum of that, and its light relative to theirs; it is
fainter where the minimum makes it broader. Its resulting light is 0.65 to 0.9 of theirs: the own lines of five faces,
at 6 to 20 pixels a centimetre, have 0.55 to 0.9. A black one is read as an open mouth."""
_GATHERED_LIGHT = 0.75
"""Light of the same line where lips are also drawn together: in half the space, the darker line was read as an open
mouth."""
_UPPER_LIGHT, _CLEARLY_DARKER, _MOST_BRIGHTER = 0.83, 0.1, 0.5
"""Minimum light of an upper lip at rest, relative to the lower one; the lack of light, as a share of its own, above
which it is in the shade of a smile; and the maximum that is added."""
_ENDS_ALIKE = 0.6
"""Share of their middle's colour that lips take where they meet in less space."""
_REDDER_THAN_LIPS = 0.15
"""Excess of colour over the lips' from which on a spot is not a shine on them."""
_FINEST_RIM = 128
"""Minimum resolution at which an opening's rim is drawn, in pixels per centimetre."""
_ENDS_CM, _MORE_ENDS_CM, _ENDS_OUTWARD_CM, _SHADOW_CM = 0.7, 0.4, 0.25, 0.6
"""Distances around a place that is outside a mouth's corner by the third value: lips lose their redness within the
first, and shadows narrower than twice the last are filled within the first two together."""
_ABOVE_BEARDS = ((50, 117, 101), (280, 346, 330))
"""Points of the right and of the left cheek, above beards."""
_HAIR_COLOUR = (0.5, 0.68)
"""Difference of red and blue, relative to the cheek's, up to which a pixel is hair, and from which on it is skin:
beards of 4 men had 0.2 to 0.64, skin beside 27 mouths 0.63 to 1.4."""
_ABOVE_LIP, _HAIR_CM, _HAIR_AROUND_CM = (165, 391, 92, 322), 0.1, 0.25
"""Points beside the middle of the upper lip; the size of detail that may be hair, and the distance over which it is
averaged."""
_UNEVEN, _HAIRS = (0.038, 0.055), 45.0
"""Mean of that detail, as a share of the light, from which on it may be stubble, and surely is (0.06 to 0.19 of five
men with stubble, at most 0.038 of nine bare faces, photographed); and the maximum difference of its pixels, in codes
of 255, that is kept when a shadow is filled."""
_OWN_SMILE = (0.2, 0.6)
"""Weights of a portrait's own smile at which the folds in its cheeks begin to count as a smile's, and at which they
fully do."""
_FOLD_CM, _FOLD_BEGINS, _FOLD_GONE = 0.5, 0.3, 0.8
"""Width of such a fold on either side of its line from the nose around the mouth's corner; the share of the line from
which on it is filled fully; and the maximum degree."""
_GRAIN = 8.0
"""Maximum difference of neighbouring pixels, in codes of 255, that is kept as grain when a shadow is filled."""
_DRAWN_TOGETHER = (0.04, 0.25)
"""Narrowing of a mouth, as shares of its width, at which lips begin to look drawn together, and at which they fully
do."""
_SHINES, _SHINE_LEFT = (1.05, 1.35), 1.08
"""Light, relative to the lips', at which a spot begins to count as a shine on them, and at which it fully does; and the
light that is left of it."""
_SHINES_WHOLLY, _LEAST_COLOURED = (0.45, 0.65), 0.05
"""Colour of a lower lip, relative to that of both, up to which it is a shine, and from which on its own (0.69 to 1.05
in 18 portraits); and the colour below which this cannot be told."""
_HIDDEN_LID = (0.7, 0.5)
"""Light of an upper lid, relative to the skin below the eye, at which a brow begins to hide it, and at which it fully
does."""
_LID_LIGHT = ((0.0, 0.35, 0.75, 1.0), (1.0, 1.2, 0.95, 0.7))
"""Heights on a hidden lid, from its edge to its crease, and its light there relative to the skin below the eye: it is
round, and ends in the shade of the brow (visible lids have 0.8 to 1.3 at their edge, 0.7 to 1.2 above)."""
_LID_CORNERS, _MOST_LID_LIGHT = 0.2, 0.96
"""Share of that light that is missing at the corners of the eye; and its maximum, relative to that of all skin."""
_SHUT_LIGHT, _MOST_SHUT_LIGHT = ((0.0, 0.3, 0.7, 0.9, 1.0), (0.84, 0.87, 0.85, 0.79, 0.68)), 1.15
"""The minimum of the same for any lid, and the maximum. Twelve people's lids, shut, had 0.82 to 1.11 in the middle,
however deep in the shade of the brow they were while open."""
_NO_SHADE = (0.15, 0.4)
"""Light, relative to the skin below the eye, up to which a place on a visible lid is no skin, and from which on it is
skin in the shade."""
_EDGE_SHADE = ((0.0, 0.08, 0.16, 0.24, 0.32, 0.42), (0.5, 0.7, 0.85, 0.93, 0.97, 1.0))
"""Heights on a lid, and its light there relative to what it is farther up: it turns away to its edge, which lies in the
shade of its lashes (mean of eight people, shut, without paint)."""
_FOLD_HALF_CM, _SLIGHT_FOLD, _DEEPEST_FOLD, _FOLD_STAYS = 0.08, 0.04, 0.24, 0.5
"""Width of the fold of a shut lid on either side; the share of light that is missing in that of an open lid up to which
it counts as none; the maximum; and how much of that a shut one has: it is stretched."""
_FOLDS_WITHIN, _FOLD_ROWS = (0.12, 0.75), 16
"""Heights between which an open lid has its fold, and the number of rows in which it is searched for."""
_LID_REACH_CM, _LID_SOFT_CM, _STREAK_CM = 0.4, 0.12, 0.25
"""Distance around a lid to which it is drawn; the softness of its border; and the distance over which colours are mixed
along it."""
_CHEEKS_AND_NOSE = (117, 50, 205, 4, 425, 280, 346, 168)
"""Outline of an area of skin without hair."""
_TONE, _TONE_SPREAD, _LEAST_TONES = (0.5, 1.8), 0.25, 0.01
"""Minimum and maximum power of light that a channel of skin follows; the difference of a colour's shares from the
skin's up to which it is skin; and the minimum variance of the logarithm of light for estimating them."""
_LASH_CM, _LASH_DARKER = 0.3, (0.08, 0.2)
"""Maximum width of upright strokes on a lid that are lashes or hair of a brow, and the shares by which they are darker
than their surroundings, from which on and fully."""
_CLEAN_LID, _CLEAN_SOFT_CM, _EDGE_LIGHT = (0.65, 0.95), 0.3, 0.92
"""Heights on a lid, from its edge to its crease, between which it has its own colour; the softness with which that
continues down to the edge; and the edge's light relative to it."""
_AT_EDGE, _ALONG_EDGE, _MADE_UP, _EDGE_DARKER = 0.2, (0.5, 0.6), (0.8, 0.45), (0.12, 0.3)
"""Lashes and paint on a lid: dark parts that reach below the first height, and cover the second shares of the lid's
length there (a rim of glasses only crosses it). They end at the third heights, and are darker than the lid by the last
shares. Each pair gives where they begin to count, and where they fully do."""
_CLOSING = (0.1, 0.6)
"""Closed shares of the opening at which a lid begins to show what it hid, and at which it fully does."""
_REDDER, _DULLER = 0.35, 0.6
"""Lips in less space: increase of their difference from skin, and loss of what shines on them."""


@dataclass(frozen=True, slots=True, eq=False)
class Crease:
    """A part of the portrait with its skin folded."""

    patch: Patch
    """Place in the portrait."""
    rgba: npt.NDArray[np.uint8]
    """uint8 [h, w, 4], premultiplied colours; at its edges the portrait's own."""


@dataclass(frozen=True, slots=True, eq=False)
class _Fold:
    """A patch before the person is cut out, with the background."""

    patch: Patch
    rgb: RgbPicture
    """uint8 [h, w, 3]."""


@dataclass(frozen=True, slots=True, eq=False)
class _Filled(_Fold):
    """A mouth whose inside is filled."""

    made: FloatArray
    """float32 [h, w], 0..1: the filled area and its surroundings."""


class Creases:
    """The folds of a portrait's skin.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        cut: The portrait split into person and background.
        rig: The portrait's rig.
        rims: The rims of glasses in front of the right and the left lid, which are drawn on their own.
    """

    def __init__(
        self,
        rgb: RgbPicture,
        cut: CutPortrait,
        rig: PortraitRig,
        *,
        rims: tuple[Rim | None, Rim | None] = (None, None),
    ) -> None:
        self._rest = rig.reading.vertices
        self._rgb, self._rgba = rgb, cut.rgba
        self._shaded = cut.rgba.copy()
        self._was: FloatArray = np.zeros(CREASES, np.float32)
        self._skin = median_at(rgb, rig.face.landmarks[list(_SKIN_POINTS), :2], rig.pose.scale * 0.4)
        up = np.asarray((rig.pose.rotation @ TO_PICTURE)[:2, 1] * rig.pose.scale, np.float32)
        filled = self._lips_filled(rig)
        folds = (
            self._smile(rig, "right"),
            self._smile(rig, "left"),
            self._brows_down(rig, up),
            self._brows_up(rig, up),
            self._lips_gathered(rig, filled, meet=False),
            self._touching(rig, filled),
            None
            if filled is None
            else self._touching(rig, self._lips_gathered(rig, filled, meet=True), light=_GATHERED_LIGHT),
            *(self._closed_lid(rig, eye, rim) for eye, rim in zip(EYES, rims, strict=True)),
        )
        self.parts: tuple[Crease | None, ...] = tuple(
            None if fold is None else Crease(fold.patch, cut.folded(fold.patch, rgb, fold.rgb))
            for fold in folds
        )
        """Creases in the order of ``CREASES``; None for those outside the picture."""

    def strengths(self, vertices: FloatArray) -> FloatArray:
        """Strength of each crease: float32 [9], 0..1.

        Args:
            vertices: float32 [468, 3]: the face as bent, without its pose, centimetres.
        """
        moved = vertices - self._rest
        corners = [
            0.6 * side * moved[corner, 0] + 0.8 * moved[corner, 1] for corner, side in ((61, -1), (291, 1))
        ]
        inner = moved[list(_INNER_BROWS)]
        inward = (inner[:2, 0].mean() - inner[2:, 0].mean()) / 2
        down = -inner[:, 1].mean() / 0.45 + max(float(inward), 0.0) / 0.4
        raised = moved[list(RIGHT_BROW + LEFT_BROW), 1].mean() / 0.6
        folds = np.clip((np.array([*corners, down, raised]) - 0.08) / 0.92, 0, 1)
        narrower = 1 - width_cm(vertices) / max(width_cm(self._rest), 1e-3)
        gathered = float(np.interp(narrower, _DRAWN_TOGETHER, (0, 1)))
        met = lips_met(self._rest, vertices)
        lids = [
            0.0 if part is None else self._closing(vertices, eye)
            for part, eye in zip(self.parts[-len(EYES) :], EYES, strict=True)
        ]
        return np.array([*folds, gathered * (1 - met), met, gathered * met, *lids], np.float32)

    def _closing(self, vertices: FloatArray, eye: EyeLandmarks) -> float:
        """Share, 0..1, to which an upper lid shows what it hides while the eye is open."""
        now, rest = (
            float((face[list(eye.upper[2:-2]), 1] - face[list(eye.lower[2:-2]), 1]).mean())
            for face in (vertices, self._rest)
        )
        return float(np.interp(1 - now / max(rest, 1e-3), _CLOSING, (0, 1)))

    def shaded(self, vertices: FloatArray) -> npt.NDArray[np.uint8]:
        """The portrait with folded skin: uint8 [H, W, 4], premultiplied colours; overwritten by the next call."""
        strengths = self.strengths(vertices)
        for part, was, now in zip(self.parts, self._was, strengths, strict=True):
            if part is not None and (was > 0 or now > 0):
                part.patch.of(self._shaded)[...] = part.patch.of(self._rgba)
        for part, now in zip(self.parts, strengths, strict=True):
            if part is not None and now > 0:
                area = part.patch.of(self._shaded)
                area[...] = cv2.addWeighted(area, 1 - float(now), part.rgba, float(now), 0)
        self._was = strengths
        return self._shaded

    def _smile(self, rig: PortraitRig, side: str) -> _Fold | None:
        """Fold a rising cheek: the fold from nose to mouth, the one below the eye, and light on the cheek."""
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        mouth, eye = (landmarks[list(line)] for line in _FOLDS[side])
        cheek = landmarks[_CHEEK[side]]
        patch = self._patch(np.concatenate((mouth, eye)), scale, rig.size)
        if patch is None:
            return None
        beside, along = _from_line(patch, mouth, cheek)
        # It begins softly at the wing of the nose, which has an edge of its own there.
        away, across = beside / scale, np.sin(np.pi * np.clip(0.02 + 0.9 * along, 0, 1))
        narrow = max(0.16, _HAIRLINE_PX / scale)
        light = (
            0.07 * _bump(away - 0.65, 0.5) - 0.07 * _bump(away, narrow) - 0.11 * _bump(away, 0.35)
        ) * across
        beside, along = _from_line(patch, eye, cheek)
        away, across = beside / scale, np.sin(np.pi * np.clip(0.1 + 0.8 * along, 0, 1))
        light += (0.05 * _bump(away - 0.3, 0.2) - 0.09 * _bump(away, 0.16)) * across
        from_cheek = np.linalg.norm(patch.places - cheek, axis=-1) / scale
        light += 0.06 * _bump(from_cheek, 1.1)
        region = np.exp(-((np.linalg.norm(patch.places - mouth[1], axis=-1) / (2.2 * scale)) ** 4))
        return self._folded(patch, light, region, scale)

    def _brows_down(self, rig: PortraitRig, up: FloatArray) -> _Fold | None:
        """Two upright furrows between the brows, and the shade below them."""
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        right, left = landmarks[[55, 107]].mean(axis=0), landmarks[[285, 336]].mean(axis=0)
        patch = self._patch(np.stack((right, left)), scale, rig.size)
        if patch is None:
            return None
        light = np.zeros((patch.height, patch.width), np.float32)
        middle = (right + left) / 2
        for brow in (right, left):
            foot = middle + 0.38 * (brow - middle) - 0.35 * up
            beside, along = _from_line(
                patch, np.stack((foot, foot + 0.12 * (brow - middle) + 1.0 * up)), middle
            )
            ends = np.sin(np.pi * np.clip(0.08 + 0.84 * along, 0, 1))
            away = beside / scale
            light += (0.07 * _bump(away - 0.3, 0.15) - 0.20 * _bump(away, 0.13)) * ends
        region = np.exp(-((np.linalg.norm(patch.places - middle, axis=-1) / (1.2 * scale)) ** 4))
        return self._folded(patch, light - 0.04 * region, region, scale)

    def _brows_up(self, rig: PortraitRig, up: FloatArray) -> _Fold | None:
        """Lines across the forehead."""
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        row = landmarks[list(_FOREHEAD)]
        patch = self._patch(row, scale, rig.size)
        if patch is None:
            return None
        light = np.zeros((patch.height, patch.width), np.float32)
        for line, height in enumerate(_FOREHEAD_LINES_CM):
            curve = row + height * up
            beside, along = _from_line(patch, curve, curve[3] + up)
            away, ends = beside / scale, np.sin(np.pi * np.clip(along, 0, 1)) ** 0.7
            depth = (0.07, 0.10, 0.06)[line]
            light += (0.04 * _bump(away + 0.24, 0.14) - depth * _bump(away, 0.11)) * ends
        beside, along = _from_line(patch, row, row[3] + up)
        region = np.exp(-((beside / (1.3 * scale)) ** 4)) * np.sin(np.pi * np.clip(along, 0, 1))
        return self._folded(patch, light, region, scale)

    def _lips_filled(self, rig: PortraitRig) -> _Filled | None:
        """The mouth with its inside filled by the lips around; None for closed lips."""
        if shown_apart(self._rest) <= 0:
            return None
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        lips = landmarks[list(OUTER_UPPER_LIP + OUTER_LOWER_LIP)]
        patch = self._patch(lips, scale, rig.size)
        if patch is None:
            return None
        seen = np.ascontiguousarray(patch.of(self._rgb))
        light = seen.mean(axis=-1)
        lip_colour = self._lip_colour(landmarks, scale)
        lip_level = float(lip_colour.mean())
        beyond = np.maximum(_from_rim(landmarks, patch, scale), 0)
        to_corner = np.min(
            [np.linalg.norm(patch.places - landmarks[corner], axis=-1) for corner in MOUTH_CORNERS], axis=0
        )
        # Landmarks of an open mouth miss lips by some millimetres: dark or grey pixels beside them belong to the
        # inside.
        grey = seen.max(axis=-1) - seen.min(axis=-1) < _GREYER * float(np.ptp(lip_colour))
        inner = (beyond < _MISSED_CM * scale) & ((light < _INSIDE_LIGHT * lip_level) | grey)
        filled = (beyond <= max(_LIP_EDGE_CM * scale, 0.5)) | inner
        unshaded = _without_shadows(seen, scale)
        of_skin = self._bare(unshaded, landmarks, patch)[..., 0] > 0.5
        filled |= (to_corner < _CORNER_CM * scale) & (light < _CORNER_LIGHT * lip_level) & of_skin
        if smile := _own_smile(rig):  # its corners are shaded further out, where the skin around is light
            shaded = (to_corner < _SHADED_CM * smile * scale) & of_skin
            shaded &= light < _SHADED_LIGHT * unshaded.mean(axis=-1)
            # Also what is between these and the skin: else the fill would be mixed from their edges.
            filled |= cv2.dilate(shaded.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
        made: RgbPicture = np.asarray(
            cv2.inpaint(seen, filled.astype(np.uint8), max(2, round(0.15 * scale)), cv2.INPAINT_TELEA),
            np.uint8,
        )
        made[~filled] = seen[~filled]
        # A pixel where teeth and lips met is mixed of both, and would be a pale speck beside the line.
        near = beyond < _SPECKS_CM * scale
        made[near] = cv2.medianBlur(made, max(round(_SPECKS_CM * scale), 3) | 1)[near]
        lit = self._evenly_lit(made, landmarks, patch, scale, smile=smile)
        whole = smooth_outline(landmarks[list(OUTER_UPPER_LIP + OUTER_LOWER_LIP[-2:0:-1])])
        of_lips = opening_mask(whole, patch, feather=max(0.1 * scale, 0.5))
        lip_colours = self._lip_colours(landmarks, patch, scale, smile=smile)
        lit = _duller(lit, lip_colours, of_lips[..., None], scale)
        around = cv2.dilate(filled.astype(np.float32), np.ones((3, 3), np.uint8))
        soft = np.asarray(cv2.GaussianBlur(around, (0, 0), max(_LIP_EDGE_CM * scale, 0.5)), np.float32)
        return _Filled(patch, np.ascontiguousarray(np.clip(np.rint(lit), 0, 255), np.uint8), soft)

    def _evenly_lit(
        self,
        colours: npt.NDArray[np.uint8] | FloatArray,
        landmarks: FloatArray,
        patch: Patch,
        scale: float,
        *,
        smile: float,
    ) -> FloatArray:
        """Remove the shade that a smile (0..1) puts the upper lip in: float32 [h, w, 3]."""
        upper, lower = self._each_lip(landmarks, scale)
        of_upper = _of_upper(landmarks, patch, scale)
        # Added equally to each pixel: multiplied, lips in the shade would get a glaring colour.
        lack = _UPPER_LIGHT * lower - upper
        darker = max(float(lack.mean() / max(upper.mean(), 1.0)), 0.0)
        share = min(darker / _CLEARLY_DARKER, _MOST_BRIGHTER / max(darker, 1e-3), 1.0)
        return np.asarray(colours + lack * np.float32(smile * share) * of_upper, np.float32)

    def _lip_colours(self, landmarks: FloatArray, patch: Patch, scale: float, *, smile: float) -> FloatArray:
        """The upper lip's colour in its area, in the light of ``_evenly_lit``; elsewhere the lower one's.

        The lower one is lighter by up to half: compared with the colour of both, it would count as one large shine.
        """
        upper, lower = self._each_lip(landmarks, scale)
        both = self._lip_colour(landmarks, scale)
        coloured = [float(np.ptp(one) / max(float(one.max()), 1.0)) for one in (lower, both)]
        own = np.interp(coloured[0] / max(coloured[1], _LEAST_COLOURED), _SHINES_WHOLLY, (0, 1))
        lower = both + (lower - both) * np.float32(own)
        colours = lower + (upper - lower) * _of_upper(landmarks, patch, scale)
        return self._evenly_lit(colours, landmarks, patch, scale, smile=smile)

    def _each_lip(self, landmarks: FloatArray, scale: float) -> tuple[FloatArray, FloatArray]:
        """Colours of the upper and the lower lip in the middle of the mouth, float32 [3] each."""
        middles = (
            np.asarray((landmarks[list(outer[3:8])] + landmarks[list(inner[3:8])]) / 2, np.float32)
            for outer, inner in ((OUTER_UPPER_LIP, INNER_UPPER_LIP), (OUTER_LOWER_LIP, INNER_LOWER_LIP))
        )
        upper, lower = (median_at(self._rgb, middle, 0.1 * scale) for middle in middles)
        return upper, lower

    def _touching(self, rig: PortraitRig, lips: _Fold | None, *, light: float = _LINE_LIGHT) -> _Fold | None:
        """Draw the line in which lips meet, half of it on either rim of the opening; ``light`` is a share."""
        if lips is None:
            return None
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        within = -_from_rim(landmarks, lips.patch, scale)
        # Where two lips touch, the pixels between them here are sampled. Both halves have one colour, as the line
        # between a lip in the shade and one in the light is one line.
        soft = max(_LINE_CM * scale, _LEAST_LINE_PX)
        line = np.clip(1 + within / soft, 0, 1)[..., None] * np.float32((_LINE_CM * scale / soft) ** 0.5)
        dark = self._lip_colour(landmarks, scale) * np.float32(light)
        seen = lips.rgb.astype(np.float32)
        lit = seen + np.minimum(dark - seen, 0) * line
        return _Fold(lips.patch, np.ascontiguousarray(np.clip(np.rint(lit), 0, 255), np.uint8))

    def _lips_gathered(self, rig: PortraitRig, filled: _Filled | None, *, meet: bool) -> _Fold | None:
        """The mouth with the shadows of its corners filled, and lips as red as in less space.

        Args:
            rig: The portrait's rig.
            filled: The mouth with its inside filled; None for closed lips.
            meet: True if the lips are brought together; else they are as far apart as in the portrait, and only the
                surroundings of the opening are taken from ``filled``: landmarks leave out its dark ends, and tips of
                teeth.
        """
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        lips = list(OUTER_UPPER_LIP + OUTER_LOWER_LIP[-2:0:-1])
        patch = self._patch(landmarks[lips], scale, rig.size)
        if patch is None:
            return None
        between = smooth_outline(landmarks[list(INNER_UPPER_LIP + INNER_LOWER_LIP[-2:0:-1])])
        inside = opening_mask(between, patch, feather=max(_LIP_EDGE_CM * scale, 0.5))
        right, left = landmarks[list(MOUTH_CORNERS)]
        seen = patch.of(self._rgb).astype(np.float32)
        if filled is not None:
            to_corner = np.min([np.linalg.norm(patch.places - end, axis=-1) for end in (right, left)], axis=0)
            ends = np.clip(1.5 * (1 - to_corner / (_ENDS_CM * scale)), 0, 1)
            # Up to the opening's rim, half of whose pixels belong to the inside.
            deep = np.clip(-_from_rim(landmarks, patch, scale) / max(2 * _LIP_EDGE_CM * scale, 1.0), 0, 1)
            taken = np.maximum(ends * (1 - inside), filled.made * (1 - deep))
            seen += (filled.rgb - seen) * (1.0 if meet else taken[..., None])
        smile = _own_smile(rig)
        of_lips = opening_mask(smooth_outline(landmarks[lips]), patch, feather=max(0.1 * scale, 0.5))
        # Corners of a smile, or of a hanging mouth, are shaded broadly; the lips themselves stay.
        closed = _without_shadows(seen, 2 * scale)
        closed = closed + (_without_shadows(seen, scale) - closed) * of_lips[..., None]
        closed = cv2.GaussianBlur(closed, (0, 0), 0.15 * scale + 0.5)
        outward = _ENDS_OUTWARD_CM * scale * (left - right) / max(float(np.linalg.norm(left - right)), 1.0)
        ends = (right - outward, left + outward)
        away = np.min([np.linalg.norm(patch.places - end, axis=-1) for end in ends], axis=0) / scale
        at_ends, around = (
            np.clip(1.5 * (1 - away / reach), 0, 1)[..., None]
            for reach in (_ENDS_CM, _ENDS_CM + _MORE_ENDS_CM)
        )
        shadowed = np.maximum(around, self._own_folds(rig, patch)[..., None])
        shadowed = shadowed * self._bare(closed, landmarks, patch)
        # Without its hair, stubble would be a flat patch.
        grain = _grain_of(seen, scale, most=_GRAIN + (_HAIRS - _GRAIN) * self._stubble(landmarks, scale))
        lit = seen + (np.maximum(closed + grain, seen) - seen) * shadowed
        lip_colour = self._lip_colour(landmarks, scale)
        if not meet:  # teeth shine, too
            of_lips = of_lips * (1 - np.float32(shown_apart(self._rest)) * inside)
        of_lips = (of_lips * (1 - at_ends[..., 0]))[..., None]
        lit_by = smile if meet else 0.0
        lip_colours = self._lip_colours(landmarks, patch, scale, smile=lit_by)
        lit = _duller(lit, lip_colours, of_lips, scale)
        tone = cv2.GaussianBlur(lit, (0, 0), max(_COARSE_CM * scale, 0.5))
        shine = np.maximum(lit.mean(axis=-1) - tone.mean(axis=-1), 0) * _DULLER
        # Not darker, for lips in the shade or in a grey picture, and in no other colour than that of these lips.
        # Compared in the same light: else a mouth in the shade would turn blue.
        red = lip_colour - self._skin * (lip_colour.mean() / max(float(self._skin.mean()), 1.0))
        level = tone.mean(axis=-1, keepdims=True) / max(float(self._skin.mean()), 1.0)
        redness = np.clip((tone - self._skin * level) @ red / max(float(red @ red), 1.0), 0, 1)
        if meet:
            # A smile pales the ends of lips, which would leave a red lump in the middle.
            pale = (1 - redness) * (_ENDS_ALIKE * smile)
            lit += (lip_colours - tone) * (pale[..., None] * of_lips)
        lit += (_REDDER * redness[..., None] * red - shine[..., None]) * of_lips
        return _Fold(patch, np.ascontiguousarray(np.clip(np.rint(lit), 0, 255), np.uint8))

    def _closed_lid(self, rig: PortraitRig, eye: EyeLandmarks, rim: Rim | None) -> _Fold | None:
        """The skin of an upper lid, without detail that would become streaks, or synthesised if a brow hides it."""
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        rows = (eye.upper_lid, eye.crease, eye.upper[1:-1])
        points = np.concatenate([landmarks[list(row)] for row in rows])
        patch = patch_around(points, margin=_LID_REACH_CM * scale, size=rig.size)
        if patch is None or min(patch.width, patch.height) < 4:
            return None
        below = median_at(self._rgb, landmarks[list(eye.lower_lid)], 0.1 * scale)
        # A brow hides a whole lid: shadow only on its edge, or the rim of glasses, does not count.
        above = (
            median_at(self._rgb, landmarks[list(row)], 0.1 * scale) for row in (eye.upper_lid, eye.crease)
        )
        share = max(float(row.mean()) for row in above) / max(float(below.mean()), 1.0)
        hidden = 1 - float(np.interp(share, _HIDDEN_LID[::-1], (0, 1)))
        corners = landmarks[[eye.outer_corner, eye.inner_corner]]
        outline = np.concatenate(
            (corners[:1], landmarks[list(eye.crease)], corners[1:], landmarks[list(eye.upper[-2:0:-1])])
        )
        lid = opening_mask(outline, patch, feather=max(_LID_SOFT_CM * scale, 0.5))[..., None]
        seen = patch.of(self._rgb).astype(np.float32)
        if rim is not None:
            seen = rim.without(seen, patch)
        bare = _without_strokes(seen, corners, _LASH_CM * scale)
        crossed = 1 - seen.mean(axis=-1, keepdims=True) / np.maximum(bare.mean(axis=-1, keepdims=True), 1)
        crossed = np.interp(crossed, _LASH_DARKER, (0, 1)).astype(np.float32) * lid
        lit = seen + (bare - seen) * crossed
        # Without its edge, which is mixed with what is beside it.
        whole = opening_mask(outline, patch, feather=0)
        whole = np.asarray(cv2.erode(whole, np.ones((3, 3), np.uint8))[..., None], np.float32)
        lit = lit + (_along(lit, whole, corners, _STREAK_CM * scale) - lit) * lid
        edge, crease = (landmarks[list(row)] for row in (eye.upper[1:-1], eye.crease))
        to_edge, to_crease = (np.abs(_from_line(patch, line, corners[0])[0]) for line in (edge, crease))
        upwards = (to_edge / np.maximum(to_edge + to_crease, 1e-3))[..., None]
        # Roots of lashes, and a line drawn along them, would smear, so a lid has its colour down to the edge.
        clean = whole * ((upwards > _CLEAN_LID[0]) & (upwards < _CLEAN_LID[1]))
        own = _EDGE_LIGHT * _spread(lit, clean, max(_CLEAN_SOFT_CM * scale, 0.5))
        darker = 1 - lit.mean(axis=-1, keepdims=True) / np.maximum(own.mean(axis=-1, keepdims=True), 1)
        is_dark, at_edge = darker > _EDGE_DARKER[0], (upwards < _AT_EDGE) & (whole > 0)
        along_edge = float((is_dark & at_edge).sum() / max(at_edge.sum(), 1))
        made_up = np.interp(darker, _EDGE_DARKER, (0, 1)) * np.interp(upwards, _MADE_UP[::-1], (1, 0)) * lid
        made_up *= _reaching(is_dark, at_edge) * np.interp(along_edge, _ALONG_EDGE, (0, 1))
        made_up = made_up.astype(np.float32)
        lit += np.maximum(own - lit, 0) * made_up
        # In the light of the skin below the eye, but in the face's colour, as that skin may be red.
        way = corners[1] - corners[0]
        along = np.clip((patch.places - corners[0]) @ way / max(float(way @ way), 1.0), 0, 1)
        ends = 1 - _LID_CORNERS * (2 * along - 1) ** 2
        tone = self._tone(landmarks)

        def lit_skin(heights: tuple[tuple[float, ...], tuple[float, ...]]) -> FloatArray:
            level = float(below.mean()) / max(float(self._skin.mean()), 1.0)
            light = level * (np.interp(upwards[..., 0], *heights) * ends)[..., None]
            skin = self._skin * np.minimum(light, _MOST_LID_LIGHT).astype(np.float32) ** tone
            # Heights have steps, which would become streaks when a strip is stretched.
            return _along(skin, np.ones_like(lid), corners, _STREAK_CM * scale)

        if hidden > 0:
            lit += np.maximum(lit_skin(_LID_LIGHT) - lit, 0) * (lid * np.float32(hidden))
        broad = _spread(lit, whole, max(_LID_SOFT_CM * scale, 0.5))
        light = np.maximum(broad.mean(axis=-1, keepdims=True), 1)
        most = _MOST_SHUT_LIGHT * max(float(below.mean()), float(self._skin.mean()))
        shine = np.maximum(1 - most / light, 0)
        of_skin = np.interp(light / max(float(below.mean()), 1.0), _NO_SHADE, (0, 1)).astype(np.float32)
        lit += (np.maximum(lit_skin(_SHUT_LIGHT) - broad, 0) * of_skin - broad * shine) * lid
        # Between two rows of points, so that it bends as they do.
        fold = (landmarks[list(eye.upper_lid)] + crease) / 2
        from_fold, along_fold = _from_line(patch, np.asarray(fold, np.float32), corners[0])
        depth = _FOLD_STAYS * max(_own_fold(seen, upwards, whole) - _SLIGHT_FOLD, 0.0)
        folded = _bump(from_fold, max(_FOLD_HALF_CM * scale, 1.0)) * np.sin(np.pi * along_fold)
        shade = np.interp(upwards, *_EDGE_SHADE) * (1 - depth * folded[..., None])
        lit *= 1 + (shade.astype(np.float32) - 1) * lid
        return _Fold(patch, np.ascontiguousarray(np.clip(np.rint(lit), 0, 255), np.uint8))

    def _tone(self, landmarks: FloatArray) -> FloatArray:
        """Powers of light that the skin's red, green and blue follow, float32 [3]; skin in the shade is redder."""
        outline = landmarks[list(_CHEEKS_AND_NOSE)]
        patch = patch_around(outline, margin=0, size=self._rgb.shape[:2])
        if patch is None:
            return np.ones(3, np.float32)
        colours = patch.of(self._rgb)[opening_mask(outline, patch, feather=0) > 0.5].astype(np.float32) + 1
        light = colours.mean(axis=-1, keepdims=True)
        of_skin = np.abs(colours / light - self._skin / max(float(self._skin.mean()), 1.0)).sum(axis=-1)
        shares = np.log(np.concatenate((light, colours), axis=-1)[of_skin < _TONE_SPREAD])
        if len(shares) < 2 or (spread := np.cov(shares.T))[0, 0] < _LEAST_TONES:
            return np.ones(3, np.float32)
        return np.asarray(np.clip(spread[0, 1:] / spread[0, 0], *_TONE), np.float32)

    def _bare(self, colours: npt.NDArray[Any], landmarks: FloatArray, patch: Patch) -> FloatArray:
        """Certainty that colours around a mouth, with shadows filled, are skin, not beard: float32 [h, w, 1], 0..1.

        Hair is darker than the cheek on its side, or greyer. Skin in the shade is redder.
        """
        right, left = (median_at(self._rgb, landmarks[list(side)], 2) for side in _ABOVE_BEARDS)
        corners = landmarks[list(MOUTH_CORNERS)]
        on_left = (patch.places - corners.mean(axis=0)) @ (corners[1] - corners[0]) > 0
        cheek = np.where(on_left[..., None], left, right)
        coloured = np.ptp(cheek, axis=-1)
        share = np.ptp(np.asarray(colours, np.float32), axis=-1) / np.maximum(coloured, 1.0)
        bare = np.where(
            coloured < _LEAST_COLOURED * cheek.max(axis=-1), 1.0, np.interp(share, _HAIR_COLOUR, (0, 1))
        )
        return np.asarray(bare[..., None], np.float32)

    def _stubble(self, landmarks: FloatArray, scale: float) -> float:
        """Certainty that short hair grows above the upper lip, which is too fine to be told by its colour: 0..1."""
        patch = patch_around(landmarks[list(_ABOVE_LIP)], margin=scale, size=self._rgb.shape[:2])
        if patch is None:
            return 0.0
        light = patch.of(self._rgb).mean(axis=-1).astype(np.float32)
        fine = np.abs(light - cv2.GaussianBlur(light, (0, 0), max(_HAIR_CM * scale, 0.5)))
        soft = max(_HAIR_AROUND_CM * scale, 1.0)
        uneven = cv2.GaussianBlur(fine, (0, 0), soft) / np.maximum(cv2.GaussianBlur(light, (0, 0), soft), 1)
        x, y = np.rint(landmarks[list(_ABOVE_LIP)] - (patch.left, patch.top)).astype(int).T
        at = uneven[y.clip(0, patch.height - 1), x.clip(0, patch.width - 1)]
        return float(np.interp(np.median(at), _UNEVEN, (0, 1)))

    def _own_folds(self, rig: PortraitRig, patch: Patch) -> FloatArray:
        """Mask of the folds of the portrait's own smile, which a pucker smooths out: float32 [h, w], 0..1."""
        landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
        found = np.zeros((patch.height, patch.width), np.float32)
        for side, (fold, _) in _FOLDS.items():
            line = landmarks[list(fold)]
            beside, along = _from_line(patch, line, landmarks[_CHEEK[side]])
            # Its upper end stays, as it is the wing of the nose.
            below = np.clip(along / _FOLD_BEGINS, 0, 1)
            found = np.maximum(found, below * _bump(beside / scale, _FOLD_CM))
        edge = np.minimum.outer(_to_edge(patch.height), _to_edge(patch.width)) / max(0.5 * scale, 1.0)
        return np.asarray(_FOLD_GONE * _own_smile(rig) * found * np.clip(edge, 0, 1), np.float32)

    def _lip_colour(self, landmarks: FloatArray, scale: float) -> FloatArray:
        """Colour of the lips in the middle of the mouth, float32 [3]."""
        outer, inner = (
            landmarks[list(upper[3:8] + lower[3:8])]
            for upper, lower in ((OUTER_UPPER_LIP, OUTER_LOWER_LIP), (INNER_UPPER_LIP, INNER_LOWER_LIP))
        )
        middle = np.asarray((outer + inner) / 2, np.float32)
        return median_at(self._rgb, middle, 0.1 * scale)

    def _patch(self, points: FloatArray, scale: float, size: tuple[int, int]) -> Patch | None:
        patch = patch_around(np.asarray(points, np.float32), margin=_REACH_CM * scale, size=size)
        return None if patch is None or min(patch.width, patch.height) < 4 else patch

    def _folded(self, patch: Patch, light: FloatArray, region: FloatArray, scale: float) -> _Fold:
        """Relight a patch.

        Args:
            patch: Where.
            light: float [h, w]: increase of light by the folds, as a share.
            region: float [h, w], 0..1: where the portrait's own relief is deepened.
            scale: Pixels a centimetre.
        """
        seen = patch.of(self._rgb).astype(np.float32) + 1
        fine, coarse = (
            cv2.GaussianBlur(seen.mean(axis=-1), (0, 0), max(size * scale, 0.5))
            for size in (_FINE_CM, _COARSE_CM)
        )
        relief = np.clip(np.log(fine / coarse), *_RELIEF)
        shares = cv2.GaussianBlur(seen, (0, 0), max(_FINE_CM * scale, 0.5))
        level = shares.mean(axis=-1, keepdims=True)
        colour = np.abs(shares / level - self._skin / max(float(self._skin.mean()), 1.0)).sum(axis=-1)
        dark = np.clip((level[..., 0] / max(float(self._skin.mean()), 1.0) - 0.35) / 0.2, 0, 1)
        of_skin = _bump(colour, _SKIN_SPREAD) * dark
        # Soft, so that a fold does not end at a pixel; and 0 at the patch's edges, where the portrait continues.
        of_skin = cv2.GaussianBlur(of_skin.astype(np.float32), (0, 0), max(0.08 * scale, 0.5))
        edge = np.minimum.outer(_to_edge(patch.height), _to_edge(patch.width)) / max(0.5 * scale, 1.0)
        gain = (light + _OWN_RELIEF * relief * region) * of_skin * np.clip(edge, 0, 1)
        lit = (seen - 1) * np.maximum(1 + gain, _DARKEST)[..., None]
        return _Fold(patch, np.ascontiguousarray(np.clip(np.rint(lit), 0, 255), np.uint8))


def _from_rim(landmarks: FloatArray, patch: Patch, scale: float) -> FloatArray:
    """Distance of each pixel of a patch from the opening between the lips, float32 [h, w], in pixels; negative inside.

    Args:
        landmarks: float32 [468 or more, 2], pixels.
        patch: Whose pixels.
        scale: Pixels a centimetre.
    """
    finer = max(round(_FINEST_RIM / scale), 1)  # finer than a pixel, which is as wide as a small mouth's line
    outline = smooth_outline(landmarks[list(INNER_UPPER_LIP + INNER_LOWER_LIP[-2:0:-1])])
    large = Patch(patch.left * finer, patch.top * finer, patch.width * finer, patch.height * finer)
    mask = opening_mask((outline + 0.5) * finer - 0.5, large, feather=0)
    inside = (mask > 0.5).astype(np.uint8)
    # Distances are between pixel centres; a lip's edge is half-way between two.
    beyond, within = (
        np.maximum(cv2.distanceTransform(part, cv2.DIST_L2, 5) - 0.5, 0) for part in (1 - inside, inside)
    )
    away = cv2.resize(beyond - within, (patch.width, patch.height), interpolation=cv2.INTER_AREA)
    return np.asarray(away / finer, np.float32)


def _of_upper(landmarks: FloatArray, patch: Patch, scale: float) -> FloatArray:
    """Mask of the upper lip, down to the lower one: float32 [h, w, 1], 0..1."""
    between = smooth_outline(landmarks[list(OUTER_UPPER_LIP + INNER_LOWER_LIP[-2:0:-1])])
    return opening_mask(between, patch, feather=max(0.1 * scale, 0.5))[..., None]


def _without_shadows(colours: npt.NDArray[Any], scale: float) -> npt.NDArray[Any]:
    """Fill narrow shadows of a picture [h, w, 3] with the light around them."""
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (max(round(_SHADOW_CM * scale), 1) | 1,) * 2)
    return cv2.morphologyEx(colours, cv2.MORPH_CLOSE, kernel)


def _without_strokes(colours: FloatArray, corners: FloatArray, width: float) -> FloatArray:
    """Remove dark strokes across the line between an eye's corners from a picture (float32 [h, w, 3]).

    Args:
        colours: Of an eye and what is around.
        corners: float32 [2, 2], pixels.
        width: Maximum width of a stroke, in pixels.
    """
    half = max(round(width / 2), 1)
    along = (corners[1] - corners[0]) / max(float(np.linalg.norm(corners[1] - corners[0])), 1.0)
    start, end = (np.rint(half + sign * half * along).astype(int).tolist() for sign in (-1, 1))
    across = np.zeros((2 * half + 1, 2 * half + 1), np.uint8)
    cv2.line(across, start, end, 1)
    return np.asarray(cv2.morphologyEx(colours, cv2.MORPH_CLOSE, across), np.float32)


def _along(colours: FloatArray, within: FloatArray, corners: FloatArray, soft: float) -> FloatArray:
    """Blur colours (float32 [h, w, 3]) along the line between an eye's corners.

    Args:
        colours: Of an eye and what is around.
        within: float32 [h, w, 1], 0..1: weights.
        corners: float32 [2, 2], pixels.
        soft: Standard deviation, pixels.
    """
    way = (corners[1] - corners[0]) / max(float(np.linalg.norm(corners[1] - corners[0])), 1.0)
    half = max(round(2.5 * soft), 1)
    places = np.stack(np.meshgrid(np.arange(-half, half + 1), np.arange(-half, half + 1)), axis=-1)
    along, across = places @ way, places @ np.array([-way[1], way[0]])
    kernel = (_bump(along, 1.4 * soft) * _bump(across, 0.7)).astype(np.float32)
    weight = cv2.filter2D(within[..., 0], -1, kernel, borderType=cv2.BORDER_CONSTANT)[..., None]
    mixed = cv2.filter2D(colours * within, -1, kernel, borderType=cv2.BORDER_CONSTANT)
    return np.asarray(np.where(weight > 1e-3, mixed / np.maximum(weight, 1e-3), colours), np.float32)


def _reaching(parts: npt.NDArray[np.bool_], places: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Select the connected parts [h, w, 1] that reach some places [h, w, 1]."""
    _, labels = cv2.connectedComponents(parts[..., 0].astype(np.uint8))
    reaching = np.setdiff1d(labels[places[..., 0]], (0,))
    return np.asarray(np.isin(labels, reaching)[..., None])


def _spread(colours: FloatArray, where: FloatArray, soft: float) -> FloatArray:
    """Continue the colours (float32 [h, w, 3]) of an area softly beyond it; black far from it.

    Args:
        colours: Of an eye and what is around.
        where: float32 [h, w, 1], 0..1.
        soft: Standard deviation, pixels.
    """
    weight = cv2.GaussianBlur(where, (0, 0), soft)[..., None]
    spread = cv2.GaussianBlur(colours * where, (0, 0), soft)
    return np.asarray(np.where(weight > 1e-4, spread / np.maximum(weight, 1e-4), 0), np.float32)


def _own_fold(colours: FloatArray, upwards: FloatArray, lid: FloatArray) -> float:
    """Share of light that is missing in the fold of an open lid: 0 where there is none.

    Args:
        colours: float32 [h, w, 3].
        upwards: float32 [h, w, 1]: heights on the lid, 0..1.
        lid: float32 [h, w, 1]: 1 on it.
    """
    light, height = colours.mean(axis=-1)[lid[..., 0] > 0], upwards[..., 0][lid[..., 0] > 0]
    row = (height * _FOLD_ROWS).astype(int).clip(0, _FOLD_ROWS - 1)
    levels = np.array(
        [np.median(light[row == one]) if (row == one).any() else 0 for one in range(_FOLD_ROWS)]
    )
    # A fold has lighter skin on both sides.
    around = np.minimum(np.maximum.accumulate(levels), np.maximum.accumulate(levels[::-1])[::-1])
    missing = 1 - levels / np.maximum(around, 1)
    middles = (np.arange(_FOLD_ROWS) + 0.5) / _FOLD_ROWS
    within = (middles > _FOLDS_WITHIN[0]) & (middles < _FOLDS_WITHIN[1]) & (levels > 0)
    return float(min(missing[within].max(initial=0), _DEEPEST_FOLD))


def _own_smile(rig: PortraitRig) -> float:
    """Certainty that a portrait itself smiles, 0..1."""
    weight = (rig.face.blendshape("mouthSmileLeft") + rig.face.blendshape("mouthSmileRight")) / 2
    return float(np.interp(weight, _OWN_SMILE, (0, 1)))


def _grain_of(colours: FloatArray, scale: float, *, most: float = _GRAIN) -> FloatArray:
    """Differences of neighbouring pixels of a picture (float32 [h, w, 3]), limited to those of grain."""
    smooth = cv2.GaussianBlur(colours, (0, 0), max(_FINE_CM * scale, 0.5))
    return np.asarray(np.clip(colours - smooth, -most, most), np.float32)


def _duller(colours: FloatArray, lips: FloatArray, where: FloatArray, scale: float) -> FloatArray:
    """Remove the shine on lips: a smile spreads it, and on closed lips it would be a white line.

    Args:
        colours: float32 [h, w, 3].
        lips: float32 [h, w, 3]: colour of the lips.
        where: float32 [h, w, 1], 0..1.
        scale: Pixels a centimetre.
    """
    level = lips.mean(axis=-1, keepdims=True)
    low, high = (share * level for share in _SHINES)
    share = np.clip((colours.mean(axis=-1, keepdims=True) - low) / np.maximum(high - low, 1.0), 0, 1)
    coloured, own = (np.ptp(one, axis=-1) / np.maximum(one.max(axis=-1), 1) for one in (colours, lips))
    share *= np.clip(1 - (coloured - own) / _REDDER_THAN_LIPS, 0, 1)[..., None]
    # A uniform colour would be a flat spot in the texture of skin or paint.
    matt = lips * _SHINE_LEFT + _grain_of(colours, scale)
    return np.asarray(colours + (matt - colours) * (share * where), np.float32)


def _bump(away: FloatArray, width: float) -> FloatArray:
    """Bell curve: 1 at 0, a third at ``width`` on either side."""
    return np.asarray(np.exp(-((away / width) ** 2)), np.float32)


def _to_edge(count: int) -> FloatArray:
    places = np.arange(count, dtype=np.float32)
    return np.minimum(places, places[::-1])


def _from_line(patch: Patch, line: FloatArray, beside: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Distance of each pixel of a patch from a line, and its place along the line.

    Args:
        patch: Whose pixels.
        line: float32 [N, 2], pixels.
        beside: float32 [2]: a place on the positive side.

    Returns:
        Signed distances in pixels and shares of the line's length, each float [h, w].
    """
    places = patch.places
    lengths = np.linalg.norm(np.diff(line, axis=0), axis=1)
    ends = np.concatenate(((0,), np.cumsum(lengths))) / max(float(lengths.sum()), 1e-6)
    nearest = np.full(places.shape[:2], np.inf, np.float32)
    signed, along = np.zeros_like(nearest), np.zeros_like(nearest)
    for index, length in enumerate(lengths):
        way = (line[index + 1] - line[index]) / max(float(length), 1e-6)
        from_start = places - line[index]
        share = np.clip(from_start @ way / max(float(length), 1e-6), 0, 1)
        away = from_start - share[..., None] * (line[index + 1] - line[index])
        distance = np.linalg.norm(away, axis=-1)
        to_side = beside - line[index]
        turn = np.sign(way[0] * to_side[1] - way[1] * to_side[0]) or 1.0
        side = np.sign(way[0] * from_start[..., 1] - way[1] * from_start[..., 0]) * turn
        closer = distance < nearest
        nearest = np.where(closer, distance, nearest)
        signed = np.where(closer, side * distance, signed)
        along = np.where(closer, ends[index] + share * (ends[index + 1] - ends[index]), along)
    return signed, along
