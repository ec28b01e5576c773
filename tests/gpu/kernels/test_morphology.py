from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from vitascope.gpu.kernels.morphology import (
    MAX_RADIUS_PX,
    dilate_box,
    dilate_disc,
    erode_box,
    erode_disc,
    structuring_element,
)

OPERATIONS = [dilate_box, erode_box, dilate_disc, erode_disc]


def noise(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 1), (23, 40)])
@pytest.mark.parametrize("radius", [1, 2, 5, 11])
def test_samples_outside_do_not_count(dtype, shape, radius):
    plane = noise(shape, dtype)
    for kind, dilate, erode in (("box", dilate_box, erode_box), ("disc", dilate_disc, erode_disc)):
        window = structuring_element(kind, radius).astype(bool)
        peak = np.iinfo(dtype).max
        largest = ndimage.grey_dilation(plane, footprint=window, mode="constant", cval=0)
        smallest = ndimage.grey_erosion(plane, footprint=window, mode="constant", cval=peak)
        np.testing.assert_array_equal(dilate(plane, radius), largest)
        np.testing.assert_array_equal(erode(plane, radius), smallest)


@pytest.mark.parametrize("radius", [1, 3, 10, 100, 256])
def test_the_disc_is_one_run_a_row_and_round_within_a_sample(radius):
    window = structuring_element("disc", radius)
    y = np.arange(-radius, radius + 1)
    reach = np.rint(np.sqrt(radius**2 - y**2)).astype(int)
    x = np.abs(np.arange(-radius, radius + 1))
    np.testing.assert_array_equal(window, x[None] <= reach[:, None])


@given(seed=st.integers(0, 1000), radius=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_erosion_is_dilation_of_the_inverted_codes(seed, radius):
    plane = noise((20, 30), np.uint8, seed)
    np.testing.assert_array_equal(erode_disc(plane, radius), ~dilate_disc(~plane, radius))
    np.testing.assert_array_equal(erode_box(plane, radius), ~dilate_box(~plane, radius))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_padded_rows_and_radius_zero(operation):
    wide = noise((20, 40), np.uint16)
    np.testing.assert_array_equal(operation(wide[:, 3:30], 2), operation(wide[:, 3:30].copy(), 2))
    assert operation(wide, 0) is wide


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("radius", [0, 1, 4])
def test_several_planes_are_each_by_itself(operation, radius):
    planes = noise((3, 20, 41), np.uint8)[:, :, 2:33]
    expected = np.stack([operation(plane, radius) for plane in planes])
    np.testing.assert_array_equal(operation(planes, radius), expected)
    assert operation(planes[:0], radius).shape == (0, 20, 31)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("radius", [-1, MAX_RADIUS_PX + 1])
def test_a_radius_out_of_range_is_refused(operation, radius):
    with pytest.raises(ValueError, match="expected 0 to 256"):
        operation(np.zeros((4, 4), np.uint8), radius)


@pytest.mark.parametrize(
    "plane", [np.zeros((4, 4), np.float32), np.zeros(4, np.uint8), np.zeros((1, 4, 4, 2), np.uint8)]
)
def test_other_arrays_are_refused(plane):
    with pytest.raises(ValueError, match="expected uint8 or uint16"):
        dilate_box(plane, 1)
