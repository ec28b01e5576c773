"""Painted alpha on the GPU against its reference, and the source against compilers without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_cpu, frame_on_gpu, plane_on_gpu

from cuda_sources import ARCHITECTURES, assert_compiles, needs_nvcc, variants
from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.paint_alpha import paint_alpha

SIZES = [(2, 2), (2, 14), (6, 2), (34, 62), (18, 1300)]


def some_alpha(size, seed=0):
    """Alpha that is there in half of the samples; its first and last are 0 and 1."""
    rng = np.random.default_rng(seed)
    alpha = np.where(rng.random(size) < 0.5, rng.random(size), -1).astype(np.float32)
    alpha.reshape(-1)[[0, -1]] = 0, 1
    return alpha


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("location", ["left", "center", "topleft"])
@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("color", ["red", "grey"])
@pytest.mark.parametrize("pad", [0, 3])
def test_the_gpu_agrees_with_the_reference(name, location, full_range, color, pad):
    spec = ColorSpec("bt709", full_range, chroma_location=location)
    for size in SIZES:
        frame = random_frame(PIXEL_FORMATS[name], size, color=spec)
        alpha = some_alpha(size)
        mine, theirs = frame_on_gpu(frame, pad=pad), frame.with_planes(tuple(map(np.copy, frame.planes)))
        paint_alpha(theirs, alpha, color=color)
        paint_alpha(mine, plane_on_gpu(alpha, pad=pad), color=color)
        step = 1 << frame.format.sample_shift
        for slot, (got, wanted) in enumerate(zip(frame_on_cpu(mine).planes, theirs.planes, strict=True)):
            off = np.abs(got.astype(int) - wanted.astype(int))
            assert off.max() <= (0 if slot else step), (size, slot)
            assert (off > 0).mean() < 0.01


@pytest.mark.cuda
def test_a_planar_frame_on_the_gpu_is_refused():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["yuv420p"], (4, 4)))
    with pytest.raises(ValueError, match="NV12 and P010"):
        paint_alpha(frame, plane_on_gpu(some_alpha((4, 4))), color="red")


def test_sizes_that_do_not_fit_are_refused():
    frame = random_frame(PIXEL_FORMATS["nv12"], (4, 6))
    with pytest.raises(ValueError, match="alpha is"):
        paint_alpha(frame, some_alpha((4, 4)), color="red")
    odd = random_frame(PIXEL_FORMATS["nv12"], (5, 6))
    with pytest.raises(ValueError, match="whole chroma samples"):
        paint_alpha(odd, some_alpha((5, 6)), color="red")


def test_what_has_no_alpha_stays_as_it_is():
    frame = random_frame(PIXEL_FORMATS["nv12"], (6, 8))
    before = [plane.copy() for plane in frame.planes]
    paint_alpha(frame, np.full((6, 8), -1, np.float32), color="red")
    for plane, old in zip(frame.planes, before, strict=True):
        np.testing.assert_array_equal(plane, old)


@needs_nvcc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_source_compiles(tmp_path, architecture):
    several = variants(
        "SAMPLE COSITED_X COSITED_Y",
        ("unsigned char", 1, 0),
        ("unsigned short", 0, 0),
        ("unsigned char", 1, 1),
    )
    assert_compiles(tmp_path, "paint_alpha.cu", architecture, ["paint_chroma", "paint_luma"], several)
