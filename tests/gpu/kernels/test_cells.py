"""What lies around cells: the reference against OpenCV, and the kernel against the reference."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from cuda_sources import architectures, assert_compiles, needs_nvcc
from vitascope.gpu.kernels.cells import greatest_around

SHAPES = [(2, 1, 14, 24), (1, 1), (3, 1, 5), (4, 9, 1), (2, 2, 1, 33, 7)]


def cells(shape):
    """Cells of both signs: what lies beyond the grid must not count as 0."""
    return np.random.default_rng(1).normal(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_greatest_of_nine(shape):
    given = cells(shape)
    grids = given.reshape(-1, *shape[-2:])
    expected = np.stack([cv2.dilate(grid, np.ones((3, 3), np.uint8)) for grid in grids]).reshape(shape)
    before = given.copy()
    np.testing.assert_array_equal(greatest_around(given), expected)
    np.testing.assert_array_equal(given, before)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SHAPES)
def test_the_kernel_is_equal(shape):
    import cupy

    given = cells(shape)
    there = cupy.asarray(given)
    np.testing.assert_array_equal(greatest_around(there).get(), greatest_around(given))
    np.testing.assert_array_equal(greatest_around(there[..., ::-1]).get(), greatest_around(given[..., ::-1]))
    assert greatest_around(there[:0]).shape == (0, *shape[1:])


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("cells.cu"))
def test_the_source_compiles(tmp_path, architecture):
    assert_compiles(tmp_path, "cells.cu", architecture, ["greatest_around"])
