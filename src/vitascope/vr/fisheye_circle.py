"""Where a fisheye camera's circle lies in a picture: what the black corners around it show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Circle", "find_circle"]

Circle = tuple[tuple[float, float], tuple[float, float]]
"""Centre (x, y) and radius (x, y), as fractions of the picture's width and height."""

# Of the picture's sides; luma of 8 bits.
_CORNER, _DARKEST_CORNERS_LUMA, _ABOVE_CORNERS_LUMA = 0.05, 44.0, 10.0
_NEAR, _LEAST_NEAR_SHARE = 0.02, 0.5
_LEAST_OUTSIDE_SHARE, _LEAST_DARK_SHARE = 0.02, 0.98
_CENTERS, _RADII = (0.3, 0.7), (0.3, 0.75)
_FITS = 8


def find_circle(pictures: Sequence[npt.NDArray[np.uint8]]) -> Circle | None:
    """Find the circle that some pictures of one eye show in black corners.

    Args:
        pictures: Luma of frames of one video, uint8 [h, w], all of one size.

    Returns:
        Centre and radius; None where there is no such circle.
    """
    if not pictures or min(pictures[0].shape) < 16:
        return None
    # What is ever bright lies inside, however dark a single frame is.
    brightest = np.max(np.stack(pictures), axis=0).astype(np.float32)
    height, width = brightest.shape
    deep, broad = max(round(height * _CORNER), 2), max(round(width * _CORNER), 2)
    corners = [
        brightest[rows, columns]
        for rows in (slice(0, deep), slice(height - deep, height))
        for columns in (slice(0, broad), slice(width - broad, width))
    ]
    corner_luma = max(float(np.percentile(corner, 95)) for corner in corners)
    if corner_luma > _DARKEST_CORNERS_LUMA:
        return None
    bright = brightest > corner_luma + _ABOVE_CORNERS_LUMA
    circle = _fitted(_border(bright))
    if circle is None:
        return None
    (x, y), (radius_x, radius_y) = circle
    if not all(_CENTERS[0] <= place <= _CENTERS[1] for place in (x, y)):
        return None
    if not all(_RADII[0] <= radius <= _RADII[1] for radius in (radius_x, radius_y)):
        return None
    rows, columns = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    distance = np.hypot(((rows - y) / radius_y)[:, None], ((columns - x) / radius_x)[None])
    outside = distance > 1 + 2 * _NEAR
    if outside.mean() < _LEAST_OUTSIDE_SHARE or (~bright[outside]).mean() < _LEAST_DARK_SHARE:
        return None
    return circle


def _border(bright: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """The outermost bright places of each row and column that are not the picture's own border: float64 [n, 2], x y."""
    height, width = bright.shape
    places: list[tuple[float, float]] = []
    for row in np.flatnonzero(bright.any(axis=1)):
        columns = np.flatnonzero(bright[row])
        places += [(edge / width, (row + 0.5) / height) for edge in (columns[0], columns[-1] + 1)]
    for column in np.flatnonzero(bright.any(axis=0)):
        rows = np.flatnonzero(bright[:, column])
        places += [((column + 0.5) / width, edge / height) for edge in (rows[0], rows[-1] + 1)]
    found = np.array(places, np.float64).reshape(-1, 2)
    one = 1.5 / np.array([width, height])
    return np.asarray(found[((found > one) & (found < 1 - one)).all(axis=1)])


def _fitted(border: npt.NDArray[np.float64]) -> Circle | None:
    """The upright ellipse through border places; those inside it, where the scene is dark at the rim, do not count."""
    kept = border
    for turn in range(_FITS):
        if len(kept) < 16:
            return None
        x, y = kept[:, 0] - 0.5, kept[:, 1] - 0.5
        # a x^2 + b y^2 + c x + d y = 1
        (a, b, c, d), *_ = np.linalg.lstsq(np.stack([x**2, y**2, x, y], axis=1), np.ones(len(x)), rcond=None)
        if min(a, b) <= 0:
            return None
        center_x, center_y = -c / (2 * a), -d / (2 * b)
        size = 1 + a * center_x**2 + b * center_y**2
        radius_x, radius_y = (size / a) ** 0.5, (size / b) ** 0.5
        distance = np.hypot(
            (border[:, 0] - 0.5 - center_x) / radius_x, (border[:, 1] - 0.5 - center_y) / radius_y
        )
        # First what is dark inside goes, which lies on one side alone; in the end glow around the circle, too.
        kept = border[distance > 1 - _NEAR] if turn < _FITS // 2 else border[np.abs(distance - 1) <= _NEAR]
    if (np.abs(distance - 1) <= _NEAR).mean() < _LEAST_NEAR_SHARE:
        return None
    return (float(center_x + 0.5), float(center_y + 0.5)), (float(radius_x), float(radius_y))
