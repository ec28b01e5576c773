from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.gpu.kernels.edges import EdgeOptions, adjust_edges
from vitascope.gpu.kernels.region import Region

DTYPES = [np.uint8, np.uint16]


def adjust(alpha, options):
    height, width = alpha.shape
    return adjust_edges(alpha, options, regions=[Region(0, 0, width, height)])


def disc(dtype, size=41, radius=10):
    y, x = np.mgrid[0:size, 0:size] - size // 2
    return ((np.hypot(x, y) <= radius) * np.iinfo(dtype).max).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_asked_for_returns_the_input(dtype):
    alpha = disc(dtype)
    assert adjust(alpha, EdgeOptions()) is alpha
    assert not EdgeOptions().active


@pytest.mark.parametrize("dtype", DTYPES)
def test_threshold_maps_its_levels_to_empty_and_full(dtype):
    peak = np.iinfo(dtype).max
    alpha = (np.linspace(0, 1, 101)[None] * peak).astype(dtype)
    out = adjust(alpha, EdgeOptions(threshold=(0.2, 0.8)))[0]
    assert (out[:20] == 0).all()
    assert (out[81:] == peak).all()
    assert out[50] == pytest.approx(peak / 2, abs=peak / 100)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_levels_cut_hard(dtype):
    peak = np.iinfo(dtype).max
    alpha = (np.linspace(0, 1, 101)[None] * peak).astype(dtype)
    out = adjust(alpha, EdgeOptions(threshold=(0.5, 0.5)))
    assert set(np.unique(out)) == {0, peak}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("pixels", "columns"), [(3, 24), (-3, 18), (0.5, 22)])
def test_a_straight_edge_moves_by_the_pixels_asked_for(dtype, pixels, columns):
    alpha = np.zeros((20, 41), dtype)
    alpha[:, 20:] = np.iinfo(dtype).max
    out = adjust(alpha, EdgeOptions(grow_px=pixels))
    assert ((out > 0).sum(axis=1) == columns).all()


@given(
    low=st.floats(-4, 4).map(lambda value: round(value, 1)),
    high=st.floats(-4, 4).map(lambda value: round(value, 1)),
)
@settings(max_examples=60, deadline=None)
def test_growing_more_never_shows_less(low, high):
    low, high = sorted((low, high))
    smaller = adjust(disc(np.uint8), EdgeOptions(grow_px=low))
    larger = adjust(disc(np.uint8), EdgeOptions(grow_px=high))
    assert (larger >= smaller).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_feather_softens_without_changing_the_amount(dtype):
    alpha = disc(dtype)
    out = adjust(alpha, EdgeOptions(feather_px=2))
    assert len(np.unique(out)) > 10
    assert out.astype(float).sum() == pytest.approx(alpha.astype(float).sum(), rel=0.01)


def test_one_pixel():
    alpha = np.array([[200]], np.uint8)
    out = adjust(alpha, EdgeOptions(threshold=(0.1, 0.9), grow_px=1.5, feather_px=1))
    assert out.shape == (1, 1)


def test_an_edge_does_not_cross_into_the_other_eye():
    alpha = np.zeros((20, 40), np.uint8)
    alpha[:, 15:20] = 255
    eyes = [Region(0, 0, 20, 20), Region(20, 0, 20, 20)]
    out = adjust_edges(alpha, EdgeOptions(grow_px=4, feather_px=2), regions=eyes)
    assert (out[:, 20:] == 0).all()
    assert (out[:, 12] > 0).all()
