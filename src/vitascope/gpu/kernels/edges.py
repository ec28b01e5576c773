"""Edits the edge of a matte: harden, move, soften."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Plane
from vitascope.gpu.kernels.color import alpha_peak
from vitascope.gpu.kernels.cuda_module import cuda_kernel, is_on_gpu, nvtx_range
from vitascope.gpu.kernels.morphology import (
    MAX_RADIUS_PX,
    SAMPLE_NAMES,
    dilate_disc,
    erode_disc,
    has_aligned_rows,
    launch_morphology,
    plane_view,
)
from vitascope.gpu.kernels.region import Region


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """Edge options, in the order of application; the defaults change nothing."""

    threshold: tuple[float, float] | None = None
    """Alpha at or below the first level becomes 0, at or above the second 1, with a linear ramp between; 0..1."""
    grow_px: float = 0.0
    """Distance by which the edge moves outward, in luma samples; negative moves it inward."""
    feather_px: float = 0.0
    """Standard deviation of the Gaussian that softens the edge, in luma samples."""

    @property
    def active(self) -> bool:
        """True if anything would change."""
        return self.threshold is not None or self.grow_px != 0 or self.feather_px > 0


def adjust_edges(alpha: Plane, options: EdgeOptions, *, regions: Sequence[Region]) -> Plane:
    """Apply the threshold, then grow or shrink, then feather, for each eye separately.

    Runs on alpha's device: NumPy on the CPU; CuPy on the GPU, on the current stream. Results are equal.

    Args:
        alpha: uint8 or uint16 [H, W], full scale 255 or 65535.
        options: Edge options.
        regions: Area of each eye; together they cover the frame.

    Returns:
        The same dtype and shape; the input itself if nothing was requested.

    Raises:
        ValueError: The edge would move by more than 256 samples.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if not options.active:
        return alpha
    if abs(options.grow_px) > MAX_RADIUS_PX:
        raise ValueError(f"grow_px is {options.grow_px}, expected at most {MAX_RADIUS_PX} either way")
    if is_on_gpu(alpha):
        made: Plane = _launch_edges(alpha, options, regions)
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
    """Apply only the threshold.

    Args:
        alpha: NumPy uint8 or uint16 [H, W].
        low: Level in 0..1 that becomes 0.
        high: Level that becomes 1; at or below ``low``, a hard cut there.

    Returns:
        The same dtype and shape.
    """
    peak = alpha_peak(alpha)
    if high <= low:  # a single level: a hard cut
        hard = (alpha >= np.float32(low * peak)).astype(alpha.dtype)
        return np.asarray(hard * peak, alpha.dtype)
    slope = 1.0 / (high - low)
    depth = cv2.CV_8U if peak == 255 else cv2.CV_16U
    return cv2.addWeighted(alpha, slope, alpha, 0.0, -low * slope * peak, dtype=depth)


def _move_edge(alpha: Plane, pixels: float) -> Plane:
    """Dilate or erode with a disc; a fraction of a pixel blends the two nearest whole radii."""
    move = dilate_disc if pixels > 0 else erode_disc
    whole = int(abs(pixels))
    fraction = abs(pixels) - whole
    near = move(alpha, whole)
    if fraction == 0:
        return near
    return cv2.addWeighted(near, 1.0 - fraction, move(alpha, whole + 1), fraction, 0.0)


# Same as in edges.cu.
_THREADS = 128
_GROUP = 4
_RUN = 8
_SEGMENT = _THREADS * _RUN

_Step = Callable[[Any, Any], None]
"""Reads the first plane and writes the second, of the same dtype and shape."""


def _launch_edges(alpha: Any, options: EdgeOptions, regions: Sequence[Region]) -> Any:
    """Run the kernels on the current CuPy stream; takes and returns the same as ``adjust_edges``.

    Raises:
        KernelCompileError: A CUDA source could not be built for this GPU.
    """
    import cupy

    adjusted = cupy.empty(alpha.shape, alpha.dtype)
    steps = _steps(options)
    with nvtx_range("edges"):
        for region in regions:
            source = alpha[region.rows, region.columns]
            for step in steps[:-1]:
                made = cupy.empty(source.shape, source.dtype)
                step(source, made)
                source = made
            steps[-1](source, adjusted[region.rows, region.columns])
    return adjusted


def _steps(options: EdgeOptions) -> list[_Step]:
    steps: list[_Step] = []
    if options.threshold is not None:
        low, high = options.threshold
        steps.append(lambda source, target: _map_levels(source, target, low, high))
    if options.grow_px:
        steps.append(lambda source, target: _move_edge_cuda(source, target, options.grow_px))
    if options.feather_px > 0:
        steps.append(lambda source, target: _feather(source, target, options.feather_px))
    return steps


def _map_levels(source: Any, target: Any, low: float, high: float) -> None:
    height, width = source.shape
    _kernel("map_levels", source, target)(
        (math.ceil(width / _GROUP / _THREADS), height),
        (_THREADS,),
        (
            plane_view(source),
            plane_view(target),
            np.int32(width),
            _device_levels(source.device.id, source.dtype.name, low, high),
        ),
    )


def _move_edge_cuda(source: Any, target: Any, pixels: float) -> None:
    """Apply a disc of a whole radius; a fraction of a pixel blends the two nearest."""
    import cupy

    erode = pixels < 0
    whole = int(abs(pixels))
    fraction = abs(pixels) - whole
    if fraction == 0:
        launch_morphology(source, whole, shape="disc", erode=erode, out=target)
        return
    near = launch_morphology(source, whole, shape="disc", erode=erode) if whole else source
    far = launch_morphology(
        source, whole + 1, shape="disc", erode=erode, out=cupy.empty(source.shape, source.dtype)
    )
    height, width = source.shape
    _kernel("blend", near, far, target)(
        (math.ceil(width / _GROUP / _THREADS), height),
        (_THREADS,),
        (
            plane_view(near),
            plane_view(far),
            plane_view(target),
            np.int32(width),
            np.float32(1.0 - fraction),
            np.float32(fraction),
        ),
    )


def _feather(source: Any, target: Any, sigma: float) -> None:
    import cupy

    height, width = source.shape
    weights, radius = _device_weights(source.device.id, source.dtype.name, sigma)
    taps = len(weights)
    pitch = -(-width // _RUN) * _RUN
    across = cupy.empty((height, pitch), "uint16" if source.dtype == np.uint8 else "uint32")
    samples = _SEGMENT + taps
    _kernel("feather_rows", source, target)(
        (math.ceil(width / _SEGMENT), height),
        (_THREADS,),
        (plane_view(source), across, *(np.int32(number) for number in (pitch, width, radius, taps)), weights),
        shared_mem=(samples + samples // _RUN) * 4,
    )
    _kernel("feather_columns", source, target)(
        (math.ceil(width / _THREADS), math.ceil(height / _RUN)),
        (_THREADS,),
        (
            across,
            np.int32(pitch),
            plane_view(target),
            *(np.int32(number) for number in (height, width, radius, taps)),
            weights,
        ),
    )


def _kernel(name: str, *planes: Any) -> Any:
    """One of the kernels, for all planes that it reads and writes."""
    return cuda_kernel(
        "edges.cu",
        name,
        SAMPLE=SAMPLE_NAMES[planes[0].dtype.itemsize],
        VECTORS=int(all(has_aligned_rows(plane) for plane in planes)),
    )


def feather_weights(dtype: npt.DTypeLike, sigma: float) -> npt.NDArray[np.int64]:
    """Weights of OpenCV's Gaussian for integer samples, in 256ths (uint8) or 65536ths (uint16).

    OpenCV rounds the weights so that their sum is exactly 1. They are read from its response to a single bright
    sample, so they match the installed version.

    Args:
        dtype: uint8 or uint16.
        sigma: Standard deviation in samples, above 0.

    Returns:
        int64 [2 radius + 1].
    """
    peak = int(np.iinfo(dtype).max)
    centre = math.ceil(4 * sigma) + 2  # more than the reach at either depth
    row = np.zeros((1, 2 * centre + 1), dtype)
    row[0, centre] = peak
    response = cv2.GaussianBlur(row, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)[0]
    weights: npt.NDArray[np.int64] = np.rint(response * ((peak + 1) / peak)).astype(np.int64)
    # Two values of the centre weight can give the same response; the sum tells them apart.
    weights[centre] += peak + 1 - weights.sum()
    radius = int(np.abs(np.flatnonzero(weights) - centre).max())
    return weights[centre - radius : centre + radius + 1]


@lru_cache(maxsize=64)
def _device_weights(device: int, dtype: str, sigma: float) -> tuple[Any, int]:
    """The weights on the GPU, padded with zeros to whole runs, and their radius."""
    weights = feather_weights(dtype, sigma)
    padded = np.zeros(-(-len(weights) // _RUN) * _RUN, np.float32 if dtype == "uint8" else np.uint32)
    padded[: len(weights)] = weights
    return _resident(device, padded), len(weights) // 2


@lru_cache(maxsize=64)
def _device_levels(device: int, dtype: str, low: float, high: float) -> Any:
    """The reference's result for every code, on the GPU."""
    codes = np.arange(np.iinfo(dtype).max + 1, dtype=dtype)[None]
    return _resident(device, map_levels(codes, low, high)[0])


def _resident(device: int, array: npt.NDArray[Any]) -> Any:
    """A copy that any stream may read: made once per setting, so the host may wait for it."""
    import cupy

    with cupy.cuda.Device(device):
        copy = cupy.asarray(array)
        cupy.cuda.get_current_stream().synchronize()
    return copy
