"""Refines the line between two people by the colours of the picture, finer than the grid of cells.

Beside the line between who is kept and who is left out, each sample's share is where its colour lies between the mean
colours of both near by: 1 at the kept one's, 0 at the other's. Where both look alike, or one of them is not near, it
stays what the cells say.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

FloatMap = npt.NDArray[np.float32]

_REACH, _FADE = 2.0, 0.67
"""Cells beside the line within which colours count, and over which that ends. All of this was chosen on clips of
``benchmarks/people.py`` with the seeds 503 and 601 to 603: of the kept one 8.2 % were missing where people cross in
place of 9.0 %, while .33 % of the other showed in place of .28 %, and 2.7 % at worst, as before."""
_CORE = 0.83
"""Distance from the line, in cells, from which on cells are surely one person's, and their colours are averaged."""
_NEAR = 1.33
"""Standard deviation of the averaging window, in cells."""
_SOFTNESS = 0.6
"""Share of the distance between both colours over which one share changes into the other."""
_ALIKE = 0.12
"""Distance of two colours, each channel 0..1, at which their weight is one half."""
_LEAST_SEEN = np.float32(0.02)
"""Share of a window that somebody must fill for their colour to count half."""
_MATTED = 0.02
"""Minimum alpha at which there is something to share."""
_WINDOW = 4.0
"""Reach of a window, in standard deviations."""


def shares_by_color(rgb: FloatMap, share: FloatMap, alpha: FloatMap, *, cell: float) -> FloatMap:
    """Shares of one picture, made finer beside the line where they pass one half.

    Args:
        rgb: float32 [h, w, 3], 0..1.
        share: What the cells say, float32 [h, w], 0..1.
        alpha: Everybody's matte, float32 [h, w], 0..1.
        cell: Samples along a side of a cell.

    Returns:
        float32 [h, w], 0..1; ``share`` itself where nobody touches.
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
    """The mean colour around each sample, float32 [h, w, 3], and how much of its window counted, [h, w]."""
    weighted = np.dstack([colors * weights[..., None], weights])
    total: Any = cv2.GaussianBlur(weighted, (0, 0), _NEAR * cell)
    return total[..., :3] / (total[..., 3:] + np.float32(1e-4)), total[..., 3]
