"""Tests of batch normalisation on the GPU against the reference, and of its source without a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_batch_normalize import noise

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from vitascope.gpu.kernels.batch_normalize import batch_normalize

INPUTS = [np.uint8, np.uint16, np.float16, np.float32]
PAIRS = [(np.uint8, "float16"), (np.float32, "float32")]
SIZES = [(1, 1, 1), (2, 3, 5), (3, 16, 24), (2, 64, 66), (1, 127, 1024)]


# Every pair of element types with three channels, and other numbers of channels with some of them.
CASES = [
    *((source, target, 3) for source in INPUTS for target in ("float32", "float16")),
    *((source, target, channels) for source, target in PAIRS for channels in (1, 2, 4)),
]


@pytest.mark.cuda
@pytest.mark.parametrize(("dtype_in", "dtype", "channels"), CASES)
@pytest.mark.parametrize("size", SIZES)
def test_it_agrees_with_the_reference(dtype_in, dtype, channels, size):
    import cupy

    mean, std = (0.4, 0.5, 0.6, 0.1)[:channels], (0.2, 0.25, 0.3, 1.0)[:channels]
    count, height, width = size
    for layout_in in ("NCHW", "NHWC"):
        shape = (count, channels, height, width) if layout_in == "NCHW" else (count, height, width, channels)
        images = noise(shape, dtype_in)
        scale = 1 / 65535 if dtype_in == np.uint16 else 1 / 255
        for layout_out in ("NCHW", "NHWC"):
            options = {"mean": mean, "std": std, "scale": scale, "layout_in": layout_in}
            options |= {"layout_out": layout_out, "dtype": dtype}
            expected = batch_normalize(images, **options)
            actual = batch_normalize(cupy.asarray(images), **options)
            assert actual.dtype == expected.dtype
            # The GPU multiplies and adds in one operation: this allows half a unit of the larger term, and
            # one of the result.
            tolerance = {"rtol": 2e-6, "atol": 2e-6} if dtype == "float32" else {"rtol": 1e-3, "atol": 1e-5}
            np.testing.assert_allclose(actual.get(), expected, **tolerance)


@pytest.mark.cuda
def test_views_and_a_target_off_alignment():
    import cupy

    images = noise((2, 20, 32, 3), np.uint8)
    options = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3), "dtype": "float16"}
    view = cupy.asarray(images)[:, ::2, 1:]
    np.testing.assert_allclose(
        batch_normalize(view, **options).get(),
        batch_normalize(images[:, ::2, 1:], **options),
        rtol=1e-3,
        atol=1e-6,
    )
    memory = cupy.full(2 * 3 * 20 * 32 + 2, cupy.nan, cupy.float16)
    out = memory[1:-1].reshape(2, 3, 20, 32)
    batch_normalize(cupy.asarray(images), out=out, **options)
    np.testing.assert_allclose(out.get(), batch_normalize(images, **options), rtol=1e-3, atol=1e-6)
    assert bool(cupy.isnan(memory[[0, -1]]).all())


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("batch_normalize.cu"))
def test_the_source_compiles(tmp_path, architecture):
    kinds, layouts = (("unsigned char", "__half"), ("float", "float")), ((0, 0), (0, 1), (1, 0), (1, 1))
    several = variants(
        "INPUT OUTPUT CHANNELS IN_LAST OUT_LAST",
        *((*kind, 3, *layout) for kind, layout in itertools.product(kinds, layouts)),
    )
    assert_compiles(tmp_path, "batch_normalize.cu", architecture, ["normalize", "normalize_pixels"], several)
