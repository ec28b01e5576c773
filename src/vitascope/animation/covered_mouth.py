"""Detects a hand, a mask or a cup in front of the driver's mouth; the tracker guesses shut lips there.

Lips are redder than the skin around them, and the chin has the colour of the cheeks. A face's usual colours
are the median of those seen. A mouth is covered if it loses its red, or if the chin's colour departs from the
cheeks'. A change of light affects both alike.
"""

from __future__ import annotations

from collections import deque

import cv2
import numpy as np

from vitascope.animation.canonical_mesh import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
)
from vitascope.animation.face import FloatArray, RgbPicture, TrackedFace

_LIPS = tuple(
    (outer, inner)
    for row, edge in ((OUTER_UPPER_LIP, INNER_UPPER_LIP), (OUTER_LOWER_LIP, INNER_LOWER_LIP))
    for outer, inner in zip(row[3:8], edge[3:8], strict=True)
)
_EYES = [eye.outer_corner for eye in EYES]
_OUTER, _INNER = ([pair[side] for pair in _LIPS] for side in (0, 1))
_CHIN, _CHEEKS, _NOSE = [18, 200, 199, 83, 313], ([50, 205], [280, 425]), 4
_HALF_SIDE = 0.02
"""Half the side of the sampled squares, in distances between the eyes' outer corners."""
_SQUARE: FloatArray = np.array([(x, y) for y in (-1, 0, 1) for x in (-1, 0, 1)], np.float32)
_REMEMBERS, _KNOWN_AFTER, _LEARNS_ANEW_AFTER = 300, 10, 150
"""Faces in the median; the minimum number for using it; and the number after which a lasting cover counts as
usual."""
_RED, _RED_LEFT = 4.0, (0.2, 0.35)
"""Minimum red of the lips relative to the skin, in CIELAB a, for using it; and the shares of it below which a
mouth is covered and above which it is visible again. Two speakers keep at least 0.45 and 0.55; a hand leaves
-0.2 to 0.2."""
_SHUT = 0.05
"""Maximum gap between the lips that a tracker may have guessed, in distances between the eyes' outer corners:
0.003 to 0.03 for two speakers with a hand or a mask over the mouth. A grin's bare teeth have no red
either."""
_OFF, _ON_AGAIN = 7.0, 5.0
"""Distances in CIELAB a and b from the usual difference between chin and cheeks at which the mouth counts as
covered, and as visible again: up to 3.5 in four videos, 8 and more under a grey mask."""


class MouthWatch:
    """Detects a covered mouth of one followed face. Holds the state of a stream; used by one thread."""

    def __init__(self) -> None:
        self._usual: deque[FloatArray] = deque(maxlen=_REMEMBERS)
        self._covered_for = 0

    def is_covered(self, rgb: RgbPicture, face: TrackedFace) -> bool:
        """Look at the next picture.

        Args:
            rgb: uint8 [H, W, 3], in which the face was tracked.
            face: The face; a new one has no connection with earlier ones.
        """
        if face.is_new or self._covered_for >= _LEARNS_ANEW_AFTER:
            self._usual.clear()
            self._covered_for = 0
        colours = _colours(rgb, face.landmarks)
        if len(self._usual) >= _KNOWN_AFTER and _gap(face.landmarks) <= _SHUT:
            usual = np.median(self._usual, axis=0)
            was = self._covered_for > 0
            is_off = float(np.linalg.norm(colours[1:] - usual[1:])) > (_ON_AGAIN if was else _OFF)
            is_pale = usual[0] >= _RED and colours[0] < usual[0] * _RED_LEFT[was]
            if is_off or is_pale:
                self._covered_for += 1
                return True
        self._covered_for = 0
        self._usual.append(colours)
        return False


def _gap(landmarks: FloatArray) -> float:
    """Measure the gap in the middle of the lips, in distances between the eyes' outer corners."""
    apart = np.linalg.norm(np.subtract(*landmarks[[INNER_UPPER_LIP[5], INNER_LOWER_LIP[5]], :2]))
    eyes = np.linalg.norm(np.subtract(*landmarks[_EYES, :2]))
    return float(apart) / max(float(eyes), 1e-3)


def _colours(rgb: RgbPicture, landmarks: FloatArray) -> FloatArray:
    """Measure the colours that a covered mouth changes.

    Returns:
        float32 [3]: red of the lips relative to the skin around them, and a and b of the chin relative to the nearer
        cheek.
    """
    places = landmarks[:, :2]
    side = _HALF_SIDE * float(np.linalg.norm(np.subtract(*places[_EYES])))
    from_nose = [float(np.linalg.norm(places[cheek].mean(axis=0) - places[_NOSE])) for cheek in _CHEEKS]
    cheek = places[_CHEEKS[int(np.argmax(from_nose))]]
    lips_middle = (places[_OUTER] + places[_INNER]) / 2
    shown: FloatArray = np.concatenate((lips_middle, places[_CHIN], cheek))
    around = np.rint(shown[:, None] + _SQUARE * side).astype(np.intp)  # [N, 9, 2]
    x, y = (around[..., axis].clip(0, most - 1) for axis, most in ((0, rgb.shape[1]), (1, rgb.shape[0])))
    seen = rgb[y, x].mean(axis=1, dtype=np.float32) / 255
    parts = np.split(seen, (len(_OUTER), len(_OUTER) + len(_CHIN)))
    medians = np.array([[np.median(part, axis=0) for part in parts]], np.float32)
    lips, chin, beside = cv2.cvtColor(medians, cv2.COLOR_RGB2LAB)[0, :, 1:].astype(np.float32)
    return np.array([lips[0] - (chin[0] + beside[0]) / 2, *(chin - beside)], np.float32)
