"""Launches of ``rgb.cu``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from vitascope.frames import ColorSpec, Frame, YuvFormat
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import (
    by_value,
    cuda_kernel,
    nvtx_range,
    row_pitch,
    wait_until_ready,
)

__all__ = ["launch_from_rgb", "launch_to_rgb"]

# As in rgb.cu: a block makes 1024 columns of two rows.
_THREADS = 128
_COLUMNS = 8

_PLANES = np.dtype(
    [
        ("luma", "u8"),
        ("chroma", "u8"),
        ("luma_pitch", "i8"),
        ("chroma_pitch", "i8"),
        ("height", "i4"),
        ("width", "i4"),
    ]
)
_AFFINE = np.dtype([("matrix", "f4", 9), ("offset", "f4", 3)])
_RGB_NAMES = {"uint8": "unsigned char", "float16": "__half", "float32": "float"}


def launch_to_rgb(
    frame: Frame, *, layout: str, dtype: np.dtype[Any], shape: tuple[int, ...], out: Any
) -> Any:
    """Run the kernel on the current CuPy stream; arguments and result as in ``nv12_to_rgb``.

    Raises:
        ValueError: The frame is not semi-planar.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    if not frame.format.semi_planar:
        raise ValueError(f"the GPU kernel reads NV12 and P010, not {frame.format.name}")
    rgb = cupy.empty(shape, dtype) if out is None else out
    affine = _affine_to_rgb(frame.color, frame.format)
    kernel = cuda_kernel(
        "rgb.cu",
        "to_rgb",
        **_defines(frame.planes, rgb, layout, frame.color, frame.format, writes_planes=False),
    )
    with nvtx_range("nv12_to_rgb"):
        wait_until_ready(frame)
        kernel(_grid(frame.height, frame.width), (_THREADS,), (_parameter(frame.planes), rgb, affine))
    return rgb


def launch_from_rgb(rgb: Any, *, layout: str, color: ColorSpec, fmt: YuvFormat) -> tuple[Any, ...]:
    """Run the kernel on the current CuPy stream; ``rgb`` is one picture, the result its planes."""
    import cupy

    height, width = rgb.shape[:2] if layout == "NHWC" else rgb.shape[1:]
    chroma_width, chroma_height = fmt.chroma_size(width, height)
    planes = (cupy.empty((height, width), fmt.dtype), cupy.empty((chroma_height, chroma_width, 2), fmt.dtype))
    affine = _affine_from_rgb(color, fmt, rgb.dtype.name)
    with nvtx_range("rgb_to_nv12"):
        dense = cupy.ascontiguousarray(rgb)
        kernel = cuda_kernel(
            "rgb.cu", "from_rgb", **_defines(planes, dense, layout, color, fmt, writes_planes=True)
        )
        peak = np.float32((1 << fmt.bit_depth) - 1)
        kernel(_grid(height, width), (_THREADS,), (dense, _parameter(planes), affine, peak))
    return planes


def _defines(
    planes: tuple[Any, ...], rgb: Any, layout: str, color: ColorSpec, fmt: YuvFormat, *, writes_planes: bool
) -> dict[str, str | int]:
    row_bytes = planes[0].shape[1] * rgb.dtype.itemsize * (3 if layout == "NHWC" else 1)
    whole_pixels = layout == "NHWC" or planes[0].shape[1] % _COLUMNS == 0
    return {
        "SAMPLE": "unsigned char" if fmt.bit_depth == 8 else "unsigned short",
        "RGB": _RGB_NAMES[rgb.dtype.name],
        "RGB_IS_BYTE": int(rgb.dtype.itemsize == 1),
        "SHIFT": fmt.sample_shift,
        "CHANNELS_LAST": int(layout == "NHWC"),
        "COSITED_X": int(color.chroma_location in ("left", "topleft")),
        "COSITED_Y": int(color.chroma_location == "topleft"),
        "VECTORS": int(all(_has_whole_vectors(plane, is_written=writes_planes) for plane in planes)),
        "RGB_VECTORS": int(rgb.data.ptr % 16 == 0 and row_bytes % 16 == 0 and whole_pixels),
    }


def _grid(height: int, width: int) -> tuple[int, int]:
    return math.ceil(width / (_THREADS * _COLUMNS)), math.ceil(height / 2)


def _parameter(planes: tuple[Any, ...]) -> Any:
    luma, chroma = planes
    parameter = np.zeros(1, _PLANES)
    parameter[0] = (
        luma.data.ptr,
        chroma.data.ptr,
        *(row_pitch(plane.shape, plane.strides, itemsize=plane.dtype.itemsize) for plane in planes),
        *luma.shape,
    )
    return by_value(parameter)


@lru_cache(maxsize=64)
def _affine_to_rgb(color: ColorSpec, fmt: YuvFormat) -> Any:
    affine = np.zeros(1, _AFFINE)
    matrix, affine["offset"] = rgb_from_yuv(color, fmt)
    affine["matrix"] = matrix.ravel()
    return affine


@lru_cache(maxsize=64)
def _affine_from_rgb(color: ColorSpec, fmt: YuvFormat, dtype: str) -> Any:
    """To codes as they count, not as they lie in their words; from bytes where RGB is bytes."""
    affine = np.zeros(1, _AFFINE)
    matrix, offset = yuv_from_rgb(color, fmt)
    step = 1 << fmt.sample_shift
    affine["matrix"] = (matrix / step / (255 if dtype == "uint8" else 1)).ravel()
    affine["offset"] = offset / step
    return affine


def _has_whole_vectors(plane: Any, *, is_written: bool) -> bool:
    """True when every row begins on 16 bytes and may be read to a multiple of 16 bytes.

    A row that ends inside a vector is not written whole: what stands behind it may belong to somebody else.
    """
    row_bytes = math.prod(plane.shape[1:]) * plane.dtype.itemsize
    whole_bytes = -(-row_bytes // 16) * 16
    return bool(
        plane.data.ptr % 16 == 0
        and plane.strides[0] % 16 == 0
        and (row_bytes == whole_bytes if is_written else plane.strides[0] >= whole_bytes)
    )
