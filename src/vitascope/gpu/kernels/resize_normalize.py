"""Resize packed or planar pictures to a network's input: resize, scale, mean and deviation in one pass.

Resizes like ``preprocess``: each axis averages the samples under an output when shrinking (antialiased) and
interpolates between the two nearest when growing; sample i covers [i, i + 1), borders repeat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.batch_normalize import (
    BatchLayout,
    batch_normalize,
    channel_affine,
    channels_of,
    check_out,
)
from vitascope.gpu.kernels.cuda_module import cuda_kernel, fields, is_on_gpu, nvtx_range
from vitascope.gpu.kernels.resample import resample_window


def resize_normalize(
    images: npt.NDArray[Any],
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    scale: float = 1 / 255,
    layout_in: BatchLayout = "NHWC",
    layout_out: BatchLayout = "NCHW",
    reverse_channels: bool = False,
    dtype: Literal["float32", "float16"] = "float32",
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Compute ``(resized * scale - mean) / std`` per channel, in float32.

    Runs on the images' device: NumPy on the CPU (OpenCV resizes); CuPy in one kernel on the GPU, on the
    current stream. GPU results agree to 1e-4 of the largest term (float32), or to one unit in the last place
    (float16).

    Args:
        images: uint8, uint16, float16 or float32, [N, H, W, C] or [N, C, H, W] with 1 to 4 channels. On the
            GPU rows and pictures may be padded; strided samples cost a copy.
        size: (height, width) of the result.
        mean: Mean of each channel of the result, after ``scale``.
        std: Standard deviation of each channel of the result, not 0.
        scale: Factor that brings code values to the range of ``mean`` and ``std``.
        layout_in: Axis order of ``images``.
        layout_out: Axis order of the result.
        reverse_channels: Reverse the channels: BGR to RGB.
        dtype: Element type of the result.
        out: Output array, C-contiguous, on the images' device; a new array if omitted.

    Returns:
        [N, C, h, w] or [N, h, w, C] of ``dtype``, C-contiguous.

    Raises:
        ValueError: Shapes or dtypes do not match, a picture or the result is empty, a standard deviation is
            0, or a row shrinks more than 1000 times on the GPU.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    channels = channels_of(images, layout_in, mean, std)
    if 0 in images.shape[1:] or min(size) < 1:
        raise ValueError(f"images are {images.shape} and size is {size}, expected at least one pixel")
    picture = images.shape[2:] if layout_in == "NCHW" else images.shape[1:3]
    if picture == size and not reverse_channels:
        return batch_normalize(
            images, mean=mean, std=std, scale=scale, layout_in=layout_in, layout_out=layout_out,
            dtype=dtype, out=out,
        )  # fmt: skip
    count = images.shape[0]
    shape = (count, channels, *size) if layout_out == "NCHW" else (count, *size, channels)
    check_out(out, shape, dtype)
    gain, offset = channel_affine(mean, std, scale)
    if is_on_gpu(images):
        made: npt.NDArray[Any] = _launch_resize_normalize(
            images, gain, offset, size=size, layout_in=layout_in, layout_out=layout_out,
            reverse_channels=reverse_channels, dtype=dtype, shape=shape, out=out,
        )  # fmt: skip
        return made
    result: npt.NDArray[Any] = np.empty(shape, dtype) if out is None else out
    window = (0.0, 0.0, float(picture[1]), float(picture[0]))
    for source, target in zip(images, result, strict=True):
        if layout_in == "NHWC":
            small = resample_window(source, window, size).reshape(*size, channels)
            planes = [small[..., channel] for channel in range(channels)]
        else:
            planes = [resample_window(plane, window, size) for plane in source]
        targets = target if layout_out == "NCHW" else np.moveaxis(target, -1, 0)
        for channel, plane in enumerate(reversed(planes) if reverse_channels else planes):
            targets[channel] = plane * gain[channel] + offset[channel]
    return result


# Same as in resize_normalize.cu.
_THREADS = 128
_SPAN = 4096
_MOST_TAPS = 6
_MAX_GRID_Z = 65_535
# Samples of a row that fit into the span with four channels.
_MOST_SHRUNK = 1000

_NAMES = {"uint8": "unsigned char", "uint16": "unsigned short", "float16": "__half", "float32": "float"}
_PICTURES = np.dtype(
    [
        *fields("u8", "data", "out"),
        *fields("i8", "picture_pitch", "plane_pitch", "row_pitch"),
        *fields("i4", "in_height", "in_width", "height", "width", "channels", "run"),
        *fields("i4", "reversed", "channels_last"),
        *fields("f4", "step_y", "step_x"),
        ("gain", "f4", 4),
        ("offset", "f4", 4),
    ],
    align=True,
)
_BY_VALUE = np.dtype((np.void, _PICTURES.itemsize))  # without fields, see ``by_value``


def resized(planes: Any, size: tuple[int, int]) -> Any:
    """Resize planes, averaging each axis when it shrinks, with bilinear interpolation when it grows.

    Args:
        planes: float32 or float16 [N, C, h, w], C at most 4; NumPy or CuPy.
        size: (height, width).

    Returns:
        float32 [N, C, *size] on the same device.
    """
    channels = planes.shape[1]
    return resize_normalize(
        planes, size=size, mean=(0.0,) * channels, std=(1.0,) * channels, scale=1.0, layout_in="NCHW"
    )


def _launch_resize_normalize(
    images: Any,
    gain: tuple[float, ...],
    offset: tuple[float, ...],
    *,
    size: tuple[int, int],
    layout_in: str,
    layout_out: str,
    reverse_channels: bool,
    dtype: str,
    shape: tuple[int, ...],
    out: Any,
) -> Any:
    """Run the kernel on the current CuPy stream; takes and returns the same as ``resize_normalize``.

    Raises:
        ValueError: A row shrinks more than 1000 times.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    result = cupy.empty(shape, dtype) if out is None else out
    if result.size == 0:
        return result
    in_shape, strides = images.shape, images.strides
    if not _has_dense_samples(in_shape, strides, images.itemsize, layout_in):
        images = cupy.ascontiguousarray(images)
        strides = images.strides
    address = images.data.ptr
    plan = _plan(
        in_shape, strides, images.dtype, address % 16 == 0, gain, offset, size, layout_in, layout_out,
        reverse_channels, dtype, cupy.cuda.runtime.getDevice(),
    )  # fmt: skip
    # Only the pointers change between pictures.
    words = plan.words.copy()
    words[0], words[1] = address, result.data.ptr
    parameter = words.view(_BY_VALUE)
    with nvtx_range("resize_normalize"):
        for grid, first in plan.launches:
            plan.kernel(grid, (_THREADS,), (parameter, first))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A launch without its pointers."""

    kernel: Any
    launches: tuple[tuple[tuple[int, int, int], Any], ...]
    """Grid, and the index of its first picture, or of its first plane over all pictures."""
    words: Any
    """The kernel's parameter as uint64; ``data`` and ``out`` are the first two."""


@lru_cache(maxsize=128)
def _plan(
    shape: tuple[int, ...],
    byte_strides: tuple[int, ...],
    input_dtype: np.dtype[Any],
    is_aligned: bool,
    gain: tuple[float, ...],
    offset: tuple[float, ...],
    size: tuple[int, int],
    layout_in: str,
    layout_out: str,
    reverse_channels: bool,
    dtype: str,
    device: int,
) -> _Plan:
    """Plan the launch for pictures of one kind."""
    del device  # kernels are compiled for the current device
    itemsize = input_dtype.itemsize
    strides = tuple(stride // itemsize for stride in byte_strides)
    count = shape[0]
    if layout_in == "NHWC":
        _, in_height, in_width, channels = shape
        side_by_side, plane_pitch, row_pitch, slices = channels, 0, strides[1], count
    else:
        _, channels, in_height, in_width = shape
        side_by_side, plane_pitch, row_pitch, slices = 1, strides[1], strides[2], count * channels
    height, width = size
    step_y, step_x = in_height / height, in_width / width
    if step_x > _MOST_SHRUNK:
        raise ValueError(f"the GPU kernel shrinks at most {_MOST_SHRUNK} samples to one, not {step_x:.0f}")
    # A run's windows, the taps at its ends and the alignment of its first load must fit into the span.
    run = min(int((_SPAN / side_by_side - 24) / step_x), width)
    # Runs of equal length, so that none is much shorter than the rest.
    run = math.ceil(width / math.ceil(width / run))
    parameter = np.zeros(1, _PICTURES)
    values = (0, 0, strides[0], plane_pitch, row_pitch, in_height, in_width, height, width, channels, run)
    for name, value in zip(_PICTURES.names or (), values, strict=False):
        parameter[name] = value
    parameter["reversed"], parameter["channels_last"] = reverse_channels, layout_out == "NHWC"
    parameter["step_y"], parameter["step_x"] = step_y, step_x
    parameter["gain"][0, :channels], parameter["offset"][0, :channels] = gain, offset
    pitches = (row_pitch, plane_pitch, strides[0] if count > 1 else 0)
    kernel = cuda_kernel(
        "resize_normalize.cu",
        "resize_normalize",
        INPUT=_NAMES[input_dtype.name],
        OUTPUT=_NAMES[dtype],
        LANES_CHANNELS=side_by_side,
        VECTORS=int(is_aligned and all(pitch * itemsize % 16 == 0 for pitch in pitches)),
        TAPS=min(math.ceil(step_y) + 1, _MOST_TAPS) if step_y >= 1 else 2,
    )
    launches = tuple(
        ((math.ceil(width / run), height, min(slices - first, _MAX_GRID_Z)), np.int32(first))
        for first in range(0, slices, _MAX_GRID_Z)
    )
    return _Plan(kernel, launches, parameter.view(np.uint64))


@lru_cache(maxsize=128)
def _has_dense_samples(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, layout: str) -> bool:
    """Whether samples of a row are adjacent, and rows, planes and pictures have ascending addresses."""
    *outer, before_last, last = strides
    if layout == "NHWC":
        outer, before_last = list(strides[:2]), strides[2]
        return bool(
            (last == itemsize or shape[3] == 1)
            and (before_last == shape[3] * itemsize or shape[2] == 1)
            and all(stride >= 0 and stride % itemsize == 0 for stride in outer)
        )
    return bool(
        (last == itemsize or shape[3] == 1)
        and all(stride >= 0 and stride % itemsize == 0 for stride in (*outer, before_last))
    )
