"""Soft colour histograms of small pictures: what tells one shot from the next."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import cuda_kernel, is_on_gpu, nvtx_range

__all__ = ["color_histogram"]


_LEAST_LEVELS, _MOST_LEVELS = 2, 7  # from 8 on, a warp's histograms exceed a block's shared memory


def color_histogram(
    rgb: npt.NDArray[Any],
    *,
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    levels: int = 4,
    max_samples: int = 4096,
) -> npt.NDArray[np.float32]:
    """Share of each colour, every sample divided among the eight nearest bins.

    With hard bins a flat wall that crosses a bin's border by a hair would look like another picture. Of large pictures
    every ``pixels // max_samples``-th pixel in reading order is a sample.

    Runs where the pictures are: NumPy on the CPU; CuPy in one kernel on the GPU, ordered on the current stream. The
    two agree to 1e-5.

    Args:
        rgb: float16 or float32, RGB; values are clipped to 0..1. [3, h, w] or [N, 3, h, w], or with ``layout`` NHWC
            [h, w, 3] or [N, h, w, 3]; any strides.
        layout: Where the channel axis is.
        levels: Of each channel, 2 to 7.
        max_samples: About how many pixels of a picture are counted: at most twice as many, at least that many where
            the picture has them.

    Returns:
        float32 [levels^3] or [N, levels^3] on the pictures' device; red is the slowest axis; each sums to 1.

    Raises:
        ValueError: Another dtype or shape, or a number out of range.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if rgb.ndim not in (3, 4) or rgb.shape[-3 if layout == "NCHW" else -1] != 3 or rgb.size == 0:
        raise ValueError(f"pictures are {layout} {rgb.shape}, expected [3, h, w] or [h, w, 3], or N of them")
    if rgb.dtype not in (np.float16, np.float32):
        raise ValueError(f"pictures are {rgb.dtype}, expected float16 or float32")
    if not _LEAST_LEVELS <= levels <= _MOST_LEVELS or max_samples < 1:
        raise ValueError(f"got {levels} levels and {max_samples} samples, expected 2 to 7, and at least 1")
    pictures = rgb if rgb.ndim == 4 else rgb[None]
    if layout == "NCHW":
        pictures = pictures.swapaxes(1, 2).swapaxes(2, 3)
    stride = max(pictures.shape[1] * pictures.shape[2] // max_samples, 1)
    histograms: npt.NDArray[np.float32]
    if is_on_gpu(rgb):
        histograms = _launch_color_histogram(pictures, levels=levels, stride=stride)
    else:
        histograms = np.stack(
            [_histogram(picture.reshape(-1, 3)[::stride], levels) for picture in pictures]
        ).astype(np.float32)
    return histograms if rgb.ndim == 4 else histograms[0]


def _histogram(pixels: npt.NDArray[Any], levels: int) -> npt.NDArray[np.float64]:
    position = np.clip(pixels.astype(np.float32), 0, 1) * (levels - 1)
    lower = np.minimum(position.astype(np.int32), levels - 2)
    upper_share = position - lower
    histogram = np.zeros(levels**3)
    strides = np.array([levels**2, levels, 1])
    for corner in product((0, 1), repeat=3):
        share = np.where(corner, upper_share, 1 - upper_share).prod(axis=1)
        histogram += np.bincount((lower + corner) @ strides, weights=share, minlength=levels**3)
    return histogram / len(pixels)


_SHARED_BYTES = 48 * 1024
_PICTURES = np.dtype(
    [
        ("data", "u8"),
        ("step", "i8"),
        ("channel", "i8"),
        ("row", "i8"),
        ("column", "i8"),
        ("width", "u4"),
        ("stride", "u4"),
        ("samples", "i4"),
        ("unused", "i4"),
    ]
)


def _launch_color_histogram(pictures: Any, *, levels: int, stride: int) -> Any:
    """Run the kernel on the current CuPy stream.

    Args:
        pictures: CuPy float16 or float32 [N, h, w, 3], any strides.
        levels: Of each channel.
        stride: Every which pixel counts.

    Returns:
        CuPy float32 [N, levels^3].

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    import cupy

    count, height, width, _ = pictures.shape
    bins = levels**3
    # As many histograms as fit, one a thread, up to where a block has enough threads.
    threads = min(_SHARED_BYTES // (bins * 4) // 32 * 32, 128)
    step, row, column, channel = (length // pictures.dtype.itemsize for length in pictures.strides)
    job = np.zeros(1, _PICTURES)
    job[0] = (
        pictures.data.ptr,
        step,
        channel,
        row,
        column,
        width,
        stride,
        -(-height * width // stride),
        0,
    )
    histograms = cupy.empty((count, bins), cupy.float32)
    kernel = cuda_kernel(
        "histogram.cu",
        "color_histogram",
        COLOR="float" if pictures.dtype == np.float32 else "__half",
        LEVELS=levels,
        THREADS=threads,
    )
    with nvtx_range("histogram"):
        kernel((count,), (threads,), (job, histograms))
    return histograms
