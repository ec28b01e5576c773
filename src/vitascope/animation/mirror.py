"""Motion as a mirror shows it: the driver's left becomes the portrait's right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitascope.animation.canonical_mesh import CanonicalMesh
from vitascope.animation.face import BLENDSHAPE_INDEX, BLENDSHAPES, FaceMotion, FloatArray

__all__ = ["Mirror"]

_ACROSS = np.array([-1.0, 1.0, 1.0], np.float32)


def _other_side(name: str) -> str:
    for side, other in (("Left", "Right"), ("Right", "Left")):
        if name.endswith(side):
            return name.removesuffix(side) + other
    return name


_SWAPPED = [BLENDSHAPE_INDEX[_other_side(name)] for name in BLENDSHAPES]


class Mirror:
    """Turns motion over.

    Args:
        mesh: The canonical face; it is symmetric, so that every vertex has a partner.
    """

    def __init__(self, mesh: CanonicalMesh) -> None:
        distances = np.linalg.norm(mesh.vertices[:, None] * _ACROSS - mesh.vertices[None], axis=-1)
        self._partners = distances.argmin(axis=1)

    def __call__(self, motion: FaceMotion) -> FaceMotion:
        """The mirror image; what was tracked (``face``, ``driver_rgb``) stays as it is."""
        vertices: FloatArray | None = None
        if motion.vertices is not None:
            vertices = np.asarray(motion.vertices[self._partners] * _ACROSS, np.float32)
        return replace(
            motion,
            rotation=np.asarray(motion.rotation * np.outer(_ACROSS, _ACROSS), np.float32),
            translation=np.asarray(motion.translation * _ACROSS[:2], np.float32),
            blendshapes=motion.blendshapes[_SWAPPED],
            neutral_blendshapes=motion.neutral_blendshapes[_SWAPPED],
            vertices=vertices,
            eye_closure=motion.eye_closure[::-1].copy(),
            gaze=np.asarray(motion.gaze[::-1] * _ACROSS[:2], np.float32),
        )
