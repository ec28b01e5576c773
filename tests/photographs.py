"""A photograph that painters of clips take their pictures from."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from skimage import data

__all__ = ["astronaut"]


@cache
def astronaut() -> npt.NDArray[np.uint8]:
    """Return scikit-image's portrait of Eileen Collins, read-only RGB [512, 512, 3]; read once, as it takes 10 ms."""
    picture: npt.NDArray[np.uint8] = data.astronaut()
    picture.flags.writeable = False
    return picture
