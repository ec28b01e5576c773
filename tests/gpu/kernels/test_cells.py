"""Tests of the surroundings of cells: the reference against OpenCV, and the kernel against the reference."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from cuda_sources import architectures, assert_compiles, needs_nvcc
from vitascope.gpu.kernels.cells import greatest_around, mean_around

SHAPES = [(2, 1, 14, 24), (1, 1), (3, 1, 5), (4, 9, 1), (2, 2, 1, 33, 7)]


def cells(shape):
    """Make cells of both signs, as places outside the grid must not count as 0."""
    return np.random.default_rng(1).normal(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_greatest_of_nine(shape):
    given = cells(shape)
    grids = given.reshape(-1, *shape[-2:])
    expected = np.stack([cv2.dilate(grid, np.ones((3, 3), np.uint8)) for grid in grids]).reshape(shape)
    before = given.copy()
    np.testing.assert_array_equal(greatest_around(given), expected)
    np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_mean_of_25(shape):
    given = cells(shape)
    rows, columns = shape[-2:]
    grids = given.reshape(-1, rows, columns)
    # A single row or column cannot be mirrored, and is its own neighbour.
    ways = ["edge" if side == 1 else "reflect" for side in (rows, columns)]
    wide = np.pad(
        np.pad(grids, ((0, 0), (2, 2), (0, 0)), mode=ways[0]), ((0, 0), (0, 0), (2, 2)), mode=ways[1]
    )
    expected = np.mean([wide[:, y : y + rows, x : x + columns] for y in range(5) for x in range(5)], axis=0)
    np.testing.assert_allclose(mean_around(given), expected.reshape(shape), atol=1e-6)
    assert mean_around(given).dtype == np.float32
    assert mean_around(given[:0]).shape == (0, *shape[1:])


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("operation", "off"), [(greatest_around, 0), (mean_around, 1e-6)])
def test_the_kernel_is_the_reference(shape, operation, off):
    import cupy

    given = cells(shape)
    there = cupy.asarray(given)
    for own, on_gpu in ((given, there), (np.ascontiguousarray(given[..., ::-1]), there[..., ::-1])):
        np.testing.assert_allclose(operation(on_gpu).get(), operation(own), rtol=0, atol=off)
    assert operation(there[:0]).shape == (0, *shape[1:])


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("cells.cu"))
def test_the_source_compiles(tmp_path, architecture):
    assert_compiles(tmp_path, "cells.cu", architecture, ["greatest_around", "mean_around"])
