from __future__ import annotations

import numpy as np
import pytest

from pictures import ODD_SIZES, random_frame, semi_planar_twin, strided
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.semi_planar import to_planar, to_semi_planar, upload

PLANAR = ["yuv420p", "yuv420p10le"]


def assert_same_planes(actual, expected):
    assert actual.format == expected.format
    for made, plane in zip(actual.planes, expected.planes, strict=True):
        assert made.dtype == plane.dtype
        np.testing.assert_array_equal(made, plane)


@pytest.mark.parametrize("name", PLANAR)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_three_planes_become_two_and_again_three(name, size):
    frame = strided(random_frame(PIXEL_FORMATS[name], size))
    for plane in frame.planes:
        plane.flags.writeable = False  # read-only, as from a decoder
    twin = to_semi_planar(frame)
    assert_same_planes(twin, semi_planar_twin(frame))
    assert_same_planes(to_planar(twin), frame)
    assert_same_planes(to_planar(strided(twin)), frame)


def test_eight_bit_luma_is_not_copied():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (6, 8))
    twin = to_semi_planar(frame)
    assert twin.planes[0] is frame.planes[0]
    assert to_planar(twin).planes[0] is frame.planes[0]


@pytest.mark.parametrize("name", ["nv12", "p010le"])
def test_a_frame_that_is_one_already_comes_back(name):
    frame = random_frame(PIXEL_FORMATS[name], (6, 8))
    assert to_semi_planar(frame) is frame
    planar = random_frame(PIXEL_FORMATS["yuv420p"], (6, 8))
    assert to_planar(planar) is planar


@pytest.mark.parametrize("make", [to_semi_planar, to_planar, upload])
@pytest.mark.parametrize("name", ["yuv444p", "yuv422p10le", "yuv420p12le"])
def test_other_formats_are_refused(make, name):
    with pytest.raises(ValueError, match=f"{name} has no such twin"):
        make(random_frame(PIXEL_FORMATS[name], (6, 8)))
