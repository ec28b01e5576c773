"""Draws the eyeball behind the lids: it stays in place while lids close over it, and its iris turns."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from vitascope.animation.canonical_mesh import EYES, TO_PICTURE, EyeLandmarks
from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.mesh.deform import Bent, soft_limit
from vitascope.animation.mesh.lashes import (
    LASHES_BOTTOM,
    LASHES_LEFT,
    LASHES_RIGHT,
    LASHES_TOP,
    shut_lashes,
)
from vitascope.animation.mesh.layers import (
    Patch,
    lay_under,
    median_at,
    opening_mask,
    patch_around,
    read_at,
    smooth_outline,
)
from vitascope.animation.mesh.rig import PortraitRig
from vitascope.animation.mesh.rims import Rim

IRIS_EDGE = (1.05, 1.3)
"""Distances from its centre, in radii of the iris: within the first the picture moves with the gaze, beyond the second
lies the white."""
_SOCKET_EDGE = (1.3, 1.7)
"""Distances, in radii, from the iris at rest: within the first the white under it is synthesised, beyond the second it
is the portrait's."""
_SEEN_WHITES = 12
"""An eye shows its white if this covers more than one in this number of the opening's pixels."""
_SMALL_PX, _FINE_PX = 14, 32
"""Width in pixels below which an eye is enlarged to make its layers, and its minimum width then: in an eye of 12
pixels, the only one that is not beside a lid belongs to the iris."""
_SKIN = ((50, 101, 117, 118), (280, 330, 346, 347))
"""Points of the cheek below the right and the left eye; separate, because a face may be lit from one side."""
_WHITE_OF_SKIN, _MOST_LIT, _WHITES_LIT = 1.04, 1.6, 0.7
"""Light of a fully lit white relative to the skin of cheeks and nose (1.01 to 1.09 in photographs of eyes that look
aside); maximum factor by which a white is made lighter than its visible part; and the share of that beside the iris's
place at rest."""
_SHADED = (0.65, 0.95)
"""Light of visible whites, relative to the skin, up to which they are in the shade, and from which on the colour is
their own."""
_LID_SHADE, _IN_SHADE = 0.25, 0.3
"""Maximum share of light that lids take from a white; and the minimum share of their shade at a spot that is used to
measure its depth."""
_IN_LIGHT, _SHADE_FALLS, _SHADE_SOFT = 0.8, 0.06, 0.055
"""Open share of a spot's surroundings at which lids take no light; and how far down their shade falls, and its
softness, in widths of the eye."""
_LID_LINE, _LINE_PX = 0.05, 1.2
"""Softness of the line at a lid's edge, in widths of the eye; and its minimum in pixels."""
_UPPER_LINE, _LOWER_LINE = 0.45, 0.1
"""Opacity of that line for the upper lid, which holds the roots of the lashes, and for the lower one."""
_ABOVE, _DARK_LINE = np.array([0.05, 0.08], np.float32), (0.1, 0.35)
"""Heights above a lid's edge, in widths of the eye, at which its line is searched for; and the shares by which it is
darker than the cheek from which on a line is drawn, and from which on fully."""
_IRIS_STAYS = 0.55
"""Minimum distance of an iris's centre from the eye's corners, in its radii."""
_APART_RADII = 0.15
"""Motion of the iris, in radii, below which the unchanged portrait is blended with the layered ball."""
_RIM_REACH = 0.95
"""Distance from a closed lid within which the rims of glasses are drawn, in widths of the eye."""
_LASH_LIGHT, _LASH_REDDER = 0.4, 1.5
"""Maximum light of lashes, relative to the skin's; and the power of the skin's shares of green and blue that is their
maximum: they are seen mixed with skin in the shade (0.36 to 1.0 of its green beside ten people's shut lids)."""


@dataclass(frozen=True, slots=True, eq=False)
class LashPlacement:
    """The lashes of a lid that closes.

    A pixel's place along the eye is its share of the way between the corners; its height is its distance below the
    outer one, in pixels.
    """

    shown: float
    """Opacity of the lashes, 0..1."""
    corner: FloatArray
    """float32 [2]: the outer corner, pixels."""
    along: FloatArray
    """float32 [2]: vector from there to the inner corner, divided by its square; its dot product gives shares."""
    down: FloatArray
    """float32 [2]: unit vector across."""
    edge_shares: FloatArray
    """float32 [9]: places along the upper lid's edge, ascending."""
    edge_heights: FloatArray
    """float32 [9]: heights of these."""
    reach_px: float
    """A width of the eye, for the heights of ``lashes.shut_lashes``: less for an eye that is half open."""


@dataclass(frozen=True, slots=True, eq=False)
class EyePlacement:
    """Placement of an eye in a motion, from which the colours of its pixels are computed."""

    patch: Patch
    """The rectangle that is drawn."""
    outline: FloatArray
    """float32 [64, 2]: the opening between the lids, pixels."""
    shown: float
    """Visibility of the ball, 0..1: closed lids hide it."""
    apart: float
    """Share to which the iris is drawn separately, over the white: from 0, as in the portrait, to 1."""
    back: FloatArray
    """float32 [2, 3]: maps places in the result to the portrait, before the gaze turns the iris; in pixels."""
    gaze_shift: FloatArray
    """float32 [2]: motion of the iris in pixels of the portrait; zeros for none."""
    lashes: LashPlacement | None
    """None while the portrait's own are visible."""


class Eyeball:
    """One eye of a portrait.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        rig: The portrait's rig.
        index: 0 for the right eye, 1 for the left.
        rim: The rim of glasses in front of its upper lid.
    """

    def __init__(self, rgb: RgbPicture, rig: PortraitRig, *, index: int, rim: Rim | None = None) -> None:
        self._index = index
        self._eye: EyeLandmarks = EYES[index]
        self._size = rig.size
        landmarks = rig.face.landmarks[:, :2]
        self._outline = np.array(self._eye.outline, np.intp)
        self._lids = np.array((self._eye.upper[2:-2], self._eye.lower[2:-2]), np.intp)
        self._corners = np.array((self._eye.outer_corner, self._eye.inner_corner), np.intp)
        outline = landmarks[self._outline]
        corners = landmarks[self._corners]
        self._middle = corners.mean(axis=0)
        self._along = corners[1] - corners[0] if index == 0 else corners[0] - corners[1]
        self._width = max(float(np.linalg.norm(self._along)), 1.0)
        self.iris: FloatArray = landmarks[self._eye.iris[0]]
        """float32 [2]: its centre, in pixels of the portrait."""
        self.radius = max(
            float(np.linalg.norm(landmarks[list(self._eye.iris[1:])] - self.iris, axis=1).mean()), 1.0
        )
        """The iris's radius in pixels."""
        self.feather = max(0.35, self._width / 90)
        """Softness of the opening's edge: standard deviation in pixels."""
        patch = patch_around(outline, margin=0.45 * self._width, size=rig.size)
        if patch is None:  # an eye outside the picture is never drawn
            patch = Patch(0, 0, 1, 1)
        self.patch = patch
        """Place of the layers in the portrait."""
        skin = median_at(rgb, landmarks[list(_SKIN[index])], rig.pose.scale * 0.5)
        # As dark as pupil and lashes, not as the background beside a turned face.
        seen = patch.of(rgb)[opening_mask(outline, patch, feather=0) > 0.5]
        self.lash_colour: FloatArray = _of_hair(
            _darkest(seen if len(seen) else patch.of(rgb).reshape(-1, 3)), skin
        )
        """float32 [3], 0..255."""
        self.shut_lashes = shut_lashes(self._width, index=index)
        """float32 [rows, columns], 0..1."""
        self.rim_patch = None if rim is None else rim.patch
        self.rim = None if rim is None else rim.rgba(rgb)
        """uint8 [h, w, 4], premultiplied colours; None without glasses."""
        self.texture, self.ball, self.white = self._fine_layers(rgb, patch, outline, skin)
        self._rest_pose = rig.pose

    def _fine_layers(
        self, rgb: RgbPicture, patch: Patch, outline: FloatArray, skin: FloatArray
    ) -> tuple[RgbPicture, RgbPicture, RgbPicture]:
        """Make the layers of ``_layers``; a small eye is enlarged first, and its layers are shrunk."""
        if self._width >= _SMALL_PX:
            return self._layers(rgb, patch, outline, skin)
        times = math.ceil(_FINE_PX / self._width)
        corner = np.array([patch.left, patch.top], np.float32)

        def enlarged(points: FloatArray) -> FloatArray:
            return np.asarray((points - corner + 0.5) * times - 0.5, np.float32)

        seen = patch.of(rgb)
        size = patch.width * times, patch.height * times
        large = np.asarray(cv2.resize(seen, size, interpolation=cv2.INTER_CUBIC), np.uint8)
        fine = copy.copy(self)
        fine.iris, fine.radius = enlarged(self.iris), self.radius * times
        fine._along, fine._width = self._along * times, self._width * times
        made = fine._layers(large, Patch(0, 0, *size), enlarged(outline), skin)
        shrunk = [
            cv2.resize(layer, (patch.width, patch.height), interpolation=cv2.INTER_AREA).astype(np.float32)
            for layer in (*made, large)
        ]
        shrunk[0] += seen - shrunk.pop()  # at rest, the portrait itself
        texture, ball, white = (np.rint(layer.clip(0, 255)).astype(np.uint8) for layer in shrunk)
        return texture, ball, white

    def _layers(
        self, rgb: RgbPicture, patch: Patch, outline: FloatArray, skin: FloatArray
    ) -> tuple[RgbPicture, RgbPicture, RgbPicture]:
        """Layers of an eye: as seen, the ball without lids, and the white without iris; hidden parts are invented.

        Each uint8 [h, w, 3].
        """
        texture = patch.of(rgb).copy()
        seen = opening_mask(smooth_outline(outline), patch, feather=0)
        known = (seen > 0.5).astype(np.uint8)
        # Colours to continue are taken away from the lids, whose lashes and shadow are not the ball's own.
        inner = cv2.erode(known, np.ones((3, 3), np.uint8), iterations=max(1, round(self._width / 28)))
        if not inner.any():
            return texture, texture, texture
        places = patch.places
        from_iris = np.linalg.norm(places - self.iris, axis=-1) / self.radius
        # The iris is round: parts hidden by a lid are copied from the other side.
        mirrored = (2 * self.iris - places - (patch.left, patch.top)).astype(np.float32)
        mirror_seen = read_at(inner, mirrored, nearest=True)
        opposite = read_at(texture, mirrored)
        use = (inner == 0) & (from_iris < 1.05) & (mirror_seen > 0)
        filled = texture.copy()
        filled[use] = opposite[use]
        unknown = ((inner == 0) & ~use).astype(np.uint8)
        reach = max(2, round(self._width / 25))
        made = cv2.inpaint(filled, unknown, reach, cv2.INPAINT_TELEA)
        soft = cv2.GaussianBlur(made, (0, 0), max(self._width / 60, 0.6)).astype(np.float32)
        # Beside an iris in the corner, only the iris could be continued; what belongs there is white.
        whites = self._seen_white(texture, inner > 0, from_iris)
        painted = self._white(texture, whites, known)
        soft = soft + (painted - soft) * _rising(from_iris, 1.0, 1.25)
        ball = np.where(inner[..., None] > 0, texture, soft)
        # Between the lids it is the portrait itself, so that a face at rest is unchanged.
        cover = cv2.GaussianBlur(cv2.dilate(known, np.ones((3, 3), np.uint8)) * np.float32(1), (3, 3), 0)[
            ..., None
        ]
        at_rest = ball + (texture.astype(np.float32) - ball) * cover
        lit = self._lit(texture, whites, painted, skin)
        core = cv2.GaussianBlur(inner * np.float32(1), (0, 0), max(self._width / 40, 0.6))[..., None]
        gain = max(float(lit[whites].mean()) / max(float(painted[whites].mean()), 1.0), 1.0)
        lighter = np.minimum(at_rest * (1 + (gain - 1) * _WHITES_LIT * core), 255)
        lit = lit * self._lid_shade(texture, whites, known, from_iris)
        lit = lit + (self.lash_colour - lit) * self._lid_edges(rgb, places, outline, skin)
        white = lit + (lighter - lit) * _rising(from_iris, *_SOCKET_EDGE)
        at_rest, ball, white = (
            np.ascontiguousarray(np.rint(one), np.uint8) for one in (at_rest, ball, white)
        )
        return at_rest, ball, white

    def _lid_edges(
        self, rgb: RgbPicture, places: FloatArray, outline: FloatArray, skin: FloatArray
    ) -> FloatArray:
        """Opacity of the lines at the lids' edges, float32 [h, w, 1]; 0 for lids that are not dark there.

        In front of an iris, only the part on the lid is drawn.
        """
        curve = smooth_outline(outline)
        last = (len(self._eye.upper) - 1) * len(curve) // len(outline)
        upper, lower = curve[: last + 1], curve[last:]
        over = upper[np.linalg.norm(upper - self.iris, axis=-1) < _SOCKET_EDGE[0] * self.radius]
        if not len(over):
            return np.zeros((*places.shape[:2], 1), np.float32)
        rise = np.array([self._along[1], -self._along[0]], np.float32)
        light = (
            read_at(rgb, over[:, None] + _ABOVE[:, None] * rise).astype(np.float32).mean(axis=-1).min(axis=1)
        )
        darker = 1 - float(np.median(light)) / max(float(skin.mean()), 1.0)
        depth = float(np.interp(darker, _DARK_LINE, (0, 1)))
        softness = max(_LID_LINE * self._width, _LINE_PX)
        cover = np.zeros(places.shape[:2], np.float32)
        for line, dark in ((upper, _UPPER_LINE), (lower, _LOWER_LINE)):
            away = np.full(places.shape[:2], np.inf, np.float32)
            for point in line:  # one by one: together they take a gigabyte for a large eye
                np.minimum(away, np.linalg.norm(places - point, axis=-1), out=away)
            cover = np.maximum(cover, depth * dark * np.exp(-((away / softness) ** 2)))
        return np.asarray(cover[..., None], np.float32)

    def _lid_shade(
        self,
        texture: RgbPicture,
        whites: NDArray[np.bool_],
        opening: NDArray[np.uint8],
        from_iris: NDArray[np.floating[Any]],
    ) -> FloatArray:
        """Light on the ball in the shade of the lids, float32 [h, w, 1], 0..1; darkest in the corners and at the top.

        Its depth is measured on the visible white: a painted or carved eye may have no shade.
        """
        x, y = self._along * _SHADE_FALLS
        height, width = opening.shape
        lower = cv2.warpAffine(opening.astype(np.float32), np.array([[1, 0, -y], [0, 1, x]]), (width, height))
        soft = cv2.GaussianBlur(lower, (0, 0), max(_SHADE_SOFT * self._width, 0.5))
        shade = np.clip((_IN_LIGHT - soft) / _IN_LIGHT, 0, 1)
        light = texture.mean(axis=-1)
        shaded = (opening > 0) & (shade > _IN_SHADE) & (from_iris > _SOCKET_EDGE[0])
        depth = 0.0
        if shaded.any():
            lost = 1 - float(np.median(light[shaded])) / max(float(light[whites].mean()), 1.0)
            depth = min(max(lost / float(np.median(shade[shaded])), 0.0), _LID_SHADE)
        return np.asarray(1 - depth * shade[..., None], np.float32)

    def _lit(
        self, texture: RgbPicture, whites: NDArray[np.bool_], painted: FloatArray, skin: FloatArray
    ) -> FloatArray:
        """The white in place of the iris, lit like the face: float32 [h, w, 3], 0..255.

        Between iris and lids little of the white is visible, in the shade of the lids and mixed with their colour.
        """
        seen = texture[whites].astype(np.float32)
        light = seen.mean(axis=1)
        colour = seen[light >= np.percentile(light, 80)].mean(axis=0)
        level, of_skin = float(colour.mean()), max(float(skin.mean()), 1.0)
        # Whites nearly as light as the skin are paint or marble; darker ones are in the shade.
        sure = min(max((level / of_skin - _SHADED[0]) / (_SHADED[1] - _SHADED[0]), 0.0), 1.0)
        grey = 0.5 * skin / of_skin + 0.5
        colour = (colour / max(level, 1.0)) * sure + grey * (1 - sure)
        wanted = min(max(_WHITE_OF_SKIN * of_skin, level), _MOST_LIT * level, 250.0)
        middle = np.maximum(painted[whites].mean(axis=0), 1.0)
        return np.asarray(np.minimum(painted * (colour * wanted / middle), 255), np.float32)

    def _seen_white(
        self, texture: RgbPicture, inner: NDArray[np.bool_], from_iris: NDArray[np.floating[Any]]
    ) -> NDArray[np.bool_]:
        """Find the visible white, bool [h, w]; the lightest tenth of an eye that shows none."""
        whites: NDArray[np.bool_] = inner & (from_iris > 1.35)
        if whites.sum() * _SEEN_WHITES >= inner.sum():
            return whites
        light = texture.mean(axis=-1)
        lightest: NDArray[np.bool_] = inner & (light >= np.percentile(light[inner], 90))
        return lightest

    def _white(
        self, texture: RgbPicture, whites: NDArray[np.bool_], opening: NDArray[np.uint8]
    ) -> FloatArray:
        """Extend the white over the whole eye, as dark as the skin around suggests: float32 [h, w, 3], 0..255."""
        margin = np.ones((3, 3), np.uint8)
        skin = cv2.dilate(opening, margin, iterations=max(1, round(self._width / 6))) == 0
        light = np.maximum(_spread(texture, skin, self._width / 4).mean(axis=-1, keepdims=True), 1.0)
        level = np.clip(light / float(light[whites].mean()), 0.4, 1.0)
        # Near the visible white it continues without a seam; far from that it is the mean.
        colour = _spread(texture / level, whites, self._width / 4)
        for sigma in (self._width / 10, self._width / 25):
            colour = _spread(texture / level, whites, max(sigma, 0.5), beyond=colour)
        return np.asarray(np.minimum(colour * level, 255), np.float32)

    def placed(self, bent: Bent) -> EyePlacement | None:
        """Place the eye in a motion; None if it is outside the picture."""
        outline = smooth_outline(bent.places[self._outline])
        lashes = self._lashes(bent)
        margin = 2 + 2 * self.feather
        if lashes is not None:
            margin += (LASHES_BOTTOM if self.rim is None else _RIM_REACH) * self._width
        patch = patch_around(outline, margin=margin, size=self._size)
        if patch is None or patch.width < 2 or patch.height < 2:
            return None
        upper, lower = bent.places[self._lids]
        gap = float(np.linalg.norm(upper - lower, axis=1).mean())
        # From the result back to the portrait: the ball turns with the head like a flat picture.
        turn = (bent.pose.scale / self._rest_pose.scale) * (bent.pose.rotation @ self._rest_pose.rotation.T)[
            :2, :2
        ]
        middle = bent.places[self._corners].mean(axis=0)
        back = np.empty((2, 3), np.float32)
        (a, b), (c, d) = turn.tolist()
        back[:, :2] = np.array([[d, -b], [-c, a]]) / (a * d - b * c)
        back[:, 2] = self._middle - back[:, :2] @ middle
        along = self._along
        down = np.array([-along[1], along[0]], np.float32)
        gaze_x, gaze_y = bent.gaze[self._index]
        shift = (along * self._within(float(gaze_x)) + down * gaze_y).astype(np.float32)
        length = float(np.linalg.norm(shift))
        shift *= min(1.0, 1.5 * self.radius / length) if length > 0.05 else 0.0
        apart = min(length / (_APART_RADII * self.radius), 1.0) if length > 0.05 else 0.0
        return EyePlacement(
            patch=patch,
            outline=outline,
            # Polygons are filled up to their outline, which for closed lids would be a line.
            shown=min(max((gap - 0.5) / 2.0, 0.0), 1.0),
            apart=apart,
            back=back,
            gaze_shift=shift,
            lashes=lashes,
        )

    def _within(self, gaze_x: float) -> float:
        """Limit a glance to the side so that enough of the iris is between the eye's corners; in widths of the eye."""
        rest = float((self.iris - self._middle) @ self._along) / self._width**2
        side = math.copysign(1.0, gaze_x)
        room = max(0.5 - _IRIS_STAYS * self.radius / self._width - rest * side, 1e-3)
        return soft_limit(gaze_x, room)

    def _lashes(self, bent: Bent) -> LashPlacement | None:
        shown = float(bent.lid_retracted[self._index])
        if shown == 0:
            return None
        edge = bent.places[list(self._eye.upper)]
        along = edge[-1] - edge[0]
        width = max(float(np.linalg.norm(along)), 1.0)
        down = np.array([-along[1], along[0]], np.float32) / np.float32(width)
        if down @ (bent.pose.rotation @ TO_PICTURE)[:2, 1] > 0:
            down = -down
        along = along / np.float32(width * width)
        from_corner = edge - edge[0]
        shares = np.maximum.accumulate(from_corner @ along) + np.arange(len(edge)) * 1e-4
        # The lashes of an open eye point to the viewer, those of a closed one hang down.
        hanging = 0.4 + 0.6 * max(float(bent.closure[self._index]), 0.0)
        return LashPlacement(
            shown=shown,
            corner=edge[0],
            along=along,
            down=down,
            edge_shares=shares.astype(np.float32),
            edge_heights=from_corner @ down,
            reach_px=self._width * hanging,
        )

    def draw(self, out: RgbPicture, bent: Bent) -> None:
        """Draw the eyeball into the opening between the lids, in place."""
        placed = self.placed(bent)
        if placed is None:
            return
        if placed.shown > 0:
            self._draw_ball(out, placed)
        if placed.lashes is not None:
            self._draw_lashes(out, placed.patch, placed.lashes)
            if self.rim is not None and self.rim_patch is not None:
                places = self._places_back(placed, self.rim_patch)
                laid = read_at(self.rim, places).astype(np.float32) * np.float32(placed.lashes.shown)
                area = placed.patch.of(out)
                area[...] = cv2.convertScaleAbs(area * (1 - laid[..., 3:] / 255) + laid[..., :3])

    def _draw_lashes(self, out: RgbPicture, patch: Patch, lashes: LashPlacement) -> None:
        """Draw the lashes of a closing lid: those of the open lid stay behind with its skin."""
        from_corner = patch.places - lashes.corner
        share = from_corner @ lashes.along
        edge = np.interp(share, lashes.edge_shares, lashes.edge_heights).astype(np.float32)
        below = from_corner @ lashes.down - edge
        rows, columns = self.shut_lashes.shape
        places = np.empty((patch.height, patch.width, 2), np.float32)
        places[..., 0] = (share - LASHES_LEFT) * (columns / (LASHES_RIGHT - LASHES_LEFT)) - 0.5
        places[..., 1] = (below / lashes.reach_px - LASHES_TOP) * (rows / (LASHES_BOTTOM - LASHES_TOP)) - 0.5
        mask = read_at(self.shut_lashes, places) * np.float32(lashes.shown)
        colours = np.full((patch.height, patch.width, 3), self.lash_colour, np.float32)
        lay_under(out, patch, colours, mask)

    @staticmethod
    def _places_back(placed: EyePlacement, of: Patch) -> FloatArray:
        """Places in a patch of the portrait that the pixels of a placed eye show: float32 [h, w, 2]."""
        patch = placed.patch
        x = np.arange(patch.left, patch.left + patch.width, dtype=np.float32)
        y = np.arange(patch.top, patch.top + patch.height, dtype=np.float32)[:, None]
        places = np.empty((patch.height, patch.width, 2), np.float32)
        for axis, ((by_x, by_y, start), corner) in enumerate(
            zip(placed.back, (of.left, of.top), strict=True)
        ):
            places[..., axis] = by_x * x + (by_y * y + (start - np.float32(corner)))
        return places

    def _draw_ball(self, out: RgbPicture, placed: EyePlacement) -> None:
        patch = placed.patch
        mask = opening_mask(placed.outline, patch, feather=self.feather) * np.float32(placed.shown)
        places = self._places_back(placed, self.patch)
        corner = np.array([self.patch.left, self.patch.top], np.float32)
        colours = read_at(self.texture, places).astype(np.float32)
        if placed.apart > 0:
            moved = (places - placed.gaze_shift).astype(np.float32)
            ball = read_at(self.ball, moved).astype(np.float32)
            white = read_at(self.white, places).astype(np.float32)
            from_iris = np.linalg.norm(moved + corner - self.iris, axis=-1) / self.radius
            layered = ball + (white - ball) * _rising(from_iris, *IRIS_EDGE)
            colours += (layered - colours) * np.float32(placed.apart)
        lay_under(out, patch, colours, mask)


def _darkest(colours: NDArray[np.uint8]) -> FloatArray:
    """8th percentile of colours (uint8 [N, 3]), by channel: float32 [3]."""
    return np.percentile(colours.astype(np.float32), 8, axis=0).astype(np.float32)


def _of_hair(dark: FloatArray, skin: FloatArray) -> FloatArray:
    """Limit a dark colour to one that hair has: the darkest colour of blue or green eyes is an iris's.

    Args:
        dark: float32 [3], 0..255.
        skin: Colour of the skin, float32 [3]: lashes are darker, and none is bluer or greener.

    Returns:
        float32 [3], 0..255.
    """
    dark = dark * min(_LASH_LIGHT * float(skin.mean()) / max(float(dark.mean()), 1.0), 1.0)
    most = (skin / max(float(skin[0]), 1.0)).clip(0, 1) ** _LASH_REDDER * dark[0]
    return np.asarray(np.minimum(dark, most), np.float32)


def _spread(
    colours: NDArray[Any], known: NDArray[np.bool_], sigma: float, *, beyond: FloatArray | None = None
) -> FloatArray:
    """Continue the colours of known pixels smoothly over all: float32 [h, w, 3].

    Args:
        colours: [h, w, 3].
        known: bool [h, w]: True for known pixels.
        sigma: Reach of their colours, in pixels.
        beyond: float32 [h, w, 3]: colours that the rest approaches; None continues the nearest.
    """
    weights = known.astype(np.float32)
    spread = cv2.GaussianBlur(np.asarray(colours, np.float32) * weights[..., None], (0, 0), sigma)
    share = cv2.GaussianBlur(weights, (0, 0), sigma)[..., None]
    if beyond is not None:
        # At an edge, half of a blur's pixels are known.
        sure = np.clip(2 * share, 0, 1)
        return np.asarray(beyond + (spread / np.maximum(share, 1e-6) - beyond) * sure, np.float32)
    return np.asarray(spread / np.maximum(share, 1e-6), np.float32)


def _rising(values: NDArray[np.floating[Any]], start: float, end: float) -> FloatArray:
    """Ramp from 0 at ``start`` to 1 at ``end``, float32 [h, w, 1], for mixing colours."""
    return np.asarray(np.clip((values - start) / (end - start), 0, 1)[..., None], np.float32)


def make_eyeballs(
    rgb: RgbPicture, rig: PortraitRig, rims: tuple[Rim | None, Rim | None] = (None, None)
) -> tuple[Eyeball, Eyeball]:
    """Make the right and the left eyeball of a portrait, and the rims of glasses in front of their lids."""
    right, left = rims
    return Eyeball(rgb, rig, index=0, rim=right), Eyeball(rgb, rig, index=1, rim=left)
