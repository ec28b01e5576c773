"""Launch of ``batch_normalize.cu``."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, nvtx_range

__all__ = ["launch_batch_normalize"]

_THREADS = 256  # as in batch_normalize.cu
_MAX_GRID_Y = 65_535

_AFFINE = np.dtype([("gain", "f4", 4), ("offset", "f4", 4)])
_NAMES = {"uint8": "unsigned char", "uint16": "unsigned short", "float16": "__half", "float32": "float"}


def launch_batch_normalize(
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
    """``images * gain + offset`` on the current CuPy stream; arguments and result as in ``batch_normalize``.

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
        # Every picture, and every plane of a planar input, begins where the widest load may.
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
    del device  # kernels are compiled for the current one
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
