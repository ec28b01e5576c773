"""Draws the inside of the mouth: the portrait's own teeth if visible, else a synthesised cavity, tongue and teeth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    OUTER_LOWER_LIP,
    TO_PICTURE,
    Pose,
)
from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.layers import (
    Patch,
    lay_under,
    median_at,
    opening_mask,
    patch_around,
    read_at,
    smooth_outline,
)
from vitascope.animation.mesh.lips import CANONICAL_WIDTH_CM
from vitascope.animation.mesh.rig import PortraitRig
from vitascope.animation.mesh.tongue import HALF_WIDTH as TONGUE_HALF_WIDTH
from vitascope.animation.mesh.tongue import PIXELS_A_UNIT, TIP, light_from_right, tongue_texture

PIXELS_A_CM = 64
HALF_WIDTH_CM = 4.0
TEETH_MIDDLE = HALF_WIDTH_CM * PIXELS_A_CM
"""Column between the middle teeth."""
HEIGHT_CM = 2.6
"""Height of the texture; the biting edge is 1.9 cm from its gum side."""
_EDGE_CM = 1.9

_WIDTHS_CM = {
    # Crown widths from the middle outward, foreshortened by the arch's curve (after Wheeler's Dental Anatomy, tables of
    # averages: 8.5, 6.5, 7.5, 7, 7, 10 mm above; 5, 5.5, 7, 7, 7, 11 mm below).
    "upper": (0.85, 0.64, 0.68, 0.52, 0.42, 0.4),
    "lower": (0.50, 0.54, 0.60, 0.52, 0.44, 0.4),
}
_HEIGHTS_CM = {"upper": (1.2, 1.03, 1.14, 0.98, 0.89, 0.82), "lower": (0.84, 0.86, 0.92, 0.82, 0.74, 0.68)}
"""Visible heights of the crowns: upper ones of two grinning people reached the raised lip, with no gum above."""
_NECK_CM = {"upper": 1.38, "lower": 1.15}
"""Distance from the biting edge at which light begins to fade."""
_CLOSED_CM = {"upper": (0.04, 0.1), "lower": (0.05, 0.12)}
"""Distance from the biting edge at which the dark between two crowns begins to fade, and the length of this: behind
upper crowns are lower ones, and a grin shows no row of dark notches."""
_BETWEEN, _GUM = np.array([[0.85, 0.77, 0.73], [0.80, 0.55, 0.54]], np.float32)
"""Colours between the crowns and above them, as shares of the teeth's own: real crowns differ by outline and gloss more
than by a dark line, and a grid of lines looks like a denture."""
_SQUARENESS = (6.0, 4.5, 2.6, 3.0, 3.5, 3.5)
"""Exponents of the superellipses at the ends of crowns: incisors are cut straight, canines are pointed."""


@cache
def draw_teeth(row: Literal["upper", "lower"]) -> tuple[FloatArray, FloatArray]:
    """Draw one row of teeth, upright: the upper row's edges point down, the lower row's up.

    Returns:
        Light, float32 [h, w, 3], 0..1 of the teeth's own colour (gums are reddish and darker), and cover, float32 [h,
        w], 0..1. The scale is ``PIXELS_A_CM`` pixels a centimetre, and the middle is at half the width. Cached: do not
        modify.
    """
    fine = 2
    scale = PIXELS_A_CM * fine
    width, height = round(2 * HALF_WIDTH_CM * scale), round(HEIGHT_CM * scale)
    crowns = np.zeros((height, width), np.uint8)
    bulge = np.ones(width, np.float32)
    columns = np.arange(width, dtype=np.float32)
    for side in (-1, 1):
        x = 0.0
        for tooth_width, tooth_height, squareness in zip(
            _WIDTHS_CM[row], _HEIGHTS_CM[row], _SQUARENESS, strict=True
        ):
            middle, half = width / 2 + side * (x + tooth_width / 2) * scale, (tooth_width / 2 - 0.006) * scale
            # Lateral incisors are shorter.
            shorter = 0.06 if row == "upper" and squareness == _SQUARENESS[1] else 0.0
            lift = float(_lift_cm(row, np.array(x + tooth_width / 2))) + shorter
            centre = (middle, (_EDGE_CM - lift - tooth_height / 2) * scale)
            _fill_crown(crowns, centre, (half, tooth_height / 2 * scale), squareness)
            inside = np.abs(columns - middle) <= half + 1
            bulge[inside] = 1 - 0.1 * np.clip(np.abs(columns[inside] - middle) / half, 0, 1) ** 3
            x += tooth_width
    cover_crowns = cv2.GaussianBlur(crowns, (0, 0), 0.012 * scale + 0.5).astype(np.float32) / 255
    across = np.abs(columns[None, :] / scale - HALF_WIDTH_CM)
    from_edge = _EDGE_CM - _lift_cm(row, across) - np.arange(height, dtype=np.float32)[:, None] / scale
    # Necks are darker, biting edges a little translucent; teeth farther back are darker and yellower.
    shade = bulge * (
        0.80 + 0.2 * np.clip(_NECK_CM[row] - from_edge, 0, 1) - 0.10 * np.clip(1 - from_edge / 0.12, 0, 1)
    )
    shade = shade * np.clip(1.05 - 0.03 * across - 0.05 * across**2, 0.2, 1)
    enamel = 1.04 * np.stack((shade, shade * (1 - 0.015 * across), shade * (1 - 0.04 * across)), -1)
    gum = np.clip((from_edge - 0.95) / 0.15, 0, 1)
    # Between two crowns is their shadow, and above it the gum.
    beside = _BETWEEN + (_GUM - _BETWEEN) * gum[..., None]
    beside *= np.clip(1 - 0.09 * across**2, 0.2, 1)[..., None]
    light = enamel * cover_crowns[..., None] + beside * (1 - cover_crowns[..., None])
    begin, fading = _CLOSED_CM[row]
    closed = np.clip((from_edge - begin) / fading, 0, 1) * np.clip((2.65 - across) / 0.3, 0, 1)
    # The last teeth are in the dark of the cheeks, as dark as the cavity: blacker ones would look like a hole.
    cover = np.maximum(cover_crowns, closed) * (1 - np.clip((across - 2.3) / 0.6, 0, 1))
    if row == "lower":
        light, cover = light[::-1], cover[::-1]
    half_size = (width // fine, height // fine)
    small = [
        cv2.resize(np.ascontiguousarray(part, np.float32), half_size, interpolation=cv2.INTER_AREA)
        for part in (light, cover)
    ]
    for part in small:
        part.flags.writeable = False
    return np.asarray(small[0], np.float32), np.asarray(small[1], np.float32)


def _lift_cm(row: Literal["upper", "lower"], across_cm: FloatArray) -> FloatArray:
    """Offset of the arch's edge towards its gum, at a distance from the middle.

    Both arches rise to the sides, the lower one more, as it is seen from above.
    """
    if row == "upper":
        return np.asarray(0.06 * across_cm**2, np.float32)
    return np.asarray(-np.minimum(0.11 * across_cm**2, 0.5), np.float32)


def _fill_crown(
    mask: npt.NDArray[np.uint8], centre: tuple[float, float], half: tuple[float, float], squareness: float
) -> None:
    """Fill a tooth whose neck is an arch and whose lower end is a superellipse, in place."""
    angle = np.linspace(-np.pi, np.pi, 64, endpoint=False)
    across, down = np.cos(angle), np.sin(angle)
    power = 2 / np.where(down > 0, squareness, 3.2)
    points = np.stack((np.sign(across) * np.abs(across) ** power, np.sign(down) * np.abs(down) ** power), -1)
    cv2.fillPoly(
        mask, [np.rint((centre + points * half) * 16).astype(np.int32)], 255, lineType=cv2.LINE_AA, shift=4
    )


_LOWER_RIM = INNER_LOWER_LIP[-2:0:-1]
_OUTLINE = INNER_UPPER_LIP + _LOWER_RIM
_INNER_CORNERS = INNER_UPPER_LIP[0], INNER_UPPER_LIP[-1]
_USUAL_WIDTH_CM, _DRAWN_TOGETHER = 4.5, (0.4, 0.9)
"""Usual width of a mouth at rest (4.2 to 4.6); and weights of a pucker in the portrait at which its own width begins to
be replaced by this, and at which it fully is."""
_OPEN_CM = 0.16
"""Gap above which a portrait's lips show what is behind them."""
_ROUNDS, _ROUND_HIDES_CM, _SHOWS_AGAIN_CM = (0.1, 0.32), 0.4, (0.4, 0.9)
"""Narrowing of a mouth, as shares of its width, at which it begins to be round, and at which it fully is; how much of
the upper teeth the lip then covers; and gaps over which they are seen again."""
_APPEARS_CM = (0.03, 0.14)
"""Gaps over which the layer fades in as closed lips part: landmarks of closed lips are never exactly together."""
_LEAVES_REST_CM = (0.02, 0.1)
"""Motions of a point over which the layer fades in over the portrait's own inside of the mouth: at rest the portrait
itself is shown."""
_UPPER_EDGE_CM, _OVERBITE_CM = 0.17, 0.2
"""Distance of the upper teeth's edge below the place where lips meet at rest; and the height of the lower teeth that
they hide when closed."""
_SPEAKS_CM, _UPPER_LIP_PARTS = (0.6, 1.2), 0.2
"""Gaps of a portrait's lips at which it begins to count as speaking instead of having parted lips, and at which it
fully does; and the upper lip's share of such a gap, by which the lips met lower."""
_GRINS = (1.1, 1.2)
"""Widths of a mouth, relative to its own at rest, at which parting lips begin to bare the teeth, and at which they
fully do."""
_BARES_LOWER = (1.12, 1.24)
"""The same for lower teeth above the lip, relative to the width without its smile."""
_SMILE_WIDENS = 0.37
"""Widening of a mouth by a smile of weight 1, as a share; used to subtract the smile of a portrait that bares its
teeth."""
_TOUCHING_CM = (0.1, 0.3)
"""Motion of the chin before teeth part, in speech and in a grin."""
_PARTS_BY = 1.4
"""Parting of the teeth after that, as a multiple of the motion of the chin's skin."""
_BARED, _CHIN_FOLLOWS = 1.3, 0.25
"""Gap of passive lips per drop of the jaw; and the share of any further gap, which bares teeth, that is subtracted from
the motion of the chin's skin, as this sinks while the teeth stay together."""
_SPEAKING_SHOWS_CM, _LOWER_SHOWS_CM, _CLENCHED_SHOWS_CM = -0.3, 0.28, 1.2
"""Maximum height of the lower teeth above the lip, in speech and in a grin; and the addition when teeth touch."""
_LIP_SLIDES_CM = 0.35
"""Distance that an upper lip slides down over the teeth of a portrait with an open mouth before they move with it."""
_TONGUE_LIGHT, _HALF_LIT_CM2 = (0.35, 0.8), 20.0
"""Minimum light of a tongue, and the addition as the opening lets in light; then the opening, in square centimetres,
for half of that."""
_CAVITY_LIGHT = (0.59, 0.6)
"""Light behind the tongue, as a share of the cavity's own dark colour: the minimum, and the share of the tongue's
light."""
_TONGUE_HALF_CM = 2.0
_TIP_CM, _TIP_RISEN_CM = (-0.4, 0.45), 1.5
"""Heights of the tongue's tip above the edge of the lower teeth, or of the lip that hides them: while teeth touch, when
it is behind them lest a grin show the dark between its rows; and when they are parted by the last value, when it is
above the mouth's floor."""
_MOST_LONGER = 1.5
"""Maximum factor by which the inside of an open mouth is stretched before it has faded."""
_LOWER_BOW, _BOWS_CM = 0.2, (0.5, 2.5)
"""Rise of the lower arch, a centimetre from the middle, as a dropping jaw shows it from above; and the distances
between the teeth at which the rise begins, and at which it is full."""
_LOWER_LIGHT = 0.85
"""Light of the lower teeth, behind the upper ones and the lip, relative to the upper ones."""
_TEETH_SINK_CM, _SINK_APART_CM = 0.15, 0.8
"""Distance by which touching teeth in a grin are drawn lower; and the gap between teeth from which on they are not:
rising cheeks and lips raise the fitted head, by 0.2 in two drivers."""
_ARCH_A_CM = 0.18
"""Depth of the dental arch one centimetre from the middle, in centimetres; it grows by the square."""
_DEPTH_CM = 0.9
"""Distance of the teeth behind the lips."""
_TEETH_SEEN, _FEW_TEETH, _COLOURLESS, _NO_REDDER = 0.35, 0.1, 0.38, 0.9
"""A portrait shows its teeth if more than the first share of the pixels between its lips is bright, and has either less
chroma than the third value, or a ratio of green to red of at least the fourth, relative to the skin's. From the second
share on, they determine the colour of synthesised teeth."""
_OWN_ENAMEL = 0.6
"""Distance from the lower lip's colour at which a portrait's own teeth end, as a share of the way to the teeth's
colour."""
_HUES_APART, _ENAMEL_LIGHT = (0.04, 0.1), (0.35, 0.6)
"""Differences of a lip's hue from the teeth's from which on, and from which on fully, only hue tells them apart: enamel
in the shade of a lip is as dark as the lip. Then the light relative to the teeth's up to which a pixel is the dark
behind them, and from which on it is enamel."""
_NOTCH_CM = 0.25
"""Width below which notches in the teeth's edge are filled: a few pixels of a portrait would look like holes between
teeth."""
_HANGS_CM, _BELOW_ROW_CM, _LAST_TEETH_CM = 0.4, 0.1, 0.5
"""Parts that hang below the teeth's edge, are narrower than the first value and lower than the row by the second, do
not belong to it; beside the teeth, the row continues at the height of those within the third of the last."""
_LOWER_BEGIN = 0.4
"""Place of the teeth's upper end between the lips, as a share of the gap, below which they are lower teeth: those of
six people's upper rows were at -0.12 to 0.27, that of a speaking man's lower row at 0.52."""
_THINNEST_CM = 0.2
"""Minimum visible height of teeth; less is a gleam on a lip, or in a corner."""
_STRIP_CM, _STRIP_LEAVES_CM = (0.58, 0.66), (0.1, 0.4)
"""Heights of own teeth below which they are only a strip in the shade of a lip, and above which they are not; and the
growth of the lips' gap over which such a strip fades out."""
_CROWN_CM, _NECK_LIGHT = 1.05, 0.85
"""Height above their edge to which own teeth are continued where a lip hides the upper part, and their light there
relative to the visible part: a synthesised row above them would look like a second row of teeth."""
_OWN_ENDS_PX, _BEHIND_OWN_CM, _GOES_ON_CM = 1.4, 0.1, 0.15
"""Length over which own teeth fade out, in pixels, so that CPU and GPU sample the same edge; and the distances at which
synthesised teeth end above them, and beside them along their row."""
_FRONT_TEETH_CM, _BITES_CM = 0.7, 0.18
"""Distance from the middle within which own teeth end lowest; and the distance above that edge at which touching lower
teeth end."""
_RIM_LEAVES_CM = 0.3
"""Growth of the lips' gap up to which what the portrait shows below its own teeth stays."""
_RIM_BEGINS, _RIM_NARROWS = (0.5, 1.0), (0.03, 0.12)
"""It also fades in less space, where it would leave dark spots and fangs beside them: shares of the gap at rest at
which it is gone, and complete; and the losses of width, as shares, at which it begins to fade, and is gone."""
_REDDEST_LIPS = 0.8
_COLOURED = 0.12
"""Difference of the skin's lowest colour from its highest, as a share, below which the picture counts as nearly
grey."""
_WHITE = np.array([244.0, 238.0, 224.0], np.float32)
_ENAMEL_COLOURED = 0.55
"""Maximum chroma of teeth, as a share of the skin's: enamel in six photographs has 0.1 to 0.7 of it."""


@dataclass(frozen=True, slots=True)
class Tones:
    """Colours of the inside in the portrait's light, float32 [3], 0..255."""

    teeth: FloatArray
    cavity: FloatArray
    tongue: FloatArray
    coloured: float
    """Colourfulness of the picture: 0 for a grey one, 1 for others."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnInside:
    """The visible inside of a portrait's mouth with parted lips, extended a little beyond them."""

    rgb: RgbPicture
    """uint8 [h, w, 3]."""
    cover: FloatArray
    """float32 [h, w], 0..1: opacity."""
    patch: Patch
    """Place in the portrait."""


@dataclass(frozen=True, slots=True, eq=False)
class MouthPlacement:
    """Placement of a mouth's inside in a motion, from which the colours of its pixels are computed.

    Matrices are float32 [2, 3] and map textures to pixels of the result.
    """

    patch: Patch
    """The rectangle that is drawn."""
    outline: FloatArray
    """float32 [80, 2]: the opening between the lips, pixels."""
    shown: float
    """Opacity of the layer, 0..1: it fades in as closed lips part."""
    own_share: float
    """Share of the portrait's own inside that is shown, 0..1."""
    own: FloatArray | None
    """Matrix of the picture of the portrait's own inside."""
    is_made: bool
    """True if cavity, tongue and teeth are drawn."""
    tongue: FloatArray
    """Matrix of the tongue's texture."""
    tongue_light: float
    """Light on the tongue, as a share of its own colour."""
    cavity_light: float
    """Light on the cavity behind it, likewise."""
    lower_bow: float
    """Rise of the lower row to its sides: rows of its texture, times the square of columns from its middle."""
    upper_teeth: FloatArray | None
    """Matrix of the upper row's texture; None if the portrait's own teeth are shown."""
    lower_teeth: FloatArray
    light_px: float
    """Softness of the incident light: standard deviation in pixels."""


class Mouth:
    """The inside of a portrait's mouth.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        rig: The portrait's rig.
    """

    def __init__(self, rgb: RgbPicture, rig: PortraitRig) -> None:
        self._size = rig.size
        rest = rig.reading.vertices
        self._rest_pose = rig.pose
        self._rest_gap_cm = _gap(rest)
        corners = rest[[INNER_UPPER_LIP[0], INNER_UPPER_LIP[-1]]]
        width = max(float(np.linalg.norm(corners[1] - corners[0])), 2.0)
        together = _smooth(rig.face.blendshape("mouthPucker"), *_DRAWN_TOGETHER)
        self._width_cm = width + max(_USUAL_WIDTH_CM - width, 0.0) * together
        self._scale = self._width_cm / CANONICAL_WIDTH_CM  # the teeth's
        middle = (rest[13] + rest[14]) / 2
        self._middle = middle + np.array([0, 0, -_DEPTH_CM], np.float32)
        self.tones = _tones(rgb, rig)
        self.feather = max(0.5, rig.pose.scale * 0.05)
        self.own: OwnInside | None = None
        """The portrait's own visible inside; None behind closed lips."""
        self._has_teeth = False
        self._unsmiling_width_cm = self._width_cm
        self._own_edge: FloatArray | None = None
        self._strip = 0.0
        self.bared_cm = 0.0
        """Distance of the visible upper teeth's edge below the middle of the upper lip, in centimetres."""
        self._rest_outline = rest[list(_OUTLINE)].copy()
        self._inward_cm = np.zeros((len(_OUTLINE), 2), np.float32)
        self._rest_up = float(rest[13, 1])
        self._upper_edge = self._middle.copy()
        # The lower lip opens a mouth more than the upper one, which covers the necks of the teeth.
        self._speaks = _smooth(self._rest_gap_cm, *_SPEAKS_CM)
        parts = 0.5 + (_UPPER_LIP_PARTS - 0.5) * self._speaks
        self._upper_edge[1] = self._rest_up - parts * self._rest_gap_cm - _UPPER_EDGE_CM * self._scale
        if self._rest_gap_cm > _OPEN_CM:
            self.own = self._own_inside(rgb, rig, low=float(rest[14, 1]))
            smile = sum(rig.face.blendshape(f"mouthSmile{side}") for side in ("Left", "Right")) / 2
            self._unsmiling_width_cm /= 1 + _SMILE_WIDENS * smile
        self.upper_teeth = self._teeth_texture("upper", 1.0)
        self.lower_teeth = self._teeth_texture("lower", _LOWER_LIGHT)
        self.tongue = tongue_texture(
            self.tones.tongue,
            light_from_right(rgb, rig),
            smaller=PIXELS_A_UNIT / (rig.pose.scale * self._scale * _TONGUE_HALF_CM),
        )

    def _teeth_texture(self, row: Literal["upper", "lower"], brightness: float) -> FloatArray:
        """Texture of a row in this portrait's arch, at the sharpness of the result: float32 [h, w, 4]."""
        light, cover = draw_teeth(row)
        grey = light.mean(axis=-1, keepdims=True)
        light = grey + (light - grey) * np.float32(self.tones.coloured)
        texture = np.concatenate(
            (light * (self.tones.teeth * brightness) * cover[..., None], cover[..., None]), -1
        )
        # The arch recedes to the sides: in a turned head it widens on the near side, and narrows on the far one.
        height, width = cover.shape
        x = (np.arange(width, dtype=np.float32) - (width - 1) / 2) / PIXELS_A_CM
        rotation = self._rest_pose.rotation @ TO_PICTURE
        bow = np.clip(rotation[0, 2] / rotation[0, 0], -1, 1) * -_ARCH_A_CM
        along = 2 * x / (1 + np.sqrt(np.maximum(1 + 4 * bow * x, 0)))
        along[1 + 4 * bow * x < 0] = 2 * HALF_WIDTH_CM  # outside the texture
        columns = np.broadcast_to(along * PIXELS_A_CM + (width - 1) / 2, cover.shape).astype(np.float32)
        rows = np.repeat(np.arange(height, dtype=np.float32)[:, None], width, axis=1)
        if row == "upper" and self._own_edge is not None:
            # Synthesised ones continue the portrait's own.
            edge_cm = _EDGE_CM - _lift_cm(row, np.asarray(along, np.float32))
            rows += edge_cm * PIXELS_A_CM - cv2.GaussianBlur(
                self._own_edge[None], (0, 0), 0.15 * PIXELS_A_CM, borderType=cv2.BORDER_REPLICATE
            )
        if row == "lower" and self._own_edge is not None:
            rows += self._meeting_own(np.asarray(along, np.float32))
        arched = cv2.remap(texture, columns, rows, cv2.INTER_LINEAR)
        # It is sampled at single points, so detail finer than the portrait's pixels would flicker.
        smaller = PIXELS_A_CM / (self._rest_pose.scale * self._scale)
        return np.asarray(cv2.GaussianBlur(arched, (0, 0), max(0.4 * smaller, 0.3)), np.float32)

    def _meeting_own(self, across_cm: FloatArray) -> FloatArray:
        """Rise of the lower row, in rows, so that it meets the portrait's own teeth at its sides as in the middle.

        Args:
            across_cm: float32 [w]: place of each column in the arch, from its middle.

        Returns:
            float32 [w], at least 0.
        """
        assert self._own_edge is not None
        edge_cm = self._own_edge / PIXELS_A_CM
        lowest = float(edge_cm[np.abs(across_cm) < _FRONT_TEETH_CM].max())
        apart = lowest - edge_cm + _lift_cm("lower", across_cm)
        widest = np.ones((1, 2 * round(_NOTCH_CM * PIXELS_A_CM) + 1), np.uint8)
        raised = cv2.dilate(np.maximum(apart, 0)[None], widest, borderType=cv2.BORDER_REPLICATE)
        soft = _NOTCH_CM * PIXELS_A_CM
        raised = cv2.GaussianBlur(raised, (0, 0), soft, borderType=cv2.BORDER_REPLICATE)
        return np.asarray((raised[0] + _BITES_CM) * PIXELS_A_CM, np.float32)

    def _own_inside(self, rgb: RgbPicture, rig: PortraitRig, *, low: float) -> OwnInside | None:
        """Cut out the portrait's inside of the mouth, extended a little beyond the lips.

        Teeth are cut off at their edge: landmarks include the shadow below them, and the rim of the lower lip, whose
        height is given.
        """
        outline = smooth_outline(rig.face.landmarks[list(_OUTLINE), :2])
        centimetre = rig.pose.scale
        patch = patch_around(outline, margin=0.8 * centimetre, size=rig.size)
        if patch is None:
            return None
        inside = (opening_mask(outline, patch, feather=0) > 0.5).astype(np.uint8)
        core = cv2.erode(inside, np.ones((3, 3), np.uint8))
        if not core.any():
            return None
        picture = patch.of(rgb).copy()
        in_light = float(self.tones.teeth.max())
        self._see_teeth(picture[core > 0].astype(np.float32), _skin(rgb, rig))
        beyond_own = np.full(inside.shape, -1.0, np.float32)
        if self._has_teeth:
            hangs_at, self._upper_edge[1] = float(self._upper_edge[1]), low
            lip = rig.face.landmarks[list(OUTER_LOWER_LIP[3:8]), :2] * 0.5
            lip += rig.face.landmarks[[88, 178, 14, 402, 318], :2] * 0.5
            found = self._beyond_own(picture, inside, patch, rig, median_at(rgb, lip, 2))
            if found is None:
                self._has_teeth, self._upper_edge[1] = False, hangs_at
            else:
                beyond_own, hidden = found
                core[beyond_own > 0] = 0
                inside[hidden] = core[hidden] = 1
            own = self.tones.teeth
            lighter = max(in_light / max(float(own.max()), 1.0) - 1, 0.0) * self._strip
            self.tones = replace(self.tones, teeth=np.asarray(own * (1 + lighter), np.float32))
        filled = cv2.inpaint(picture, 1 - core, max(2, round(0.1 * centimetre)), cv2.INPAINT_TELEA)
        filled[core > 0] = picture[core > 0]
        beyond = cv2.distanceTransform(1 - inside, cv2.DIST_L2, 3) / centimetre
        feather_cm = max(
            0.25, 1.4 / centimetre
        )  # wider than a pixel, so that CPU and GPU sample the same edge
        cover = np.clip(1.15 - beyond / feather_cm, 0, 1).astype(np.float32)
        cover *= np.clip(1 - beyond_own / _OWN_ENDS_PX, 0, 1)
        return OwnInside(np.ascontiguousarray(filled), cover, patch)

    def _beyond_own(
        self,
        picture: RgbPicture,
        inside: npt.NDArray[np.uint8],
        patch: Patch,
        rig: PortraitRig,
        lip: FloatArray,
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]] | None:
        """Distances of the patch's pixels from the portrait's own teeth: float32 [h, w], in pixels.

        They are negative within the teeth; -1 everywhere if none are found. Also gives where a lip hides teeth, bool
        [h, w]: there they are continued in the picture, in place. None if the visible teeth are lower ones.
        """
        matrix = self._teeth_matrix(self._rest_pose, self._upper_edge, edge_at_top=False)
        onto = _onto(matrix, patch)
        # Upright, like the synthesised row: how far each place is enamel, between the lip's colour and the teeth's.
        enamel = _enamel(picture.astype(np.float32), lip, self.tones.teeth)
        size = (round(2 * HALF_WIDTH_CM * PIXELS_A_CM), round(HEIGHT_CM * PIXELS_A_CM))
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        upright = cv2.warpAffine(enamel * inside, onto, size, flags=flags)
        seen = upright > _OWN_ENAMEL
        # A lower tooth below the dark is not the end of an upper one, so the longest run counts.
        run, longest, lowest = np.zeros((3, size[0]), np.intp)
        for index, of_row in enumerate(seen):
            run = (run + 1) * of_row
            lowest[run > longest] = index + 1
            longest = np.maximum(longest, run)
        columns = np.flatnonzero(longest > _THINNEST_CM * PIXELS_A_CM)
        if not len(columns):
            return np.full(inside.shape, -1.0, np.float32), np.zeros(inside.shape, bool)
        back = cv2.invertAffineTransform(onto)
        lips = (rig.face.landmarks[[13, 14], :2] - (patch.left, patch.top)) @ back[:, :2].T + back[:, 2]
        front = columns[np.abs(columns / PIXELS_A_CM - HALF_WIDTH_CM) < _FRONT_TEETH_CM]
        begin = float(np.median((lowest - longest)[front])) if len(front) else float(lips[0, 1])
        if begin - lips[0, 1] > _LOWER_BEGIN * (lips[1, 1] - lips[0, 1]):
            # Lower teeth of an open mouth do not hang from its upper lip.
            return None
        self._strip = 1 - _smooth(float(np.percentile(longest[columns], 95)) / PIXELS_A_CM, *_STRIP_CM)
        all_columns = np.arange(size[0], dtype=np.float32)
        beside_cm = (
            np.maximum(np.maximum(columns[0] - all_columns, all_columns - columns[-1]), 0) / PIXELS_A_CM
        )
        across_cm = np.abs(all_columns / PIXELS_A_CM - HALF_WIDTH_CM)
        arch = (_EDGE_CM - _lift_cm("upper", across_cm)) * PIXELS_A_CM

        def formed(rows: FloatArray, how: int, width_cm: float) -> FloatArray:
            part = np.ones((1, 2 * round(width_cm / 2 * PIXELS_A_CM) + 1), np.uint8)
            return np.asarray(cv2.morphologyEx(rows, how, part, borderType=cv2.BORDER_REPLICATE), np.float32)

        def smooth(rows: FloatArray) -> FloatArray:
            soft = _NOTCH_CM / 3 * PIXELS_A_CM
            return np.asarray(
                cv2.GaussianBlur(rows, (0, 0), soft, borderType=cv2.BORDER_REPLICATE)[0], np.float32
            )

        def across(rows: npt.NDArray[Any]) -> FloatArray:
            return np.asarray(np.interp(all_columns, columns, rows[columns])[None], np.float32)

        top = smooth(formed(across(lowest - longest), cv2.MORPH_OPEN, _NOTCH_CM))
        # Beside them, the row continues at the height of the last ones: no tooth hangs below its neighbours.
        edge = across(lowest)
        off = (edge[0] - arch)[columns]
        level = arch + np.float32(np.median(off))
        last = [np.abs(columns - end) < _LAST_TEETH_CM * PIXELS_A_CM for end in (columns[0], columns[-1])]
        right, left = (min(float(np.median(off[near])), float(np.median(off))) for near in last)
        arch += np.where(all_columns < columns.mean(), right, left).astype(np.float32)
        edge = np.where(beside_cm > 0, arch, edge)
        # Nor is a lower tooth that touches an upper one its end; it hangs below the row.
        hangs = edge > level + _BELOW_ROW_CM * PIXELS_A_CM
        edge = np.where(hangs, formed(edge, cv2.MORPH_OPEN, _HANGS_CM), edge)
        bottom = smooth(formed(edge, cv2.MORPH_CLOSE, _NOTCH_CM))
        middle = bottom[np.abs(all_columns / PIXELS_A_CM - HALF_WIDTH_CM) < _FRONT_TEETH_CM].max()
        self.bared_cm = (
            self._rest_up
            - float(self._upper_edge[1])
            + (float(middle) / PIXELS_A_CM - _EDGE_CM) * self._scale
        )
        # Synthesised teeth must not show below the portrait's own.
        behind = bottom - _BEHIND_OWN_CM * PIXELS_A_CM
        self._own_edge = behind + (arch - behind) * np.minimum(beside_cm / _GOES_ON_CM, 1)
        y, x = np.mgrid[: patch.height, : patch.width]
        column, row = (back[k, 0] * x + back[k, 1] * y + back[k, 2] for k in (0, 1))
        beside = np.maximum(columns[0] - column, column - columns[-1])
        neck = np.minimum(top, bottom - _CROWN_CM * PIXELS_A_CM)
        above, above_seen, below = (
            sign * (row - np.interp(column, all_columns, end))
            for sign, end in ((-1, neck), (-1, top), (1, bottom))
        )
        pixel = self._rest_pose.scale * self._scale / PIXELS_A_CM
        hidden: npt.NDArray[np.bool_] = (
            (np.maximum(above, beside) <= 0) & (above_seen > -_OWN_ENDS_PX / pixel) & (below < 0)
        )
        picture[hidden] = _turned_up(picture, onto, column[hidden], row[hidden], (top, neck, bottom), pixel)
        # At rest, the lips' outline is narrowed to that of the teeth.
        places = rig.face.landmarks[list(_OUTLINE), :2] - (patch.left, patch.top)
        nearest = places @ back[:, :2].T + back[:, 2]
        nearest[:, 0] = np.clip(nearest[:, 0], columns[0], columns[-1])
        ends = [np.interp(nearest[:, 0], all_columns, end) for end in (top, bottom)]
        nearest[:, 1] = np.clip(nearest[:, 1], *ends)
        inward = nearest @ onto[:, :2].T + onto[:, 2] - places
        # In profile, nothing can be measured across the face.
        back_to_cm = np.linalg.pinv(self._right_and_up(self._rest_pose), rcond=0.1)
        self._inward_cm = np.asarray(inward @ back_to_cm, np.float32)
        return np.asarray(np.maximum(np.maximum(above, below), beside) * pixel, np.float32), hidden

    def _right_and_up(self, pose: Pose) -> FloatArray:
        """A centimetre of the face to the right and upward, at the mouth: float32 [2, 2], rows of (x, y) in pixels."""
        middle = self._middle + np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32)
        placed = pose.place(middle)[:, :2]
        return np.asarray(placed[1:] - placed[0], np.float32)

    def _see_teeth(self, pixels: FloatArray, skin: FloatArray) -> None:
        """Decide whether pixels between the lips (float32 [N, 3]) are teeth, and choose the colour of synthesised ones.

        Args:
            pixels: 0..255.
            skin: Colour of the skin, float32 [3], 0..255.
        """
        brightest = pixels.max(axis=1)
        colourless = 1 - pixels.min(axis=1) / np.maximum(brightest, 1) < _COLOURLESS
        # In orange light, teeth are as coloured as lips elsewhere, but no redder than skin.
        red = float(skin[1]) / max(float(skin[0]), 1.0)
        as_skin = pixels[:, 1] > _NO_REDDER * red * pixels[:, 0]
        lit = brightest > 0.6 * self.tones.teeth.max()
        enamel = lit & colourless
        if enamel.mean() <= _TEETH_SEEN:
            enamel = lit & (colourless | as_skin)
        self._has_teeth = bool(enamel.mean() > _TEETH_SEEN)
        if enamel.mean() <= _FEW_TEETH:
            return
        # Lips within the opening's outline are lit, too, but redder.
        greens = pixels[:, 1] / np.maximum(pixels[:, 0], 1)
        enamel &= greens >= np.median(greens[enamel])
        light = np.percentile(pixels[enamel], 80, axis=0)
        made = self.tones.teeth
        if not self._has_teeth:
            # A few tell what is white in this light, in which synthesised ones may be as orange as the skin, but not
            # how light.
            light *= made.max() / light.max()
            if light.min() <= made.min():
                return
        self.tones = replace(self.tones, teeth=np.asarray(light, np.float32))

    def placed(self, bent: Bent) -> MouthPlacement | None:
        """Place the inside in a motion; None if it is not visible."""
        gap = _gap(bent.vertices)
        shown = _smooth(gap, *_APPEARS_CM)
        if self.own is not None:
            moved = np.linalg.norm(bent.vertices[list(_OUTLINE)] - self._rest_outline, axis=1)
            shown *= _smooth(float(moved.max()), *_LEAVES_REST_CM)
        if shown <= 0 or gap <= 1e-3:
            return None
        outline = smooth_outline(self._opening(bent, gap))
        patch = patch_around(outline, margin=2 + 2 * self.feather, size=self._size)
        if patch is None or patch.width < 2 or patch.height < 2:
            return None
        width = float(np.linalg.norm(bent.vertices[INNER_UPPER_LIP[0]] - bent.vertices[INNER_UPPER_LIP[-1]]))
        # In speech, teeth part with the lips, and the lower ones are hidden; a grin bares both rows.
        grin = _smooth(width / self._width_cm, *_GRINS)
        own_share = self._own_share(gap, grin)
        # When both lips of an open mouth move together, they still show teeth, not what is above or below them.
        up = float(bent.vertices[13, 1])
        sunk = 0.0 if self.own is None else max(self._rest_up - up - max(_LIP_SLIDES_CM, self.bared_cm), 0.0)
        drop, low = bent.jaw_drop_cm, float(bent.vertices[14, 1])
        bared = grin * max(gap - self._rest_gap_cm - _BARED * drop, 0.0)
        touching = _TOUCHING_CM[0] + (_TOUCHING_CM[1] - _TOUCHING_CM[0]) * grin
        parted = _PARTS_BY * max(drop - touching - _CHIN_FOLLOWS * bared, 0.0)
        low_set = _TEETH_SINK_CM * min(bared, 1.0) * (1 - _smooth(parted, 0, _SINK_APART_CM))
        if self._has_teeth:
            low_set = 0.0  # they continue the portrait's own
        upper = self._upper_edge - np.array([0, sunk + low_set, 0], np.float32)
        # Lower teeth are just behind the upper ones when the jaw is closed, and sink behind the lip as it drops.
        lower = upper + np.array([0, _OVERBITE_CM * self._scale - parted, -0.15 - 0.25 * parted], np.float32)
        smile = _smooth(width / self._unsmiling_width_cm, *_BARES_LOWER)
        least = _SPEAKING_SHOWS_CM * (1 - smile) + _LOWER_SHOWS_CM * smile
        most = least + grin * max(_CLENCHED_SHOWS_CM - parted, 0.0)
        lower[1] = min(lower[1], low + most * self._scale)
        if self.own is not None:
            lower[1] = max(lower[1], low + least * self._scale)
        tip = np.array([self._middle[0], max(float(lower[1]), low), self._middle[2]], np.float32)
        above = _TIP_CM[0] + (_TIP_CM[1] - _TIP_CM[0]) * _smooth(parted, 0, _TIP_RISEN_CM)
        tip += np.array([0, above * self._scale, -0.5], np.float32)
        # Lips that are drawn together come forward over the teeth.
        rounded = _smooth(1 - width / self._unsmiling_width_cm, *_ROUNDS) * (
            1 - _smooth(gap, *_SHOWS_AGAIN_CM)
        )
        shown_upper = upper + np.array([0, _ROUND_HIDES_CM * rounded * self._scale, 0], np.float32)
        opening_cm2 = gap * width / self._scale**2
        tongue_light = _TONGUE_LIGHT[0] + _TONGUE_LIGHT[1] * opening_cm2**2 / (
            opening_cm2**2 + _HALF_LIT_CM2**2
        )
        return MouthPlacement(
            patch=patch,
            outline=outline,
            shown=shown,
            own_share=own_share,
            own=self._own_matrix(bent.pose, sunk, longer=self._longer(gap)) if own_share > 0 else None,
            is_made=own_share < 1 or self._has_teeth,
            tongue=self._tongue_matrix(bent.pose, tip, parted),
            tongue_light=tongue_light,
            cavity_light=_CAVITY_LIGHT[0] + _CAVITY_LIGHT[1] * tongue_light,
            lower_bow=_LOWER_BOW * _smooth(parted, *_BOWS_CM) / PIXELS_A_CM,
            upper_teeth=self._teeth_matrix(bent.pose, shown_upper, edge_at_top=False),
            lower_teeth=self._teeth_matrix(bent.pose, lower, edge_at_top=True),
            light_px=max(1.0, 0.25 * bent.pose.scale),
        )

    def _opening(self, bent: Bent, gap: float) -> FloatArray:
        """Outline in which the inside is drawn: between the lips; at rest, not beyond the portrait's own teeth."""
        places = bent.places[list(_OUTLINE)].copy()
        if self._own_edge is not None:
            corners = self._rest_outline[[0, len(INNER_UPPER_LIP) - 1]], bent.vertices[list(_INNER_CORNERS)]
            rest, now = (float(np.linalg.norm(ends[1] - ends[0])) for ends in corners)
            at_rest = _smooth(gap / self._rest_gap_cm, *_RIM_BEGINS) * (
                1 - _smooth(gap - self._rest_gap_cm, 0, _RIM_LEAVES_CM)
            )
            at_rest *= 1 - _smooth(1 - now / max(rest, 1e-3), *_RIM_NARROWS)
            places += self._inward_cm @ self._right_and_up(bent.pose) * np.float32(at_rest)
        return np.asarray(places, np.float32)

    def _own_share(self, gap: float, grin: float) -> float:
        """Opacity of the portrait's own inside: full at rest; teeth always, a dark gap less as it widens.

        A grin (0..1) also bares teeth in a portrait that speaks with a dark mouth.
        """
        if self.own is None:
            return 0.0
        if self._has_teeth:
            return 1 - self._strip * _smooth(gap - self._rest_gap_cm, *_STRIP_LEAVES_CM)
        return (1 - _smooth(gap - self._rest_gap_cm, 0.1, 0.7)) * (1 - grin * self._speaks)

    def _longer(self, gap: float) -> float:
        """Factor by which the own inside is stretched: lower teeth stay at the lip that moves with the jaw."""
        if self._has_teeth:
            return 1.0
        return 1 + self._speaks * (min(max(gap / self._rest_gap_cm, 1.0), _MOST_LONGER) - 1)

    def _own_matrix(self, pose: Pose, sunk: float, *, longer: float = 1.0) -> FloatArray:
        assert self.own is not None
        turn = (pose.scale / self._rest_pose.scale) * (pose.rotation @ self._rest_pose.rotation.T)[:2, :2]
        # Locked to the skull: the place of the mouth's middle at rest, moved by the head alone.
        rest = self._rest_pose.place(self._middle[None])[0, :2]
        now = pose.place(self._middle[None] - np.array([0, sunk, 0], np.float32))[0, :2]
        # It is stretched from the upper lip down.
        up = self._right_and_up(self._rest_pose)[1]
        lip = rest + (self._rest_up - float(self._middle[1])) * up
        stretch = np.eye(2) + (longer - 1) * np.outer(up, up) / max(float(up @ up), 1e-3)
        matrix = np.empty((2, 3), np.float32)
        matrix[:, :2] = turn @ stretch
        matrix[:, 2] = now + turn @ (lip - rest - stretch @ (lip - (self.own.patch.left, self.own.patch.top)))
        return matrix

    def _teeth_matrix(self, pose: Pose, edge: FloatArray, *, edge_at_top: bool) -> FloatArray:
        # The texture's middle column, at the biting edge, and one centimetre to the right and down from there.
        right, down = np.array([[self._scale, 0, 0], [0, self._scale, 0]], np.float32)
        placed = pose.place(np.stack((edge, edge + right, edge - down)))[:, :2].astype(np.float64)
        edge_row = (0.7 if edge_at_top else HEIGHT_CM - 0.7) * PIXELS_A_CM
        matrix = np.empty((2, 3), np.float32)
        matrix[:, 0], matrix[:, 1] = (placed[1:] - placed[0]) / PIXELS_A_CM
        matrix[:, 2] = placed[0] - matrix[:, 0] * TEETH_MIDDLE - matrix[:, 1] * edge_row
        return matrix

    def _tongue_matrix(self, pose: Pose, tip: FloatArray, parted: float) -> FloatArray:
        # The texture's middle column at the tip, half its width to the right, and a unit of length down from there.
        half, length = _TONGUE_HALF_CM * self._scale, 0.5 + 0.38 * parted
        reach = np.array([[0, 0, 0], [half, 0, 0], [0, -length, 0]], np.float32)
        placed = pose.place(tip + reach)[:, :2].astype(np.float64)
        matrix = np.empty((2, 3), np.float32)
        matrix[:, 0], matrix[:, 1] = (placed[1:] - placed[0]) / PIXELS_A_UNIT
        matrix[:, 2] = placed[0] - (matrix[:, 0] * TONGUE_HALF_WIDTH + matrix[:, 1] * TIP) * PIXELS_A_UNIT
        return matrix

    def draw(self, out: RgbPicture, bent: Bent) -> None:
        """Draw the inside of the mouth into the opening between the lips, in place."""
        placed = self.placed(bent)
        if placed is None:
            return
        patch = placed.patch
        mask = opening_mask(placed.outline, patch, feather=self.feather) * np.float32(placed.shown)
        colours = self._made(placed, mask) if placed.is_made else None
        if placed.own is not None:
            own, cover = self._placed_own(placed.own, patch)
            cover *= np.float32(placed.own_share)
            colours = own if colours is None else colours + (own - colours) * cover[..., None]
        assert colours is not None
        lay_under(out, patch, colours, mask)

    def _placed_own(self, matrix: FloatArray, patch: Patch) -> tuple[FloatArray, FloatArray]:
        assert self.own is not None
        size, onto = (patch.width, patch.height), _onto(matrix, patch)
        return (
            cv2.warpAffine(self.own.rgb, onto, size, borderMode=cv2.BORDER_REPLICATE).astype(np.float32),
            np.asarray(cv2.warpAffine(self.own.cover, onto, size), np.float32),
        )

    def _made(self, placed: MouthPlacement, mask: FloatArray) -> FloatArray:
        """Cavity, tongue, lower and upper teeth, back to front: float32 [h, w, 3], 0..255."""
        patch = placed.patch
        colours = np.empty((patch.height, patch.width, 3), np.float32)
        colours[...] = self.tones.cavity * np.float32(placed.cavity_light)
        _lay(colours, self.tongue, placed.tongue, patch, light=placed.tongue_light)
        _lay(colours, self.lower_teeth, placed.lower_teeth, patch, bow=placed.lower_bow)
        if placed.upper_teeth is not None:
            _lay(colours, self.upper_teeth, placed.upper_teeth, patch)
        # Light enters between the lips: it is dark along them, and darkest under the upper one.
        light = _falling_in(mask, placed.light_px)
        colours *= (0.70 + 0.35 * np.clip(light, 0, 0.9))[..., None].astype(np.float32)
        return colours


def _turned_up(
    picture: RgbPicture,
    onto: FloatArray,
    columns: npt.NDArray[np.floating[Any]],
    rows: npt.NDArray[np.floating[Any]],
    ends: tuple[FloatArray, FloatArray, FloatArray],
    pixel: float,
) -> npt.NDArray[np.uint8]:
    """Continue teeth above their visible part, with the colours below: uint8 [N, 3].

    Args:
        picture: uint8 [h, w, 3].
        onto: float [2, 3]: maps the upright row of teeth to the picture.
        columns: float [N]: places of the row to continue.
        rows: Likewise.
        ends: float32 [columns of the row] each: rows in which the visible part begins, and teeth begin and end.
        pixel: Size of a pixel of the row, in pixels of the picture.
    """
    top, neck, bottom = (np.interp(columns, np.arange(len(end)), end) for end in ends)
    first = np.minimum(top + 2 * _OWN_ENDS_PX / pixel, (top + bottom) / 2)
    up = (first - rows) / np.maximum(first - neck, 1)
    # At most down to the middle: the edges are darker, and notched.
    seen = first + np.clip(up, 0, 1) * np.maximum((top + bottom) / 2 - first, 0)
    places = np.stack((columns, seen), -1) @ onto[:, :2].T + onto[:, 2]
    colours = read_at(picture, places[None].astype(np.float32))
    light = 1 - (1 - _NECK_LIGHT) * np.clip(up, 0, 1)[:, None]
    return np.asarray(np.rint(colours[0] * light), np.uint8)


def _falling_in(opening: FloatArray, softness_px: float) -> FloatArray:
    """Light from in front and above that reaches what is behind an opening: float32 [h, w], 0..1.

    Args:
        opening: float32 [h, w], 0..1.
        softness_px: Standard deviation of its edge, in pixels; light is shifted down by half of that.
    """
    # A soft picture needs fewer samples, but none farther apart than its softness.
    step = next((step for step in (4, 2) if softness_px >= step), 1)
    height, width = opening.shape
    # No light enters beside the opening, as on the GPU; whole samples, so that none moves when the patch grows.
    margin = ceil(3 * softness_px / step) * step
    padded = cv2.copyMakeBorder(
        opening, margin, margin + -height % step, margin, margin + -width % step, cv2.BORDER_CONSTANT
    )
    small = cv2.resize(padded, None, fx=1 / step, fy=1 / step, interpolation=cv2.INTER_AREA)
    small = cv2.GaussianBlur(small, (0, 0), softness_px / step)
    falls = np.array([[1, 0, 0], [0, 1, 0.5 * softness_px / step]])
    small = cv2.warpAffine(small, falls, small.shape[::-1])
    light = cv2.resize(small, padded.shape[::-1], interpolation=cv2.INTER_LINEAR)
    return np.asarray(light[margin : margin + height, margin : margin + width], np.float32)


def _onto(matrix: FloatArray, patch: Patch) -> FloatArray:
    """Convert a matrix for OpenCV, relative to a patch."""
    onto = matrix.astype(np.float64)
    onto[:, 2] -= (patch.left, patch.top)
    return np.asarray(onto)


def _lay(
    colours: FloatArray,
    texture: FloatArray,
    matrix: FloatArray,
    patch: Patch,
    *,
    light: float = 1.0,
    bow: float = 0.0,
) -> None:
    """Blend a texture with premultiplied colours over a patch's colours, in place."""
    if bow > 0:
        drawn = _bowed(texture, matrix, patch, bow)
    else:
        size = (patch.width, patch.height)
        drawn = np.asarray(cv2.warpAffine(texture, _onto(matrix, patch), size), np.float32)
    colours *= 1 - drawn[..., 3:]
    colours += drawn[..., :3] * np.float32(light)


def _bowed(texture: FloatArray, matrix: FloatArray, patch: Patch, bow: float) -> FloatArray:
    """Place a row of teeth, with its sides raised: float32 [h, w, 4]."""
    onto = _onto(matrix, patch)
    if abs(np.linalg.det(onto[:, :2])) < 1e-6:
        return np.zeros((patch.height, patch.width, 4), np.float32)
    back = cv2.invertAffineTransform(onto).astype(np.float32)
    x, y = np.arange(patch.width, dtype=np.float32), np.arange(patch.height, dtype=np.float32)[:, None]
    columns = back[0, 0] * x + (back[0, 1] * y + back[0, 2])
    rows = back[1, 0] * x + (back[1, 1] * y + back[1, 2])
    across = columns - np.float32(TEETH_MIDDLE)
    across *= across
    across *= np.float32(bow)
    rows += across
    return np.asarray(cv2.remap(texture, columns, rows, cv2.INTER_LINEAR), np.float32)


def _gap(vertices: FloatArray) -> float:
    """Gap between the lips in the middle, in centimetres."""
    upper, lower = vertices[[82, 13, 312], 1].mean(), vertices[[87, 14, 317], 1].mean()
    return float(max(upper - lower, 0.0))


def _tones(rgb: RgbPicture, rig: PortraitRig) -> Tones:
    """Estimate light and colour of the inside from the whites of the eyes, the skin and the lips."""
    landmarks = rig.face.landmarks[:, :2]
    skin = _skin(rgb, rig)
    lips = median_at(
        rgb, landmarks[list(OUTER_LOWER_LIP[3:8])] * 0.5 + landmarks[[88, 178, 14, 402, 318]] * 0.5, 2
    )
    whites = []
    for eye in EYES:
        patch = patch_around(landmarks[list(eye.outline)], margin=1, size=rig.size)
        if patch is not None:
            inside = opening_mask(landmarks[list(eye.outline)], patch, feather=0) > 0.9
            if inside.any():
                pixels = patch.of(rgb)[inside].astype(np.float32)
                whites.append(
                    pixels[pixels.sum(axis=1) >= np.percentile(pixels.sum(axis=1), 80)].mean(axis=0)
                )
    white = np.mean(whites, axis=0) if whites else skin
    # As bright as the skin in this light, as colourless as the eyes' whites, and never brighter than enamel.
    tint = 0.5 * white / max(float(white.max()), 1.0) + 0.5 * skin / max(float(skin.max()), 1.0)
    tint = 0.4 + 0.6 * tint / max(float(tint.max()), 1e-3)
    level = max(1.12 * float(skin.max()), 0.55 * float(skin.max()) + 0.55 * float(white.max()))
    level = min(max(level, 40.0), 245.0) / 255
    # Lips that are redder than this relative to the skin are painted, and do not tell the colour of the inside.
    lips = np.maximum(lips / max(float(lips.max()), 1.0), _REDDEST_LIPS * skin / max(float(skin.max()), 1.0))
    coloured = min((1 - float(skin.min()) / max(float(skin.max()), 1.0)) / _COLOURED, 1.0)
    flesh = 1 - coloured * (1 - (np.array([1.0, 0.62, 0.6], np.float32) * 0.5 + lips * 0.5))
    deep = 1 - coloured * np.array([0.0, 0.25, 0.3])
    teeth = (_WHITE.mean() + (_WHITE - _WHITE.mean()) * coloured) * tint * level
    return Tones(
        _no_yellower(np.asarray(teeth, np.float32), skin),
        np.asarray(flesh * deep * level * 95, np.float32),
        np.asarray(flesh * level * 230, np.float32),
        coloured,
    )


def _enamel(colours: FloatArray, lip: FloatArray, teeth: FloatArray) -> FloatArray:
    """Position of colours between a lip's and that of teeth, float32 [...]: 0 for lip, or the dark, 1 for teeth.

    Args:
        colours: float32 [..., 3], 0..255.
        lip: Colour of the lip, float32 [3].
        teeth: Colour of the teeth, float32 [3].
    """
    towards = teeth - lip
    by_light = (colours - lip) @ towards / max(float(towards @ towards), 1.0)
    level = colours.max(axis=-1)
    lip_hue, hue = lip / max(float(lip.max()), 1.0), teeth / max(float(teeth.max()), 1.0)
    towards = hue - lip_hue
    apart = float(np.linalg.norm(towards))
    by_hue = (colours / np.maximum(level, 1)[..., None] - lip_hue) @ towards / max(apart**2, 1e-6)
    by_hue = by_hue.clip(0, 1) * np.interp(level / max(float(teeth.max()), 1.0), _ENAMEL_LIGHT, (0, 1))
    share = float(np.interp(apart, _HUES_APART, (0, 1)))
    return np.asarray(by_light + (by_hue - by_light) * share, np.float32)


def _skin(rgb: RgbPicture, rig: PortraitRig) -> FloatArray:
    """Colour of cheeks, nose and forehead, float32 [3], 0..255."""
    return median_at(rgb, rig.face.landmarks[[50, 280, 205, 425, 4, 151], :2], rig.pose.scale * 0.5)


def _no_yellower(teeth: FloatArray, skin: FloatArray) -> FloatArray:
    """Limit the colour of synthesised teeth by that of the skin in the same light.

    Args:
        teeth: float32 [3], 0..255.
        skin: Likewise.

    Returns:
        float32 [3], 0..255, of unchanged brightness.
    """
    brightest = float(teeth.max())
    most = _ENAMEL_COLOURED * (1 - float(skin.min()) / max(float(skin.max()), 1.0)) * brightest
    chroma = brightest - float(teeth.min())
    bounded = teeth.copy()
    if chroma > most:
        bounded = brightest - (brightest - teeth) * (most / chroma)
    # In pink or blue light, ivory looks orange or mustard: keep its ratio of blue to green at least at the skin's.
    blue = min(float(bounded[1] * skin[2]) / max(float(skin[1]), 1.0), brightest)
    bounded[2] = max(float(bounded[2]), blue)
    return np.asarray(bounded, np.float32)


def _smooth(value: float, low: float, high: float) -> float:
    share = min(max((value - low) / (high - low), 0.0), 1.0)
    return share * share * (3 - 2 * share)
