"""Tests of edge options on the GPU against OpenCV, and of the source without a GPU."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from cuda_twins import plane_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from vitascope.gpu.kernels.edges import EdgeOptions, adjust_edges, feather_weights
from vitascope.gpu.kernels.region import Region

DTYPES = [np.uint8, np.uint16]
SHAPES = [(1, 1), (1, 40), (40, 1), (17, 31), (64, 1100), (131, 257)]


def matte(shape, dtype, seed=0):
    """Make blobs with soft edges, and noise at every level."""
    rng = np.random.default_rng(seed)
    soft = np.clip(cv2.GaussianBlur(rng.normal(0, 40, shape), (0, 0), 3).reshape(shape) * 0.5 + 0.3, 0, 1)
    codes = np.where(rng.random(shape) < 0.1, rng.random(shape), soft)
    return (codes * np.iinfo(dtype).max).astype(dtype)


def regions_of(shape, eyes):
    height, width = shape
    if eyes == 1 or width < 2:
        return [Region(0, 0, width, height)]
    half = width - width // 2
    return [Region(0, 0, half, height), Region(half, 0, width - half, height)]


def assert_same(shape, dtype, options, *, eyes=1, pad=0, atol=0):
    alpha = matte(shape, dtype)
    regions = regions_of(shape, eyes)
    expected = adjust_edges(alpha, options, regions=regions)
    actual = adjust_edges(plane_on_gpu(alpha, pad=pad), options, regions=regions)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual.get().astype(int), expected.astype(int), rtol=0, atol=atol)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threshold", [(0.1, 0.9), (0.3, 0.35), (0.5, 0.5), (0.0, 1.0)])
def test_threshold(dtype, shape, threshold):
    assert_same(shape, dtype, EdgeOptions(threshold=threshold))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grow", [-3.0, 2.0, 0.5, -1.25, 6.7])
def test_grow(dtype, shape, grow):
    # Tenths of a pixel do not divide evenly, so another build of OpenCV may round a tie differently.
    assert_same(shape, dtype, EdgeOptions(grow_px=grow), atol=0 if grow % 0.25 == 0 else 1)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [0.1, 0.4, 1.0, 2.5, 9.0, 60.0, 256.0])
def test_feather(dtype, shape, sigma):
    assert_same(shape, dtype, EdgeOptions(feather_px=sigma), pad=5, atol=1)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eyes", [1, 2])
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("width", [300, 301])  # halves of 150 are aligned only within the frame
def test_all_at_once_eye_by_eye(dtype, eyes, pad, width):
    options = EdgeOptions(threshold=(0.2, 0.7), grow_px=2.5, feather_px=1.5)
    assert_same((90, width), dtype, options, eyes=eyes, pad=pad, atol=1)


@pytest.mark.cuda
def test_nothing_asked_for_returns_the_input():
    alpha = plane_on_gpu(matte((8, 8), np.uint8))
    assert adjust_edges(alpha, EdgeOptions(), regions=[Region(0, 0, 8, 8)]) is alpha


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sigma", [0.1, 0.45, 0.5, 1.0, 1.9, 2.5, 7.3, 40.0, 256.0])
def test_the_weights_make_opencvs_answer(dtype, sigma):
    """Check the kernel's integer arithmetic without a GPU."""
    alpha = matte((90, 140), dtype)
    weights = feather_weights(dtype, sigma)
    bits, radius = 8 * np.dtype(dtype).itemsize, len(weights) // 2
    assert weights.sum() == 1 << bits
    padded = np.pad(alpha.astype(np.uint64), radius, mode="edge")
    across = sum(int(weight) * padded[:, tap : tap + 140] for tap, weight in enumerate(weights))
    down = sum(int(weight) * across[tap : tap + 90] for tap, weight in enumerate(weights))
    rounded = (down + (1 << 2 * bits - 1)) >> 2 * bits
    expected = cv2.GaussianBlur(alpha, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
    assert np.abs(rounded.astype(int) - expected).max() <= 1


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("edges.cu"))
def test_the_source_compiles(tmp_path, architecture):
    entries = ["map_levels", "blend", "feather_rows", "feather_columns"]
    several = variants("SAMPLE VECTORS", ("unsigned char", 1), ("unsigned short", 1), ("unsigned short", 0))
    assert_compiles(tmp_path, "edges.cu", architecture, entries, several)
