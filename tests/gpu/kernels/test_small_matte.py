"""Tests of the reference for alpha from coefficients and a small picture, against the formulas for each sample."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.gpu.kernels.small_matte import FLAT_BEYOND, alpha_at_grey, bound_alpha, mean_of_channels

SIZES = [(1, 1), (7, 5), (33, 64)]


def arrays(size, *, count=3, planes=1, channels=3, dtype=np.float32, seed=0):
    """Make gain, offset and picture for alpha far outside 0..1."""
    random = np.random.default_rng(seed)
    gain = random.normal(0, 2, (count, planes, *size)).astype(dtype)
    offset = random.normal(0.5, 0.7, (count, planes, *size)).astype(dtype)
    return gain, offset, random.random((count, channels, *size)).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_alpha_are_as_the_formula_says(size, channels):
    gain, offset, picture = arrays(size, planes=4, channels=channels)
    grey = mean_of_channels(picture)
    np.testing.assert_allclose(grey, picture.astype(np.float64).mean(axis=1), atol=1e-6)
    expected = np.clip(gain[:, -1].astype(np.float64) * grey + offset[:, -1], 0, 1)
    np.testing.assert_allclose(alpha_at_grey(gain, offset, picture), expected, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_bounded_alpha_is_alpha_clipped_and_its_gain_fades_outside(size):
    gain, offset, picture = arrays(size)
    made_gain, made_offset, said = bound_alpha(gain, offset, picture)
    grey = mean_of_channels(picture)[:, None]
    free = gain.astype(np.float64) * grey + offset
    alpha = np.clip(free, 0, 1)
    np.testing.assert_allclose(made_gain * grey + made_offset, alpha, atol=1e-5)
    inside, flat = (free >= 0) & (free <= 1), abs(free - alpha) >= FLAT_BEYOND
    np.testing.assert_array_equal(made_gain[inside], gain[inside])
    assert not made_gain[flat].any()
    expected = np.concatenate([abs(2 * alpha - 1), alpha, abs(made_gain) * alpha * (1 - alpha)], axis=1)
    np.testing.assert_allclose(said, expected, atol=1e-4)


def test_mirrored_is_the_same_from_the_right():
    given = arrays((6, 9))
    for plain, mirrored in zip(bound_alpha(*given), bound_alpha(*given, is_mirrored=True), strict=True):
        np.testing.assert_array_equal(mirrored, plain[..., ::-1])


def test_what_is_given_stays():
    given = arrays((4, 4))
    before = [array.copy() for array in given]
    bound_alpha(*given)
    alpha_at_grey(*given)
    for array, own in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, own)


@pytest.mark.parametrize(
    ("gain", "picture"),
    [
        ((2, 1, 4, 4), (2, 3, 4, 5)),
        ((2, 1, 4, 4), (3, 3, 4, 4)),
        ((2, 4, 4), (2, 3, 4, 4)),
        ((2, 1, 4, 4), (2, 2, 4, 4)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(gain, picture):
    planes, shown = np.zeros(gain, np.float32), np.zeros(picture, np.float32)
    for make in (alpha_at_grey, bound_alpha):
        with pytest.raises(ValueError, match=r"expected \[N, 3 or 1|do not fit"):
            make(planes, planes, shown)
