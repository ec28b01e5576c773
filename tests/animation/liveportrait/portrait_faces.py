"""Tracked faces of simple shapes."""

from __future__ import annotations

import math

import numpy as np

from vitascope.animation.canonical_mesh import EYES, FACE_OVAL, LEFT_BROW, MOUTH_CORNERS, RIGHT_BROW
from vitascope.animation.face import LANDMARK_COUNT, TrackedFace


def make_face(
    *, centre: tuple[float, float] = (300, 250), size: float = 100, roll_degrees: float = 0
) -> TrackedFace:
    """Make an upright face around a centre: an oval, brows, eyes and a mouth; rotated clockwise."""
    points = np.zeros((LANDMARK_COUNT, 2))
    for number, point in enumerate(FACE_OVAL):
        angle = 2 * math.pi * number / len(FACE_OVAL)
        points[point] = 0.5 * math.sin(angle), -0.7 * math.cos(angle)
    points[list(RIGHT_BROW)] = -0.25, -0.35
    points[list(LEFT_BROW)] = 0.25, -0.35
    for eye, x in zip(EYES, (-0.22, 0.22), strict=True):
        points[[*eye.iris]] = x, -0.2
    points[list(MOUTH_CORNERS)] = (-0.18, 0.35), (0.18, 0.35)
    points[13], points[14] = (0, 0.33), (0, 0.366)
    turn = math.radians(roll_degrees)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    landmarks = np.zeros((LANDMARK_COUNT, 3), np.float32)
    landmarks[:, :2] = points @ rotation.T * size + centre
    return TrackedFace(
        landmarks=landmarks,
        blendshapes=np.zeros(52, np.float32),
        transform=np.eye(4, dtype=np.float32),
        picture_size=(600, 500),
    )
