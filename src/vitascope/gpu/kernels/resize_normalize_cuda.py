"""Launch of ``resize_normalize.cu``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, nvtx_range

__all__ = ["launch_resize_normalize"]

# As in resize_normalize.cu.
_THREADS = 128
_SPAN = 4096
_MOST_TAPS = 6
_MAX_GRID_Z = 65_535
# Of four channels as many samples of a row fit the span.
_MOST_SHRUNK = 1000

_NAMES = {"uint8": "unsigned char", "uint16": "unsigned short", "float16": "__half", "float32": "float"}
_PICTURES = np.dtype(
    [
        ("data", "u8"),
        ("out", "u8"),
        ("picture_pitch", "i8"),
        ("plane_pitch", "i8"),
        ("row_pitch", "i8"),
        *((name, "i4") for name in ("in_height", "in_width", "height", "width", "channels", "run")),
        ("reversed", "i4"),
        ("channels_last", "i4"),
        ("step_y", "f4"),
        ("step_x", "f4"),
        ("gain", "f4", 4),
        ("offset", "f4", 4),
    ],
    align=True,
)


def launch_resize_normalize(
    images: Any,
    gain: Any,
    offset: Any,
    *,
    size: tuple[int, int],
    layout_in: str,
    layout_out: str,
    reverse_channels: bool,
    dtype: str,
    shape: tuple[int, ...],
    out: Any,
) -> Any:
    """Run the kernel on the current CuPy stream; arguments and result as in ``resize_normalize``.

    Raises:
        ValueError: A row is to shrink more than 1000 times.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    result = cupy.empty(shape, dtype) if out is None else out
    if result.size == 0:
        return result
    if not _has_dense_samples(images, layout_in):
        images = cupy.ascontiguousarray(images)
    plan = _plan(
        images.shape,
        images.strides,
        images.dtype,
        images.data.ptr % 16 == 0,
        tuple(gain.tolist()),
        tuple(offset.tolist()),
        size,
        layout_in,
        layout_out,
        reverse_channels,
        dtype,
        cupy.cuda.runtime.getDevice(),
    )
    # Only the pointers change from picture to picture.
    parameter = plan.parameter.copy()
    parameter["data"], parameter["out"] = images.data.ptr, result.data.ptr
    with nvtx_range("resize_normalize"):
        for first in range(0, plan.slices, _MAX_GRID_Z):
            grid = (*plan.grid, min(plan.slices - first, _MAX_GRID_Z))
            plan.kernel(grid, (_THREADS,), (by_value(parameter), np.int32(first)))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """A launch, but for the pointers."""

    kernel: Any
    grid: tuple[int, int]
    slices: int
    """Pictures, or planes of all pictures."""
    parameter: Any


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
    """The launch for pictures of one kind."""
    del device  # kernels are compiled for the current one
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
    # A run's windows, the taps at its ends and the alignment of its first load must fit the span.
    run = min(int((_SPAN / side_by_side - 24) / step_x), width)
    # Equal runs: none much shorter than the rest.
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
    return _Plan(kernel, (math.ceil(width / run), height), slices, parameter)


def _has_dense_samples(images: Any, layout: str) -> bool:
    """True when the samples of a row lie side by side and rows, planes and pictures follow one another upwards."""
    itemsize = images.dtype.itemsize
    *outer, before_last, last = images.strides
    if layout == "NHWC":
        outer, before_last = images.strides[:2], images.strides[2]
        return bool(
            (last == itemsize or images.shape[3] == 1)
            and (before_last == images.shape[3] * itemsize or images.shape[2] == 1)
            and all(stride >= 0 and stride % itemsize == 0 for stride in outer)
        )
    return bool(
        (last == itemsize or images.shape[3] == 1)
        and all(stride >= 0 and stride % itemsize == 0 for stride in (*outer, before_last))
    )
