"""Noticing that the next frame belongs to another shot, so that nothing of the last one lingers in the matte."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt

__all__ = ["SceneCutDetector"]

_LEVELS = 4  # per channel: 64 colours tell shots apart and forgive noise
_MAX_SAMPLES = 4096


class SceneCutDetector:
    """Compares the colours of consecutive small pictures.

    The score is the total variation distance of their colour histograms: 0 for the same colours in any arrangement
    (so motion does not count), 1 for no colour in common.

    Args:
        threshold: Score from which a frame starts a new shot; 0 never does.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._previous: npt.NDArray[np.float64] | None = None

    def is_cut(self, rgb: npt.NDArray[np.float32]) -> bool:
        """True when this picture starts a new shot; the first picture does not.

        Args:
            rgb: float32, RGB 0..1 with the channel axis last, any size; the next frame in order.
        """
        if self._threshold <= 0:
            return False
        pixels = rgb.reshape(-1, 3)
        pixels = pixels[:: max(len(pixels) // _MAX_SAMPLES, 1)]
        histogram = _soft_histogram(pixels)
        previous, self._previous = self._previous, histogram
        return previous is not None and float(np.abs(histogram - previous).sum()) / 2 >= self._threshold


def _soft_histogram(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Share of each colour, every sample divided among the eight nearest bins.

    With hard bins a flat wall that crosses a bin's border by a hair would look like another shot.
    """
    position = np.clip(pixels, 0, 1) * (_LEVELS - 1)
    lower = np.minimum(position.astype(np.int32), _LEVELS - 2)
    upper_share = position - lower
    histogram = np.zeros(_LEVELS**3)
    strides = np.array([_LEVELS**2, _LEVELS, 1])
    for corner in product((0, 1), repeat=3):
        share = np.where(corner, upper_share, 1 - upper_share).prod(axis=1)
        histogram += np.bincount((lower + corner) @ strides, weights=share, minlength=_LEVELS**3)
    return histogram / len(pixels)
