"""Makes the lashes of a shut eye: the dark roots at the lid's edge, single lashes that hang down, and their shade.

A lid that closes hides the portrait's own lashes, so these are made once, as a cover over the skin. Means over many
lashes would be a smooth band, which looks drawn: each has its own length and direction.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.face import FloatArray

LASHES_LEFT, LASHES_TOP, LASHES_RIGHT, LASHES_BOTTOM = -0.12, -0.12, 1.12, 0.26
"""Extent of the cover: along the eye, in shares of the way from its outer corner to its inner one, and below the lid's
edge, in widths of the eye."""
_FEWEST_PIXELS, _MOST_PIXELS = 16, 512
"""Limits of the number of pixels in a width of the eye."""
_FINER = 6
"""Pixels in which a pixel is drawn, along each axis."""
_PLACES = np.linspace(0, 1, 7)
_LENGTHS = np.array([0.08, 0.14, 0.165, 0.155, 0.13, 0.09, 0.03])
"""Lengths of lashes from the outer corner to the inner, in widths of the eye."""
_ROOTS = np.array([0.1, 0.75, 1.0, 1.0, 0.9, 0.7, 0.15])
"""How dark their roots are there, relative to the middle."""
_COUNT, _THICK, _THIN = 46, 0.016, 0.004
"""Number of lashes, and their thickness at root and tip, in widths of the eye."""
_FAN, _ASTRAY = 0.9, 0.5
"""Tangent of a lash's direction for each width of the eye from the middle, and its random part."""
_ROOT_COVER, _ROOT_UP, _ROOT_ABOVE, _ROOT_BELOW = 0.78, 0.035, 0.028, 0.046
"""Cover of the roots, how far they lie above the lid's edge, and their softness above and below."""
_LASH_COVER, _LASH_SOFT, _LEAST_SOFT_PX = 0.42, 0.009, 0.7
"""Cover of lashes, their softness in widths of the eye, and its minimum: as sharp as a photograph's."""
_SHADE_COVER, _SHADE_ABOVE, _SHADE_BELOW = 0.38, 0.05, 0.12
"""Cover of the shade on the skin, and its softness above and below."""


def shut_lashes(width: float, *, index: int) -> FloatArray:
    """Make the lashes of a shut eye.

    Below a lid, the skin of eight people, shut and without paint, had 0.62, 0.77, 0.86, 0.92 and 0.96 of its light
    0.06, 0.10, 0.14, 0.18 and 0.22 widths of the eye away: so it has here with lashes of 0.28.

    Args:
        width: Of the eye, pixels.
        index: 0 for the right eye, 1 for the left: not quite the same lashes.

    Returns:
        float32 [rows, columns], 0..1: how far they cover the skin; 0 at its border.
    """
    pixels = float(np.clip(width, _FEWEST_PIXELS, _MOST_PIXELS))
    columns, rows = (
        round(extent * pixels) for extent in (LASHES_RIGHT - LASHES_LEFT, LASHES_BOTTOM - LASHES_TOP)
    )
    along = (np.arange(columns) + 0.5) * (LASHES_RIGHT - LASHES_LEFT) / columns + LASHES_LEFT
    below = ((np.arange(rows) + 0.5) * (LASHES_BOTTOM - LASHES_TOP) / rows + LASHES_TOP)[:, None]
    depth = np.interp(along, _PLACES, _ROOTS) * np.clip(np.minimum(along, 1 - along) / 0.06 + 0.5, 0, 1)
    from_roots = below + _ROOT_UP
    roots = _ROOT_COVER * np.exp(-((from_roots / np.where(from_roots < 0, _ROOT_ABOVE, _ROOT_BELOW)) ** 2))
    shade = _SHADE_COVER * np.exp(-((below / np.where(below < 0, _SHADE_ABOVE, _SHADE_BELOW)) ** 2))
    soft = max(_LASH_SOFT * pixels, _LEAST_SOFT_PX)
    lashes = _LASH_COVER * cv2.GaussianBlur(_drawn_lashes(columns, rows, seed=index), (0, 0), soft)
    cover = 1 - (1 - roots * depth) * (1 - shade * depth) * (1 - lashes)
    cover[[0, -1]] = 0
    cover[:, [0, -1]] = 0
    return np.asarray(cover, np.float32)


def _drawn_lashes(columns: int, rows: int, *, seed: int) -> npt.NDArray[np.float32]:
    """The share of each pixel that single lashes cover: float32 [rows, columns], 0..1."""
    random = np.random.default_rng(seed)
    fine = np.zeros((rows * _FINER, columns * _FINER), np.uint8)
    pixels = fine.shape[1] / (LASHES_RIGHT - LASHES_LEFT)
    for place in np.linspace(0.02, 0.98, _COUNT):
        root = place + random.normal(0, 1) / _COUNT
        length = float(np.interp(root, _PLACES, _LENGTHS)) * random.uniform(0.45, 1.1)
        aside = (root - 0.5) * _FAN + random.normal(0, _ASTRAY)
        ways = np.linspace(0, 1, 6)
        # They bend outward on their way down.
        middle = np.stack((root + length * aside * ways**1.5, length * ways - _ROOT_UP), axis=-1)
        half = (_THICK + (_THIN - _THICK) * ways)[:, None] * (0.5, 0)
        outline = np.concatenate((middle - half, (middle + half)[::-1])) - (LASHES_LEFT, LASHES_TOP)
        cv2.fillPoly(fine, [np.rint(outline * pixels * 16).astype(np.int32)], 255, shift=4)
    drawn = cv2.resize(fine, (columns, rows), interpolation=cv2.INTER_AREA)
    return np.asarray(drawn, np.float32) / np.float32(255)
