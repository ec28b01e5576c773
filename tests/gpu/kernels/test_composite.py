from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pictures import FORMATS, ODD_SIZES, random_frame, solid_frame, strided
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.color import alpha_dtype, yuv_from_rgb
from vitascope.gpu.kernels.composite import (
    blur_background,
    clear_transparent,
    matte_frame,
    over_color,
    over_frame,
    tint,
)
from vitascope.gpu.kernels.region import Region, each_eye
from vitascope.gpu.kernels.resample import downsample_to_chroma

KEY = (120, 255, 155)


def whole(frame):
    return [Region(0, 0, frame.width, frame.height)]


def random_alpha(frame, seed=1):
    dtype = alpha_dtype(frame)
    return np.random.default_rng(seed).integers(
        0, np.iinfo(dtype).max + 1, (frame.height, frame.width), dtype=dtype
    )


def weights(frame, alpha):
    """Scale alpha to 0..1 at the samples of each plane, broadcast to its shape."""
    peak = np.iinfo(alpha.dtype).max
    step_x, step_y = 1 << frame.format.chroma_shift_x, 1 << frame.format.chroma_shift_y
    blocks = np.pad(alpha, ((0, -alpha.shape[0] % step_y), (0, -alpha.shape[1] % step_x)), mode="edge")
    least = blocks.reshape(blocks.shape[0] // step_y, step_y, -1, step_x).min(axis=(1, 3))
    chroma = np.maximum(downsample_to_chroma(alpha, frame.format, frame.color), least) / peak
    if frame.format.semi_planar:
        return [alpha / peak, chroma[..., None]]
    return [alpha / peak, chroma, chroma]


def key_codes(frame, rgb):
    matrix, offset = yuv_from_rgb(frame.color, frame.format)
    step = 1 << frame.format.sample_shift
    codes = np.rint((matrix @ (np.array(rgb) / 255) + offset) / step) * step
    return [codes[0], codes[1:]] if frame.format.semi_planar else list(codes)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_over_color_is_within_one_code_of_exact(name, size):
    frame = strided(random_frame(PIXEL_FORMATS[name], size))
    alpha = random_alpha(frame)
    out = over_color(frame, alpha, KEY)
    step = 1 << frame.format.sample_shift
    for plane, result, weight, code in zip(
        frame.planes, out.planes, weights(frame, alpha), key_codes(frame, KEY), strict=True
    ):
        assert result.dtype == plane.dtype
        exact = plane * weight + code * (1 - weight)
        assert np.abs(result - exact).max() <= 1.0 * step + 0.01


@pytest.mark.parametrize("name", FORMATS)
def test_full_alpha_returns_the_very_codes_and_zero_alpha_the_key(name):
    frame = random_frame(PIXEL_FORMATS[name], (17, 31))
    dtype = alpha_dtype(frame)
    kept = over_color(frame, np.full((17, 31), np.iinfo(dtype).max, dtype), KEY)
    gone = over_color(frame, np.zeros((17, 31), dtype), KEY)
    for source, keep, drop, code in zip(
        frame.planes, kept.planes, gone.planes, key_codes(frame, KEY), strict=True
    ):
        np.testing.assert_array_equal(keep, source)
        np.testing.assert_array_equal(drop, np.broadcast_to(code, drop.shape))


@given(
    seed=st.integers(0, 10_000), alpha_code=st.integers(254, 255), name=st.sampled_from(["yuv420p", "nv12"])
)
@settings(max_examples=40, deadline=None)
def test_kept_samples_stay_within_one_code(seed, alpha_code, name):
    """Check that alpha of 254/255 and more keeps luma and chroma within one code, for legal video codes."""
    frame = random_frame(PIXEL_FORMATS[name], (8, 12), seed=seed)
    legal = frame.with_planes(tuple(np.clip(plane, 16, 240) for plane in frame.planes))
    out = over_color(legal, np.full((8, 12), alpha_code, np.uint8), KEY)
    for source, result in zip(legal.planes, out.planes, strict=True):
        assert np.abs(result.astype(int) - source).max() <= 1


@pytest.mark.parametrize("name", FORMATS)
def test_over_frame_is_within_one_code_of_exact(name):
    frame = random_frame(PIXEL_FORMATS[name], (18, 22))
    behind = random_frame(PIXEL_FORMATS[name], (18, 22), seed=9)
    alpha = random_alpha(frame)
    out = over_frame(frame, alpha, behind)
    step = 1 << frame.format.sample_shift
    for plane, background, result, weight in zip(
        frame.planes, behind.planes, out.planes, weights(frame, alpha), strict=True
    ):
        exact = plane * weight + background.astype(float) * (1 - weight)
        assert np.abs(result - exact).max() <= 1.0 * step + 0.01


def test_over_frame_refuses_another_size():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (18, 22))
    with pytest.raises(ValueError, match="expected the size and format"):
        over_frame(frame, random_alpha(frame), random_frame(PIXEL_FORMATS["yuv420p"], (18, 24)))


@pytest.mark.parametrize("name", ["yuv420p", "yuv420p10le", "nv12"])
@pytest.mark.parametrize(("full_range", "black", "white"), [(False, 16, 235), (True, 0, 255)])
def test_matte_levels(name, full_range, black, white):
    frame = random_frame(PIXEL_FORMATS[name], (5, 7))
    dtype = alpha_dtype(frame)
    alpha = np.zeros((5, 7), dtype)
    alpha[:, 3:] = np.iinfo(dtype).max
    grey = matte_frame(frame, alpha, full_range=full_range, bit_depth=8)
    assert grey.format.name == "yuv420p"
    assert (grey.planes[0][:, :3] == black).all()
    assert (grey.planes[0][:, 3:] == white).all()
    assert (grey.planes[1] == 128).all()


def test_a_ten_bit_matte_keeps_ten_bits():
    frame = random_frame(PIXEL_FORMATS["yuv420p10le"], (1, 1024))
    alpha = (np.arange(1024)[None] * 65535 // 1023).astype(np.uint16)
    grey = matte_frame(frame, alpha, full_range=True)
    np.testing.assert_array_equal(grey.planes[0][0], np.arange(1024))


def test_tint_leaves_the_background_alone_and_paints_the_person():
    frame = random_frame(PIXEL_FORMATS["yuv444p"], (10, 10))
    alpha = np.zeros((10, 10), np.uint8)
    alpha[:, 5:] = 255
    half = tint(frame, alpha, (255, 0, 0), opacity=0.5)
    full = tint(frame, alpha, (255, 0, 0), opacity=1.0)
    red = key_codes(frame, (255, 0, 0))
    for plane, a, b, code in zip(frame.planes, half.planes, full.planes, red, strict=True):
        np.testing.assert_array_equal(a[:, :5], plane[:, :5])
        np.testing.assert_array_equal(b[:, 5:], code)
        assert np.abs(a[:, 5:] - (plane[:, 5:] * 0.5 + code * 0.5)).max() <= 1.5


@pytest.mark.parametrize("name", FORMATS)
def test_blurring_one_colour_changes_nothing(name):
    frame = solid_frame(PIXEL_FORMATS[name], (33, 66), (0.3, 0.6, 0.2))
    out = blur_background(frame, random_alpha(frame), sigma=6)
    for source, result in zip(frame.planes, out.planes, strict=True):
        assert np.abs(result.astype(int) - source).max() <= 1 << frame.format.sample_shift


def test_the_person_does_not_bleed_into_the_blur():
    frame = solid_frame(
        PIXEL_FORMATS["yuv420p"], (64, 64), (0, 0, 0), color=ColorSpec(chroma_location="center")
    )
    luma = frame.planes[0].copy()
    luma[:, 40:] = 235
    frame = frame.with_planes((luma, *frame.planes[1:]))
    alpha = np.zeros((64, 64), np.uint8)
    alpha[:, 40:] = 255
    out = blur_background(frame, alpha, sigma=8)
    assert (out.planes[0][:, :40] <= 17).all()
    assert (out.planes[0][:, 40:] == 235).all()


def test_the_background_really_is_blurred():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (64, 64))
    out = blur_background(frame, np.zeros((64, 64), np.uint8), sigma=5)
    assert out.planes[0].std() < frame.planes[0].std() / 5
    assert abs(float(out.planes[0].mean()) - float(frame.planes[0].mean())) < 2


def test_eyes_are_blurred_apart():
    frame = solid_frame(PIXEL_FORMATS["yuv420p"], (16, 64), (0, 0, 0))
    luma = frame.planes[0].copy()
    luma[:, 32:] = 235
    frame = frame.with_planes((luma, *frame.planes[1:]))
    eyes = [Region(0, 0, 32, 16), Region(32, 0, 32, 16)]
    out = each_eye(
        frame, np.zeros((16, 64), np.uint8), eyes, lambda eye, a, _: blur_background(eye, a, sigma=6)
    )
    assert (out.planes[0][:, :32] == 16).all()
    assert (out.planes[0][:, 32:] == 235).all()


def test_a_blur_is_round_whatever_the_chroma_format():
    """Check 4:2:2, where chroma has half the width but the full height: the blur must be alike in both directions."""
    frame = solid_frame(PIXEL_FORMATS["yuv422p"], (96, 96), (0.5, 0.5, 0.5))
    chroma = frame.planes[1].copy()
    chroma[48, 24] = 255
    out = blur_background(
        frame.with_planes((frame.planes[0], chroma, frame.planes[2])), np.zeros((96, 96), np.uint8), sigma=2.5
    )
    bump = out.planes[1].astype(float) - 128
    assert bump[48, 24 + 2] == pytest.approx(bump[48 + 4, 24], abs=1.1)  # both are 4 luma samples away


@given(
    name=st.sampled_from(FORMATS),
    location=st.sampled_from(["left", "center", "topleft"]),
    size=st.tuples(st.integers(1, 21), st.integers(1, 21)),
    box=st.tuples(*[st.integers(0, 20)] * 4),
)
@settings(max_examples=150, deadline=None)
def test_a_small_person_anywhere_is_composited_exactly(name, location, size, box):
    """Check that computing only around the person changes no sample outside that window."""
    frame = random_frame(PIXEL_FORMATS[name], size, color=ColorSpec(chroma_location=location))
    alpha = np.zeros(size, alpha_dtype(frame))
    top, left, height, width = box
    alpha[top : top + height, left : left + width] = np.iinfo(alpha.dtype).max * 3 // 4
    out = over_color(frame, alpha, KEY)
    step = 1 << frame.format.sample_shift
    for plane, result, weight, code in zip(
        frame.planes, out.planes, weights(frame, alpha), key_codes(frame, KEY), strict=True
    ):
        assert np.abs(result - (plane * weight + code * (1 - weight))).max() <= 1.0 * step + 0.01


@pytest.mark.parametrize("name", ["yuv420p", "yuv422p10le", "nv12"])
def test_what_is_transparent_is_gone_but_for_a_margin(name):
    frame = random_frame(PIXEL_FORMATS[name], (96, 96))
    alpha = np.zeros((96, 96), alpha_dtype(frame))
    alpha[40:50, 40:50] = 1  # faint, but not empty
    out = clear_transparent(frame, alpha, margin_px=8)
    np.testing.assert_array_equal(out.planes[0][32:58, 32:58], frame.planes[0][32:58, 32:58])
    black = key_codes(frame, (0, 0, 0))
    assert (out.planes[0][:30] == black[0]).all()
    assert (out.planes[0][:, 60:] == black[0]).all()
    np.testing.assert_array_equal(out.planes[1][:14], np.broadcast_to(black[1], out.planes[1][:14].shape))


@given(seed=st.integers(0, 1000), name=st.sampled_from(["yuv420p", "yuv422p", "nv12"]))
@settings(max_examples=60, deadline=None)
def test_kept_blocks_keep_their_codes_beside_a_hard_edge(seed, name):
    """Check luma of kept samples, and chroma of blocks kept whole, whatever is beside them."""
    frame = random_frame(PIXEL_FORMATS[name], (16, 24), seed=seed)
    kept = np.random.default_rng(seed).random((4, 6)).repeat(4, axis=0).repeat(4, axis=1) > 0.5
    out = over_color(frame, (kept * 255).astype(np.uint8), KEY)
    np.testing.assert_array_equal(out.planes[0][kept], frame.planes[0][kept])
    sites = kept[:: 1 << frame.format.chroma_shift_y, :: 1 << frame.format.chroma_shift_x]
    for source, result in zip(frame.planes[1:], out.planes[1:], strict=True):
        np.testing.assert_array_equal(result[sites], source[sites])


def test_one_eye_does_not_colour_the_other():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (8, 32))
    alpha = np.zeros((8, 32), np.uint8)
    alpha[:, 16:] = 255
    eyes = [Region(0, 0, 16, 8), Region(16, 0, 16, 8)]
    out = each_eye(frame, alpha, eyes, lambda eye, a, _: over_color(eye, a, KEY))
    key = key_codes(frame, KEY)
    for plane, result, code in zip(frame.planes, out.planes, key, strict=True):
        half = plane.shape[1] // 2
        np.testing.assert_array_equal(result[:, :half], np.full_like(result[:, :half], code))
        np.testing.assert_array_equal(result[:, half:], plane[:, half:])
