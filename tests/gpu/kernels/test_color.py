from __future__ import annotations

from itertools import product

import av
import numpy as np
import pytest

from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb

EIGHT_BIT = PIXEL_FORMATS["yuv444p"]


@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
@pytest.mark.parametrize("fmt", list(PIXEL_FORMATS.values()), ids=lambda fmt: fmt.name)
def test_limited_range_black_and_white_are_the_standards_codes(matrix, fmt):
    forward, offset = yuv_from_rgb(ColorSpec(matrix), fmt)
    step = 2 ** (fmt.bit_depth - 8) << fmt.sample_shift
    np.testing.assert_allclose(offset, np.array([16, 128, 128]) * step)
    np.testing.assert_allclose(forward @ np.ones(3) + offset, np.array([235, 128, 128]) * step, atol=1e-9)


def test_full_range_spans_every_code():
    forward, offset = yuv_from_rgb(ColorSpec("bt709", full_range=True), EIGHT_BIT)
    np.testing.assert_allclose(forward @ np.ones(3) + offset, [255, 128, 128], atol=1e-9)
    # Pure blue is half the range above the middle.
    np.testing.assert_allclose((forward @ [0, 0, 1] + offset)[1], 128 + 127.5)


def test_bt709_red_is_the_published_triplet():
    forward, offset = yuv_from_rgb(ColorSpec("bt709"), EIGHT_BIT)
    np.testing.assert_array_equal(np.rint(forward @ [1, 0, 0] + offset), [63, 102, 240])


def test_bt601_green_is_the_published_triplet():
    forward, offset = yuv_from_rgb(ColorSpec("bt601"), EIGHT_BIT)
    np.testing.assert_array_equal(np.rint(forward @ [0, 1, 0] + offset), [145, 54, 34])


@pytest.mark.parametrize("matrix", ["bt601", "bt709", "bt2020"])
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("fmt", list(PIXEL_FORMATS.values()), ids=lambda fmt: fmt.name)
def test_the_way_back_is_the_inverse(matrix, full_range, fmt):
    color = ColorSpec(matrix, full_range)
    forward, offset = yuv_from_rgb(color, fmt)
    back, back_offset = rgb_from_yuv(color, fmt)
    rgb = np.random.default_rng(1).random((3, 50))
    np.testing.assert_allclose(
        back @ (forward @ rgb + offset[:, None]) + back_offset[:, None], rgb, atol=1e-9
    )


@pytest.mark.parametrize(("matrix", "sws"), [("bt601", 5), ("bt709", 1), ("bt2020", 9)])
def test_agrees_with_swscale(matrix, sws):
    levels = [0, 51, 102, 153, 204, 255]
    rgb = np.array([*product(levels, levels, levels)], np.uint8)[:, None, :].repeat(16, axis=1)
    frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
    yuv = frame.reformat(
        format="yuv444p", src_colorspace=sws, dst_colorspace=sws, src_color_range=2, dst_color_range=1
    )
    planes = [np.frombuffer(p, np.uint8).reshape(-1, p.line_size)[: len(rgb), 0] for p in yuv.planes]
    forward, offset = yuv_from_rgb(ColorSpec(matrix), EIGHT_BIT)
    ours = np.rint(rgb[:, 0] / 255.0 @ forward.T + offset)
    assert np.abs(ours - np.stack(planes, axis=-1)).max() <= 1


def test_matrices_are_shared_and_cannot_be_changed():
    matrix, _ = yuv_from_rgb(ColorSpec(), EIGHT_BIT)
    with pytest.raises(ValueError, match="read-only"):
        matrix[0, 0] = 1
