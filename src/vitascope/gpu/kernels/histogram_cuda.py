"""Launch of ``histogram.cu``."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitascope.gpu.kernels.cuda_module import cuda_kernel, nvtx_range

__all__ = ["launch_color_histogram"]

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


def launch_color_histogram(pictures: Any, *, levels: int, stride: int) -> Any:
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
