"""Tests of dilation and erosion on the GPU against OpenCV, and of the source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import plane_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from vitascope.gpu.kernels.morphology import dilate_box, dilate_disc, erode_box, erode_disc

OPERATIONS = [dilate_box, erode_box, dilate_disc, erode_disc]
SHAPES = [(1, 1), (1, 9), (7, 1), (17, 31), (33, 66), (30, 64), (130, 1028), (67, 2051)]


def noise(shape, dtype):
    """Make noise that is mostly empty or full, as mattes are, with other codes in places."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)
    return np.where(rng.random(shape) < 0.98, np.where(codes & 1, codes, 0), codes).astype(dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("radius", [1, 2, 3, 7, 8, 31, 100])
def test_it_equals_the_reference(operation, dtype, shape, radius):
    plane = noise(shape, dtype)
    expected = operation(plane, radius)
    for pad in (0, 3):
        actual = operation(plane_on_gpu(plane, pad=pad), radius)
        assert actual.dtype == dtype
        assert actual.flags["C_CONTIGUOUS"]
        np.testing.assert_array_equal(actual.get(), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("radius", [255, 256])
def test_the_largest_radii(operation, radius):
    plane = np.zeros((600, 640), np.uint8)
    plane[300, 320] = plane[0, 0] = plane[599, 100] = 255
    plane = plane if operation in (dilate_box, dilate_disc) else ~plane
    np.testing.assert_array_equal(operation(plane_on_gpu(plane), radius).get(), operation(plane, radius))


@pytest.mark.cuda
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_batch_is_its_planes(operation):
    import cupy

    planes = np.stack([noise((40, 55), np.uint8), ~noise((40, 55), np.uint8)])
    np.testing.assert_array_equal(operation(cupy.asarray(planes), 4).get(), operation(planes, 4))


@pytest.mark.cuda
def test_nothing_outside_the_target_is_written():
    import cupy

    from vitascope.gpu.kernels.morphology import launch_morphology

    for shape in ("box", "disc"):
        plane = cupy.asarray(noise((37, 53), np.uint8))
        wide = cupy.full((37 + 2, 53 + 6), 7, cupy.uint8)
        launch_morphology(plane, 3, shape=shape, erode=False, out=wide[1:-1, 3:-3])
        np.testing.assert_array_equal(wide[1:-1, 3:-3].get(), dilate_like(shape)(plane.get(), 3))
        wide[1:-1, 3:-3] = 7
        assert bool((wide == 7).all())


def dilate_like(shape):
    return dilate_box if shape == "box" else dilate_disc


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("morphology.cu"))
def test_the_source_compiles(tmp_path, architecture):
    several = variants(
        "SAMPLE ERODE VECTORS DEPTH",
        ("unsigned char", 0, 1, 8),
        ("unsigned char", 1, 0, 16),
        ("unsigned short", 1, 1, 16),
    )
    assert_compiles(tmp_path, "morphology.cu", architecture, ["box_rows", "box_columns", "disc"], several)
