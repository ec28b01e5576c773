"""Colour histograms on the GPU against their reference, and the source against compilers without a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_sources import ARCHITECTURES, assert_compiles, needs_nvcc, variants
from vitascope.gpu.kernels.histogram import color_histogram


def pictures(shape, dtype):
    """Every colour, some outside 0..1, and one flat area."""
    rgb = np.random.default_rng(0).uniform(-0.1, 1.1, shape)
    rgb[..., : shape[-2] // 2, :] = 0.4
    return rgb.astype(dtype)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    "shape", [(3, 1, 1), (3, 1, 7), (3, 17, 31), (2, 3, 64, 65), (16, 3, 288, 512), (1, 3, 90, 91)]
)
@pytest.mark.parametrize("levels", [2, 4, 5, 7])
@pytest.mark.parametrize("max_samples", [50, 4096])
def test_it_agrees_with_the_reference(dtype, shape, levels, max_samples):
    import cupy

    rgb = pictures(shape, dtype)
    options = {"levels": levels, "max_samples": max_samples}
    expected = color_histogram(rgb, **options)
    actual = color_histogram(cupy.asarray(rgb), **options)
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual.get(), expected, atol=1e-5)


@pytest.mark.cuda
def test_strides_are_followed():
    """One eye of a batch of pairs, channels last: what a job passes on."""
    import cupy

    images = pictures((5, 2, 40, 30, 3), np.float32)
    expected = color_histogram(images[:, 0], layout="NHWC")
    on_gpu = cupy.asarray(images)[:, 0]
    np.testing.assert_allclose(color_histogram(on_gpu, layout="NHWC").get(), expected, atol=1e-5)
    planes = on_gpu.swapaxes(-1, -2).swapaxes(-2, -3)
    np.testing.assert_allclose(color_histogram(planes).get(), expected, atol=1e-5)


@pytest.mark.cuda
def test_the_same_pictures_give_the_same_bits():
    import cupy

    rgb = cupy.asarray(pictures((4, 3, 288, 512), np.float16))
    first = color_histogram(rgb)
    assert all(bool((color_histogram(rgb) == first).all()) for _ in range(20))


@needs_nvcc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_source_compiles(tmp_path, architecture):
    several = variants("COLOR LEVELS THREADS", ("float", 4, 128), ("__half", 7, 32))
    assert_compiles(tmp_path, "histogram.cu", architecture, ["color_histogram"], several)
