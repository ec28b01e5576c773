"""What a user may do to the edge of a matte: harden, move, soften."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.guided import alpha_peak
from vitascope.gpu.kernels.morphology import MAX_RADIUS_PX, dilate_disc, erode_disc
from vitascope.gpu.kernels.region import Region

__all__ = ["EdgeOptions", "adjust_edges", "map_levels"]


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

    Runs where alpha is: NumPy on the CPU; CuPy on the GPU, ordered on the current stream. The results are equal.

    Args:
        alpha: uint8 or uint16 [H, W], full scale 255 or 65535.
        options: What to do.
        regions: Where each eye lies; together they cover the frame.

    Returns:
        The same dtype and shape; the input itself when nothing was asked for.

    Raises:
        ValueError: Moved by more than 256 samples.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if not options.active:
        return alpha
    if abs(options.grow_px) > MAX_RADIUS_PX:
        raise ValueError(f"grow_px is {options.grow_px}, expected at most {MAX_RADIUS_PX} either way")
    if is_on_gpu(alpha):
        # Imported here: the launch is of no use without a GPU.
        from vitascope.gpu.kernels.edges_cuda import launch_edges

        made: Plane = launch_edges(alpha, options, regions)
        return made
    adjusted = np.empty_like(alpha)
    for region in regions:
        adjusted[region.rows, region.columns] = _adjust(
            np.ascontiguousarray(alpha[region.rows, region.columns]), options
        )
    return adjusted


def _adjust(alpha: Plane, options: EdgeOptions) -> Plane:
    if options.threshold is not None:
        alpha = map_levels(alpha, *options.threshold)
    if options.grow_px:
        alpha = _move_edge(alpha, options.grow_px)
    if options.feather_px > 0:
        alpha = cv2.GaussianBlur(alpha, (0, 0), options.feather_px, borderType=cv2.BORDER_REPLICATE)
    return alpha


def map_levels(alpha: Plane, low: float, high: float) -> Plane:
    """The threshold alone.

    Args:
        alpha: NumPy uint8 or uint16 [H, W].
        low: Level in 0..1 that becomes 0.
        high: Level that becomes 1; at or below ``low``, a hard cut there.

    Returns:
        The same dtype and shape.
    """
    peak = alpha_peak(alpha)
    if high <= low:  # one level: a hard cut
        hard = (alpha >= np.float32(low * peak)).astype(alpha.dtype)
        return np.asarray(hard * peak, alpha.dtype)
    slope = 1.0 / (high - low)
    depth = cv2.CV_8U if peak == 255 else cv2.CV_16U
    return cv2.addWeighted(alpha, slope, alpha, 0.0, -low * slope * peak, dtype=depth)


def _move_edge(alpha: Plane, pixels: float) -> Plane:
    """Grey-scale dilation or erosion with a disc; a fraction of a pixel blends the two nearest whole ones."""
    move = dilate_disc if pixels > 0 else erode_disc
    whole = int(abs(pixels))
    fraction = abs(pixels) - whole
    near = move(alpha, whole)
    if fraction == 0:
        return near
    return cv2.addWeighted(near, 1.0 - fraction, move(alpha, whole + 1), fraction, 0.0)
