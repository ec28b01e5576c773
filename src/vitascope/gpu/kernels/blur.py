"""Blurs the background without bleeding people into it: normalised convolution (Knutsson and Westin, 1993).

``out = G * (picture * w) / G * w``, where ``w`` is the share of background in each sample and ``G`` a Gaussian: a
person's colour never reaches the samples around it. A wide Gaussian can be computed at a quarter of the size, with a
quarter of its deviation, for a sixteenth of the work. So each axis is first shrunk until the deviation is 4 to 8
samples, and the result is enlarged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from vitascope.frames import Plane
from vitascope.gpu.kernels.cuda_module import cuda_kernel, fields, is_on_gpu, nvtx_range, row_pitch

# A larger window does not benefit from a smaller picture, and a GPU block's row sums would not fit.
_LARGEST_FACTOR = 480

# Share of background, in code values of the weight, below which there is nothing to average: deep inside a person.
LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True)
class BlurPlan:
    """Plan for blurring one plane: its reduced size, and the Gaussian there."""

    size: tuple[int, int]
    """(height, width) of the shrunk plane."""
    sigma: tuple[float, float]
    """(vertical, horizontal) standard deviation in samples of the shrunk plane."""
    radius: tuple[int, int]
    """(vertical, horizontal) samples on each side that the Gaussian reads: four deviations."""


def plan_blur(shape: tuple[int, ...], sigma_x: float, sigma_y: float) -> BlurPlan:
    """Plan the blur of a plane of ``shape``; the same on the CPU and the GPU.

    Raises:
        ValueError: A standard deviation is not above 0.
    """
    if not (sigma_x > 0 and sigma_y > 0):
        raise ValueError(f"the standard deviations must be above 0, not {sigma_x} and {sigma_y}")
    factors = [min(max(int(sigma / 4), 1), _LARGEST_FACTOR) for sigma in (sigma_y, sigma_x)]
    height, width = (max(length // factor, 1) for length, factor in zip(shape[:2], factors, strict=True))
    vertical, horizontal = sigma_y / factors[0], sigma_x / factors[1]
    # OpenCV's choice of kernel size for float samples: 8 deviations wide, odd.
    radius_y, radius_x = ((round(8 * sigma + 1) | 1) // 2 for sigma in (vertical, horizontal))
    return BlurPlan((height, width), (vertical, horizontal), (radius_y, radius_x))


def blur_without(plane: Plane, weight: Plane, sigma_x: float, sigma_y: float) -> Plane:
    """Blur only the background, up to its edge.

    Runs on the plane's device: NumPy on the CPU; CuPy on the GPU, on the current stream, without a float copy of the
    plane's size. Borders repeat.

    Args:
        plane: uint8 or uint16 [H, W] or [H, W, 2].
        weight: uint8 or uint16, full scale 255 or 65535: share of person in each sample, which is left out. The
            plane's shape, or [H, W] for all channels; on the plane's device.
        sigma_x: Horizontal standard deviation in samples of the plane, above 0.
        sigma_y: Vertical standard deviation.

    Returns:
        The plane's shape and dtype. Where no background is near (deep inside a person), the values are meaningless.

    Raises:
        ValueError: Shapes or dtypes do not match, a deviation is not above 0, or is above 4300 samples on the GPU.
        KernelCompileError: The CUDA source could not be built for this GPU.

    The GPU's result is within 2 codes of the CPU's.
    """
    if weight.shape not in (plane.shape, plane.shape[:2]):
        raise ValueError(f"weight is {weight.shape}, expected {plane.shape} or {plane.shape[:2]}")
    if plane.dtype not in (np.uint8, np.uint16) or weight.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"plane is {plane.dtype} and weight {weight.dtype}, expected uint8 or uint16")
    plan = plan_blur(plane.shape, sigma_x, sigma_y)
    if is_on_gpu(plane):
        made: Plane = _launch_blur(plane, weight, plan)
        return made
    return _blur(plane, weight, plan)


def _blur(plane: Plane, weight: Plane, plan: BlurPlan) -> Plane:
    height, width = plane.shape[:2]
    remaining: Any = cv2.bitwise_not(weight).astype(np.float32).reshape(weight.shape)
    weighted = plane * (remaining if weight.ndim == plane.ndim else remaining[..., None])
    mass, share = (_spread(part, plan) for part in (weighted, remaining))
    share = np.maximum(share, np.float32(LEAST_SHARE))
    blurred: Plane = mass / (share if share.ndim == mass.ndim else share[..., None])
    blurred = cv2.resize(blurred, (width, height), interpolation=cv2.INTER_LINEAR).reshape(plane.shape)
    return np.clip(np.rint(blurred), 0, np.iinfo(plane.dtype).max).astype(plane.dtype)


def _spread(part: Plane, plan: BlurPlan) -> Plane:
    """Shrink and blur a plane."""
    (height, width), (sigma_y, sigma_x) = plan.size, plan.sigma
    small = cv2.resize(part, (width, height), interpolation=cv2.INTER_AREA)
    size = (2 * plan.radius[1] + 1, 2 * plan.radius[0] + 1)
    blurred: Plane = cv2.GaussianBlur(small, size, sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REPLICATE)
    return blurred.reshape(height, width, *part.shape[2:])


# Same as in blur.cu.
_THREADS = 128
_SPAN = 2048
_MAX_RADIUS = 36
_TILE_WIDTH, _TILE_HEIGHT, _SHRUNK_TILE_HEIGHT, _TILE_THREADS = 32, 64, 16, 256

_PICTURE = np.dtype(
    [
        *fields("u8", "plane", "weight"),
        *fields("i8", "pitch", "weight_pitch"),
        *fields("i4", "height", "width"),
    ]
)
_TAPS = ("f4", 2 * _MAX_RADIUS + 1)
_GAUSSIAN = np.dtype(
    [*fields("i4", "radius_y", "radius_x"), ("least_share", "f4"), ("column", *_TAPS), ("row", *_TAPS)]
)
_NAMES = {1: "unsigned char", 2: "unsigned short"}


def _launch_blur(plane: Any, weight: Any, plan: BlurPlan) -> Any:
    """Run the kernels on the current CuPy stream; takes and returns the same as ``blur_without``.

    Raises:
        ValueError: The plan's Gaussian is wider than the kernel's.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    if max(plan.radius) > _MAX_RADIUS:
        raise ValueError(f"the GPU kernel blurs at most 4300 samples wide; the plan is {plan}")
    height, width = plane.shape[:2]
    channels = 1 if plane.ndim == 2 else plane.shape[2]
    is_shrunk = plan.size != (height, width)
    defines: dict[str, str | int] = {
        "SAMPLE": _NAMES[plane.dtype.itemsize],
        "WEIGHT": _NAMES[weight.dtype.itemsize],
        "CHANNELS": channels,
        "WEIGHT_CHANNELS": 1 if weight.ndim == 2 else channels,
        "SHRUNK": int(is_shrunk),
        "VECTORS": int(_has_whole_vectors(plane) and _has_whole_vectors(weight)),
    }
    picture = _picture(plane, weight)
    gaussian = _gaussian(plan)
    out = cupy.empty(plane.shape, plane.dtype)
    with nvtx_range("blur"):
        if not is_shrunk:
            _blur_tiles(defines, picture, np.uint64(0), out, gaussian, (height, width * channels))
            return out
        small_height, small_width = plan.size
        step_y, step_x = height / small_height, width / small_width
        # A run's windows and the alignment of its first load must fit into the span.
        run = min(int((_SPAN / channels - 24) / step_x), small_width)
        sums = cupy.empty((small_height, small_width * channels, 2), cupy.float32)
        cuda_kernel("blur.cu", "shrink_weighted", **defines)(
            (math.ceil(small_width / run), small_height),
            (_THREADS,),
            (picture, sums, np.int32(small_width), np.int32(run), np.float32(step_y), np.float32(step_x)),
        )
        blurred = cupy.empty((small_height, small_width * channels), cupy.float32)
        picture["height"], picture["width"] = plan.size
        _blur_tiles(defines, picture, sums, blurred, gaussian, blurred.shape)
        lanes = 16 // plane.dtype.itemsize
        cuda_kernel("blur.cu", "grow", **defines)(
            (math.ceil(width * channels / lanes / _THREADS), math.ceil(height / 2)),
            (_THREADS,),
            (
                blurred,
                out,
                *(np.int32(length) for length in (small_height, small_width, height, width)),
                np.float32(1 / step_y),
                np.float32(1 / step_x),
            ),
        )
    return out


def _blur_tiles(
    defines: dict[str, str | int], picture: Any, small: Any, out: Any, gaussian: Any, size: tuple[int, int]
) -> None:
    tile_height = _SHRUNK_TILE_HEIGHT if defines["SHRUNK"] else _TILE_HEIGHT
    cuda_kernel("blur.cu", "blur_tiles", **defines)(
        (math.ceil(size[1] / _TILE_WIDTH), math.ceil(size[0] / tile_height)),
        (_TILE_THREADS,),
        (picture, small, out, gaussian),
    )


def _picture(plane: Any, weight: Any) -> Any:
    picture = np.zeros(1, _PICTURE)
    picture[0] = (
        plane.data.ptr,
        weight.data.ptr,
        *(row_pitch(array.shape, array.strides, itemsize=array.dtype.itemsize) for array in (plane, weight)),
        *plane.shape[:2],
    )
    return picture


def _gaussian(plan: BlurPlan) -> Any:
    gaussian = np.zeros(1, _GAUSSIAN)
    gaussian["radius_y"], gaussian["radius_x"] = plan.radius
    gaussian["least_share"] = LEAST_SHARE
    for name, sigma, radius in zip(("column", "row"), plan.sigma, plan.radius, strict=True):
        taps = cv2.getGaussianKernel(2 * radius + 1, sigma, cv2.CV_32F)
        gaussian[name][0, : 2 * radius + 1] = taps[:, 0]
    return gaussian


def _has_whole_vectors(plane: Any) -> bool:
    """True if every row begins at a multiple of 16 bytes and may be read up to a multiple of 16 pixels.

    Pixels, not bytes: a load reads as many weights as the plane has pixels in 16 bytes.
    """
    pixel_bytes = math.prod(plane.shape[2:]) * plane.dtype.itemsize
    return bool(
        plane.data.ptr % 16 == 0
        and plane.strides[0] % 16 == 0
        and plane.strides[0] >= -(-plane.shape[1] // 16) * 16 * pixel_bytes
    )
