"""Tests of the kernels for small mattes against their references, and of the source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from test_small_matte import SIZES, arrays

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from vitascope.gpu.kernels.small_matte import alpha_at_grey, bound_alpha, mean_of_channels


@pytest.mark.cuda
@pytest.mark.parametrize("size", [*SIZES, (45, 70)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("planes", [1, 4])
def test_kernels_follow_the_reference(size, channels, dtype, planes):
    import cupy

    given = arrays(size, planes=planes, channels=channels, dtype=dtype)
    there = [cupy.asarray(array) for array in given]
    np.testing.assert_allclose(mean_of_channels(there[2]).get(), mean_of_channels(given[2]), atol=1e-3)
    exact = [array.astype(np.float32) for array in given]
    np.testing.assert_allclose(alpha_at_grey(*there).get(), alpha_at_grey(*exact), atol=1e-5)
    for is_mirrored in (False, True):
        made = bound_alpha(*there, is_mirrored=is_mirrored)
        for one, expected in zip(made, bound_alpha(*exact, is_mirrored=is_mirrored), strict=True):
            assert one.dtype == np.float32
            np.testing.assert_allclose(one.get(), expected, atol=5e-5)


@pytest.mark.cuda
def test_pictures_may_lie_apart_and_be_of_two_types():
    import cupy

    gain, offset, picture = arrays((8, 12), count=4, planes=4)
    there = [cupy.asarray(array) for array in (gain, offset, picture)]
    expected = bound_alpha(gain[::2], offset[::2], picture[::2, ::-1])
    for given in (
        [array[::2] for array in there],  # every second picture
        [there[0][::2].astype("float16").astype("float32"), there[1][::2], there[2][::2]],
        [
            cupy.pad(array, ((0, 0), (0, 0), (1, 2), (3, 1)))[::2, :, 1:-2, 3:-1] for array in there
        ],  # parts of larger arrays
    ):
        made = bound_alpha(*given)
        np.testing.assert_allclose(made.said.get(), expected.said, atol=2e-2)
    mixed = bound_alpha(there[0].astype("float16"), there[1], there[2])
    np.testing.assert_allclose(
        mixed.said.get(), bound_alpha(gain.astype(np.float16), offset, picture).said, atol=5e-5
    )


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["uint8", "float64"])
def test_other_types_are_converted(dtype):
    import cupy

    gain, offset, picture = arrays((6, 7))
    picture = (picture * 3).astype(dtype)
    there = [cupy.asarray(array) for array in (gain.astype(np.float64), offset.astype(np.float64), picture)]
    np.testing.assert_allclose(alpha_at_grey(*there).get(), alpha_at_grey(gain, offset, picture), atol=1e-5)


@pytest.mark.cuda
def test_of_no_pictures_nothing_is_made():
    import cupy

    given = [cupy.asarray(array) for array in arrays((3, 4), count=0)]
    assert alpha_at_grey(*given).shape == (0, 3, 4)
    assert bound_alpha(*given).said.shape == (0, 3, 3, 4)


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("small_matte.cu"))
def test_the_source_compiles(tmp_path, architecture):
    several = variants("COLOR COEFFICIENT", ("float", "float"), ("__half", "__half"), ("float", "__half"))
    entries = ["mean_of_channels", "alpha_at_grey", "bound_alpha"]
    assert_compiles(tmp_path, "small_matte.cu", architecture, entries, several)
