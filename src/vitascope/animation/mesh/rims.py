"""Finds the upper rims of clear glasses: where they cross a lid they stay as they are while it closes under them.

Glasses are told by their bridge: skin between two eyes has no line across. From its ends, the rims are followed towards
the temples; a fold of the lid or the edge of a brow that is taken for one only stays where it is, as it does in a face.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import EYES
from vitascope.animation.face import FloatArray, RgbPicture
from vitascope.animation.mesh.layers import Patch, opening_mask, patch_around, read_at
from vitascope.animation.mesh.rig import PortraitRig

_MOST_PX_A_CM = 30.0
"""Maximum resolution at which rims are looked for."""
_ASIDE_CM, _ABOVE_CM, _BELOW_CM = 6.0, 2.6, 3.0
"""Extent of the area that is looked at, from the middle between the inner corners of the eyes."""
_RIM_CM, _SOFT_CM = 0.4, 0.04
"""Maximum width of a rim, and the softness of what is finer than one."""
_BRIDGE_CM, _BRIDGE_ABOVE_CM, _BRIDGE_BELOW_CM = 0.85, 1.5, 0.7
"""Where a bridge is searched for, on either side, above and below."""
_BRIDGE_CONTRAST, _MOST_CONTRAST = 0.1, 0.2
"""Minimum mean contrast of a bridge, as a share of the skin's light, and the maximum that counts at a place: six pairs
of glasses had 0.13 to 0.20, one that was blurred 0.08, and 53 bare faces at most 0.066."""
_RIM_CONTRAST, _OF_THE_LINES = 0.05, 0.4
"""Minimum contrast of a rim, and the share of its line's contrast from which on a place beside that belongs to it."""
_STEEP = 3
"""Rows by which a rim may rise or fall in a column."""
_STEEP_COST = 0.004
"""Contrast that a row of rise or fall costs: of two lines alike, the straighter one is followed."""
_HUGS_CM, _HUGS_SHARE = 0.15, 0.3
"""Distance from where a line must not be, within which it is drawn to the eye; and the maximum share of such places."""
_DARK, _THICK_CM = 0.6, 0.1
"""Light, relative to the skin's, below which a rim is dark, and the maximum thickness of a dark one:
of a bar only edges would be found."""
_BESIDE_CM, _FROM_EYE_CM, _OVER_LID_CM = 0.28, 0.12, 0.35
"""Half the width of a rim's surroundings; its minimum distance above the eye; and how far beyond the lid it is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Rim:
    """The part of a rim in front of a lid."""

    patch: Patch
    """Place in the portrait."""
    cover: FloatArray
    """float32 [h, w], 0..1; 0 at its border."""

    def rgba(self, rgb: RgbPicture) -> npt.NDArray[np.uint8]:
        """Its own pixels of the portrait (uint8 [H, W, 3]): uint8 [h, w, 4], premultiplied colours."""
        cover = self.cover[..., None]
        made = np.concatenate((self.patch.of(rgb) * cover, 255 * cover), axis=-1)
        return np.ascontiguousarray(np.rint(made), np.uint8)

    def without(self, seen: FloatArray, patch: Patch) -> FloatArray:
        """Remove it from a part of the portrait (float32 [h, w, 3]), filled with the skin around."""
        cover = np.zeros((patch.height, patch.width), np.float32)
        left, top = max(self.patch.left, patch.left), max(self.patch.top, patch.top)
        right = min(self.patch.left + self.patch.width, patch.left + patch.width)
        bottom = min(self.patch.top + self.patch.height, patch.top + patch.height)
        if right <= left or bottom <= top:
            return seen
        common = Patch(left, top, right - left, bottom - top)
        common.within(patch).of(cover)[...] = common.within(self.patch).of(self.cover)
        # Rims have soft edges, whose colour must not be spread.
        reach = max(round(np.sqrt(cover.size) / 60), 1)
        wide = cv2.dilate(cover, np.ones((3, 3), np.uint8), iterations=reach)
        known = np.asarray(np.clip(np.rint(seen), 0, 255), np.uint8)
        filled = cv2.inpaint(known, (wide > 0.1).astype(np.uint8), 2 * reach, cv2.INPAINT_TELEA)
        # Where it is drawn only half, it also stays on the skin.
        gone = np.clip(3 * wide - 1.5, 0, 1)[..., None]
        return np.asarray(seen + (filled - seen) * gone, np.float32)


def find_rims(rgb: RgbPicture, rig: PortraitRig) -> tuple[Rim | None, Rim | None]:
    """Find the rims in front of the right and the left upper lid; None without glasses.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        rig: The portrait's rig.
    """
    landmarks, scale = rig.face.landmarks[:, :2], rig.pose.scale
    right_eye, left_eye = EYES
    inner = landmarks[[right_eye.inner_corner, left_eye.inner_corner]]
    outer = landmarks[[right_eye.outer_corner, left_eye.outer_corner]]
    along = (outer[1] - outer[0]) / max(float(np.linalg.norm(outer[1] - outer[0])), 1.0)
    down = np.array([-along[1], along[0]], np.float32)
    fine = min(scale, _MOST_PX_A_CM)
    x = np.arange(-_ASIDE_CM, _ASIDE_CM, 1 / fine).astype(np.float32)
    y = np.arange(-_ABOVE_CM, _BELOW_CM, 1 / fine).astype(np.float32)
    places = inner.mean(axis=0) + (x[None, :, None] * along + y[:, None, None] * down) * np.float32(scale)
    light = _light(rgb, np.asarray(places, np.float32), scale)
    contrast = _lines(light, fine)
    bridge = np.flatnonzero(np.abs(x) <= _BRIDGE_CM)
    within = np.flatnonzero((y > -_BRIDGE_ABOVE_CM) & (y < _BRIDGE_BELOW_CM))
    rows, clear = _followed(contrast[within][:, bridge], steep=1)
    if np.minimum(clear, _MOST_CONTRAST).mean() < _BRIDGE_CONTRAST:
        return None, None
    found: list[Rim | None] = []
    for index, eye in enumerate(EYES):
        columns = np.arange(bridge[0], -1, -1) if index == 0 else np.arange(bridge[-1], len(x))
        # Above the eye, whose lashes are dark lines, too.
        edge = (landmarks[list(eye.upper)] - inner.mean(axis=0)) @ np.stack((along, down), axis=-1) / scale
        order = np.argsort(edge[:, 0])
        lowest = (
            np.interp(x[columns], edge[order, 0], edge[order, 1], left=np.inf, right=np.inf) - _FROM_EYE_CM
        )
        allowed = np.where(y[:, None] < lowest, contrast[:, columns], -1.0)
        start = int(within[rows[0 if index == 0 else -1]])
        line, clear = _followed(allowed, steep=_STEEP, start=start)
        beside = np.isfinite(lowest)
        if (y[line[beside]] > lowest[beside] - _HUGS_CM).mean() > _HUGS_SHARE:
            found.append(None)  # that is the eye's own edge
            continue
        near = np.abs(np.arange(len(y))[:, None] - line) <= _BESIDE_CM * fine
        needed = _OF_THE_LINES * cv2.blur(np.maximum(clear, 0)[None].astype(np.float32), (9, 1))[0]
        cover = np.zeros_like(contrast)
        strong = np.clip(allowed / np.maximum(needed, _RIM_CONTRAST / 2) - 0.5, 0, 1)
        cover[:, columns] = np.where(near & (needed > _OF_THE_LINES * _RIM_CONTRAST), strong, 0)
        if np.median((near & (light[:, columns] < _DARK)).sum(axis=0)) > _THICK_CM * fine:
            found.append(None)
            continue
        cover = np.asarray(cv2.GaussianBlur(cover, (0, 0), max(_SOFT_CM * fine, 0.5)), np.float32)
        found.append(
            _over_lid(
                cover,
                rig,
                index,
                places[0, 0],
                np.asarray(np.stack((along, down)) * (fine / scale), np.float32),
            )
        )
    return found[0], found[1]


def _light(rgb: RgbPicture, places: FloatArray, scale: float) -> FloatArray:
    """Light at places (float32 [h, w, 2]) relative to the skin's: float32 [h, w]."""
    smooth = cv2.GaussianBlur(rgb, (0, 0), max(_SOFT_CM * scale, 0.5))
    light = read_at(smooth, places).mean(axis=-1)
    return np.asarray(light / max(float(np.percentile(light, 60)), 1.0), np.float32)


def _lines(light: FloatArray, fine: float) -> FloatArray:
    """How far places differ from what is beside narrow lines, dark or bright."""
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (max(round(_RIM_CM * fine), 3) | 1,) * 2)
    dark = cv2.morphologyEx(light, cv2.MORPH_CLOSE, kernel) - light
    bright = light - cv2.morphologyEx(light, cv2.MORPH_OPEN, kernel)
    return np.asarray(np.maximum(dark, bright), np.float32)


def _followed(
    contrast: FloatArray, *, steep: int, start: int | None = None
) -> tuple[npt.NDArray[np.intp], FloatArray]:
    """Follow the clearest line from the first column of a picture to the last.

    Args:
        contrast: float32 [h, w]; negative where the line must not be.
        steep: Rows by which it may rise or fall in a column.
        start: Its first row; None for any.

    Returns:
        Row in each column, int [w], and the contrast there, float32 [w].
    """
    gain = np.minimum(contrast, _MOST_CONTRAST)
    count = len(gain)
    total = gain[:, 0].copy()
    if start is not None:
        total[np.arange(count) != start] = -1e6
    steps = np.arange(-steep, steep + 1)
    came: list[npt.NDArray[np.intp]] = []
    for column in range(1, gain.shape[1]):
        padded = np.pad(total, steep, constant_values=-1e6)
        options = np.stack([padded[steep + step :][:count] - _STEEP_COST * abs(step) for step in steps])
        best = options.argmax(axis=0)
        came.append(steps[best])
        total = options.max(axis=0) + gain[:, column]
    row = int(total.argmax())
    rows = [row]
    for step in reversed(came):
        row = int(np.clip(row + step[row], 0, count - 1))
        rows.append(row)
    line = np.array(rows[::-1], np.intp)
    return line, np.asarray(contrast[line, np.arange(len(line))], np.float32)


def _over_lid(
    cover: FloatArray, rig: PortraitRig, index: int, corner: FloatArray, to_fine: FloatArray
) -> Rim | None:
    """Bring a cover into the portrait's pixels, and keep what lies before a lid.

    Args:
        cover: float32 [h, w], 0..1, in the pixels of the area that was looked at.
        rig: The portrait's rig.
        index: 0 for the right eye, 1 for the left.
        corner: float32 [2]: the place of its first pixel in the portrait.
        to_fine: float32 [2, 2]: turns distances in the portrait into its pixels.
    """
    eye, scale = EYES[index], rig.pose.scale
    landmarks = rig.face.landmarks[:, :2]
    corners = landmarks[[eye.outer_corner, eye.inner_corner]]
    outline = np.concatenate(
        (corners[:1], landmarks[list(eye.crease)], corners[1:], landmarks[list(eye.lower[-2:0:-1])])
    )
    patch = patch_around(outline, margin=2 * _OVER_LID_CM * scale, size=rig.size)
    if patch is None or min(patch.width, patch.height) < 4:
        return None
    lid = opening_mask(outline, patch, feather=0)
    wide = cv2.dilate(lid, np.ones((3, 3), np.uint8), iterations=max(round(_OVER_LID_CM * scale), 1))
    near = cv2.GaussianBlur(wide, (0, 0), max(0.3 * _OVER_LID_CM * scale, 0.5))
    at = np.asarray((patch.places - corner) @ to_fine.T, np.float32)
    rim = read_at(cover, at)
    kept = np.asarray(rim * near, np.float32)
    kept[[0, -1]] = 0
    kept[:, [0, -1]] = 0
    return Rim(patch, kept) if kept.max() > 0.5 else None
