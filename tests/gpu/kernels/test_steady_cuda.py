"""Tests of temporal smoothing on the GPU against the reference, and of its source without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_twins import frame_on_gpu, plane_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import ODD_SIZES, random_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.color import alpha_dtype
from vitascope.gpu.kernels.steady import AlphaSmoother


def slow_film(fmt, size, count):
    """Make frames that differ by a little noise in places, so that every weight of the past occurs."""
    first = random_frame(fmt, size)
    rng = np.random.default_rng(1)
    luma = first.planes[0].astype(int)
    peak = (2**fmt.bit_depth - 1) << fmt.sample_shift
    still = rng.random(size) < 0.5
    for _ in range(count):
        drift = rng.normal(0, 0.1 * peak, size) * ~still
        codes = np.clip(luma + drift, 0, peak).astype(int) >> fmt.sample_shift << fmt.sample_shift
        yield first.with_planes((codes.astype(fmt.dtype), first.planes[1]))


def alphas(frame, count):
    rng = np.random.default_rng(2)
    peak = np.iinfo(alpha_dtype(frame)).max
    for _ in range(count):
        yield rng.integers(0, peak + 1, frame.planes[0].shape, dtype=alpha_dtype(frame))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nv12", "p010le"])
@pytest.mark.parametrize("size", [*ODD_SIZES, (4, 4), (5, 12), (135, 300)])
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("strength", [0.5, 0.95])
def test_it_follows_the_reference_frame_by_frame(name, size, pad, strength):
    fmt = PIXEL_FORMATS[name]
    frames = list(slow_film(fmt, size, 6))
    on_cpu, on_gpu = AlphaSmoother(strength), AlphaSmoother(strength)
    tolerance = 1 if fmt.bit_depth == 8 else 16
    for index, (frame, alpha) in enumerate(zip(frames, alphas(frames[0], 6), strict=True)):
        if index == 4:
            on_cpu.reset()
            on_gpu.reset()
        expected = on_cpu.smooth(frame, alpha).astype(int)
        actual = on_gpu.smooth(frame_on_gpu(frame, pad=pad), plane_on_gpu(alpha, pad=pad))
        assert actual.dtype == alpha.dtype
        assert np.abs(actual.get().astype(int) - expected).max() <= tolerance
        if index in (0, 4):
            np.testing.assert_array_equal(actual.get(), alpha)


@pytest.mark.cuda
def test_the_past_weighs_in_and_another_size_begins_anew():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["nv12"], (20, 30)))
    smoother = AlphaSmoother(0.5)
    smoother.smooth(frame, plane_on_gpu(np.zeros((20, 30), np.uint8)))
    half = smoother.smooth(frame, plane_on_gpu(np.full((20, 30), 255, np.uint8)))
    assert set(np.unique(half.get())) <= {127, 128}
    small = frame_on_gpu(random_frame(PIXEL_FORMATS["nv12"], (10, 10)))
    assert (smoother.smooth(small, plane_on_gpu(np.full((10, 10), 255, np.uint8))).get() == 255).all()


@pytest.mark.cuda
def test_video_too_deep_for_the_sums_is_refused():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["yuv420p12le"], (10, 10)))
    with pytest.raises(ValueError, match="10-bit"):
        AlphaSmoother(0.5).smooth(frame, plane_on_gpu(np.zeros((10, 10), np.uint16)))


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("steady.cu"))
def test_the_source_compiles(tmp_path, architecture):
    several = variants(
        "SAMPLE SHIFT ALPHA VECTORS",
        ("unsigned char", 0, "unsigned char", 0),
        ("unsigned char", 0, "unsigned char", 1),
        ("unsigned short", 6, "unsigned short", 0),
        ("unsigned short", 6, "unsigned short", 1),
    )
    assert_compiles(tmp_path, "steady.cu", architecture, ["smooth_alpha"], several)
