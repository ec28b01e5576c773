"""A video of two bright people who walk towards one another, for the scripted network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

COLORS = {1: (250, 220, 60), 2: (90, 250, 230)}


def two_people(n: int, *, eyes: int = 1) -> npt.NDArray[np.uint8]:
    """Paint frame n, [64, 96 * eyes, 3]: person 1 is at x 20 + n, person 2 at 76 - n; 3 less in the second eye."""
    picture = np.full((64, 96 * eyes, 3), (30, 50, 40), np.uint8)
    for eye in range(eyes):
        for who, middle in ((1, 20 + n), (2, 76 - n)):
            left = 96 * eye + middle - 8 - 3 * eye
            picture[14:64, left : left + 16] = COLORS[who]
            picture[40:64, left : left + 16] = np.array(COLORS[who])[::-1] // 2 + 110
    return picture
