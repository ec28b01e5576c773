"""Tests of the blur on the GPU against the reference, and of its source without a GPU."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from cuda_twins import plane_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from vitascope.gpu.kernels.blur import blur_without

SHAPES = [
    (1, 1),
    (1, 7),
    (5, 1),
    (17, 31),
    (64, 48),
    (33, 66, 2),
    (1, 1, 2),
    (135, 241),
    (90, 1201, 2),
    (70, 2600),
]


def picture_and_person(shape, dtype, weight_dtype):
    rng = np.random.default_rng(0)
    plane = rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)
    soft = np.clip(cv2.GaussianBlur(rng.normal(0, 40, shape[:2]), (0, 0), 3) * 0.5 + 0.3, 0, 1)
    return plane, (soft * np.iinfo(weight_dtype).max).astype(weight_dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("weight_dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [(1.5, 1.5), (7.9, 2.0), (9.0, 9.0), (5.0, 33.0), (150.0, 120.0)])
@pytest.mark.parametrize("pad", [0, 3])
def test_it_agrees_with_the_reference(dtype, weight_dtype, shape, sigma, pad):
    plane, weight = picture_and_person(shape, dtype, weight_dtype)
    expected = blur_without(plane, weight, *sigma).astype(np.int64)
    actual = blur_without(plane_on_gpu(plane, pad=pad), plane_on_gpu(weight, pad=pad), *sigma)
    assert actual.shape == plane.shape
    assert actual.dtype == dtype
    seen = np.abs(actual.get() - expected)[weight < np.iinfo(weight_dtype).max]
    # Where everything is person, both divide by almost zero; elsewhere only the rounding differs.
    assert seen.max(initial=0) <= 2


@pytest.mark.cuda
@pytest.mark.parametrize("sigma", [3.0, 30.0])
def test_each_channel_may_have_its_own_weight(sigma):
    plane, _ = picture_and_person((60, 90, 2), np.uint8, np.uint8)
    weight = np.random.default_rng(1).integers(0, 256, plane.shape, dtype=np.uint8)
    actual = blur_without(plane_on_gpu(plane), plane_on_gpu(weight), sigma, sigma).get()
    assert np.abs(actual.astype(int) - blur_without(plane, weight, sigma, sigma)).max() <= 2


@pytest.mark.cuda
@pytest.mark.parametrize("sigma", [3.0, 30.0])
def test_what_a_person_looks_like_does_not_matter(sigma):
    plane = np.random.default_rng(0).integers(0, 256, (64, 80), dtype=np.uint8)
    weight = np.zeros_like(plane)
    weight[20:40, 30:50] = 255
    other = np.where(weight > 0, 255 - plane, plane)
    first, second = (
        blur_without(plane_on_gpu(picture), plane_on_gpu(weight), sigma, sigma).get()
        for picture in (plane, other)
    )
    np.testing.assert_array_equal(first, second)


@pytest.mark.cuda
def test_a_gaussian_wider_than_the_kernel_is_refused():
    plane = plane_on_gpu(np.zeros((20, 20), np.uint8))
    with pytest.raises(ValueError, match="4300"):
        blur_without(plane, plane, 6000.0, 6000.0)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("blur.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    several = variants(
        "SAMPLE WEIGHT CHANNELS WEIGHT_CHANNELS SHRUNK VECTORS",
        ("unsigned char", "unsigned char", 1, 1, 1, 1),
        ("unsigned char", "unsigned short", 2, 1, 1, 1),
        ("unsigned short", "unsigned char", 2, 1, 0, 1),
        ("unsigned short", "unsigned short", 2, 2, 1, 0),
    )
    assert_compiles(tmp_path, "blur.cu", architecture, ["shrink_weighted", "blur_tiles", "grow"], several)
