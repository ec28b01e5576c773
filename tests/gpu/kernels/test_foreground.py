from __future__ import annotations

import numpy as np
import pytest

from pictures import FORMATS, random_frame, solid_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.color import alpha_dtype, yuv_from_rgb
from vitascope.gpu.kernels.foreground import decontaminate
from vitascope.gpu.kernels.region import Region

ORANGE = (0.9, 0.5, 0.1)


def disc_alpha(frame):
    y, x = np.mgrid[0 : frame.height, 0 : frame.width]
    distance = np.hypot(y - frame.height / 2, x - frame.width / 2)
    dtype = alpha_dtype(frame)
    return (np.clip((frame.height / 3 - distance) / 6 + 0.5, 0, 1) * np.iinfo(dtype).max).astype(dtype)


def constant_foreground(rgb):
    """Coefficients that say: the foreground is this colour, whatever the picture shows."""
    gain = np.full((1, 3, 4, 4), -1, np.float32)
    return gain, np.broadcast_to(np.float32(rgb)[None, :, None, None], gain.shape).copy()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [(48, 64), (47, 61)])
def test_partial_samples_take_the_foreground_and_the_rest_stays(name, size):
    frame = random_frame(PIXEL_FORMATS[name], size)
    alpha = disc_alpha(frame)
    gain, offset = constant_foreground(ORANGE)
    out = decontaminate(frame, alpha, regions=[Region(0, 0, size[1], size[0])], gain=gain, offset=offset)
    matrix, shift = yuv_from_rgb(frame.color, frame.format)
    expected = matrix @ np.array(ORANGE) + shift
    partial = (alpha > 0) & (alpha < np.iinfo(alpha.dtype).max)
    assert partial.any()
    step = 1 << frame.format.sample_shift
    assert np.abs(out.planes[0][partial] - expected[0]).max() <= step
    np.testing.assert_array_equal(out.planes[0][~partial], frame.planes[0][~partial])
    blue = out.planes[1][..., 0] if frame.format.semi_planar else out.planes[1]
    source_blue = frame.planes[1][..., 0] if frame.format.semi_planar else frame.planes[1]
    changed = blue != source_blue
    assert changed.any()
    # Random source chroma may equal the foreground's by chance; what changed must be the foreground.
    assert np.abs(blue[changed] - expected[1]).max() <= 2 * step


def test_zero_coefficients_change_nothing_visible():
    frame = random_frame(PIXEL_FORMATS["yuv444p"], (40, 40))
    # Legal, in-gamut colours survive the way to RGB and back.
    frame = frame.with_planes(
        (96 + frame.planes[0] // 4, 112 + frame.planes[1] // 8, 112 + frame.planes[2] // 8)
    )
    zeros = np.zeros((1, 3, 5, 5), np.float32)
    out = decontaminate(frame, disc_alpha(frame), regions=[Region(0, 0, 40, 40)], gain=zeros, offset=zeros)
    for source, result in zip(frame.planes, out.planes, strict=True):
        assert np.abs(result.astype(int) - source).max() <= 1


def test_the_input_is_not_written_to():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (40, 40))
    before = [plane.copy() for plane in frame.planes]
    gain, offset = constant_foreground(ORANGE)
    decontaminate(frame, disc_alpha(frame), regions=[Region(0, 0, 40, 40)], gain=gain, offset=offset)
    for plane, copy in zip(frame.planes, before, strict=True):
        np.testing.assert_array_equal(plane, copy)


def test_each_eye_uses_its_own_coefficients():
    frame = solid_frame(PIXEL_FORMATS["yuv444p"], (32, 64), (0.5, 0.5, 0.5))
    alpha = np.full((32, 64), 128, np.uint8)
    gain = np.full((2, 3, 4, 4), -1, np.float32)
    offset = np.zeros((2, 3, 4, 4), np.float32)
    offset[1] = 1
    eyes = [Region(0, 0, 32, 32), Region(32, 0, 32, 32)]
    out = decontaminate(frame, alpha, regions=eyes, gain=gain, offset=offset)
    assert (out.planes[0][:, :32] == 16).all()
    assert (out.planes[0][:, 32:] == 235).all()
