"""Check that fisheye views on the GPU agree with the CPU, to the network and back."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.vr.projection import Equirectangular

pytestmark = pytest.mark.cuda


def waves(shape, dtype):
    grids = np.meshgrid(*(np.arange(length) / 9 for length in shape[-2:]), indexing="ij")
    picture = 0.5 + 0.4 * np.sin(grids[0]) * np.cos(grids[1])
    return np.broadcast_to(picture, shape).astype(dtype).copy()


@pytest.mark.parametrize("lens", [Equirectangular(), Equirectangular(360.0, 180.0)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("bend", [0.0, 0.5])
def test_the_gpu_shows_and_takes_back_what_the_cpu_does(lens, dtype, bend):
    import cupy

    size = (96, round(96 * lens.horizontal_fov_degrees / lens.vertical_fov_degrees))
    views = FisheyeViews(lens, NetworkInput(size, "NCHW", dtype=dtype), (96, 96), bend)
    images = waves((2, 2, 3, *size), dtype)
    expected = views.show(images)
    got = views.show(cupy.asarray(images))
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.get().astype(np.float32), expected.astype(np.float32), atol=2e-2)
    coefficients = waves((2 * views.count, 4, 96, 96), "float32")
    shares = np.linspace(0.2, 1, 6, dtype=np.float32)
    wanted = views.take_back([MatteEstimate(gain=one * coefficients, offset=coefficients) for one in shares])
    there = cupy.asarray(coefficients)
    found = views.take_back([MatteEstimate(gain=float(one) * there, offset=there) for one in shares])
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.gain.get(), other.gain, atol=2e-2)
        np.testing.assert_allclose(one.offset.get(), other.offset, atol=2e-2)
