"""Alpha painted into a picture as a colour, for players that read it as R - max(G, B), or as grey."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, is_on_gpu, nvtx_range, row_pitch
from vitascope.gpu.kernels.morphology import SAMPLE_NAMES
from vitascope.gpu.kernels.rgb import nv12_to_rgb

__all__ = ["PaintedColor", "paint_alpha"]

PaintedColor = Literal["red", "grey"]

_BLOCK = 256
_JOB = np.dtype(
    [
        ("planes", np.uint64, (3,)),
        ("pitches", np.int64, (3,)),
        ("chroma_start", np.float64, (2,)),
        ("chroma_slope", np.float64, (2,)),
        ("red", np.float32, (2,)),
        ("black", np.float32),
        ("luma_slope", np.float32),
        ("height", np.int32),
        ("width", np.int32),
        ("word", np.int32),
        ("peak", np.int32),
    ],
    align=True,
)


def paint_alpha(frame: Frame, alpha: npt.NDArray[np.float32], *, color: PaintedColor) -> None:
    """Write alpha over a picture, in place.

    Chroma is that of the largest alpha that shares a sample of it, rounded to more red; luma then makes R right beside
    what a reader interpolates, which leaves G and B at 0 or below. Runs where the frame is: NumPy, any of
    ``frames.PIXEL_FORMATS``; CuPy (NV12 or P010) in two CUDA kernels on the current stream.

    Args:
        frame: Its planes are changed; its size is one of whole chroma samples.
        alpha: float32 [H, W] on the same device, 0..1; below 0 where the picture stays as it is.
        color: ``red``, or ``grey``, which leaves chroma neutral.

    Raises:
        ValueError: The sizes differ, or a frame on the GPU is not semi-planar.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    fmt = frame.format
    blocks = 1 << fmt.chroma_shift_y, 1 << fmt.chroma_shift_x
    if alpha.shape != (frame.height, frame.width) or frame.height % blocks[0] or frame.width % blocks[1]:
        raise ValueError(
            f"alpha is {alpha.shape}, the picture {frame.height}x{frame.width}, of whole chroma samples"
        )
    if is_on_gpu(frame.planes[0]):
        _launch(frame, alpha, color=color)
        return
    forward, start = yuv_from_rgb(frame.color, fmt)
    word, most = 1 << fmt.sample_shift, (1 << fmt.bit_depth) - 1
    largest = alpha.reshape(frame.height // blocks[0], blocks[0], frame.width // blocks[1], blocks[1]).max(
        axis=(1, 3)
    )
    is_painted, touched = alpha >= 0, largest >= 0
    for channel, rounded in ((1, np.floor), (2, np.ceil)):
        slope = forward[channel, 0] if color == "red" else 0.0
        exact = (start[channel] + slope * largest.astype(np.float64)) / word
        codes = (np.clip(rounded(exact), 0, most) * word).astype(fmt.dtype)
        target = frame.planes[1][..., channel - 1] if fmt.semi_planar else frame.planes[channel]
        target[touched] = codes[touched]
    luma = frame.planes[0]
    black = round(start[0])
    luma[is_painted] = black
    of_chroma = nv12_to_rgb(frame, dtype="float32")[0, ..., 0]  # R as a reader finds it, but for luma
    # R follows luma as grey does: its whole range for the whole range of alpha.
    exact_luma = black + (alpha - of_chroma) * np.float32(forward[0].sum())
    codes = (np.clip(np.rint(exact_luma / word), black // word, most) * word).astype(fmt.dtype)
    luma[is_painted] = codes[is_painted]


def _launch(frame: Frame, alpha: Any, *, color: PaintedColor) -> None:
    fmt = frame.format
    if not fmt.semi_planar:
        raise ValueError(f"the GPU kernel paints NV12 and P010, not {fmt.name}")
    forward, start = yuv_from_rgb(frame.color, fmt)
    matrix, bias = rgb_from_yuv(frame.color, fmt)
    black = round(start[0])
    luma: Any = frame.planes[0]
    chroma: Any = frame.planes[1]
    arrays = (luma, chroma, alpha)
    job = np.zeros(1, _JOB)
    job["planes"] = [array.data.ptr for array in arrays]
    job["pitches"] = [
        row_pitch(array.shape, array.strides, itemsize=array.dtype.itemsize) for array in arrays
    ]
    job["chroma_start"] = start[1:]
    job["chroma_slope"] = forward[1:, 0] if color == "red" else 0.0
    # Where luma is black; U says nothing of red, but for rounding.
    job["red"] = matrix[0, 2], bias[0] + matrix[0, 0] * black + matrix[0, 1] * start[1]
    job["black"], job["luma_slope"] = black, forward[0].sum()
    job["height"], job["width"] = alpha.shape
    job["word"], job["peak"] = 1 << fmt.sample_shift, (1 << fmt.bit_depth) - 1
    location = frame.color.chroma_location
    defines: dict[str, str | int] = {
        "SAMPLE": SAMPLE_NAMES[fmt.dtype.itemsize],
        "COSITED_X": int(location in ("left", "topleft")),
        "COSITED_Y": int(location == "topleft"),
    }
    height, width = alpha.shape
    with nvtx_range("paint alpha"):
        for name, rows, columns in (
            ("paint_chroma", height // 2, width // 2),
            ("paint_luma", height, width),
        ):
            kernel = cuda_kernel("paint_alpha.cu", name, **defines)
            kernel((math.ceil(columns / _BLOCK), rows), (_BLOCK,), (by_value(job),))
