"""Check that the GPU packs alpha as the CPU does."""

from __future__ import annotations

import numpy as np
import pytest

from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec, StereoLayout
from vitascope.vr.packing import AlphaPacker
from vitascope.vr.projection import Equirectangular, Fisheye
from vitascope.vr.stereo import eye_regions

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("lens", [Equirectangular(), Fisheye(200.0)])
@pytest.mark.parametrize("layout", [StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM])
@pytest.mark.parametrize("color", ["red", "grey"])
def test_a_packed_picture_is_the_cpus(name, lens, layout, color):
    import cupy

    size = (160, 320) if layout is StereoLayout.SIDE_BY_SIDE else (320, 160)
    frame = random_frame(PIXEL_FORMATS[name], size, color=ColorSpec("bt709"))
    # Smooth pictures: the GPU reads at exact places, OpenCV in steps of 1/32 sample.
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    peak = (1 << frame.format.bit_depth) - 1
    luma = (peak * (0.5 + 0.3 * np.sin(x / 40) * np.cos(y / 30))).astype(frame.format.dtype)
    chroma = np.stack([luma[::2, ::2], luma[::2, ::2][::-1]], axis=-1)
    planes = tuple(
        (plane << frame.format.sample_shift).astype(frame.format.dtype) for plane in (luma, chroma)
    )
    frame = frame.with_planes(planes)
    alpha_peak = 255 if frame.format.bit_depth == 8 else 65535
    alpha = (alpha_peak * (0.5 + 0.5 * np.cos(x / 25) * np.sin(y / 35))).astype(
        np.uint8 if alpha_peak == 255 else np.uint16
    )
    regions = eye_regions(size[1], size[0], layout)
    packer = AlphaPacker(regions, [lens] * 2, color=color)
    expected = packer.pack(frame, alpha)
    got = packer.pack(frame.with_planes(tuple(map(cupy.asarray, planes))), cupy.asarray(alpha))
    for ours, wanted in zip(got.planes, expected.planes, strict=True):
        off = np.abs(ours.get().astype(int) - wanted.astype(int)) / (1 << frame.format.sample_shift)
        assert off.mean() < 0.025 * peak / 255
        assert np.quantile(off, 0.999) <= 3 * (peak + 1) / 256
