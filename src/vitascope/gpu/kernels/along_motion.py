"""Smooths the mattes of consecutive frames along the motion, so that errors in single frames fade.

Each sample is averaged with its positions in the two frames before and after it, as far as these have the same colour
and nearly the same alpha: a bilateral mean over time (Bennett and McMillan, "Video Enhancement Using Per-Pixel
Virtual Exposures", 2005). Mattes are read between samples by cubic convolution (Keys, 1981): linear reads blur edges
by more than the mean improves them.
"""

from __future__ import annotations

import math
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, fields, is_on_gpu, nvtx_range

FloatArray = npt.NDArray[np.float32]

_SAME_COLOR, _SAME_ALPHA = 8 / 255, 0.6
"""Standard deviations, per colour channel and of alpha, within which samples count as the same. Chosen on clips of
``benchmarks/matte_quality`` with the seeds 111 to 118: 3 to 5 % less flicker and gradient error, and no more error."""
REACH_FRAMES: Final = 2
"""Number of frames on each side that are averaged."""
_FARTHER = 0.5
"""Weight of the second frame."""
_SURE, _HAZE = 0.01, 0.1
"""Alpha this near to 0 or 1 stays unless the mean differs by more than the second value: otherwise edges get a haze.
Chosen on four of these clips."""
_OF_COLOR, _OF_ALPHA = 1 / (6 * _SAME_COLOR**2), 1 / (2 * _SAME_ALPHA**2)
"""Factors of squared differences in a weight's exponent; the first applies to the sum over three channels."""

MEAN_RULES: Final = (_SAME_COLOR, _SAME_ALPHA, REACH_FRAMES, _FARTHER, _SURE, _HAZE)
"""Everything that a mean depends on besides its input."""


def mean_along_motion(alpha: FloatArray, rgb: FloatArray, ahead: FloatArray, back: FloatArray) -> FloatArray:
    """Smooth the mattes of consecutive frames along the motion; alpha near 0 or 1 stays if it would change little.

    Runs on the mattes' device; on a GPU in one launch on the current CuPy stream. Results differ by rounding, because
    OpenCV reads at multiples of 1/32 sample, and by up to 0.1 in single samples that are at the limit of staying
    unchanged.

    Args:
        alpha: float32 [T, E, h, w], 0..1.
        rgb: float32 [T, E, 3, h, w], 0..1.
        ahead: float32 [T - 1, E, h', w', 2]: how far each sample of the first T - 1 frames moves right and down to
            the next frame, in samples of a picture of any size.
        back: The same for the last T - 1 frames, to the previous frame.

    Returns:
        float32 [T, E, h, w], 0..1, on the same device.

    Raises:
        KernelCompileError: The CUDA source could not be built for this GPU.
    """
    if is_on_gpu(alpha):
        made: FloatArray = _mean_on_gpu(alpha, rgb, ahead, back)
        return made
    height, width = alpha.shape[2:]
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    out = np.empty_like(alpha)
    for at, eye in np.ndindex(*alpha.shape[:2]):
        own, color = alpha[at, eye], rgb[at, eye]
        total, weights = own.copy(), np.ones_like(own)
        for side in (-1, 1):
            right, down = columns, rows
            for step in range(1, REACH_FRAMES + 1):
                other = at + side * step
                if not 0 <= other < len(alpha):
                    break
                move = ahead[other - 1, eye] if side > 0 else back[other, eye]
                moves = _enlarged(move, (height, width))
                if step > 1:
                    moves = [_read(way, right, down, cv2.INTER_LINEAR) for way in moves]
                right, down = right + moves[0], down + moves[1]
                there = _read(alpha[other, eye], right, down, cv2.INTER_CUBIC).clip(0, 1)
                apart = np.square(there - own) * np.float32(_OF_ALPHA)
                for plane, same in zip(color, rgb[other, eye], strict=True):
                    change = _read(same, right, down, cv2.INTER_LINEAR) - plane
                    apart += np.square(change) * np.float32(_OF_COLOR)
                weight = np.exp(-apart) * np.float32(_FARTHER ** (step - 1))
                weights += weight
                total += weight * there
        total /= weights
        stays = (np.minimum(own, 1 - own) < _SURE) & (np.abs(total - own) < _HAZE)
        out[at, eye] = np.where(stays, own, total)
    return out


def _enlarged(move: FloatArray, size: tuple[int, int]) -> list[FloatArray]:
    """Displacement of each sample of a larger picture, to the right and down: float32 [h, w] each."""
    (height, width), (rows, columns) = size, move.shape[:2]
    large: Any = cv2.resize(move, (width, height), interpolation=cv2.INTER_LINEAR)
    return [large[..., 0] * np.float32(width / columns), large[..., 1] * np.float32(height / rows)]


def _read(plane: FloatArray, x: FloatArray, y: FloatArray, interpolation: int) -> FloatArray:
    return np.asarray(cv2.remap(plane, x, y, interpolation, borderMode=cv2.BORDER_REPLICATE), np.float32)


# Same as in along_motion.cu.
_BLOCK = (32, 8)

_MEAN = np.dtype(
    [
        *fields("u8", "alpha", "rgb", "ahead", "back", "out"),
        *fields("i4", "frames", "eyes", "height", "width", "move_height", "move_width"),
        *fields("f4", "of_color", "of_alpha"),
    ]
)


def _mean_on_gpu(alpha: Any, rgb: Any, ahead: Any, back: Any) -> Any:
    import cupy

    alpha, rgb, ahead, back = map(cupy.ascontiguousarray, (alpha, rgb, ahead, back))
    frames, eyes, height, width = alpha.shape
    out = cupy.empty(alpha.shape, "float32")
    job = np.zeros(1, _MEAN)
    job[0] = (
        *(array.data.ptr for array in (alpha, rgb, ahead, back, out)),
        frames,
        eyes,
        height,
        width,
        *ahead.shape[2:4],
        _OF_COLOR,
        _OF_ALPHA,
    )
    grid = math.ceil(width / _BLOCK[0]), math.ceil(height / _BLOCK[1]), frames * eyes
    with nvtx_range("mean along motion"):
        parts = {"FARTHER": _FARTHER, "SURE": _SURE, "HAZE": _HAZE}
        defines = {name: f"{value}f" for name, value in parts.items()}
        kernel = cuda_kernel("along_motion.cu", "mean_along_motion", REACH=REACH_FRAMES, **defines)
        kernel(grid, _BLOCK, (by_value(job),))
    return out
