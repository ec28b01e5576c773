"""Paints alpha into a picture as a colour that players read as R - max(G, B), or as grey."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, is_on_gpu, nvtx_range, row_pitch
from vitascope.gpu.kernels.morphology import SAMPLE_NAMES
from vitascope.gpu.kernels.region import Region, cut
from vitascope.gpu.kernels.resample import upsample_to_luma

PaintedColor = Literal["red", "grey"]


@dataclass(frozen=True, slots=True)
class PaintedPart:
    """A part of one of several alpha planes, and its area in the picture."""

    number: int
    source: Region
    target: Region
    """The same size as the source."""


# Same as in paint_alpha.cu.
_BLOCK = (32, 8)
_MOST_PARTS = 8
_PART = np.dtype(
    [(name, np.int32) for name in ("number", "source_x", "source_y", "x", "y", "width", "height")]
)
_JOB = np.dtype(
    [
        ("planes", np.uint64, (4,)),
        ("pitches", np.int64, (4,)),
        ("alpha_picture_pitch", np.int64),
        ("chroma_start", np.float64, (2,)),
        ("chroma_slope", np.float64, (2,)),
        ("red", np.float32, (2,)),
        ("black", np.float32),
        ("luma_slope", np.float32),
        ("height", np.int32),
        ("width", np.int32),
        ("word", np.int32),
        ("least", np.int32),
        ("peak", np.int32),
        ("parts", _PART, (_MOST_PARTS,)),
    ],
    align=True,
)


def paint_alpha(
    frame: Frame,
    alpha: npt.NDArray[np.float32],
    inside: npt.NDArray[np.bool_],
    parts: Sequence[PaintedPart],
    *,
    color: PaintedColor,
) -> None:
    """Write alpha into parts of a picture, in place.

    Each chroma sample is that of the largest alpha among its pixels, rounded towards red. Luma then makes R right for
    a reader's interpolated chroma, which leaves G and B at 0 or below. Runs on the frame's device: NumPy, any of
    ``frames.PIXEL_FORMATS``; CuPy (NV12 or P010) in one CUDA kernel on the current stream.

    Args:
        frame: The picture to change; its size must be whole chroma samples.
        alpha: float32 [N, h, w] on the same device, 0..1.
        inside: bool [h, w] on the same device: where alpha is valid; elsewhere the picture is unchanged.
        parts: The parts to copy, at most 8. No two may share or touch a chroma sample.
        color: ``red``, or ``grey``, which leaves chroma neutral.

    Raises:
        ValueError: Sizes do not match, or a frame on the GPU is not semi-planar.
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    fmt = frame.format
    if frame.height % (1 << fmt.chroma_shift_y) or frame.width % (1 << fmt.chroma_shift_x):
        raise ValueError(f"the picture is {frame.height}x{frame.width}, not of whole chroma samples")
    if alpha.ndim != 3 or alpha.shape[1:] != inside.shape or len(parts) > _MOST_PARTS:
        raise ValueError(f"{len(parts)} parts of alphas {alpha.shape}, inside is {inside.shape}")
    for part in parts:
        source, target = part.source, part.target
        fits = source.size == target.size and part.number < len(alpha)
        for region, size in ((source, inside.shape), (target, (frame.height, frame.width))):
            fits &= min(region.x, region.y) >= 0
            fits &= region.y + region.height <= size[0] and region.x + region.width <= size[1]
        if not fits:
            raise ValueError(f"{part} is not inside alphas {alpha.shape} and {frame.height}x{frame.width}")
    if is_on_gpu(frame.planes[0]):
        _launch(frame, alpha, inside, parts, color=color)
        return
    for part in parts:
        # Whole chroma blocks, and one block around them, which is read when chroma is interpolated.
        around = _whole_blocks(part.target, frame)
        shown = np.full(around.size, -1.0, np.float32)
        within = replace(part.target, x=part.target.x - around.x, y=part.target.y - around.y)
        place = part.source.rows, part.source.columns
        np.copyto(shown[within.rows, within.columns], alpha[part.number][place], where=inside[place])
        _paint(cut(frame, around), shown, color=color)


def _whole_blocks(region: Region, frame: Frame) -> Region:
    bounds = []
    for first, length, whole, shift in (
        (region.x, region.width, frame.width, frame.format.chroma_shift_x),
        (region.y, region.height, frame.height, frame.format.chroma_shift_y),
    ):
        start = max((first >> shift) - 1, 0) << shift
        end = min(((first + length - 1) >> shift) + 2, whole >> shift) << shift
        bounds.append((start, end - start))
    return Region(bounds[0][0], bounds[1][0], bounds[0][1], bounds[1][1])


def _paint(frame: Frame, alpha: npt.NDArray[np.float32], *, color: PaintedColor) -> None:
    """The reference: alpha [H, W] for a whole picture; below 0 the picture is unchanged."""
    fmt = frame.format
    blocks = 1 << fmt.chroma_shift_y, 1 << fmt.chroma_shift_x
    forward, start = yuv_from_rgb(frame.color, fmt)
    word, most = 1 << fmt.sample_shift, (1 << fmt.bit_depth) - 1
    largest = alpha
    if blocks[0] == 2:
        largest = np.maximum(largest[0::2], largest[1::2])
    if blocks[1] == 2:
        largest = np.maximum(largest[:, 0::2], largest[:, 1::2])
    is_painted, touched = alpha >= 0, largest >= 0
    for channel, rounded in ((1, np.floor), (2, np.ceil)):
        slope = forward[channel, 0] if color == "red" else 0.0
        codes = _whole_codes(start[channel] + slope * largest.astype(np.float64), rounded, 0, most, word)
        target = frame.planes[1][..., channel - 1] if fmt.semi_planar else frame.planes[channel]
        np.copyto(target, codes.astype(fmt.dtype), where=touched)
    black = round(start[0])
    # R follows luma as grey does: its full range for the full range of alpha.
    exact_luma = _red_of_chroma(frame, black)
    np.subtract(alpha, exact_luma, out=exact_luma)
    exact_luma *= np.float32(forward[0].sum())
    exact_luma += np.float32(black)
    codes = _whole_codes(exact_luma, np.rint, black // word, most, word)
    np.copyto(frame.planes[0], codes.astype(fmt.dtype), where=is_painted)


def _whole_codes(
    exact: npt.NDArray[Any], rounded: Callable[..., Any], least: int, most: int, word: int
) -> npt.NDArray[Any]:
    """Round and clip to codes, as words; in place."""
    if word != 1:
        exact /= word
    rounded(exact, out=exact)
    np.clip(exact, least, most, out=exact)
    if word != 1:
        exact *= word
    return exact


def _red_of_chroma(frame: Frame, black: int) -> npt.NDArray[np.float32]:
    """R as a reader computes it where luma is ``black``, float32 [H, W], 0..1."""
    matrix, bias = rgb_from_yuv(frame.color, frame.format)
    _, of_blue, of_red = (np.float32(factor) for factor in matrix[0])
    blue, red = (
        [frame.planes[1][..., 0], frame.planes[1][..., 1]] if frame.format.semi_planar else frame.planes[1:]
    )
    found: npt.NDArray[np.float32] = np.full(
        (frame.height, frame.width), np.float32(black) * np.float32(matrix[0, 0]), np.float32
    )
    for plane, factor in ((blue, of_blue), (red, of_red)):
        if abs(factor) > _NO_FACTOR:  # U's share of red is only a rounding error
            codes = np.ascontiguousarray(plane, np.float32)
            found += upsample_to_luma(codes, frame.format, frame.color, found.shape) * factor
    found += np.float32(bias[0])
    return np.clip(found, 0.0, 1.0, out=found)


_NO_FACTOR = 1e-14
"""A change of R per code that is too small for float32."""


def _launch(
    frame: Frame, alpha: Any, inside: Any, parts: Sequence[PaintedPart], *, color: PaintedColor
) -> None:
    fmt = frame.format
    if not fmt.semi_planar:
        raise ValueError(f"the GPU kernel paints NV12 and P010, not {fmt.name}")
    if not parts:
        return
    forward, start = yuv_from_rgb(frame.color, fmt)
    matrix, bias = rgb_from_yuv(frame.color, fmt)
    black = round(start[0])
    arrays: tuple[Any, ...] = (*frame.planes, alpha[0], inside)
    job = np.zeros(1, _JOB)
    job["planes"] = [array.data.ptr for array in arrays]
    job["pitches"] = [
        row_pitch(array.shape, array.strides, itemsize=array.dtype.itemsize) for array in arrays
    ]
    job["alpha_picture_pitch"] = alpha.strides[0] // alpha.dtype.itemsize
    word = 1 << fmt.sample_shift
    job["chroma_start"] = start[1:] / word  # exact: word is a power of two
    job["chroma_slope"] = forward[1:, 0] / word if color == "red" else 0.0
    # For black luma; U's share of red is only a rounding error.
    job["red"] = matrix[0, 2], bias[0] + matrix[0, 0] * black + matrix[0, 1] * start[1]
    job["black"], job["luma_slope"] = black / word, forward[0].sum() / word
    job["height"], job["width"] = frame.height, frame.width
    job["word"], job["least"], job["peak"] = word, black // word, (1 << fmt.bit_depth) - 1
    for index, part in enumerate(parts):
        source, target = part.source, part.target
        numbers = part.number, source.x, source.y, target.x, target.y, target.width, target.height
        job["parts"][0, index] = numbers
    location = frame.color.chroma_location
    defines: dict[str, str | int] = {
        "SAMPLE": SAMPLE_NAMES[fmt.dtype.itemsize],
        "COSITED_X": int(location in ("left", "topleft")),
        "COSITED_Y": int(location == "topleft"),
    }
    # A part may begin in the middle of a chroma block.
    rows = max(part.target.height for part in parts) // 2 + 1
    columns = max(part.target.width for part in parts) // 2 + 1
    kernel = cuda_kernel("paint_alpha.cu", "paint_alpha", **defines)
    with nvtx_range("paint alpha"):
        kernel(
            (math.ceil(columns / _BLOCK[0]), math.ceil(rows / _BLOCK[1]), len(parts)),
            _BLOCK,
            (by_value(job),),
        )
