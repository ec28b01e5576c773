"""What the kernels of ``mesh.cu`` are told: once about a portrait, and for every picture about its motion."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.animation.face import MESH_VERTEX_COUNT, FloatArray
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.eyes import EyePlacement
from vitascope.animation.mesh.layers import Patch
from vitascope.animation.mesh.maps import PortraitMaps, feature_grid
from vitascope.animation.mesh.mouth import MouthPlacement
from vitascope.animation.mesh.raster import MapGrid

__all__ = ["MAPS", "PATCH", "SCENE", "fill_frame", "frame_type", "inverse"]

MAPS = 5
"""Surroundings, face, and one for each feature."""
_FEATURES = 3

_MATRIX = np.dtype(("f4", 6))
PATCH = np.dtype([("left", "i4"), ("top", "i4"), ("width", "i4"), ("height", "i4")])
_MAP = np.dtype(
    [
        ("left", "f4"),
        ("top", "f4"),
        ("step", "f4"),
        ("width", "i4"),
        ("height", "i4"),
        ("first", "i4"),
        ("parent", "i4"),
    ]
)
_LASHES = np.dtype(
    [
        ("shown", "f4"),
        ("reach", "f4"),
        ("corner", "f4", 2),
        ("along", "f4", 2),
        ("down", "f4", 2),
        ("edge_shares", "f4", 9),
        ("edge_heights", "f4", 9),
    ]
)
_EYE = np.dtype(
    [
        ("patch", PATCH),
        ("shown", "f4"),
        ("apart", "f4"),
        ("back", _MATRIX),
        ("gaze_shift", "f4", 2),
        ("lashes", _LASHES),
        ("outline", "f4", (64, 2)),
    ]
)
_MOUTH = np.dtype(
    [
        ("patch", PATCH),
        ("shown", "f4"),
        ("own_share", "f4"),
        ("light_px", "f4"),
        ("tongue_light", "f4"),
        ("is_made", "i4"),
        ("has_upper_teeth", "i4"),
        ("tongue", _MATRIX),
        ("own", _MATRIX),
        ("upper_teeth", _MATRIX),
        ("lower_teeth", _MATRIX),
        ("outline", "f4", (80, 2)),
    ]
)
_EYE_LOOK = np.dtype(
    [
        ("texture", "u8"),
        ("ball", "u8"),
        ("white", "u8"),
        ("patch", PATCH),
        ("iris", "f4", 2),
        ("radius", "f4"),
        ("feather", "f4"),
        ("lash_colour", "f4", 3),
    ],
    align=True,
)
SCENE = np.dtype(
    [
        ("rgb", "u8"),
        ("triangles", "u8"),
        ("offsets", "u8"),
        ("upper_teeth", "u8"),
        ("lower_teeth", "u8"),
        ("own_rgb", "u8"),
        ("own_cover", "u8"),
        ("width", "i4"),
        ("height", "i4"),
        ("left", "i4"),
        ("top", "i4"),
        ("right", "i4"),
        ("bottom", "i4"),
        ("triangle_count", "i4"),
        ("teeth_width", "i4"),
        ("teeth_height", "i4"),
        ("own_width", "i4"),
        ("own_height", "i4"),
        ("mouth_feather", "f4"),
        ("iris_ends", "f4"),
        ("white_begins", "f4"),
        ("line_cover", "f4"),
        ("fringe_cover", "f4"),
        ("lash_lengths", "f4", 7),
        ("cavity", "f4", 3),
        ("tongue", "f4", 3),
        ("eyes", _EYE_LOOK, 2),
    ],
    align=True,
)
"""``Scene`` of ``mesh.cu``: a portrait."""


@lru_cache(maxsize=4)
def frame_type(points: int) -> np.dtype[Any]:
    """``Frame`` of ``mesh.cu``: a motion of a rig with so many points."""
    return np.dtype(
        [
            ("places", "f4", (points, 2)),
            ("sources", "f4", (points, 2)),
            ("depths", "f4", MESH_VERTEX_COUNT),
            ("maps", _MAP, MAPS),
            ("features", PATCH, _FEATURES),
            # 35 + 12 words lie before the eyes: one more for their float2.
            ("pad", "i4"),
            ("eyes", _EYE, 2),
            ("mouth", _MOUTH),
        ]
    )


def fill_frame(
    frame: npt.NDArray[Any],
    bent: Bent,
    maps: PortraitMaps,
    eyes: tuple[EyePlacement | None, ...],
    mouth: MouthPlacement | None,
) -> list[int]:
    """Describe a motion.

    Args:
        frame: [1] of ``frame_type``, changed in place.
        bent: The rig's points.
        maps: Of the portrait.
        eyes: Right, left; None for one that is not drawn.
        mouth: None when its inside is not seen.

    Returns:
        Samples of each map.
    """
    told = frame[0]
    told["places"], told["sources"], told["depths"] = bent.places, bent.sources, bent.depths
    patches = [feature.patch(bent) for feature in maps.features]
    grids: list[MapGrid | None] = [maps.around, maps.face]
    for feature, patch in zip(maps.features, patches, strict=True):
        grids.append(None if patch is None else feature_grid(feature, patch))
    first, counts = 0, []
    for index, grid in enumerate(grids):
        if grid is None:
            told["maps"][index] = (0, 0, 1, 0, 0, first, 1)
            counts.append(0)
            continue
        told["maps"][index] = (
            grid.left, grid.top, grid.step, grid.width, grid.height, first, min(index - 1, 1),
        )  # fmt: skip
        counts.append(grid.width * grid.height)
        first += counts[-1]
    for index, patch in enumerate(patches):
        told["features"][index] = _corners(patch)
    for index, eye in enumerate(eyes):
        _fill_eye(told["eyes"][index], eye)
    _fill_mouth(told["mouth"], mouth)
    return counts


def _fill_eye(told: Any, eye: EyePlacement | None) -> None:
    told["patch"] = _corners(None if eye is None else eye.patch)
    if eye is None:
        return
    told["shown"], told["outline"] = eye.shown, eye.outline
    told["apart"], told["gaze_shift"] = eye.apart, eye.gaze_shift
    told["back"] = eye.back.reshape(-1)
    lashes = eye.lashes
    if lashes is None:
        told["lashes"]["shown"] = 0
    else:
        told["lashes"] = (
            lashes.shown, lashes.reach_px, lashes.corner, lashes.along, lashes.down,
            lashes.edge_shares, lashes.edge_heights,
        )  # fmt: skip


def _fill_mouth(told: Any, mouth: MouthPlacement | None) -> None:
    told["patch"] = _corners(None if mouth is None else mouth.patch)
    if mouth is None:
        return
    told["shown"], told["light_px"], told["outline"] = mouth.shown, mouth.light_px, mouth.outline
    told["tongue_light"] = mouth.tongue_light
    told["own_share"] = 0 if mouth.own is None else mouth.own_share
    told["is_made"], told["has_upper_teeth"] = mouth.is_made, mouth.upper_teeth is not None
    for name, matrix in (
        ("own", mouth.own),
        ("tongue", mouth.tongue),
        ("upper_teeth", mouth.upper_teeth),
        ("lower_teeth", mouth.lower_teeth),
    ):
        if matrix is not None:
            told[name] = inverse(matrix)


def inverse(matrix: FloatArray) -> FloatArray:
    """The way back of an affine matrix [2, 3]: float32 [6], by rows; nothing but far places for one that is flat."""
    (a, b, x), (c, d, y) = matrix.astype(np.float64)
    determinant = a * d - b * c
    if abs(determinant) < 1e-3 * 1e-3:
        return np.array([0, 0, 1e6, 0, 0, 1e6], np.float32)
    a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
    return np.array([a, b, -a * x - b * y, c, d, -c * x - d * y], np.float32)


def _corners(patch: Patch | None) -> tuple[int, int, int, int]:
    return (0, 0, 0, 0) if patch is None else (patch.left, patch.top, patch.width, patch.height)
