"""Convert a frame's native planes to a network's input, the only full-resolution pass before the network.

``rgb = M @ yuv + t`` (``color.py``) after averaging each plane down to the network's size: the conversion is
linear, so converting the small picture gives the same result as converting the large one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import ColorSpec, Frame, Plane, Rotation, YuvFormat
from vitascope.gpu.kernels.color import rgb_from_yuv
from vitascope.gpu.kernels.cuda_module import (
    by_value,
    cuda_kernel,
    fields,
    has_whole_vectors,
    is_on_gpu,
    nvtx_range,
    row_pitch,
    wait_until_ready,
)
from vitascope.gpu.kernels.region import Region, chroma_region
from vitascope.gpu.kernels.resample import chroma_window, clamped_span, resample_window

Triple = tuple[float, float, float]


def preprocess(
    frame: Frame,
    *,
    regions: Sequence[Region],
    size: tuple[int, int],
    mean: Triple = (0.0, 0.0, 0.0),
    std: Triple = (1.0, 1.0, 1.0),
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    rotation_degrees: Rotation = 0,
    dtype: Literal["float32", "float16"] = "float32",
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Crop, resize (antialiased), convert to RGB and normalise each region.

    Runs on the frame's device: NumPy planes on the CPU, CuPy planes (NV12 or P010) in one CUDA kernel on the
    current CuPy stream.

    Args:
        frame: A frame in any of ``frames.PIXEL_FORMATS``.
        regions: Regions to crop, in coded (unrotated) luma samples: one per eye.
        size: (height, width) of the network's input, upright.
        mean: Subtracted from RGB in 0..1.
        std: Divisor after subtracting the mean.
        layout: Axis order of the result.
        rotation_degrees: Clockwise rotation that makes the picture upright.
        dtype: Element type of the result.
        out: Output array, C-contiguous, on the frame's device; a new array if omitted.

    Returns:
        [N, 3, h, w] or [N, h, w, 3] of ``dtype``, C-contiguous; RGB 0..1 (clipped) before mean and std.

    Raises:
        ValueError: ``out`` has the wrong shape or dtype, or is not contiguous; or a frame on the GPU is not
            semi-planar, or its rows are strided.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    height, width = size
    shape = (len(regions), 3, height, width) if layout == "NCHW" else (len(regions), height, width, 3)
    if out is not None and (out.shape != shape or out.dtype != np.dtype(dtype) or not out.flags.c_contiguous):
        raise ValueError(f"out is {out.dtype} {out.shape}, expected {dtype} {shape}, C-contiguous")
    if is_on_gpu(frame.planes[0]):
        made: npt.NDArray[Any] = _launch_preprocess(
            frame, regions, size=size, mean=mean, std=std, layout=layout, rotation_degrees=rotation_degrees,
            dtype=np.dtype(dtype), shape=shape, out=out,
        )  # fmt: skip
        return made
    coded_size = (width, height) if rotation_degrees in (90, 270) else (height, width)
    matrix, offset = rgb_from_yuv(frame.color, frame.format)
    result: npt.NDArray[Any] = np.empty(shape, dtype) if out is None else out
    for picture, region in zip(result, regions, strict=True):
        luma, blue_difference, red_difference = _small_planes(frame, region, coded_size)
        channels = picture if layout == "NCHW" else np.moveaxis(picture, -1, 0)
        for channel, row, bias, subtract, divide in zip(channels, matrix, offset, mean, std, strict=True):
            # Rotated pictures are computed in a temporary array, the others in place.
            in_place = rotation_degrees == 0 and layout == "NCHW" and channel.dtype == np.float32
            rgb: Any = channel if in_place else np.empty(coded_size, np.float32)
            cv2.addWeighted(luma, row[0], blue_difference, row[1], bias, dst=rgb)
            cv2.scaleAdd(red_difference, row[2], rgb, dst=rgb)
            np.clip(rgb, 0.0, 1.0, out=rgb)
            if subtract != 0.0 or divide != 1.0:
                rgb -= np.float32(subtract)
                rgb *= np.float32(1.0 / divide)
            if not in_place:
                # np.rot90 rotates counter-clockwise for positive k.
                channel[...] = np.rot90(rgb, k=-(rotation_degrees // 90))
    return result


def _small_planes(
    frame: Frame, region: Region, size: tuple[int, int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Resize a region's Y, U and V to the network's size, in code values."""
    luma_window = (region.x, region.y, region.x + region.width, region.y + region.height)
    window = chroma_window(region, frame.format, frame.color)
    own = chroma_region(region, frame.format)
    luma: Plane = resample_window(frame.planes[0], luma_window, size, within=region)
    if frame.format.semi_planar:
        chroma = resample_window(frame.planes[1], window, size, within=own)
        return luma, np.ascontiguousarray(chroma[..., 0]), np.ascontiguousarray(chroma[..., 1])
    blue_difference, red_difference = (
        resample_window(plane, window, size, within=own) for plane in frame.planes[1:]
    )
    return luma, blue_difference, red_difference


_THREADS = 128
_SPAN = 2048  # samples of a row that a block sums, same as in preprocess.cu
_MAX_EYES = 2

_AXIS = np.dtype([*fields("f4", "start", "step"), *fields("i4", "first", "last")])
_PICTURE = np.dtype([("data", "u8"), ("pitch", "i8"), ("x", _AXIS), ("y", _AXIS)])
_PICTURES = np.dtype([("picture", _PICTURE, 2 * _MAX_EYES)])
_COLOR = np.dtype([("matrix", "f4", 9), ("offset", "f4", 3), ("mean", "f4", 3), ("scale", "f4", 3)])


def _launch_preprocess(
    frame: Frame,
    regions: Sequence[Region],
    *,
    size: tuple[int, int],
    mean: Triple,
    std: Triple,
    layout: str,
    rotation_degrees: Rotation,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    out: Any,
) -> Any:
    """Run the kernel on the current CuPy stream; takes and returns the same as ``preprocess``.

    Raises:
        ValueError: The frame is not semi-planar, there are more than two regions, or the result is more than 2000
            times narrower than a region.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    if not frame.format.semi_planar:
        raise ValueError(f"the GPU kernel reads NV12 and P010, not {frame.format.name}")
    if len(regions) > _MAX_EYES:
        raise ValueError(f"the GPU kernel makes at most {_MAX_EYES} regions at once, not {len(regions)}")
    result = cupy.empty(shape, dtype) if out is None else out
    planes: tuple[Any, ...] = frame.planes  # CuPy arrays, whose pointers NumPy's types lack
    plan = _plan(
        frame.format,
        frame.color,
        tuple((plane.shape, plane.strides, plane.data.ptr % 16) for plane in planes),
        tuple(regions),
        size,
        mean,
        std,
        layout,
        rotation_degrees,
        dtype,
        cupy.cuda.runtime.getDevice(),
    )
    # Only the pointers change between frames; setting everything else would take longer than the kernel.
    pictures = plan.pictures.copy()
    pictures["picture"]["data"][0, : 2 * len(regions)] = [plane.data.ptr for plane in planes] * len(regions)
    with nvtx_range("preprocess"):
        wait_until_ready(frame)
        plan.kernel(plan.grid, (_THREADS,), (by_value(pictures), result, *plan.arguments))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A launch without its pointers."""

    kernel: Any
    grid: tuple[int, int, int]
    pictures: Any
    arguments: tuple[Any, ...]
    """Arguments behind the pictures and the result."""


@lru_cache(maxsize=128)
def _plan(
    fmt: YuvFormat,
    color: ColorSpec,
    planes: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...],
    regions: tuple[Region, ...],
    size: tuple[int, int],
    mean: Triple,
    std: Triple,
    layout: str,
    rotation_degrees: Rotation,
    dtype: np.dtype[Any],
    device: int,
) -> _Plan:
    """Plan the launch for frames of one kind. ``planes`` are shapes, strides in bytes, and pointers modulo 16."""
    del device  # kernels are compiled for the current device
    height, width = (size[1], size[0]) if rotation_degrees in (90, 270) else size
    pictures, run = _describe(fmt, color, planes, regions, (height, width))
    kernel = cuda_kernel(
        "preprocess.cu",
        "preprocess",
        SAMPLE="unsigned char" if fmt.bit_depth == 8 else "unsigned short",
        OUTPUT="float" if dtype == np.float32 else "__half",
        VECTORS=int(all(has_whole_vectors(*plane, itemsize=fmt.dtype.itemsize) for plane in planes)),
    )
    return _Plan(
        kernel,
        (math.ceil(width / run), height, len(regions)),
        pictures,
        (
            by_value(_color_parameter(color, fmt, mean, std)),
            np.int32(height),
            np.int32(width),
            np.int32(run),
            np.int32(rotation_degrees),
            np.int32(layout == "NHWC"),
        ),
    )


def _describe(
    fmt: YuvFormat,
    color: ColorSpec,
    planes: Sequence[tuple[tuple[int, ...], tuple[int, ...], int]],
    regions: Sequence[Region],
    size: tuple[int, int],
) -> tuple[Any, int]:
    """Describe every eye's planes, without pointers, for the kernel, and the most outputs of a row per block."""
    height, width = size
    pictures = np.zeros(1, _PICTURES)
    longest_run = float(width)
    for index, region in enumerate(regions):
        luma_window = (region.x, region.y, region.x + region.width, region.y + region.height)
        windows = (luma_window, chroma_window(region, fmt, color))
        own = (region, chroma_region(region, fmt))
        for slot, ((shape, strides, _), (left, top, right, bottom), samples) in enumerate(
            zip(planes, windows, own, strict=True)
        ):
            channels = slot + 1
            step = (right - left) / width
            pictures["picture"][0, 2 * index + slot] = (
                0,
                row_pitch(shape, strides, itemsize=fmt.dtype.itemsize),
                _axis(left, right, width, samples.x, samples.x + samples.width),
                _axis(top, bottom, height, samples.y, samples.y + samples.height),
            )
            # A run's windows, the taps at its ends and the alignment of its first load must fit into the span.
            longest_run = min(longest_run, (_SPAN / channels - 24) / step)
    if longest_run < 1:
        raise ValueError(
            f"the GPU kernel shrinks at most {_SPAN - 48} samples to one; {width} outputs are too few"
        )
    return pictures, int(longest_run)


def _axis(start: float, stop: float, count: int, first: int, end: int) -> tuple[float, float, int, int]:
    """Describe one axis of a window, and the plane's samples that it may read: the eye's own."""
    begin, stopped = clamped_span(start, stop, first, end)
    return start, (stop - start) / count, begin, stopped - 1


@lru_cache(maxsize=64)
def _color_parameter(color: ColorSpec, fmt: YuvFormat, mean: Triple, std: Triple) -> Any:
    matrix, offset = rgb_from_yuv(color, fmt)
    parameter = np.zeros(1, _COLOR)
    parameter["matrix"], parameter["offset"] = matrix.ravel(), offset
    parameter["mean"], parameter["scale"] = mean, 1.0 / np.array(std)
    return parameter
