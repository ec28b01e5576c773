"""What a user may do to the edge of a matte: harden, move, soften."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.kernels.guided import alpha_peak
from vitascope.gpu.kernels.region import Region

__all__ = ["EdgeOptions", "adjust_edges"]


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """Applied in this order; the default leaves the matte alone."""

    threshold: tuple[float, float] | None = None
    """Alpha at or below the first level becomes 0, at or above the second 1, linear between; 0..1."""
    grow_px: float = 0.0
    """Luma samples that the edge moves outward; negative moves it inward."""
    feather_px: float = 0.0
    """Standard deviation of the Gaussian that softens the edge, in luma samples."""

    @property
    def active(self) -> bool:
        """True when anything would change."""
        return self.threshold is not None or self.grow_px != 0 or self.feather_px > 0


def adjust_edges(alpha: Plane, options: EdgeOptions, *, regions: Sequence[Region]) -> Plane:
    """Threshold, then grow or shrink, then feather; each eye by itself.

    Args:
        alpha: uint8 or uint16 [H, W], full scale 255 or 65535.
        options: What to do.
        regions: Where each eye lies; together they cover the frame.

    Returns:
        The same dtype and shape; the input itself when nothing was asked for.
    """
    if not options.active:
        return alpha
    adjusted = np.empty_like(alpha)
    for region in regions:
        adjusted[region.rows, region.columns] = _adjust(
            np.ascontiguousarray(alpha[region.rows, region.columns]), options
        )
    return adjusted


def _adjust(alpha: Plane, options: EdgeOptions) -> Plane:
    if options.threshold is not None:
        alpha = _levels(alpha, *options.threshold)
    if options.grow_px:
        alpha = _move_edge(alpha, options.grow_px)
    if options.feather_px > 0:
        alpha = cv2.GaussianBlur(alpha, (0, 0), options.feather_px, borderType=cv2.BORDER_REPLICATE)
    return alpha


def _levels(alpha: Plane, low: float, high: float) -> Plane:
    peak = alpha_peak(alpha)
    if high <= low:  # one level: a hard cut
        hard = (alpha >= np.float32(low * peak)).astype(alpha.dtype)
        return np.asarray(hard * peak, alpha.dtype)
    slope = 1.0 / (high - low)
    depth = cv2.CV_8U if peak == 255 else cv2.CV_16U
    return cv2.addWeighted(alpha, slope, alpha, 0.0, -low * slope * peak, dtype=depth)


def _move_edge(alpha: Plane, pixels: float) -> Plane:
    """Grey-scale dilation or erosion with a disc; a fraction of a pixel blends the two nearest whole ones."""
    operation = cv2.dilate if pixels > 0 else cv2.erode
    whole = int(abs(pixels))
    fraction = abs(pixels) - whole
    near = operation(alpha, _disc(whole)) if whole else alpha
    if fraction == 0:
        return near
    return cv2.addWeighted(near, 1.0 - fraction, operation(alpha, _disc(whole + 1)), fraction, 0.0)


def _disc(radius: int) -> Plane:
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
