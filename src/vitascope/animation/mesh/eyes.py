"""The eyeball behind the lids: it stays where it is while lids close over it, and its iris turns."""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.animation.canonical_mesh import TO_PICTURE
from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.landmarks import EYES, EyeLandmarks
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.layers import (
    Patch,
    lay_under,
    opening_mask,
    patch_around,
    read_at,
    smooth_outline,
)
from vitascope.animation.mesh.rig import PortraitRig

__all__ = ["Eyeball", "make_eyeballs"]

_IRIS_MOVES_WHOLE = 1.15
_IRIS_MOVES_UNTIL = 2.9
"""In radii of the iris: nearer than the first the picture moves with the gaze, beyond the second not at all."""
_LINE_COVER, _FRINGE_COVER = 0.9, 0.6
"""How much the lashes of a closed eye cover: the line at the lid's edge, and what hangs below."""
_LASH_LENGTHS = np.array([0.06, 0.105, 0.115, 0.11, 0.095, 0.065, 0.025])
"""How far lashes hang below a closed lid, from the outer corner to the inner, in widths of the eye."""


class Eyeball:
    """One eye of a portrait.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        rig: Of the portrait.
        index: 0 for the right eye, 1 for the left.
    """

    def __init__(self, rgb: RgbPicture, rig: PortraitRig, *, index: int) -> None:
        self._index = index
        self._eye: EyeLandmarks = EYES[index]
        self._size = rig.size
        landmarks = rig.face.landmarks[:, :2]
        outline = landmarks[list(self._eye.outline)]
        corners = landmarks[[self._eye.outer_corner, self._eye.inner_corner]]
        self._middle = corners.mean(axis=0)
        self._along = corners[1] - corners[0] if index == 0 else corners[0] - corners[1]
        self._width = max(float(np.linalg.norm(self._along)), 1.0)
        self._iris = landmarks[self._eye.iris[0]]
        self._radius = max(
            float(np.linalg.norm(landmarks[list(self._eye.iris[1:])] - self._iris, axis=1).mean()), 1.0
        )
        self._feather = max(0.35, self._width / 90)
        patch = patch_around(outline, margin=0.45 * self._width, size=rig.size)
        if patch is None:  # an eye outside the picture is never drawn
            patch = Patch(0, 0, 1, 1)
        self._patch = patch
        self._texture = self._fill(rgb, patch, outline)
        self._rest_pose = rig.pose
        # As dark as pupil and lashes: not as what lies beside a face that is turned away.
        seen = patch.of(rgb)[opening_mask(outline, patch, feather=0) > 0.5]
        dark = seen if len(seen) else patch.of(rgb).reshape(-1, 3)
        self._lash_colour = np.percentile(dark.astype(np.float32), 8, axis=0).astype(np.float32)

    def _fill(self, rgb: RgbPicture, patch: Patch, outline: FloatArray) -> RgbPicture:
        """The eyeball as if the lids were away: what they hide is made from what is seen."""
        texture = patch.of(rgb).copy()
        seen = opening_mask(smooth_outline(outline), patch, feather=0)
        known = (seen > 0.5).astype(np.uint8)
        # What is continued is taken a little away from the lids, whose lashes and shadow are not the ball's own.
        inner = cv2.erode(known, np.ones((3, 3), np.uint8), iterations=max(1, round(self._width / 28)))
        if not inner.any():
            return texture
        places = patch.places
        from_iris = np.linalg.norm(places - self._iris, axis=-1)
        # The iris is round: what a lid hides of it is shown on the other side.
        mirrored = (2 * self._iris - places - (patch.left, patch.top)).astype(np.float32)
        mirror_seen = read_at(inner, mirrored, nearest=True)
        opposite = read_at(texture, mirrored)
        use = (inner == 0) & (from_iris < 1.05 * self._radius) & (mirror_seen > 0)
        filled = texture.copy()
        filled[use] = opposite[use]
        unknown = ((inner == 0) & ~use).astype(np.uint8)
        reach = max(2, round(self._width / 25))
        made = cv2.inpaint(filled, unknown, reach, cv2.INPAINT_TELEA)
        soft = cv2.GaussianBlur(made, (0, 0), max(self._width / 60, 0.6))
        made = np.where(inner[..., None] > 0, made, soft)
        # Between the lids it is the portrait itself, so that a face at rest is shown as it is.
        cover = cv2.GaussianBlur(cv2.dilate(known, np.ones((3, 3), np.uint8)) * np.float32(1), (3, 3), 0)[
            ..., None
        ]
        made = made + (texture.astype(np.float32) - made) * cover
        return np.ascontiguousarray(np.rint(made), np.uint8)

    def draw(self, out: RgbPicture, bent: Bent) -> None:
        """Draw the eyeball into the opening between the lids, in place."""
        outline = smooth_outline(bent.places[list(self._eye.outline)])
        margin = 2 + 2 * self._feather
        if bent.lid_retracted[self._index] > 0:
            margin += 2 * float(_LASH_LENGTHS.max()) * self._width
        patch = patch_around(outline, margin=margin, size=self._size)
        if patch is None or patch.width < 2 or patch.height < 2:
            return
        upper, lower = bent.places[list(self._eye.upper[2:-2])], bent.places[list(self._eye.lower[2:-2])]
        gap = float(np.linalg.norm(upper - lower, axis=1).mean())
        # Polygons are filled up to their outline: of closed lids that would be a line.
        shown = min(max((gap - 0.5) / 2.0, 0.0), 1.0)
        if shown > 0:
            self._draw_ball(out, bent, outline, patch, shown)
        self._draw_lashes(out, bent, patch)

    def _draw_lashes(self, out: RgbPicture, bent: Bent, patch: Patch) -> None:
        """The lashes of a lid that closes: those of the open lid stay behind with its skin."""
        shown = float(bent.lid_retracted[self._index])
        if shown == 0:
            return
        edge = bent.places[list(self._eye.upper)]
        along = edge[-1] - edge[0]
        width = max(float(np.linalg.norm(along)), 1.0)
        along = along / width
        down = np.array([-along[1], along[0]], np.float32)
        if down @ (bent.pose.rotation @ TO_PICTURE)[:2, 1] > 0:
            down = -down
        # A pixel's place along the eye, 0 at the outer corner and 1 at the inner, and how far it is below the lid.
        from_corner = patch.places - edge[0]
        share = from_corner @ along / np.float32(width)
        edge_shares = np.maximum.accumulate((edge - edge[0]) @ along / width) + np.arange(len(edge)) * 1e-4
        edge_heights = (edge - edge[0]) @ down
        below = from_corner @ down - np.interp(share, edge_shares, edge_heights).astype(np.float32)
        # Of an open eye lashes point to the viewer, of a closed one they hang.
        hanging = 0.4 + 0.6 * max(float(bent.closure[self._index]), 0.0)
        length = (
            np.interp(share, np.linspace(0, 1, len(_LASH_LENGTHS)), _LASH_LENGTHS) * self._width * hanging
        )
        thickness = np.maximum(0.35 * length, 0.6)
        line = np.exp(-(((below - 0.2 * length) / thickness) ** 2))
        fringe = np.exp(-((np.where(below > 0, below / np.maximum(length, 0.6), below / thickness)) ** 2))
        ends = np.clip(np.minimum(share, 1 - share) / 0.06 + 0.5, 0, 1)
        mask = np.maximum(_LINE_COVER * line, _FRINGE_COVER * fringe) * ends * shown
        colours = np.full((patch.height, patch.width, 3), self._lash_colour, np.float32)
        lay_under(out, patch, colours, mask.astype(np.float32))

    def _draw_ball(
        self, out: RgbPicture, bent: Bent, outline: FloatArray, patch: Patch, shown: float
    ) -> None:
        mask = opening_mask(outline, patch, feather=self._feather) * np.float32(shown)
        # From the result back to the portrait: the ball turns with the head as a flat picture would.
        turn = (bent.pose.scale / self._rest_pose.scale) * (bent.pose.rotation @ self._rest_pose.rotation.T)[
            :2, :2
        ]
        back = np.linalg.inv(turn).astype(np.float32)
        middle = bent.places[[self._eye.outer_corner, self._eye.inner_corner]].mean(axis=0)
        places = (patch.places - middle) @ back.T + self._middle
        along = self._along
        down = np.array([-along[1], along[0]], np.float32)
        gaze_x, gaze_y = bent.gaze[self._index]
        shift = (along * gaze_x + down * gaze_y).astype(np.float32)
        if (length := float(np.linalg.norm(shift))) > 0.05:
            shift *= min(1.0, 1.5 * self._radius / length)
            distance = np.linalg.norm(places - (self._iris + shift), axis=-1) / self._radius
            share = np.clip((_IRIS_MOVES_UNTIL - distance) / (_IRIS_MOVES_UNTIL - _IRIS_MOVES_WHOLE), 0, 1)
            places -= (share * share * (3 - 2 * share))[..., None] * shift
        places -= np.array([self._patch.left, self._patch.top], np.float32)
        colours = read_at(self._texture, places.astype(np.float32))
        lay_under(out, patch, colours.astype(np.float32), mask)


def make_eyeballs(rgb: RgbPicture, rig: PortraitRig) -> tuple[Eyeball, Eyeball]:
    """The right and the left eyeball of a portrait."""
    return Eyeball(rgb, rig, index=0), Eyeball(rgb, rig, index=1)
