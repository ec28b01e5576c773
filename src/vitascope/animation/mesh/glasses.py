"""Detects dark glasses: what they cover moves with the skull, whatever the face behind them does."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import EYES, LEFT_BROW, RIGHT_BROW
from vitascope.animation.face import MESH_VERTEX_COUNT, FloatArray, RgbPicture
from vitascope.animation.mesh.layers import Patch, median_at, opening_mask, patch_around
from vitascope.animation.mesh.rig import PortraitRig

_SKIN_POINTS = (205, 425, 4, 151)
"""Points of cheeks, nose and forehead, which glasses do not cover."""
_FOREHEAD_POINTS = (9, 151, 108, 337)
_NOSE_POINTS = (197, 195)
_DARK = 0.5
"""Maximum light of dark glass, as a share of the skin's, and of the lighter of forehead and nose: a hat's shadow
reaches both, a fringe covers only the forehead. In 28 portraits, the lighter lid of the lighter eye has 0.37 behind
sunglasses; without them, including brows' shadows and profiles, at least 0.70."""
_BELOW_CM = 1.0
"""Minimum reach of glass below the lower lids; a brow's shadow, painted onto 27 portraits, reached 0.1 at the
median."""
_MOSTLY = 0.6
"""Minimum share of dark places below the lower lids for glass."""
_REACH_CM = 2.0
"""Maximum reach of frames beyond lids and brows: what is dark farther out is hair."""
_GLINT_CM = 0.4
"""Maximum width of reflections that belong to the glass."""
_SKIN_GIVES_CM = 0.5
"""Width of the skin beside a frame that gives way."""
_LOOKS_ALONG = 9
"""Number of places at which an edge of the mesh is examined."""


def with_glasses(rig: PortraitRig, rgb: RgbPicture) -> PortraitRig:
    """Adapt a rig so that what dark glasses cover, frame and eyes included, does not follow the face's motion.

    Args:
        rig: The portrait's rig.
        rgb: uint8 [H, W, 3], the portrait.

    Returns:
        The same rig if not both eyes are behind dark glass.
    """
    covered = _covered(rig, rgb)
    if covered is None:
        return rig
    free = 1 - covered[:, None]
    free_eyes = [free[list(eye.upper)].mean() for eye in EYES]
    return replace(rig, free=free, free_eyes=np.array(free_eyes, np.float32))


def _covered(rig: PortraitRig, rgb: RgbPicture) -> FloatArray | None:
    """How far dark glasses cover each vertex, float32 [468], 0..1; None unless both eyes are behind them."""
    landmarks, scale = rig.face.landmarks[:MESH_VERTEX_COUNT, :2], rig.pose.scale
    points = [*RIGHT_BROW, *LEFT_BROW, *(point for eye in EYES for point in eye.outline + eye.lower_lid)]
    patch = patch_around(landmarks[points], margin=_REACH_CM * scale, size=rig.size)
    if patch is None:
        return None
    light = patch.of(rgb).mean(axis=-1)
    skin, forehead, nose = (
        float(median_at(rgb, landmarks[list(row)], reach_cm * scale).mean())
        for row, reach_cm in ((_SKIN_POINTS, 0.4), (_FOREHEAD_POINTS, 0.4), (_NOSE_POINTS, 0.2))
    )
    darkest_skin = _DARK * skin
    places = np.rint(landmarks - (patch.left, patch.top)).astype(int)
    within = ((places >= 0) & (places < (patch.width, patch.height))).all(axis=1)
    openings = np.zeros(light.shape, bool)
    for eye in EYES:
        opening = opening_mask(landmarks[list(eye.outline)], patch, feather=0) > 0.5
        rows = [[point for point in row if within[point]] for row in (eye.upper_lid, eye.lower_lid)]
        if not opening.any() or not all(rows):
            return None
        # One of the lids is light, however shaded the other is.
        lit = [float(np.median(light[places[row, 1], places[row, 0]])) for row in rows]
        if max(*lit, float(np.median(light[opening]))) >= _DARK * min(skin, max(forehead, nose)):
            return None
        openings |= opening
    glint = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (max(round(_GLINT_CM * scale), 1) | 1,) * 2)
    dark = cv2.morphologyEx((light < darkest_skin).astype(np.uint8), cv2.MORPH_CLOSE, glint)
    _, parts = cv2.connectedComponents(np.asarray(dark | openings, np.uint8))
    glass = np.isin(parts, np.unique(parts[openings])).astype(np.uint8)
    # Everything inside a frame is glass, whatever it reflects.
    outlines, _ = cv2.findContours(glass, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(glass, outlines, -1, 1, cv2.FILLED)
    if _share_below(glass, rig, patch) < _MOSTLY:
        return None
    away = cv2.distanceTransform(1 - glass, cv2.DIST_L2, 5) / scale
    covered = np.zeros(MESH_VERTEX_COUNT, np.float32)
    covered[within] = np.clip(1 - away[places[within, 1], places[within, 0]] / _SKIN_GIVES_CM, 0, 1)
    # Places between two vertices move with both, so a frame's edge moves with those beside it.
    edges = rig.skin_triangles[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2)
    along = np.linspace(0, 1, _LOOKS_ALONG)[:, None, None]
    looks = np.rint(places[edges[:, 0]] * (1 - along) + places[edges[:, 1]] * along).astype(int)
    x, y = np.moveaxis((looks + 1).clip(0, (patch.width + 1, patch.height + 1)), -1, 0)
    covered[edges[np.pad(glass, 1)[y, x].any(axis=0)]] = 1
    return covered


def _share_below(glass: npt.NDArray[np.uint8], rig: PortraitRig, patch: Patch) -> float:
    """Share of the places below both lower lids that are ``glass`` (uint8 [height, width], 0 or 1), 0..1."""
    points = [point for eye in EYES for point in eye.lower_lid]
    below = rig.pose.place(rig.reading.vertices[points] - np.array((0, _BELOW_CM, 0), np.float32))[:, :2]
    x, y = np.rint(below - (patch.left, patch.top)).astype(int).T
    within = (x >= 0) & (x < patch.width) & (y >= 0) & (y < patch.height)
    return float(glass[y[within], x[within]].sum()) / len(points)
