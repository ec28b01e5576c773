"""Where one shot of a video ends and the next begins."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.histogram import color_histogram

__all__ = ["SceneCutDetector"]


class SceneCutDetector:
    """Compares the colours of consecutive small pictures.

    Pictures come one by one (``is_cut``), or as histograms that were made elsewhere (``is_cut_histogram``): a GPU makes
    those of a whole batch, and only they come down. 64 colours tell shots apart and forgive noise.

    The score is the total variation distance of their colour histograms: 0 for the same colours in any arrangement
    (so motion does not count), 1 for no colour in common.

    Args:
        threshold: Score from which a frame starts a new shot; 0 never does.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._previous: npt.NDArray[np.float32] | None = None

    def is_cut(self, rgb: npt.NDArray[np.float32]) -> bool:
        """True when this picture starts a new shot; the first picture does not.

        Args:
            rgb: float32, RGB 0..1 with the channel axis last, any size; the next frame in order.
        """
        return self.is_cut_histogram(self.histogram(rgb)) if self._threshold > 0 else False

    def histogram(self, rgb: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What ``is_cut_histogram`` takes, of one picture; from any thread.

        Args:
            rgb: float32, RGB 0..1 with the channel axis last, any size.
        """
        # The pixels as one row: what else the axes mean makes no difference.
        return color_histogram(rgb.reshape(1, -1, 3), layout="NHWC")

    def is_cut_histogram(self, histogram: npt.NDArray[np.float32]) -> bool:
        """True when the picture with this histogram starts a new shot; the first picture does not.

        Args:
            histogram: float32 [64], as ``color_histogram`` makes it, in the host's memory; of the next frame in order.
        """
        if self._threshold <= 0:
            return False
        # A copy, because the caller may write the next batch's histograms into the same memory.
        previous, self._previous = self._previous, histogram.copy()
        return previous is not None and float(np.abs(histogram - previous).sum()) / 2 >= self._threshold
