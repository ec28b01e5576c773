"""Synthetic frames for kernel tests: smooth colour, noise, every pixel format."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, YuvFormat
from vitascope.gpu.kernels.color import yuv_from_rgb

FORMATS = sorted(PIXEL_FORMATS)
ODD_SIZES = [(1, 1), (1, 7), (5, 1), (2, 3), (17, 31), (64, 48), (33, 66)]  # (height, width)


def random_frame(
    fmt: YuvFormat, size: tuple[int, int], *, color: ColorSpec | None = None, seed: int = 0
) -> Frame:
    """Make a frame in which every code is equally likely."""
    rng = np.random.default_rng(seed)
    height, width = size
    chroma_width, chroma_height = fmt.chroma_size(width, height)

    def plane(*shape: int) -> npt.NDArray[np.generic]:
        codes = rng.integers(0, 2**fmt.bit_depth, shape)
        return (codes << fmt.sample_shift).astype(fmt.dtype)

    chroma = (
        (plane(chroma_height, chroma_width, 2),)
        if fmt.semi_planar
        else (plane(chroma_height, chroma_width), plane(chroma_height, chroma_width))
    )
    return _frame((plane(height, width), *chroma), fmt, color or ColorSpec())


def solid_frame(
    fmt: YuvFormat, size: tuple[int, int], rgb: tuple[float, float, float], *, color: ColorSpec | None = None
) -> Frame:
    """Make a frame of one colour, RGB in 0..1, as exact as codes allow."""
    color = color or ColorSpec()
    matrix, offset = yuv_from_rgb(color, fmt)
    step = 1 << fmt.sample_shift
    y, u, v = (np.rint((matrix @ np.array(rgb) + offset) / step) * step).astype(fmt.dtype)
    height, width = size
    chroma_width, chroma_height = fmt.chroma_size(width, height)
    luma = np.full((height, width), y)
    if fmt.semi_planar:
        return _frame((luma, np.full((chroma_height, chroma_width, 2), (u, v), fmt.dtype)), fmt, color)
    blue = np.full((chroma_height, chroma_width), u)
    return _frame((luma, blue, np.full((chroma_height, chroma_width), v)), fmt, color)


def strided(frame: Frame) -> Frame:
    """Copy the planes to padded rows, as from decoders."""
    planes = []
    for plane in frame.planes:
        padded = np.zeros((plane.shape[0], plane.shape[1] + 13, *plane.shape[2:]), plane.dtype)
        padded[:, : plane.shape[1]] = plane
        planes.append(padded[:, : plane.shape[1]])
    return frame.with_planes(tuple(planes))


def semi_planar_twin(frame: Frame) -> Frame:
    """Make the same picture in NV12 (from yuv420p) or P010 (from yuv420p10le)."""
    y, u, v = frame.planes
    if frame.format.name == "yuv420p":
        return frame.with_planes((y, np.stack([u, v], axis=-1)), format=PIXEL_FORMATS["nv12"])
    assert frame.format.name == "yuv420p10le"
    return frame.with_planes((y << 6, np.stack([u, v], axis=-1) << 6), format=PIXEL_FORMATS["p010le"])


def _frame(planes: tuple[npt.NDArray[np.generic], ...], fmt: YuvFormat, color: ColorSpec) -> Frame:
    return Frame(planes, fmt, color, index=0, pts=0, time_base=Fraction(1, 25))
