"""Faces of known pose and shape, made from the canonical mesh."""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.animation.canonical_mesh import EYES, CanonicalMesh, Pose
from vitascope.animation.face import BLENDSHAPES, LANDMARK_COUNT, TrackedFace, rotation_from_degrees

SIZE = (640, 480)


def made_face(
    mesh: CanonicalMesh,
    *,
    yaw: float = 0.0,
    pitch: float = 0.0,
    roll: float = 0.0,
    scale: float = 12.0,
    centre: tuple[float, float] = (320.0, 240.0),
    displacement: np.ndarray | None = None,
    seconds: float = 0.0,
    is_new: bool = False,
    noise: np.ndarray | None = None,
) -> TrackedFace:
    """Make a face in a picture of ``SIZE``."""
    vertices = mesh.vertices if displacement is None else mesh.vertices + displacement
    points = np.zeros((LANDMARK_COUNT, 3), np.float32)
    points[:468] = vertices
    for eye in EYES:
        points[list(eye.iris)] = vertices[list(eye.upper[1:-1] + eye.lower[1:-1])].mean(axis=0)
    turn = rotation_from_degrees(yaw, pitch, roll).astype(np.float64)
    points = Pose(scale, turn, np.array([*centre, 0.0])).place(points)
    if noise is not None:
        points = points + noise
    flip = np.diag([1.0, -1.0, -1.0])
    transform = np.eye(4, dtype=np.float32)
    transform[:3, :3] = flip @ turn @ flip
    return TrackedFace(
        landmarks=points.astype(np.float32),
        blendshapes=np.zeros(len(BLENDSHAPES), np.float32),
        transform=transform,
        picture_size=SIZE,
        pts_seconds=seconds,
        is_new=is_new,
    )


def two_people(astronaut: np.ndarray) -> np.ndarray:
    """Draw the astronaut twice, larger on the right."""
    head = astronaut[40:230, 130:320]
    picture = np.full((512, 1024, 3), 200, np.uint8)
    picture[100:400, 40:340] = cv2.resize(head, (300, 300))
    picture[40:460, 560:980] = cv2.resize(head, (420, 420))
    return picture
