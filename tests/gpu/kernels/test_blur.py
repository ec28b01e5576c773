from __future__ import annotations

import cv2
import numpy as np
import pytest

from vitascope.gpu.kernels.blur import blur_without, plan_blur


def noise(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("weight_dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 1), (17, 31), (40, 48, 2), (1, 1, 2)])
def test_one_colour_stays_what_it_is_wherever_some_background_is_left(dtype, weight_dtype, shape):
    plane = np.full(shape, 77, dtype)
    weight = noise(shape, weight_dtype) // 2
    np.testing.assert_array_equal(blur_without(plane, weight, 6.0, 6.0), plane)


def test_without_a_person_it_is_a_gaussian():
    plane = noise((70, 90), np.uint8)
    blurred = blur_without(plane, np.zeros_like(plane), 3.0, 2.0)
    expected = cv2.GaussianBlur(
        plane.astype(np.float64), (0, 0), 3.0, sigmaY=2.0, borderType=cv2.BORDER_REPLICATE
    )
    assert np.abs(blurred - expected).max() <= 1.0


def test_a_wide_gaussian_at_a_smaller_size_is_nearly_the_same():
    plane = cv2.GaussianBlur(noise((240, 320), np.uint8), (0, 0), 4.0)
    blurred = blur_without(plane, np.zeros_like(plane), 20.0, 20.0)
    expected = cv2.GaussianBlur(plane.astype(np.float32), (0, 0), 20.0, borderType=cv2.BORDER_REPLICATE)
    assert np.abs(blurred - expected).max() <= 1.5


@pytest.mark.parametrize("sigma", [2.0, 14.0])
def test_what_a_person_looks_like_does_not_matter(sigma):
    plane = noise((64, 80), np.uint8)
    weight = np.zeros_like(plane)
    weight[20:40, 30:50] = 255
    other = np.where(weight > 0, 255 - plane, plane)
    np.testing.assert_array_equal(
        blur_without(plane, weight, sigma, sigma), blur_without(other, weight, sigma, sigma)
    )


def test_one_weight_serves_both_channels():
    plane, weight = noise((33, 21, 2), np.uint16), noise((33, 21), np.uint8, seed=1)
    np.testing.assert_array_equal(
        blur_without(plane, weight, 9.0, 9.0), blur_without(plane, cv2.merge([weight, weight]), 9.0, 9.0)
    )


def test_channels_do_not_mix():
    plane = noise((33, 21, 2), np.uint8)
    weight = noise((33, 21, 2), np.uint8, seed=1)
    both = blur_without(plane, weight, 9.0, 7.0)
    for channel in range(2):
        alone = blur_without(plane[..., channel].copy(), weight[..., channel].copy(), 9.0, 7.0)
        np.testing.assert_array_equal(both[..., channel], alone)


@pytest.mark.parametrize("sigma", [0.1, 3.9, 4.0, 7.99, 8.0, 100.0, 3000.0])
def test_each_axis_is_shrunk_to_where_the_gaussian_is_narrow(sigma):
    plan = plan_blur((6000, 4000), sigma, 1.0)
    assert plan.size[0] == 6000
    assert plan.radius[0] == 4
    assert plan.radius[1] <= 36
    assert plan.sigma[1] <= 8.0


@pytest.mark.parametrize(
    ("weight", "sigma", "complaint"),
    [
        (np.zeros((4, 5), np.uint8), 1.0, "expected"),
        (np.zeros((4, 4), np.float32), 1.0, "uint8 or uint16"),
        (np.zeros((4, 4), np.uint8), 0.0, "above 0"),
    ],
)
def test_what_does_not_fit_is_refused(weight, sigma, complaint):
    with pytest.raises(ValueError, match=complaint):
        blur_without(np.zeros((4, 4), np.uint8), weight, sigma, sigma)
