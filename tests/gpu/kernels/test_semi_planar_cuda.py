"""Tests of layouts on the GPU and of uploads, and of the source without a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from cuda_twins import frame_on_cpu, frame_on_gpu

from cuda_sources import architectures, assert_compiles, needs_nvcc, variants
from pictures import ODD_SIZES, random_frame, semi_planar_twin, strided
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.semi_planar import to_planar, to_semi_planar, upload

PLANAR = ["yuv420p", "yuv420p10le"]
SIZES = [*ODD_SIZES, (90, 256), (1080, 1920), (30, 4098)]


def assert_same_planes(actual, expected):
    assert actual.format == expected.format
    for made, plane in zip(actual.planes, expected.planes, strict=True):
        assert made.dtype == plane.dtype
        np.testing.assert_array_equal(made, plane)


@pytest.mark.cuda
@pytest.mark.parametrize("name", PLANAR)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("pad", [0, 3])
def test_three_planes_become_two_and_again_three(name, size, pad):
    frame = random_frame(PIXEL_FORMATS[name], size)
    twin = semi_planar_twin(frame)
    assert_same_planes(frame_on_cpu(to_semi_planar(frame_on_gpu(frame, pad=pad))), twin)
    assert_same_planes(frame_on_cpu(to_planar(frame_on_gpu(twin, pad=pad))), frame)


@pytest.mark.cuda
@pytest.mark.parametrize("name", [*PLANAR, "nv12", "p010le"])
@pytest.mark.parametrize("size", SIZES)
def test_upload_brings_every_code_up(name, size):
    import cupy

    frame = strided(random_frame(PIXEL_FORMATS[name], size))
    stream = cupy.cuda.Stream(non_blocking=True)
    spans = []

    @contextmanager
    def timed():
        spans.append(cupy.cuda.get_current_stream().ptr)
        yield

    lifted = upload(frame, stream=stream, timed=timed)
    assert spans == [stream.ptr]
    lifted.ready.synchronize()
    assert all(plane.strides[0] % 64 == 0 for plane in lifted.planes)
    assert_same_planes(frame_on_cpu(lifted), to_semi_planar(frame))
    assert lifted.pts == frame.pts


@pytest.mark.cuda
def test_buffers_are_not_filled_again_before_they_were_read():
    """Check many frames on a busy stream: the host must not overwrite data that is still to be copied."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    frames = [random_frame(PIXEL_FORMATS["nv12"], (720, 1280), seed=seed) for seed in range(12)]
    busy = cupy.ones((4096, 4096), cupy.float32)
    with stream:
        for _ in range(20):
            busy = busy @ busy * 1e-4
    lifted = [upload(frame, stream=stream) for frame in frames]
    stream.synchronize()
    for actual, expected in zip(lifted, frames, strict=True):
        assert_same_planes(frame_on_cpu(actual), expected)


@pytest.mark.cuda
def test_kernels_wait_for_a_frame_that_is_on_its_way():
    import cupy

    loading, computing = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    frame = random_frame(PIXEL_FORMATS["yuv420p10le"], (1080, 1920))
    busy = cupy.ones((4096, 4096), cupy.float32)
    cupy.cuda.Device().synchronize()
    with loading:
        for _ in range(20):
            busy = busy @ busy * 1e-4
    lifted = upload(frame, stream=loading)
    with computing:
        planar = to_planar(lifted)
        assert planar.ready is None
        computing.synchronize()
    assert_same_planes(frame_on_cpu(planar), frame)


@pytest.mark.cuda
def test_a_frame_on_the_gpu_is_not_uploaded_again():
    frame = frame_on_gpu(random_frame(PIXEL_FORMATS["nv12"], (8, 8)))
    with pytest.raises(ValueError, match="on the GPU already"):
        upload(replace(frame, index=1))


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures("semi_planar.cu"))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    several = variants(
        "SAMPLE SHIFT VECTORS",
        ("unsigned char", 0, 1),
        ("unsigned char", 0, 0),
        ("unsigned short", 6, 1),
        ("unsigned short", 6, 0),
    )
    entries = ["interleave", "deinterleave", "shift_up", "shift_down"]
    assert_compiles(tmp_path, "semi_planar.cu", architecture, entries, several)
