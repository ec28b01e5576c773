"""How far a matte is from the truth, as the papers on matting define it.

Mattes are float32 [H, W], 0 (background) to 1. Where ``where`` (bool [H, W]) is given, only its samples count.
"""

from __future__ import annotations

from itertools import pairwise

import cv2
import numpy as np
import numpy.typing as npt

__all__ = ["METRICS", "connectivity_error", "dtssd", "gradient_error", "mse", "sad", "scores", "unknown_band"]

Alpha = npt.NDArray[np.float32]
Where = npt.NDArray[np.bool_] | None

METRICS = ("sad", "mse", "grad", "conn", "dtssd")
"""As ``scores`` names them."""

_GRADIENT_SIGMA = 1.4
_CONNECTIVITY_STEP, _CONNECTIVITY_TOLERANCE = 0.1, 0.15


def sad(alpha: Alpha, truth: Alpha, where: Where = None) -> float:
    """Sum of absolute differences, in thousands (Rhemann et al., CVPR 2009; Xu et al., Deep Image Matting, 2017)."""
    return float(_chosen(np.abs(alpha - truth), where).sum()) / 1e3


def mse(alpha: Alpha, truth: Alpha, where: Where = None) -> float:
    """Mean squared difference, times 1000 (Rhemann et al., CVPR 2009); 0 where no sample counts."""
    squares = _chosen(np.square(alpha - truth), where)
    return float(squares.mean()) * 1e3 if squares.size else 0.0


def gradient_error(alpha: Alpha, truth: Alpha, where: Where = None) -> float:
    """Sum of squared differences of gradient magnitudes, in thousands (Rhemann et al., CVPR 2009).

    Gradients are first derivatives of a Gaussian with sigma 1.4, each filter of unit norm, as in the authors' code.
    """
    return float(_chosen(np.square(_gradients(alpha) - _gradients(truth)), where).sum()) / 1e3


def _gradients(alpha: Alpha) -> Alpha:
    reach = int(np.ceil(_GRADIENT_SIGMA * np.sqrt(-2 * np.log(np.sqrt(2 * np.pi) * _GRADIENT_SIGMA * 0.01))))
    at = np.arange(-reach, reach + 1)
    gauss = np.exp(-np.square(at) / (2 * _GRADIENT_SIGMA**2)) / (_GRADIENT_SIGMA * np.sqrt(2 * np.pi))
    slope = at * gauss / _GRADIENT_SIGMA**2
    norm = np.sqrt(np.square(np.outer(gauss, slope)).sum())
    down = cv2.sepFilter2D(alpha, cv2.CV_32F, gauss, slope / norm, borderType=cv2.BORDER_REPLICATE)
    across = cv2.sepFilter2D(alpha, cv2.CV_32F, slope / norm, gauss, borderType=cv2.BORDER_REPLICATE)
    return np.hypot(across, down)


def connectivity_error(alpha: Alpha, truth: Alpha, where: Where = None) -> float:
    """Sum of differences of connectedness, in thousands (Rhemann et al., CVPR 2009; steps of 0.1, theta 0.15, p 1).

    A sample is as connected as the highest level at which it belongs to the largest part that both mattes share.
    """
    levels = np.arange(0, 1 + _CONNECTIVITY_STEP / 2, _CONNECTIVITY_STEP)
    reached = np.full(alpha.shape, -1.0, np.float32)
    for before, level in pairwise(levels):
        both = ((alpha >= level) & (truth >= level)).astype(np.uint8)
        _, labels, stats, _ = cv2.connectedComponentsWithStats(both, connectivity=4)
        largest = labels == 1 + np.argmax(stats[1:, cv2.CC_STAT_AREA]) if len(stats) > 1 else both > 1
        reached[(reached < 0) & ~largest] = before
    reached[reached < 0] = 1

    def connected(matte: Alpha) -> Alpha:
        beyond = matte - reached
        return 1 - beyond * (beyond >= _CONNECTIVITY_TOLERANCE)

    return float(_chosen(np.abs(connected(alpha) - connected(truth)), where).sum()) / 1e3


def dtssd(before: tuple[Alpha, Alpha], now: tuple[Alpha, Alpha], where: Where = None) -> float:
    """Flicker: root mean square of how differently matte and truth change, times 100 (Erofeev et al., BMVC 2015).

    Args:
        before: Matte and truth of a frame.
        now: Matte and truth of the next frame.
        where: The samples that count.
    """
    squares = _chosen(np.square((now[0] - before[0]) - (now[1] - before[1])), where)
    return float(np.sqrt(squares.mean())) * 100 if squares.size else 0.0


def unknown_band(truth: Alpha, reach_px: int) -> npt.NDArray[np.bool_]:
    """Where a trimap made of the truth knows nothing: within some pixels of what is neither person nor background."""
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach_px + 1, 2 * reach_px + 1))
    touched = cv2.dilate((truth > 0).astype(np.uint8), disc)
    sure = cv2.erode((truth >= 1).astype(np.uint8), disc)
    return (touched > 0) & (sure == 0)


def scores(
    alpha: Alpha, truth: Alpha, *, before: tuple[Alpha, Alpha] | None, where: Where = None
) -> dict[str, float]:
    """All of them by name; ``dtssd`` is left out where there is no frame before."""
    found = {
        "sad": sad(alpha, truth, where),
        "mse": mse(alpha, truth, where),
        "grad": gradient_error(alpha, truth, where),
        "conn": connectivity_error(alpha, truth, where),
    }
    return found if before is None else found | {"dtssd": dtssd(before, (alpha, truth), where)}


def _chosen(values: Alpha, where: Where) -> Alpha:
    return values if where is None else values[where]
