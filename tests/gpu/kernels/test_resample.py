from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pictures import ODD_SIZES
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.resample import (
    chroma_window,
    downsample_to_chroma,
    read_bilinear,
    resample_window,
    upsample_to_luma,
)

LOCATIONS = ["left", "center", "topleft"]
SUBSAMPLED = [PIXEL_FORMATS[name] for name in ("yuv420p", "yuv422p", "yuv444p")]


def whole(plane):
    return (0, 0, plane.shape[1], plane.shape[0])


@pytest.mark.parametrize("size", ODD_SIZES)
def test_the_same_size_comes_back_untouched(size):
    plane = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    np.testing.assert_array_equal(resample_window(plane, whole(plane), size), plane)


def test_whole_factors_average_each_block():
    plane = np.random.default_rng(0).integers(0, 1024, (24, 36), dtype=np.uint16)
    blocks = plane.reshape(6, 4, 12, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(resample_window(plane, whole(plane), (6, 12)), blocks, rtol=1e-6)


@given(
    value=st.integers(0, 65535),
    source=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    target=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    shift=st.floats(-3, 3),
)
@settings(max_examples=150, deadline=None)
def test_a_constant_stays_constant(value, source, target, shift):
    plane = np.full(source, value, np.uint16)
    window = (shift, shift, source[1] + shift, source[0] + shift)
    np.testing.assert_allclose(resample_window(plane, window, target), value, rtol=1e-6)


@pytest.mark.parametrize("factor", [2, 3, 4, 2.5])
def test_a_ramp_is_read_where_the_window_says(factor):
    ramp = np.tile(np.arange(200, dtype=np.float32) + 0.5, (40, 1))  # value: the centre's coordinate
    window = (20.25, 4.0, 20.25 + 40 * factor, 36.0)
    read = resample_window(ramp, window, (8, 40))
    expected = 20.25 + (np.arange(40) + 0.5) * factor
    np.testing.assert_allclose(read[4, 2:-2], expected[2:-2], atol=0.05)


def test_interleaved_chroma_reads_like_two_planes():
    plane = np.random.default_rng(0).integers(0, 256, (20, 30, 2), dtype=np.uint8)
    both = resample_window(plane, (0.25, 0, 30.25, 20), (7, 11))
    for channel in range(2):
        alone = resample_window(np.ascontiguousarray(plane[..., channel]), (0.25, 0, 30.25, 20), (7, 11))
        np.testing.assert_allclose(both[..., channel], alone, rtol=1e-5)


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("fmt", SUBSAMPLED, ids=lambda fmt: fmt.name)
def test_up_then_down_keeps_a_ramp(fmt, location):
    """Check a plane that is linear in space, which both directions preserve as sites and luma samples agree."""
    color = ColorSpec(chroma_location=location)
    height, width = 30, 44
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    luma_ramp = 2 * x + 3 * y + 50
    sites = downsample_to_chroma(luma_ramp, fmt, color)
    assert sites.shape == fmt.chroma_size(width, height)[::-1]
    back = upsample_to_luma(sites, fmt, color, (height, width))
    np.testing.assert_allclose(back[3:-3, 3:-3], luma_ramp[3:-3, 3:-3], atol=1e-3)


@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_odd_sizes_have_a_value_everywhere(location, size):
    fmt, color = PIXEL_FORMATS["yuv420p"], ColorSpec(chroma_location=location)
    sites = downsample_to_chroma(np.full(size, 200, np.uint8), fmt, color)
    assert sites.shape == fmt.chroma_size(size[1], size[0])[::-1]
    assert (sites == 200).all()
    back = upsample_to_luma(sites.astype(np.float32), fmt, color, size)
    assert back.shape == size
    np.testing.assert_array_equal(back, 200)


def test_a_cosited_chroma_window_moves_a_quarter_sample():
    region = Region(8, 4, 16, 12)
    fmt = PIXEL_FORMATS["yuv420p"]
    assert chroma_window(region, fmt, ColorSpec(chroma_location="center")) == (4, 2, 12, 8)
    assert chroma_window(region, fmt, ColorSpec(chroma_location="left")) == (4.25, 2, 12.25, 8)
    assert chroma_window(region, fmt, ColorSpec(chroma_location="topleft")) == (4.25, 2.25, 12.25, 8.25)
    assert chroma_window(region, PIXEL_FORMATS["yuv444p"], ColorSpec()) == (8, 4, 24, 16)


def test_bilinear_read_repeats_the_border():
    plane = np.array([[1, 3], [5, 7]], np.float32)
    rows = np.array([-4, 0.5, 9], np.float32)
    columns = np.array([-1, 0.25, 5], np.float32)
    np.testing.assert_allclose(read_bilinear(plane, rows, columns), [[1, 1.5, 3], [3, 3.5, 5], [5, 5.5, 7]])


@pytest.mark.parametrize("across", [-0.75, -0.25, 0.0, 0.25])
@pytest.mark.parametrize("down", [-0.25, 0.0, 0.6])
@pytest.mark.parametrize("size", [(9, 14), (18, 28), (27, 35)])
def test_a_window_that_lies_beside_the_samples_is_read_between_them(across, down, size):
    plane = np.random.default_rng(0).random((9, 14), np.float32)
    read = resample_window(plane, (across, down, 14 + across, 9 + down), size)
    grown = resample_window(plane, whole(plane), size)
    places = (
        np.arange(count, dtype=np.float32) + np.float32(shift * count / length)
        for count, shift, length in zip(size, (down, across), plane.shape, strict=True)
    )
    np.testing.assert_allclose(read, read_bilinear(grown, *places), atol=1e-5)
