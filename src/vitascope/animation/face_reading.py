"""A tracked face taken apart: the head's pose, the face's shape without it, lids and irises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitascope.animation.canonical_mesh import EYES, CanonicalMesh, EyeLandmarks, Pose, fit_pose
from vitascope.animation.face import MESH_VERTEX_COUNT, FloatArray, TrackedFace

__all__ = ["FaceReading", "eye_frame", "read_face"]


@dataclass(frozen=True, slots=True, eq=False)
class FaceReading:
    """Head pose and face shape of one picture."""

    pose: Pose
    vertices: FloatArray
    """float32 [468, 3]: the face without its head's pose, canonical axes and centimetres."""
    openness: FloatArray
    """float32 [2]: height over width of the right and the left eye."""
    irises: FloatArray
    """float32 [2, 2]: right and left iris from the middle between the eye's corners, in widths of the eye; x to the
    picture's right and y down, along the eye's own axes."""
    blendshapes: FloatArray


def read_face(mesh: CanonicalMesh, face: TrackedFace) -> FaceReading:
    """Take a tracked face apart."""
    pose = fit_pose(mesh, face.landmarks)
    points = pose.unplace(face.landmarks)
    frames = [eye_frame(points, eye) for eye in EYES]
    openness, irises = [], []
    for eye, (middle, along, down) in zip(EYES, frames, strict=True):
        width = float(np.linalg.norm(along))
        gaps = points[list(eye.upper[2:-2])] - points[list(eye.lower[2:-2])]
        openness.append(float(np.linalg.norm(gaps, axis=1).mean()) / width)
        offset = points[eye.iris[0]] - middle
        irises.append([float(offset @ along) / width**2, float(offset @ down) / width**2])
    return FaceReading(
        pose,
        points[:MESH_VERTEX_COUNT],
        np.array(openness, np.float32),
        np.array(irises, np.float32),
        face.blendshapes,
    )


def eye_frame(points: FloatArray, eye: EyeLandmarks) -> tuple[FloatArray, FloatArray, FloatArray]:
    """An eye's own axes in the canonical space.

    Args:
        points: float32 [468 or more, 3], canonical axes.
        eye: Which one.

    Returns:
        The middle between the corners; the vector from the corner at the left of the picture to the one at the right;
        and one as long that points down across it.
    """
    outer, inner = points[eye.outer_corner], points[eye.inner_corner]
    left, right = (outer, inner) if eye is EYES[0] else (inner, outer)
    along = right - left
    down = np.array([along[1], -along[0], 0.0], np.float32)
    down *= np.linalg.norm(along) / max(float(np.linalg.norm(down)), 1e-6)
    return (left + right) / 2, along, down
