"""Refines the line between two people by the colours of the picture, finer than the grid of cells.

Beside the line between kept people and others, a sample's share is determined by its colour's position between the
mean colours of both nearby: 1 at the kept person's, 0 at the other's. If both look alike, or one of them is not near,
the cells' share stays.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

FloatMap = npt.NDArray[np.float32]

_REACH, _FADE = 2.0, 0.67
"""Distance from the line, in cells, within which colours count, and the distance over which their effect fades. All
these values were chosen on clips of ``benchmarks/people.py`` with seeds 503 and 601 to 603: where people cross, 8.2 %
of the kept person were missing instead of 9.0 %; 0.33 % of the other showed instead of 0.28 %, and 2.7 % at worst, as
before."""
_CORE = 0.83
"""Distance from the line, in cells, beyond which cells certainly belong to one person, so that their colours are
averaged."""
_NEAR = 1.33
"""Standard deviation of the averaging window, in cells."""
_SOFTNESS = 0.6
"""Share of the distance between both colours over which one share changes into the other."""
_ALIKE = 0.12
"""Distance of two colours, each channel 0..1, at which their weight is one half."""
_LEAST_SEEN = np.float32(0.02)
"""Share of a window that a person must fill for their colour to count half."""
_MATTED = 0.02
"""Minimum alpha for a share to matter."""
_WINDOW = 4.0
"""Reach of a window, in standard deviations."""


def shares_by_color(rgb: FloatMap, share: FloatMap, alpha: FloatMap, *, cell: float) -> FloatMap:
    """Refine the shares of one picture beside the line where they pass one half.

    Args:
        rgb: float32 [h, w, 3], 0..1.
        share: The cells' shares, float32 [h, w], 0..1.
        alpha: Everybody's matte, float32 [h, w], 0..1.
        cell: Samples along a side of a cell.

    Returns:
        float32 [h, w], 0..1; ``share`` itself where no people touch.
    """
    own = (share > 0.5).astype(np.uint8)
    if own.all() or not own.any():
        return share
    inside: Any = cv2.distanceTransform(own, cv2.DIST_L2, 5)
    outside: Any = cv2.distanceTransform(1 - own, cv2.DIST_L2, 5)
    depth = (inside - outside) / np.float32(cell)
    strip = (np.abs(depth) < _REACH) & (alpha > _MATTED)
    rows, columns = np.flatnonzero(strip.any(axis=1)), np.flatnonzero(strip.any(axis=0))
    if not len(rows):
        return share
    around = int(np.ceil(_WINDOW * _NEAR * cell))
    part = (
        slice(max(rows[0] - around, 0), rows[-1] + around + 1),
        slice(max(columns[0] - around, 0), columns[-1] + around + 1),
    )
    colors, depth, strip = rgb[part], depth[part], strip[part]
    kept_color, kept_seen = _mean_near(colors, alpha[part] * (depth > _CORE), cell)
    other_color, other_seen = _mean_near(colors, alpha[part] * (depth < -_CORE), cell)
    apart = kept_color - other_color
    square = np.square(apart).sum(axis=2)
    place = ((colors - other_color) * apart).sum(axis=2) / (square + np.float32(1e-6))
    place = (0.5 + (place - 0.5) / np.float32(_SOFTNESS)).clip(0, 1)
    seen = np.minimum(kept_seen, other_seen)
    counts = square / (square + np.float32(_ALIKE**2)) * seen / (seen + _LEAST_SEEN)
    counts *= ((_REACH - np.abs(depth)) / np.float32(_FADE)).clip(0, 1) * strip
    finer = share.copy()
    finer[part] += counts * (place - share[part])
    return finer


def _mean_near(colors: FloatMap, weights: FloatMap, cell: float) -> tuple[FloatMap, FloatMap]:
    """The mean colour around each sample, float32 [h, w, 3], and the share of its window that counted, [h, w]."""
    weighted = np.dstack([colors * weights[..., None], weights])
    total: Any = cv2.GaussianBlur(weighted, (0, 0), _NEAR * cell)
    return total[..., :3] / (total[..., 3:] + np.float32(1e-4)), total[..., 3]
