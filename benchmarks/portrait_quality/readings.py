"""Reads the faces in a video, and compares readings of two videos."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import (
    EYES,
    FACE_OVAL,
    LEFT_BROW,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
    RIGHT_BROW,
    CanonicalMesh,
    fit_pose,
)
from vitascope.animation.face import BLENDSHAPES, RgbPicture, TrackedFace, angles_of
from vitascope.animation.face_reading import irises_seen, mouth_width_seen

__all__ = [
    "LIDS_SHUT",
    "MOVES",
    "READINGS",
    "compared",
    "open_eyed",
    "psnr",
    "readings_of",
    "region_of",
    "squared_error",
    "wrong_lips",
]

READINGS = (
    *("lip gap", "mouth width", "smile", "pucker", "funnel"),
    *("brows", "brows up", "brows down", "blink"),
    *("gaze sideways", "gaze up", "yaw", "pitch", "roll"),
)
"""Lengths are shares of the distance of the outer corners of the eyes, in the head's own axes: a turn changes none.
Smile, pucker, funnel, brows up (at their inner ends) and down, and blink are MediaPipe's weights; gaze is the iris's
place between the corners of its eye, in shares of their distance, and the mean of both eyes; angles are degrees.

What lies along the line of the eyes (mouth width, gaze) is read in the picture's plane, without the depth that the
network guesses. Angles are those of points that expressions move least; MediaPipe's own turn with a jaw that opens."""
_LEAST = (0.01, 0.01, 0.1, 0.1, 0.1, 0.006, 0.1, 0.1, 0.03, 0.01, 0.01, 2.0, 2.0, 2.0)
MOVES = dict(zip(READINGS, _LEAST, strict=True))
"""A driver whose reading varies less (standard deviation) does not move: there is only noise to compare. Angles of
paintings that were turned by known ones are read with errors of 0.6 to 1.6 degrees; weights at rest differ between
people by 0.1 and more."""
LIDS_SHUT = 0.4
"""Weight of a blink above which no iris is visible: those frames do not count for the gaze."""
_UPPER, _LOWER = 13, 14
_LIPS = (0.03, 0.05)
"""Below the first, lips are closed; above the second, open; 0.04 is some 3.6 mm. Values between do not
count."""


def readings_of(mesh: CanonicalMesh, face: TrackedFace) -> list[float]:
    """The values of ``READINGS`` for one face."""
    pose = fit_pose(mesh, face.landmarks)
    points = pose.unplace(face.landmarks)  # centimetres, upright and frontal
    unit = float(np.linalg.norm(points[EYES[0].outer_corner] - points[EYES[1].outer_corner]))
    gap = float(np.linalg.norm(points[_UPPER] - points[_LOWER])) / unit
    corners = [index for eye in EYES for index in (eye.outer_corner, eye.inner_corner)]
    brows = (points[list(RIGHT_BROW + LEFT_BROW), 1].mean() - points[corners, 1].mean()) / unit
    sideways, down = irises_seen(face.landmarks).mean(axis=0)

    def weight(name: str) -> float:
        sides = [f"{name}Left", f"{name}Right"] if f"{name}Left" in BLENDSHAPES else [name]
        return float(np.mean([face.blendshape(side) for side in sides]))

    mouth = [weight(name) for name in ("mouthSmile", "mouthPucker", "mouthFunnel")]
    upper = [brows, *(weight(name) for name in ("browInnerUp", "browDown", "eyeBlink"))]
    lips = [gap, mouth_width_seen(face.landmarks)]
    return [*lips, *mouth, *upper, sideways, -down, *angles_of(pose.rotation)]


def open_eyed(series: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """The frames [N] of readings [driver or result, reading, N] in which neither blinks."""
    return np.asarray((series[:, READINGS.index("blink")] < LIDS_SHUT).all(axis=0))


def compared(driver: npt.NDArray[np.float64], result: npt.NDArray[np.float64]) -> dict[str, float]:
    """Compute the driver's variation in a reading [N], and correlation and slope of the result's."""
    moves = float(driver.std())
    r = float(np.corrcoef(driver, result)[0, 1]) if min(moves, result.std()) > 0 else 0.0
    slope = float(np.polyfit(driver, result, 1)[0]) if moves > 0 else 0.0
    return {"driver_std": round(moves, 4), "r": round(r, 3), "slope": round(slope, 3)}


def wrong_lips(driver: npt.NDArray[np.float64], result: npt.NDArray[np.float64]) -> float:
    """The share of frames in which the driver's lips are clearly open or closed, and the result's are the other.

    Args:
        driver: Lip gaps [N].
        result: The same of the result.
    """
    closed, opened = driver < _LIPS[0], driver > _LIPS[1]
    middle = sum(_LIPS) / 2
    wrong = (closed & (result > middle)) | (opened & (result < middle))
    return float(wrong.sum() / max((closed | opened).sum(), 1))


def region_of(face: TrackedFace, which: str) -> npt.NDArray[np.bool_]:
    """The pixels [H, W] of a tracked face, or of its mouth and what is around it."""
    width, height = face.picture_size
    outline: Sequence[int] = FACE_OVAL if which == "face" else OUTER_UPPER_LIP + OUTER_LOWER_LIP
    points = face.landmarks[list(outline), :2]
    if which == "mouth":
        points = points.mean(axis=0) + 1.5 * (points - points.mean(axis=0))
    mask = np.zeros((height, width), np.uint8)
    cv2.fillConvexPoly(mask, cv2.convexHull(np.rint(points).astype(np.int32)), 1)
    return mask.astype(bool)


def psnr(squares: Sequence[float]) -> float:
    """Compute a video's PSNR in dB from the mean squared error of each frame, in codes of 255."""
    return round(float(10 * np.log10(255**2 / max(float(np.mean(squares)), 1e-6))), 2)


def squared_error(one: RgbPicture, other: RgbPicture, region: npt.NDArray[np.bool_]) -> float:
    """Mean squared difference of two pictures in a region, codes of 255."""
    return float(np.square(one[region].astype(np.float64) - other[region]).mean())
