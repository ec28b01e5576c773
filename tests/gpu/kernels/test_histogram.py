from __future__ import annotations

import numpy as np
import pytest

from vitascope.gpu.kernels.histogram import color_histogram


def test_each_corner_of_the_cube_has_its_bin():
    for red in (0.0, 1.0):
        for green in (0.0, 1.0):
            for blue in (0.0, 1.0):
                picture = np.broadcast_to(np.array([red, green, blue], np.float32)[:, None, None], (3, 4, 5))
                histogram = color_histogram(picture).reshape(4, 4, 4)
                assert histogram[int(3 * red), int(3 * green), int(3 * blue)] == 1
                assert histogram.sum() == 1


def test_between_two_levels_a_sample_is_divided():
    picture = np.zeros((2, 2, 3), np.float32)
    picture[..., 0] = 0.25 / 3
    histogram = color_histogram(picture, layout="NHWC").reshape(4, 4, 4)
    assert histogram[0, 0, 0] == pytest.approx(0.75)
    assert histogram[1, 0, 0] == pytest.approx(0.25)


def test_the_layout_makes_no_difference_and_a_batch_is_its_pictures():
    rgb = np.random.default_rng(0).random((2, 3, 20, 30)).astype(np.float32)
    together = color_histogram(rgb, levels=5)
    assert together.shape == (2, 125)
    assert together.dtype == np.float32
    np.testing.assert_array_equal(together, color_histogram(np.moveaxis(rgb, 1, -1), layout="NHWC", levels=5))
    np.testing.assert_array_equal(together[1], color_histogram(rgb[1], levels=5))
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-6)


def test_large_pictures_are_sampled_evenly():
    rgb = np.zeros((3, 100, 200), np.float32)
    rgb[:, 50:] = 1
    histogram = color_histogram(rgb, max_samples=100)
    assert histogram[0] == pytest.approx(0.5)
    assert histogram[-1] == pytest.approx(0.5)


def test_values_outside_are_clipped():
    rgb = np.array([-5.0, 0.5, 7.0], np.float32)[:, None, None]
    np.testing.assert_array_equal(
        color_histogram(rgb), color_histogram(np.array([0, 0.5, 1], np.float32)[:, None, None])
    )


@pytest.mark.parametrize(
    ("rgb", "options", "message"),
    [
        (np.zeros((4, 5, 3), np.float32), {}, "expected"),
        (np.zeros((3, 5, 4), np.float32), {"layout": "NHWC"}, "expected"),
        (np.zeros((3, 0, 4), np.float32), {}, "expected"),
        (np.zeros((3, 5, 4), np.uint8), {}, "float16 or float32"),
        (np.zeros((3, 5, 4), np.float32), {"levels": 8}, "2 to 7"),
        (np.zeros((3, 5, 4), np.float32), {"max_samples": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(rgb, options, message):
    with pytest.raises(ValueError, match=message):
        color_histogram(rgb, **options)
