"""Normalise pictures to a network's input: scale, mean, deviation, layout and element type in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, is_on_gpu, nvtx_range

BatchLayout = Literal["NCHW", "NHWC"]

INPUT_DTYPES = ("uint8", "uint16", "float16", "float32")
"""Element types that ``batch_normalize`` reads."""

_INPUTS = frozenset(map(np.dtype, INPUT_DTYPES))

MAX_CHANNELS = 4


def batch_normalize(
    images: npt.NDArray[Any],
    *,
    mean: Sequence[float],
    std: Sequence[float],
    scale: float = 1 / 255,
    layout_in: BatchLayout = "NHWC",
    layout_out: BatchLayout = "NCHW",
    dtype: Literal["float32", "float16"] = "float32",
    out: npt.NDArray[Any] | None = None,
) -> npt.NDArray[Any]:
    """Compute ``(images * scale - mean) / std`` per channel, in float32.

    Runs on the images' device: NumPy on the CPU; CuPy in one kernel on the GPU, on the current stream. GPU
    results agree to 2e-6 of the largest term in float32, to one unit in the last place in float16.

    Args:
        images: uint8, uint16, float16 or float32, [N, H, W, C] or [N, C, H, W] with 1 to 4 channels. Memory
            that is not C-contiguous costs a copy.
        mean: Mean of each channel, after ``scale``.
        std: Standard deviation of each channel, not 0.
        scale: Factor that brings code values to the range of ``mean`` and ``std``.
        layout_in: Axis order of ``images``.
        layout_out: Axis order of the result.
        dtype: Element type of the result.
        out: Output array, C-contiguous, on the images' device; a new array if omitted.

    Returns:
        [N, C, H, W] or [N, H, W, C] of ``dtype``, C-contiguous.

    Raises:
        ValueError: Shapes or dtypes do not match, or a standard deviation is 0.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    channels = channels_of(images, layout_in, mean, std)
    count = images.shape[0]
    height, width = images.shape[2:] if layout_in == "NCHW" else images.shape[1:3]
    shape = (count, channels, height, width) if layout_out == "NCHW" else (count, height, width, channels)
    check_out(out, shape, dtype)
    gain, offset = channel_affine(mean, std, scale)
    if is_on_gpu(images):
        made: npt.NDArray[Any] = _launch_batch_normalize(
            images,
            gain,
            offset,
            layout_in=layout_in,
            layout_out=layout_out,
            dtype=dtype,
            shape=shape,
            out=out,
        )
        return made
    result: npt.NDArray[Any] = np.empty(shape, dtype) if out is None else out
    sources = images if layout_in == "NCHW" else np.moveaxis(images, -1, 1)
    targets = result if layout_out == "NCHW" else np.moveaxis(result, -1, 1)
    for channel in range(channels):
        plane = sources[:, channel].astype(np.float32)
        plane *= gain[channel]
        plane += offset[channel]
        targets[:, channel] = plane
    return result


def channels_of(
    images: npt.NDArray[Any], layout: BatchLayout, mean: Sequence[float], std: Sequence[float]
) -> int:
    """Validate images and count their channels.

    Raises:
        ValueError: The images cannot be normalised with this mean and deviation.
    """
    if images.ndim != 4 or images.dtype not in _INPUTS:
        raise ValueError(
            f"images are {images.dtype} {images.shape}, expected 4 axes of {', '.join(INPUT_DTYPES)}"
        )
    channels = int(images.shape[1 if layout == "NCHW" else 3])
    if not 1 <= channels <= MAX_CHANNELS or len(mean) != channels or len(std) != channels:
        raise ValueError(
            f"{layout} {images.shape} has {channels} channels, mean {len(mean)} and std {len(std)}; "
            f"expected the same number, 1 to {MAX_CHANNELS}"
        )
    if 0 in std:
        raise ValueError(f"std is {tuple(std)}, expected none to be 0")
    return channels


def check_out(out: npt.NDArray[Any] | None, shape: tuple[int, ...], dtype: str) -> None:
    """Check an output array's shape, dtype and layout.

    Raises:
        ValueError: The result cannot be written there.
    """
    if out is not None and (
        out.shape != shape or out.dtype != np.dtype(dtype) or not out.flags["C_CONTIGUOUS"]
    ):
        raise ValueError(f"out is {out.dtype} {out.shape}, expected C-contiguous {dtype} {shape}")


def channel_affine(
    mean: Sequence[float], std: Sequence[float], scale: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute (gain, offset) of each channel: ``value * gain + offset`` is ``(value * scale - mean) / std``.

    Both are float32, so products keep their type.
    """
    return _channel_affine(tuple(map(float, mean)), tuple(map(float, std)), float(scale))


@lru_cache(maxsize=128)
def _channel_affine(
    mean: tuple[float, ...], std: tuple[float, ...], scale: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    divisor = np.asarray(std, np.float64)
    gain, offset = scale / divisor, -np.asarray(mean) / divisor
    return tuple(gain.astype(np.float32).tolist()), tuple(offset.astype(np.float32).tolist())


_THREADS = 256  # same as in batch_normalize.cu
_MAX_GRID_Y = 65_535

_AFFINE = np.dtype([("gain", "f4", 4), ("offset", "f4", 4)])
_NAMES = {"uint8": "unsigned char", "uint16": "unsigned short", "float16": "__half", "float32": "float"}


def _launch_batch_normalize(
    images: Any,
    gain: tuple[float, ...],
    offset: tuple[float, ...],
    *,
    layout_in: str,
    layout_out: str,
    dtype: str,
    shape: tuple[int, ...],
    out: Any,
) -> Any:
    """Compute ``images * gain + offset`` on the current CuPy stream; takes and returns the same as ``batch_normalize``.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    result = cupy.empty(shape, dtype) if out is None else out
    if result.size == 0:
        return result
    images = cupy.ascontiguousarray(images)
    count, channels = shape[0], len(gain)
    pixels = result.size // count // channels
    interleaved = layout_in == layout_out == "NHWC"
    group = 16 // result.dtype.itemsize
    elements = pixels * channels if interleaved else pixels
    has_whole_vectors = (
        elements % group == 0
        and images.data.ptr % 16 == 0
        and result.data.ptr % 16 == 0
        # Every picture, and every plane of a planar input, is aligned for the widest load.
        and elements * images.dtype.itemsize % 16 == 0
    )
    kernel = _kernel(
        images.dtype, dtype, channels, layout_in, layout_out, has_whole_vectors, cupy.cuda.runtime.getDevice()
    )
    affine = _affine(gain, offset)
    blocks = math.ceil(elements / (_THREADS * group)) if has_whole_vectors else math.ceil(pixels / _THREADS)
    with nvtx_range("batch_normalize"):
        if count <= _MAX_GRID_Y:  # CuPy takes microseconds to slice
            kernel((blocks, count), (_THREADS,), (images, result, np.int64(pixels), affine))
            return result
        for first in range(0, count, _MAX_GRID_Y):
            part = slice(first, first + _MAX_GRID_Y)
            kernel(
                (blocks, len(images[part])),
                (_THREADS,),
                (images[part], result[part], np.int64(pixels), affine),
            )
    return result


@lru_cache(maxsize=128)
def _kernel(
    input_dtype: np.dtype[Any],
    dtype: str,
    channels: int,
    layout_in: str,
    layout_out: str,
    has_whole_vectors: bool,
    device: int,
) -> Any:
    del device  # kernels are compiled for the current device
    return cuda_kernel(
        "batch_normalize.cu",
        "normalize" if has_whole_vectors else "normalize_pixels",
        INPUT=_NAMES[input_dtype.name],
        OUTPUT=_NAMES[dtype],
        CHANNELS=channels,
        IN_LAST=int(layout_in == "NHWC"),
        OUT_LAST=int(layout_out == "NHWC"),
    )


@lru_cache(maxsize=128)
def _affine(gain: tuple[float, ...], offset: tuple[float, ...]) -> Any:
    affine = np.zeros(1, _AFFINE)
    affine["gain"][0, : len(gain)], affine["offset"][0, : len(offset)] = gain, offset
    return by_value(affine)
