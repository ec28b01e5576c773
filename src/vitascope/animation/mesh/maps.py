"""The maps that a portrait is read through: coarse around the face, finer on it, finest at eyes and mouth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import CanonicalMesh
from vitascope.animation.landmarks import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
)
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.layers import Patch, patch_around
from vitascope.animation.mesh.raster import MapGrid
from vitascope.animation.mesh.rig import SPOKES, PortraitRig

__all__ = ["COARSER", "Feature", "PortraitMaps", "feature_grid", "plan_maps"]

COARSER = 4
"""Samples of the face's map to one of the map around it, along each axis."""
_ROWS_A_FACE = 100
"""Rows of the map between hairline and chin: the mesh's triangles are about 3 rows high there."""
_NEAR_TRIANGLES = 2 * SPOKES * 4
"""Triangles of the innermost rings, drawn as finely as the face: a chin that drops presses them together."""
_ROWS_A_FEATURE = 28
"""Rows of the finer map of an eye or a mouth at rest, whose lids and lips are finer than that."""
_NEAR_FEATURE_CM = 2.2
"""Triangles so near to an eye's or mouth's points are drawn into its finer map."""


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """A part of the face with finer detail than the rest."""

    outline: list[int]
    """Points whose rectangle is drawn anew."""
    triangles: npt.NDArray[np.int32]
    """int32 [T, 3]."""
    step: int
    """Pixels a sample of its map."""
    size: tuple[int, int]
    """(height, width) of the portrait."""

    def patch(self, bent: Bent) -> Patch | None:
        """The rectangle that it takes in a motion; None when nothing of it is inside the picture."""
        return patch_around(bent.places[self.outline], margin=2, size=self.size)


@dataclass(frozen=True, slots=True, eq=False)
class PortraitMaps:
    """Where the samples of a portrait's maps are, and what is drawn into each."""

    face: MapGrid
    """Over all of the rig's box."""
    around: MapGrid
    """The map of what bends gently, ``COARSER`` times coarser: hair, neck and background; refined by ``face``."""
    far_triangles: npt.NDArray[np.int32]
    """int32 [T, 3]: the rings, which are drawn into ``around`` before the skin."""
    near_triangles: npt.NDArray[np.int32]
    """The innermost of them, drawn into ``face`` before the skin."""
    features: tuple[Feature, ...]
    """Right eye, left eye, mouth."""


def plan_maps(rig: PortraitRig, mesh: CanonicalMesh) -> PortraitMaps:
    """Work out a portrait's maps."""
    left, top, right, bottom = rig.box
    face = _grid_over(left, top, right, bottom, max(1, round(rig.face_height / _ROWS_A_FACE)))
    rings = rig.rings.triangles
    return PortraitMaps(face, _coarser(face), rings, rings[-_NEAR_TRIANGLES:], _features(rig, mesh))


def feature_grid(feature: Feature, patch: Patch) -> MapGrid:
    """The samples of a feature's map."""
    return _grid_over(patch.left, patch.top, patch.left + patch.width, patch.top + patch.height, feature.step)


def _grid_over(left: int, top: int, right: int, bottom: int, step: int) -> MapGrid:
    """The grid whose samples are the middles of squares of ``step`` pixels, and a border of one sample around it.

    ``cv2.resize`` places samples like that, and with the border it has something to interpolate everywhere.
    """
    first = (step - 1) / 2 - step
    return MapGrid(
        left + first, top + first, step, -(-(right - left) // step) + 2, -(-(bottom - top) // step) + 2
    )


def _coarser(grid: MapGrid) -> MapGrid:
    """A grid that, enlarged ``COARSER`` times, holds ``grid`` from its sample ``COARSER - 1`` on."""
    shift = (COARSER - 1) / 2 * grid.step
    width, height = (-(-(count + COARSER - 1) // COARSER) for count in (grid.width, grid.height))
    return MapGrid(grid.left - shift, grid.top - shift, grid.step * COARSER, width, height)


def _features(rig: PortraitRig, mesh: CanonicalMesh) -> tuple[Feature, ...]:
    outlines = [list(eye.upper_lid + eye.lower_lid + eye.outline) for eye in EYES]
    outlines.append(list(OUTER_UPPER_LIP + OUTER_LOWER_LIP + INNER_UPPER_LIP + INNER_LOWER_LIP))
    made = []
    for outline in outlines:
        distance = np.linalg.norm(mesh.vertices[:, None] - mesh.vertices[outline][None], axis=-1)
        near = distance.min(axis=1) < _NEAR_FEATURE_CM
        extent = np.ptp(rig.sources[outline], axis=0)
        step = max(1, round(float(extent.min()) / _ROWS_A_FEATURE))
        triangles = rig.skin_triangles[near[rig.skin_triangles].all(axis=1)]
        made.append(Feature(outline, triangles, step, rig.size))
    return tuple(made)
