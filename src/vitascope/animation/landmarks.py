"""Which of MediaPipe's landmarks make a feature.

Numbers are those of MediaPipe's face mesh (``FACEMESH_*`` connections of its Python package). Right and left are the
person's own: the right eye is at the left of an unmirrored picture.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "CHIN", "EYES", "FACE_OVAL", "INNER_LOWER_LIP", "INNER_UPPER_LIP", "LEFT_BROW", "MOUTH_CORNERS",
    "NOSE_TIP", "OUTER_LOWER_LIP", "OUTER_UPPER_LIP", "RIGHT_BROW", "EyeLandmarks",
]  # fmt: skip


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
