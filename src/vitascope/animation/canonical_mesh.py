"""MediaPipe's face mesh: vertices, triangles, which points make a feature, and how a head's pose is measured.

The numbers of landmarks are those of ``FACEMESH_*`` in MediaPipe's Python package. Right and left are the person's own:
the right eye is at the left of an unmirrored picture.

The mesh lies in the ``face_landmarker.task`` bundle (Apache-2.0), as the protocol buffer ``GeometryPipelineMetadata``
(mediapipe/tasks/cc/vision/face_geometry/proto). It is read from there instead of being copied into this package, so
that it always is the one that the landmarks were trained on.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vitascope.animation.face import MESH_VERTEX_COUNT, FloatArray
from vitascope.errors import ModelError

__all__ = [
    "CHIN",
    "EYES",
    "FACE_OVAL",
    "INNER_LOWER_LIP",
    "INNER_UPPER_LIP",
    "LEFT_BROW",
    "MOUTH_CORNERS",
    "NOSE_TIP",
    "OUTER_LOWER_LIP",
    "OUTER_UPPER_LIP",
    "RIGHT_BROW",
    "CanonicalMesh",
    "EyeLandmarks",
    "Pose",
    "fit_pose",
    "read_canonical_mesh",
]

_MEMBER = "geometry_pipeline_metadata_landmarks.binarypb"
_TRIANGLE_COUNT = 898
_FLOATS_A_VERTEX = 5  # x, y, z, u, v: VertexType.VERTEX_PT
_MAX_BYTES = 1 << 20
_JAW_POINTS = (136, 365, 132, 361, 205, 425)
"""Points of the pose that jaw and smile move: with them a driver's head grew by 7 percent as he opened his mouth."""

TO_PICTURE = np.diag(np.array([1.0, -1.0, -1.0]))
"""From the mesh's axes (x right, y up, z to the camera) to a picture's (x right, y down, z away): its own inverse."""


@dataclass(frozen=True, slots=True, eq=False)
class CanonicalMesh:
    """The average face, looking at the camera, in centimetres."""

    vertices: FloatArray
    """float32 [468, 3]: x to the picture's right (the person's left), y up, z to the camera."""
    triangles: npt.NDArray[np.int32]
    """int32 [898, 3]; 46 of them close the mouth and the eyes."""
    pose_weights: FloatArray
    """float32 [468]: how much a vertex counts when a head's pose is measured; most are 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Pose:
    """A similarity from the canonical face's space to a picture: ``points = scale * rotation @ vertex + shift``."""

    scale: float
    """Pixels a centimetre."""
    rotation: npt.NDArray[np.float64]
    """[3, 3] in the picture's axes: of vertices that ``TO_PICTURE`` has turned."""
    shift: npt.NDArray[np.float64]
    """[3], pixels: where the canonical origin (inside the head) is."""

    def place(self, vertices: npt.NDArray[Any]) -> FloatArray:
        """Vertices [N, 3] in canonical centimetres, as points of the picture: float32 [N, 3], pixels."""
        turned = self.scale * (self.rotation @ TO_PICTURE)
        return np.asarray(vertices @ turned.T + self.shift, np.float32)

    def unplace(self, points: npt.NDArray[Any]) -> FloatArray:
        """Points [N, 3] of the picture, as vertices in canonical centimetres: the inverse of ``place``."""
        turned = (self.rotation @ TO_PICTURE) / self.scale
        return np.asarray((points - self.shift) @ turned, np.float32)


def fit_pose(mesh: CanonicalMesh, points: npt.NDArray[Any]) -> Pose:
    """The similarity that brings the canonical face nearest to a tracked one.

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
    """Scale and place under a known rotation, measured without the jaw: an open mouth is no larger head."""
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


def read_canonical_mesh(bundle: Path) -> CanonicalMesh:
    """The mesh inside a ``face_landmarker.task``.

    Raises:
        ModelError: The file is no such bundle, or its mesh is another one.
    """
    try:
        with zipfile.ZipFile(bundle) as archive:
            if archive.getinfo(_MEMBER).file_size > _MAX_BYTES:
                raise ModelError(f"{bundle}: its face mesh is larger than {_MAX_BYTES} bytes")
            data = archive.read(_MEMBER)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{bundle}: no face mesh in it ({error}); fetch face-landmarker again") from error
    try:
        mesh = _parse(data)
    except (ValueError, LookupError, OverflowError, struct.error) as error:
        raise ModelError(f"{bundle}: its face mesh cannot be read ({error})") from error
    return mesh


def _parse(data: bytes) -> CanonicalMesh:
    values: list[float] = []
    indices: list[int] = []
    weights = np.zeros(MESH_VERTEX_COUNT, np.float32)
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):  # Mesh3d
            for inner, part in _fields(value):
                if inner == 3 and isinstance(part, bytes):
                    values += struct.unpack(f"<{len(part) // 4}f", part)
                elif inner == 4 and isinstance(part, int):
                    indices.append(part)
        elif number == 2 and isinstance(value, bytes):  # WeightedLandmarkRef
            reference: dict[int, bytes | int] = dict(_fields(value))
            landmark, weight = reference[1], reference[2]
            if not isinstance(landmark, int) or not isinstance(weight, bytes):
                raise ValueError("a weight is malformed")
            weights[landmark] = struct.unpack("<f", weight)[0]
    vertices = np.array(values, np.float32).reshape(-1, _FLOATS_A_VERTEX)[:, :3]
    triangles = np.array(indices, np.int32).reshape(-1, 3)
    if vertices.shape[0] != MESH_VERTEX_COUNT or triangles.shape[0] != _TRIANGLE_COUNT:
        raise ValueError(
            f"{vertices.shape[0]} vertices and {triangles.shape[0]} triangles, expected 468 and 898"
        )
    if triangles.min() < 0 or triangles.max() >= MESH_VERTEX_COUNT or weights.max() <= 0:
        raise ValueError("a triangle or a weight points outside the mesh")
    return CanonicalMesh(np.ascontiguousarray(vertices), triangles, weights)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a protocol buffer message (protobuf.dev/programming-guides/encoding)."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(data):
        key = varint()
        if (wire := key & 7) == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 5: 4}.get(wire) or (varint() if wire == 2 else 0)
        if not length and wire != 2:
            raise ValueError(f"unknown wire type {wire}")
        if position + length > len(data):
            raise ValueError("it is cut off")
        yield key >> 3, data[position : position + length]
        position += length


class EyeLandmarks(NamedTuple):
    """One eye. Lids run from the outer corner to the inner; both begin and end with the corners."""

    upper: tuple[int, ...]
    lower: tuple[int, ...]
    upper_lid: tuple[int, ...]
    """The row of points above ``upper[1:-1]``, on the lid."""
    crease: tuple[int, ...]
    """The row above that one, between lid and brow."""
    lower_lid: tuple[int, ...]
    """The row below ``lower[1:-1]``."""
    iris: tuple[int, int, int, int, int]
    """Centre, and four points of the rim."""

    @property
    def outer_corner(self) -> int:
        """Towards the ear."""
        return self.upper[0]

    @property
    def inner_corner(self) -> int:
        """Towards the nose."""
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
"""Right, left: the order of everything that has one value for each eye."""

FACE_OVAL: Final = (
    10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377, 152,
    148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109,
)  # fmt: skip
"""The mesh's border, clockwise in the picture from the middle of the hairline."""

INNER_UPPER_LIP: Final = (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308)
INNER_LOWER_LIP: Final = (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308)
"""From the mouth's right corner to its left; both begin and end with the corners."""
OUTER_UPPER_LIP: Final = (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291)
OUTER_LOWER_LIP: Final = (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291)
MOUTH_CORNERS: Final = (61, 291)

RIGHT_BROW: Final = (46, 53, 52, 65, 55, 70, 63, 105, 66, 107)
LEFT_BROW: Final = (276, 283, 282, 295, 285, 300, 293, 334, 296, 336)
"""Lower row from the outer end to the inner, then the upper row."""

CHIN: Final = 152
NOSE_TIP: Final = 1
