"""Faces of known pose and shape, made from the canonical mesh."""

from __future__ import annotations

import cv2
import numpy as np

from vitascope.animation.canonical_mesh import EYES, CanonicalMesh, Pose
from vitascope.animation.face import BLENDSHAPES, LANDMARK_COUNT, TrackedFace, rotation_from_degrees

SIZE = (640, 480)
RIMS_SCALE, RIMS_SKIN = 22.0, (200, 160, 140)


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


def face_with_rims(
    mesh: CanonicalMesh,
    *,
    rim: tuple[float, ...] = (250, 250, 245),
    thickness: int = 3,
    bridge: bool = True,
    roll: float = 0.0,
) -> tuple[np.ndarray, TrackedFace, np.ndarray]:
    """A face with eyes and two rims over its lids; and where a rim's pixels are, bool [H, W]."""
    face = made_face(mesh, scale=RIMS_SCALE, roll=roll)
    seen = np.full((SIZE[1], SIZE[0], 3), RIMS_SKIN, np.uint8)
    drawn = np.zeros(seen.shape[:2], np.uint8)
    along = face.landmarks[263, :2] - face.landmarks[33, :2]
    along /= np.linalg.norm(along)
    up = np.array([along[1], -along[0]])
    ends = []
    for eye in EYES:
        opening = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(seen, [opening], (60, 40, 30))
        corners = face.landmarks[[eye.outer_corner, eye.inner_corner], :2]
        middle = face.landmarks[list(eye.upper_lid[2:-2]), :2].mean(axis=0)
        reach = 1.9 * RIMS_SCALE
        line = [
            middle + side * reach * along - 0.25 * abs(side) ** 3 * RIMS_SCALE * up
            for side in np.linspace(-1, 1, 9)
        ]
        line = [point + 0.25 * RIMS_SCALE * up for point in line]
        inner = min((line[0], line[-1]), key=lambda point: float(np.linalg.norm(point - corners[1])))
        ends.append(inner)
        cv2.polylines(drawn, [np.rint(line).astype(np.int32)], False, 1, thickness)
    if bridge:
        cv2.line(drawn, *(np.rint(end).astype(int).tolist() for end in ends), 1, thickness)
    seen[drawn > 0] = rim
    return seen, face, drawn > 0
