"""Tests of RGB pictures as video and back, against the kernels that define the conversion."""

from __future__ import annotations

from fractions import Fraction

import cv2
import numpy as np
import pytest

from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame
from vitascope.media.planes import RGB_VIDEO_COLOR, planes_of, rgb_of


def smooth(height: int, width: int) -> np.ndarray:
    coarse = np.random.default_rng(1).integers(0, 256, (4, 5, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


@pytest.mark.parametrize("size", [(48, 64), (47, 63), (1, 1), (2, 3)])
def test_there_and_back(size) -> None:
    rgb = smooth(*size)
    frame = Frame(planes_of(rgb), PIXEL_FORMATS["yuv420p"], RGB_VIDEO_COLOR, 0, 0, Fraction(1))
    made = rgb_of(frame)
    assert (made.shape, made.dtype) == (rgb.shape, np.uint8)
    if min(size) > 40:
        assert np.abs(made.astype(int) - rgb).mean() < 2


@pytest.mark.parametrize("name", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv444p12le"])
@pytest.mark.parametrize("full_range", [False, True])
def test_as_the_kernel_makes_it(name, full_range) -> None:
    fmt = PIXEL_FORMATS[name]
    color = ColorSpec(matrix="bt601", full_range=full_range, chroma_location="center")
    dice, peak = np.random.default_rng(2), (1 << fmt.bit_depth) - 1
    width, height = 64, 48
    chroma_width, chroma_height = fmt.chroma_size(width, height)
    luma = dice.integers(0, peak + 1, (height, width)).astype(fmt.dtype)  # also outside the limited range
    chroma = [
        cv2.resize(
            dice.integers(0, peak + 1, (4, 5)).astype(np.float32), (chroma_width, chroma_height)
        ).astype(fmt.dtype)
        for _ in range(2)
    ]
    frame = Frame((luma, *chroma), fmt, color, 0, 0, Fraction(1))
    difference = np.abs(rgb_of(frame).astype(int) - frame.to_rgb())
    inside = difference[2:-2, 2:-2]
    assert difference.max() <= 8  # chroma at the border or, in 4:2:2, of adjacent pixels
    assert inside.mean() < (1.0 if fmt.chroma_shift_x else 0.1)
