"""Noticing that the next frame belongs to another shot, so that nothing of the last one lingers in the matte."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["SceneCutDetector"]

_LEVELS = 4  # per channel: 64 colours tell shots apart and forgive noise
_MAX_SAMPLES = 16384


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
        bins = np.minimum((pixels * _LEVELS).astype(np.int32), _LEVELS - 1)
        colours = np.bincount(bins @ np.array([_LEVELS**2, _LEVELS, 1], np.int32), minlength=_LEVELS**3)
        histogram = colours / len(pixels)
        previous, self._previous = self._previous, histogram
        return previous is not None and float(np.abs(histogram - previous).sum()) / 2 >= self._threshold
