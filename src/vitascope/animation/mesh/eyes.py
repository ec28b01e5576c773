"""The eyeball behind the lids: it stays where it is while lids close over it, and its iris turns."""

from __future__ import annotations

import cv2
import numpy as np

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
_LASH_WIDTH, _LASH_COVER = 0.035, 0.7
"""Of the line that lashes make on a closed eye: in widths of the eye, and how dark."""


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
        dark = patch.of(rgb).reshape(-1, 3)
        self._lash_colour = np.percentile(dark.astype(np.float32), 6, axis=0).astype(np.float32)

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
        patch = patch_around(outline, margin=2 + 2 * self._feather, size=self._size)
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
        """The dark line that lashes make along lids that close: of open ones the portrait has its own."""
        closed = min(max((float(bent.closure[self._index]) - 0.45) / 0.45, 0.0), 1.0)
        if closed == 0:
            return
        line = bent.places[list(self._eye.upper[:-1])]  # none grow at the tear duct
        cover = np.zeros((patch.height, patch.width), np.uint8)
        corners = np.rint((line - (patch.left, patch.top)) * 16).astype(np.int32)
        thickness = max(1, round(_LASH_WIDTH * self._width))
        cv2.polylines(cover, [corners], False, 255, thickness, cv2.LINE_AA, 4)
        soft = cv2.GaussianBlur(cover, (0, 0), max(0.5, 0.018 * self._width))
        mask = np.asarray(soft, np.float32) * np.float32(_LASH_COVER * closed / 255)
        lay_under(out, patch, np.full((patch.height, patch.width, 3), self._lash_colour, np.float32), mask)

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
