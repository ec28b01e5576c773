"""MediaPipe's face mesh: vertices, triangles and the points of each feature; measures the head's pose.

Landmarks are numbered as in ``FACEMESH_*`` of MediaPipe's Python package. Right and left are the person's
own: the right eye is at the left of an unmirrored picture.

The mesh is in ``models/data/canonical_face.npz``, from the ``face_landmarker.task`` bundle (Apache-2.0); the
landmarks were trained on it.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vitascope.animation.face import FloatArray
from vitascope.errors import ModelError

_FILE = Path(__file__).parents[1] / "models" / "data" / "canonical_face.npz"
_JAW_POINTS = (136, 365, 132, 361, 205, 425)
"""Pose points that jaw and smile move: with them, a driver's head grew by 7 % as he opened his mouth."""

TO_PICTURE = np.diag(np.array([1.0, -1.0, -1.0]))
"""From the mesh's axes (x right, y up, z to the camera) to a picture's (x right, y down, z away); its own
inverse."""


@dataclass(frozen=True, slots=True, eq=False)
class CanonicalMesh:
    """The average face, looking at the camera, in centimetres."""

    vertices: FloatArray
    """float32 [468, 3]: x to the picture's right (the person's left), y up, z to the camera."""
    triangles: npt.NDArray[np.int32]
    """int32 [898, 3]; 46 of them close the mouth and the eyes."""
    pose_weights: FloatArray
    """float32 [468]: weight of each vertex when a head's pose is measured; most are 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Pose:
    """Similarity from the canonical face to a picture: ``points = scale * rotation @ vertex + shift``."""

    scale: float
    """Pixels per centimetre."""
    rotation: npt.NDArray[np.float64]
    """[3, 3] in the picture's axes, for vertices rotated by ``TO_PICTURE``."""
    shift: npt.NDArray[np.float64]
    """[3], pixels: position of the canonical origin, which is inside the head."""

    def place(self, vertices: npt.NDArray[Any]) -> FloatArray:
        """Map vertices [N, 3] in canonical centimetres to points of the picture: float32 [N, 3], pixels."""
        turned = self.scale * (self.rotation @ TO_PICTURE)
        return np.asarray(vertices @ turned.T + self.shift, np.float32)

    def unplace(self, points: npt.NDArray[Any]) -> FloatArray:
        """Map points [N, 3] of the picture to vertices in canonical centimetres: the inverse of ``place``."""
        turned = (self.rotation @ TO_PICTURE) / self.scale
        return np.asarray((points - self.shift) @ turned, np.float32)


def fit_pose(mesh: CanonicalMesh, points: npt.NDArray[Any]) -> Pose:
    """Fit the similarity that maps the canonical face to a tracked one.

    Weighted least squares in closed form: Umeyama, "Least-squares estimation of transformation parameters between two
    point patterns", 1991.

    Args:
        mesh: The canonical face.
        points: [468 or more, 3] landmarks, pixels.
    """
    used = mesh.pose_weights > 0
    weights = mesh.pose_weights[used].astype(np.float64)
    weights /= weights.sum()
    source = mesh.vertices[used].astype(np.float64) @ TO_PICTURE
    target = np.asarray(points[: len(mesh.vertices)][used], np.float64)
    source_centre, target_centre = weights @ source, weights @ target
    source -= source_centre
    target = target - target_centre
    left, _, right = np.linalg.svd(target.T @ (source * weights[:, None]))
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right)) or 1.0])
    rotation = left * signs @ right
    return _sized(mesh, points, rotation)


def _sized(mesh: CanonicalMesh, points: npt.NDArray[Any], rotation: npt.NDArray[np.float64]) -> Pose:
    """Measure scale and shift for a known rotation, without the jaw: an open mouth enlarges no head."""
    weights = mesh.pose_weights.astype(np.float64)
    weights[list(_JAW_POINTS)] = 0
    used = weights > 0
    weights = weights[used] / weights[used].sum()
    source = mesh.vertices[used].astype(np.float64) @ TO_PICTURE @ rotation.T
    target = np.asarray(points[: len(mesh.vertices)][used], np.float64)
    source_centre, target_centre = weights @ source, weights @ target
    source_spread = float(weights @ ((source - source_centre) ** 2).sum(axis=1))
    together = float(weights @ ((source - source_centre) * (target - target_centre)).sum(axis=1))
    scale = max(together / source_spread, 1e-6)
    return Pose(scale, rotation, target_centre - scale * source_centre)


def read_canonical_mesh() -> CanonicalMesh:
    """Read the bundled mesh.

    Raises:
        ModelError: The file is missing or damaged.
    """
    try:
        with _FILE.open("rb") as file, np.load(file) as arrays:
            return CanonicalMesh(
                arrays["vertices"], arrays["triangles"].astype(np.int32), arrays["pose_weights"]
            )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{_FILE}: the face mesh cannot be read ({error}); reinstall vitascope") from error


class EyeLandmarks(NamedTuple):
    """Points of one eye. Lids run from the outer corner to the inner, including both corners."""

    upper: tuple[int, ...]
    lower: tuple[int, ...]
    upper_lid: tuple[int, ...]
    """The row of points above ``upper[1:-1]``, on the lid."""
    crease: tuple[int, ...]
    """The row above ``upper_lid``, between lid and brow."""
    lower_lid: tuple[int, ...]
    """The row below ``lower[1:-1]``."""
    iris: tuple[int, int, int, int, int]
    """Centre, and four points of the rim."""

    @property
    def outer_corner(self) -> int:
        """The corner towards the ear."""
        return self.upper[0]

    @property
    def inner_corner(self) -> int:
        """The corner towards the nose."""
        return self.upper[-1]

    @property
    def outline(self) -> tuple[int, ...]:
        """The 16 points of the opening, in order around it."""
        return self.upper + self.lower[-2:0:-1]


RIGHT_EYE: Final = EyeLandmarks(
    (33, 246, 161, 160, 159, 158, 157, 173, 133),
    (33, 7, 163, 144, 145, 153, 154, 155, 133),
    (247, 30, 29, 27, 28, 56, 190),
    (113, 225, 224, 223, 222, 221, 189),
    (25, 110, 24, 23, 22, 26, 112),
    (468, 469, 470, 471, 472),
)
LEFT_EYE: Final = EyeLandmarks(
    (263, 466, 388, 387, 386, 385, 384, 398, 362),
    (263, 249, 390, 373, 374, 380, 381, 382, 362),
    (467, 260, 259, 257, 258, 286, 414),
    (342, 445, 444, 443, 442, 441, 413),
    (255, 339, 254, 253, 252, 256, 341),
    (473, 474, 475, 476, 477),
)
EYES: Final = (RIGHT_EYE, LEFT_EYE)
"""Right, then left: the order of all values per eye."""

FACE_OVAL: Final = (
    10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377, 152,
    148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109,
)  # fmt: skip
"""The mesh's border, clockwise in the picture from the middle of the hairline."""

INNER_UPPER_LIP: Final = (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308)
INNER_LOWER_LIP: Final = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308)
"""Points from the mouth's right corner to its left, including both; so are those of the upper lip."""
UPPER_LIP_MIDDLE: Final = INNER_UPPER_LIP[len(INNER_UPPER_LIP) // 2]
OUTER_UPPER_LIP: Final = (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291)
OUTER_LOWER_LIP: Final = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291)
UPPER_LIP_ROWS: Final = (
    OUTER_UPPER_LIP,
    (76, 184, 74, 73, 72, 11, 302, 303, 304, 408, 306),
    (62, 183, 42, 41, 38, 12, 268, 271, 272, 407, 292),
    INNER_UPPER_LIP,
)
LOWER_LIP_ROWS: Final = (
    OUTER_LOWER_LIP,
    (76, 77, 90, 180, 85, 16, 315, 404, 320, 307, 306),
    (62, 96, 89, 179, 86, 15, 316, 403, 319, 325, 292),
    INNER_LOWER_LIP,
)
"""Rows of a lip's points, each like these, from its outer edge to its inner one."""
MOUTH_CORNERS: Final = (61, 291)

RIGHT_BROW: Final = (46, 53, 52, 65, 55, 70, 63, 105, 66, 107)
LEFT_BROW: Final = (276, 283, 282, 295, 285, 300, 293, 334, 296, 336)
"""Lower row from the outer end to the inner, then the upper row."""

CHIN: Final = 152
