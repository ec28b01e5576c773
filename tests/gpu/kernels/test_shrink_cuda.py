"""Tests of the shrinking kernel against its reference, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_cpu, frame_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.shrink import shrink_frame

CASES = [
    ((2, 2), (2, 2)),
    ((5, 3), (2, 2)),
    ((17, 31), (6, 10)),
    ((64, 48), (64, 20)),
    ((66, 33), (30, 32)),
    ((270, 480), (72, 128)),
    ((40, 4400), (38, 1000)),
    ((300, 1900), (2, 2)),
]


def eyes_of(frame, eyes):
    if eyes == "mono":
        return [Region(0, 0, frame.width, frame.height)]
    if eyes == "side by side":
        half = frame.width // 2
        return [Region(0, 0, half, frame.height), Region(half, 0, frame.width - half, frame.height)]
    half = frame.height // 2
    return [Region(0, 0, frame.width, half), Region(0, half, frame.width, frame.height - half)]


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize(("source", "size"), CASES)
@pytest.mark.parametrize("eyes", ["mono", "side by side", "top bottom"])
@pytest.mark.parametrize("pad", [0, 3])
def test_it_agrees_with_the_reference(name, location, source, size, eyes, pad):
    frame = random_frame(PIXEL_FORMATS[name], source, color=ColorSpec(chroma_location=location))
    regions = eyes_of(frame, eyes)
    try:
        expected = shrink_frame(frame, regions=regions, size=size)
    except ValueError:
        assert eyes != "mono"  # too small for two eyes
        return
    actual = frame_on_cpu(shrink_frame(frame_on_gpu(frame, pad=pad), regions=regions, size=size))
    assert (actual.format, actual.color, actual.pts) == (expected.format, expected.color, expected.pts)
    word = 1 << frame.format.sample_shift
    for made, plane in zip(actual.planes, expected.planes, strict=True):
        assert made.dtype == plane.dtype
        assert not (made % word).any()
        assert np.abs(made.astype(int) - plane).max() <= word


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
def test_the_largest_code_stays_the_largest(name):
    fmt = PIXEL_FORMATS[name]
    peak = ((1 << fmt.bit_depth) - 1) << fmt.sample_shift
    frame = random_frame(fmt, (216, 7680))
    frame = frame.with_planes(tuple(np.full_like(plane, peak) for plane in frame.planes))
    small = shrink_frame(frame_on_gpu(frame), regions=eyes_of(frame, "mono"), size=(58, 2048))
    for plane in small.planes:
        assert int(plane.min()) == int(plane.max()) == peak


@pytest.mark.cuda
def test_what_the_kernel_cannot_read_is_refused():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["yuv420p"], (16, 16)))
    with pytest.raises(ValueError, match="NV12 and P010"):
        shrink_frame(frame, regions=eyes_of(frame, "mono"), size=(8, 8))
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["nv12"], (16, 30)))
    thirds = [Region(10 * n, 0, 10, 16) for n in range(3)]
    with pytest.raises(ValueError, match="at most 2"):
        shrink_frame(frame, regions=thirds, size=(8, 12))
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["nv12"], (2, 8000)))
    with pytest.raises(ValueError, match="1000 samples"):
        shrink_frame(frame, regions=eyes_of(frame, "mono"), size=(2, 2))


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("shrink.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    several = variants("SAMPLE STEP TAPS VECTORS", ("unsigned char", 1, 5, 1), ("unsigned short", 64, 2, 0))
    assert_compiles(tmp_path, "shrink.cu", architecture, ["shrink"], several)
