"""Converts a frame's planes to full-resolution RGB and back, where no fused kernel applies.

``rgb = M @ yuv + t`` (``color.py``), with chroma read bilinearly at every luma sample. In the other direction, each
chroma site averages its samples (``downsample_to_chroma``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Plane, YuvFormat
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import (
    by_value,
    cuda_kernel,
    fields,
    is_on_gpu,
    nvtx_range,
    row_pitch,
    takes_vectors,
    wait_until_ready,
)
from vitascope.gpu.kernels.resample import downsample_to_chroma, upsample_to_luma

RgbLayout = Literal["NHWC", "NCHW"]
RgbDtype = Literal["uint8", "float16", "float32"]
_DTYPES = (np.dtype(np.uint8), np.dtype(np.float16), np.dtype(np.float32))


def nv12_to_rgb(
    frame: Frame,
    *,
    layout: RgbLayout = "NHWC",
    dtype: RgbDtype = "uint8",
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Convert a picture to gamma-encoded R'G'B' at full resolution.

    Runs on the frame's device: NumPy on the CPU, any of ``frames.PIXEL_FORMATS``; CuPy (NV12 or P010) in one CUDA
    kernel on the current stream, after ``frame.ready``.

    Args:
        frame: The picture.
        layout: Order of the result's axes; N is 1.
        dtype: uint8 is 0..255, rounded; floats are 0..1.
        out: Output array, C-contiguous, on the frame's device; a new array if omitted.

    Returns:
        [1, H, W, 3] or [1, 3, H, W], C-contiguous, clipped. GPU results agree within one level (uint8), 1e-3
        (float16) or 1e-5 (float32).

    Raises:
        ValueError: ``out`` does not match, or a frame on the GPU is not semi-planar.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    size = (frame.height, frame.width)
    shape = (1, *size, 3) if layout == "NHWC" else (1, 3, *size)
    if out is not None and (out.shape != shape or out.dtype != np.dtype(dtype) or not out.flags.c_contiguous):
        raise ValueError(f"out is {out.dtype} {out.shape}, expected {dtype} {shape}, C-contiguous")
    if is_on_gpu(frame.planes[0]):
        made: npt.NDArray[Any] = _launch_to_rgb(
            frame, layout=layout, dtype=np.dtype(dtype), shape=shape, out=out
        )
        return made
    result: npt.NDArray[Any] = np.empty(shape, dtype) if out is None else out
    channels = result[0] if layout == "NCHW" else np.moveaxis(result[0], -1, 0)
    luma = frame.planes[0].astype(np.float32)
    blue_difference, red_difference = (
        upsample_to_luma(np.ascontiguousarray(plane, np.float32), frame.format, frame.color, size)
        for plane in _chroma_planes(frame)
    )
    for channel, row, bias in zip(channels, *rgb_from_yuv(frame.color, frame.format), strict=True):
        rgb = luma * np.float32(row[0])
        rgb += blue_difference * np.float32(row[1])
        rgb += red_difference * np.float32(row[2])
        rgb += np.float32(bias)
        np.clip(rgb, 0.0, 1.0, out=rgb)
        channel[...] = np.rint(rgb * np.float32(255)) if result.dtype == np.uint8 else rgb
    return result


def rgb_to_nv12(
    rgb: npt.NDArray[Any],
    *,
    color: ColorSpec,
    like: Frame,
    format: Literal["nv12", "p010le"] = "nv12",
    layout: RgbLayout = "NHWC",
) -> Frame:
    """Make a frame from gamma-encoded R'G'B'.

    Runs on the picture's device: NumPy on the CPU; CuPy in one CUDA kernel on the current stream.

    Args:
        rgb: uint8 (0..255), float16 or float32 (0..1), [H, W, 3] or [1, H, W, 3] (``layout`` NHWC), [3, H, W] or
            [1, 3, H, W] (NCHW).
        color: Matrix, range and chroma site of the result.
        like: Sets the frame's time.
        format: Format of the result.
        layout: Order of the picture's axes.

    Returns:
        A frame on the device of ``rgb``, with codes clipped to the bit depth; GPU results agree within one code.

    Raises:
        ValueError: The picture's shape or dtype is not supported.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    picture = rgb[0] if rgb.ndim == 4 and rgb.shape[0] == 1 else rgb
    axis = 2 if layout == "NHWC" else 0
    if picture.ndim != 3 or picture.shape[axis] != 3 or picture.dtype not in _DTYPES:
        raise ValueError(
            f"rgb is {rgb.dtype} {rgb.shape}, expected uint8, float16 or float32, one picture in {layout}"
        )
    fmt = PIXEL_FORMATS[format]
    if is_on_gpu(picture):
        planes: tuple[Plane, ...] = _launch_from_rgb(picture, layout=layout, color=color, fmt=fmt)
    else:
        channels = np.moveaxis(picture, axis, 0).astype(np.float32)
        if picture.dtype == np.uint8:
            channels *= np.float32(1 / 255)
        planes = planes_from_rgb(channels, fmt=fmt, color=color)
    return replace(like, planes=planes, format=fmt, color=color, ready=None)


def planes_from_rgb(rgb: npt.NDArray[np.float32], *, fmt: YuvFormat, color: ColorSpec) -> tuple[Plane, ...]:
    """Make planes in any of ``frames.PIXEL_FORMATS``, on the CPU.

    Args:
        rgb: float32 [3, H, W], gamma-encoded, 0..1.
        fmt: Layout of the planes.
        color: Matrix, range and chroma site.
    """
    matrix, offset = yuv_from_rgb(color, fmt)
    luma, blue_difference, red_difference = (
        np.tensordot(row.astype(np.float32), rgb, axes=1) + np.float32(bias)
        for row, bias in zip(matrix, offset, strict=True)
    )
    chroma = [
        _codes(downsample_to_chroma(np.ascontiguousarray(plane), fmt, color), fmt)
        for plane in (blue_difference, red_difference)
    ]
    if fmt.semi_planar:
        return _codes(luma, fmt), np.stack(chroma, axis=-1)
    return (_codes(luma, fmt), *chroma)


def _chroma_planes(frame: Frame) -> tuple[Plane, Plane]:
    if frame.format.semi_planar:
        return frame.planes[1][..., 0], frame.planes[1][..., 1]
    return frame.planes[1], frame.planes[2]


def _codes(plane: Plane, fmt: YuvFormat) -> Plane:
    step = 1 << fmt.sample_shift
    return (np.clip(np.rint(plane / step), 0, 2**fmt.bit_depth - 1) * step).astype(fmt.dtype)


# Same as in rgb.cu: a block computes 1024 columns of two rows.
_THREADS = 128
_COLUMNS = 8

_PLANES = np.dtype(
    [
        *fields("u8", "luma", "chroma"),
        *fields("i8", "luma_pitch", "chroma_pitch"),
        *fields("i4", "height", "width"),
    ]
)
_AFFINE = np.dtype([("matrix", "f4", 9), ("offset", "f4", 3)])
_RGB_NAMES = {"uint8": "unsigned char", "float16": "__half", "float32": "float"}


def _launch_to_rgb(
    frame: Frame, *, layout: str, dtype: np.dtype[Any], shape: tuple[int, ...], out: Any
) -> Any:
    """Run the kernel on the current CuPy stream; takes and returns the same as ``nv12_to_rgb``.

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


def _launch_from_rgb(rgb: Any, *, layout: str, color: ColorSpec, fmt: YuvFormat) -> tuple[Any, ...]:
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
        "VECTORS": int(all(takes_vectors(plane, is_written=writes_planes) for plane in planes)),
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
    """The conversion to codes as values, not as words; from bytes if RGB is uint8."""
    affine = np.zeros(1, _AFFINE)
    matrix, offset = yuv_from_rgb(color, fmt)
    step = 1 << fmt.sample_shift
    affine["matrix"] = (matrix / step / (255 if dtype == "uint8" else 1)).ravel()
    affine["offset"] = offset / step
    return affine
