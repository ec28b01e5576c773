"""Tests of smoothing along the motion on the GPU against the reference, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from test_along_motion import flight

from cuda_sources import architectures, assert_compiles, needs_nvcc
from vitascope.gpu.kernels.along_motion import mean_along_motion


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(45, 70), (1, 1), (9, 33), (64, 96)])
@pytest.mark.parametrize("eyes", [1, 2])
@pytest.mark.parametrize("shrink", [1, 2])
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_mean_follows_the_reference(size, eyes, shrink, is_whole):
    import cupy

    alpha, rgb, ahead, back = flight(count=6, eyes=eyes, size=size, step=(2.3, -1.6))
    alpha = (alpha + np.random.default_rng(5).normal(0, 0.03, alpha.shape).astype(np.float32)).clip(0, 1)
    ahead, back = (np.ascontiguousarray(way[:, :, ::shrink, ::shrink]) / shrink for way in (ahead, back))
    given = [cupy.asarray(array) for array in (alpha, rgb, ahead, back)]
    if not is_whole:  # a part of larger planes
        given[0] = cupy.pad(given[0], ((0, 0), (0, 0), (2, 1), (3, 5)))[:, :, 2:-1, 3:-5]
    expected = mean_along_motion(alpha, rgb, ahead, back)
    made = mean_along_motion(*given).get()
    assert made.dtype == np.float32
    # OpenCV interpolates at 1/32 of a sample.
    np.testing.assert_allclose(made, expected, atol=0.01)
    assert np.abs(made - expected).mean() < 1e-3


@pytest.mark.cuda
def test_motion_that_leads_out_of_the_picture_reads_its_border():
    import cupy

    alpha, rgb, ahead, _ = flight(count=3)
    ahead[:] = np.float32([1e6, -1e6])
    given = alpha, rgb, ahead, -ahead
    expected, made = mean_along_motion(*given), mean_along_motion(*map(cupy.asarray, given)).get()
    np.testing.assert_allclose(made, expected, atol=1e-4)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("along_motion.cu"))
def test_the_source_compiles(tmp_path, architecture):
    assert_compiles(tmp_path, "along_motion.cu", architecture, ["mean_along_motion"])
