"""Tests of sums of planes of several sizes: the reference against OpenCV, and the kernel against the reference."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from cuda_sources import architectures, assert_compiles, needs_nvcc
from vitascope.gpu.kernels.weighted_planes import weighted_sums

SIZES = [
    ([(1, 1)], (1, 1)),
    ([(20, 30), (13, 20), (27, 41)], (27, 41)),
    ([(9, 64), (9, 1)], (9, 64)),
    ([(5, 7), (5, 7), (3, 2), (1, 7)], (33, 45)),
]


def arrays(sizes, *, count=3, sums=2, seed=0):
    random = np.random.default_rng(seed)
    planes = [
        [random.normal(0, 2, (count, 1, *size)).astype(np.float32) for size in sizes] for _ in range(sums)
    ]
    cells = [(min(size[0], 4), min(size[1], 6)) for size in sizes]
    return planes, [random.random((count, 1, *size)).astype(np.float32) for size in cells]


@pytest.mark.parametrize(("sizes", "size"), SIZES)
def test_each_part_counts_by_its_own_weights(sizes, size):
    planes, weights = arrays(sizes)
    made = weighted_sums(planes, weights, size)
    for one, parts in zip(made, planes, strict=True):
        for number in range(3):
            expected = np.zeros(size)
            for part, weight in zip(parts, weights, strict=True):
                large = [
                    cv2.resize(each[number, 0], size[::-1], interpolation=cv2.INTER_LINEAR)
                    for each in (part, weight)
                ]
                expected += large[0].reshape(size).astype(np.float64) * large[1].reshape(size)
            np.testing.assert_allclose(one[number, 0], expected, atol=1e-4)


def test_what_is_given_stays():
    planes, weights = arrays([(6, 8)])
    before = planes[0][0].copy(), weights[0].copy()
    made = weighted_sums(planes, weights, (6, 8))
    made[0][...] = 7
    np.testing.assert_array_equal(planes[0][0], before[0])
    np.testing.assert_array_equal(weights[0], before[1])


@pytest.mark.parametrize(
    ("planes", "weights", "message"),
    [
        ([], [(2, 1, 3, 3)], "0 sums"),
        ([[]], [], "0 parts"),
        ([[(2, 1, 4, 4)], [(2, 1, 3, 4)]], [(2, 1, 3, 3)], "do not fit"),
        ([[(2, 1, 4, 4)] * 2], [(2, 1, 3, 3)], "do not fit"),
        ([[(3, 1, 4, 4)]], [(2, 1, 3, 3)], "of one N"),
        ([[(2, 4, 4)]], [(2, 1, 3, 3)], "of one N"),
        ([[(2, 1, 9, 4)]], [(2, 1, 3, 3)], "larger"),
    ],
)
def test_what_does_not_fit_is_refused(planes, weights, message):
    given = [[np.zeros(shape, np.float32) for shape in parts] for parts in planes]
    with pytest.raises(ValueError, match=message):
        weighted_sums(given, [np.zeros(shape, np.float32) for shape in weights], (8, 8))


@pytest.mark.cuda
@pytest.mark.parametrize(("sizes", "size"), SIZES)
@pytest.mark.parametrize("sums", [1, 2])
def test_the_kernel_follows_the_reference(sizes, size, sums):
    import cupy

    planes, weights = arrays(sizes, sums=sums)
    there = [[cupy.asarray(part) for part in parts] for parts in planes]
    shares = [cupy.asarray(weight) for weight in weights]
    expected = weighted_sums(planes, weights, size)
    apart = [[cupy.repeat(part, 2, axis=0)[::2] for part in parts] for parts in there]  # not contiguous
    for given in (there, apart):
        for made, one in zip(weighted_sums(given, shares, size), expected, strict=True):
            assert made.dtype == np.float32
            np.testing.assert_allclose(made.get(), one, atol=1e-4)
    nothing = weighted_sums(
        [[part[:0] for part in parts] for parts in there], [one[:0] for one in shares], size
    )
    assert nothing[0].shape == (0, 1, *size)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("weighted_planes.cu"))
def test_the_source_compiles(tmp_path, architecture):
    assert_compiles(tmp_path, "weighted_planes.cu", architecture, ["weighted_sums"])
