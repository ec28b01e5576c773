"""A second reader of faces: dlib's 68 points, which were learned from other people's marks than MediaPipe's network.

dlib's shape predictor (Kazemi and Sullivan, "One millisecond face alignment with an ensemble of regression trees",
2014) learned from iBUG 300-W, photographs that people marked. Nothing in Vitascope reads faces with it, is driven by
it or calibrated by it: it is a benchmark's tool alone. ``dlib`` is BSL-1.0 and the predictor's file CC0; the pictures
that it learned from were given for research, not for products.

It starts from a box about the face. dlib's own detector puts it 3 cm below the eyes and makes it 14.5 cm wide (medians
of 14 faces, paintings among them), but not on every frame; so the box is placed by MediaPipe's eyes and the
head's size; mouth and chin do not matter. A reading is the mean from several boxes.

    pip install dlib-bin
    pip download --no-deps face_recognition_models==0.3.0     # holds shape_predictor_68_face_landmarks.dat
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import EYES, TO_PICTURE, CanonicalMesh, fit_pose
from vitascope.animation.face import FloatArray, RgbPicture, TrackedFace, angles_of

__all__ = ["POINTS_READ", "PointReader", "read_points"]

POINTS_READ = ("lip gap", "mouth width", "brows", "yaw", "pitch")
"""What the points tell of ``readings.READINGS``, in its units. They have no iris and no weights, and roll is where the
box is turned to."""
_BELOW_THE_EYES_CM, _SIDE_CM = 3.0, 14.5
_BOX_PX = 200
"""Side of the box in the picture that the predictor sees, as large as it was trained on."""
_SHIFTS = (-0.06, 0.0, 0.06)
"""Boxes about that box, each way, in its sides: points jump from tree to tree, and their mean by less."""
_EYES, _BROWS = [36, 39, 42, 45], slice(17, 27)
_MOUTH_CORNERS, _INNER_LIPS = (48, 54), (62, 66)
_RIGID = {36: 33, 39: 133, 42: 362, 45: 263, 27: 168, 28: 197, 29: 195, 30: 4, 31: 98, 33: 2, 35: 327}
"""Points of the eyes' corners and the nose, and the mesh's vertices there."""


class PointReader:
    """Finds the 68 points.

    Args:
        predictor: ``shape_predictor_68_face_landmarks.dat``.

    Raises:
        ImportError: dlib is not installed.
        RuntimeError: The file is not a predictor of dlib.
    """

    def __init__(self, predictor: Path) -> None:
        import dlib

        self._rectangle = dlib.rectangle
        self._predictor = dlib.shape_predictor(str(predictor))

    def points(self, rgb: RgbPicture, face: TrackedFace, mesh: CanonicalMesh) -> FloatArray:
        """The points of one face.

        Args:
            rgb: uint8 [H, W, 3].
            face: Tracked in it.
            mesh: The canonical face.

        Returns:
            float32 [68, 2], pixels.
        """
        onto = upright(face, mesh)
        side = 2 * _BOX_PX
        shown = cv2.warpAffine(rgb, onto, (side, side), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REPLICATE)
        found = []
        for shift in product(_SHIFTS, _SHIFTS):
            first = np.rint(_BOX_PX * (0.5 + np.array(shift))).astype(int)
            corners = np.concatenate((first, first + _BOX_PX))
            shape = self._predictor(shown, self._rectangle(*corners.tolist()))
            found.append([(shape.part(index).x, shape.part(index).y) for index in range(68)])
        back = cv2.invertAffineTransform(onto)
        return np.asarray(np.mean(found, axis=0) @ back[:, :2].T + back[:, 2], np.float32)


def upright(face: TrackedFace, mesh: CanonicalMesh) -> npt.NDArray[np.float64]:
    """The affine map [2, 3] that turns a face upright, its box in the middle of a square of twice the box's side."""
    pose = fit_pose(mesh, face.landmarks)
    roll = np.radians(angles_of(pose.rotation)[2])
    eyes = np.mean([face.landmarks[[eye.outer_corner, eye.inner_corner], :2] for eye in EYES], axis=(0, 1))
    scale = _BOX_PX / (_SIDE_CM * pose.scale)
    turn = scale * np.array([[np.cos(roll), np.sin(roll)], [-np.sin(roll), np.cos(roll)]])
    there = np.array([_BOX_PX, _BOX_PX - _BELOW_THE_EYES_CM / _SIDE_CM * _BOX_PX])
    return np.column_stack((turn, there - turn @ eyes))


def read_points(points: FloatArray, mesh: CanonicalMesh) -> list[float]:
    """The values of ``POINTS_READ`` of 68 points, [68, 2] pixels."""
    scale, rotation = _pose(points, mesh)
    outer = points[45] - points[36]
    line = outer / np.linalg.norm(outer)
    up = np.array([line[1], -line[0]])
    whole = scale * float(mesh.vertices[263, 0] - mesh.vertices[33, 0])
    gap = (points[_INNER_LIPS[0]] - points[_INNER_LIPS[1]]) @ up / whole
    width = (points[_MOUTH_CORNERS[1]] - points[_MOUTH_CORNERS[0]]) @ line / np.linalg.norm(outer)
    brows = (points[_BROWS].mean(axis=0) - points[_EYES].mean(axis=0)) @ up / whole
    return [float(gap), float(width), float(brows), *angles_of(rotation)[:2]]


def _pose(points: FloatArray, mesh: CanonicalMesh) -> tuple[float, npt.NDArray[np.float64]]:
    """Pixels a centimetre and rotation [3, 3], picture's axes, of a head far away: least squares on what is rigid."""
    solid = mesh.vertices[list(_RIGID.values())].astype(np.float64) @ TO_PICTURE
    seen = points[list(_RIGID)].astype(np.float64)
    rows = np.linalg.lstsq(solid - solid.mean(axis=0), seen - seen.mean(axis=0), rcond=None)[0].T  # [2, 3]
    left, sizes, right = np.linalg.svd(rows, full_matrices=False)
    first, second = left @ right
    return float(sizes.mean()), np.stack((first, second, np.cross(first, second)))
