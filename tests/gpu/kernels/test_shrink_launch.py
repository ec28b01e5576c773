"""Tests of the shrinking kernel's parameters: made once for frames of one kind, with each frame's pointers."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fake_cupy import FakeArray, fake_cupy
from pictures import random_frame
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels import shrink as shrink_cuda
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.shrink import shrink_frame

EYES = [Region(0, 0, 64, 48), Region(64, 0, 64, 48)]


@pytest.fixture
def launches(monkeypatch):
    """Record the parameters of each launch and the kernels, without running any."""
    cupy, made = fake_cupy(), []
    cupy.cuda.runtime.getDevice = lambda: 0
    monkeypatch.setitem(sys.modules, "cupy", cupy)

    def kernel(source, name, **defines):
        kernels.append(defines)
        return lambda grid, block, args, **_: made.append((grid, args[0].view(shrink_cuda._PLANES)[0]))

    kernels = []
    monkeypatch.setattr(shrink_cuda, "cuda_kernel", kernel)
    shrink_cuda._plan.cache_clear()
    yield made, kernels
    shrink_cuda._plan.cache_clear()


def frame(name, seed):
    made = random_frame(PIXEL_FORMATS[name], (48, 128), seed=seed)
    return made.with_planes(tuple(np.array(plane).view(FakeArray) for plane in made.planes))


@pytest.mark.parametrize("name", ["nv12", "p010le"])
def test_only_the_pointers_change_from_frame_to_frame(launches, name):
    made, kernels = launches
    frames = [frame(name, seed) for seed in range(3)]
    results = [shrink_frame(one, regions=EYES, size=(24, 64)) for one in frames]
    assert len(kernels) == 1
    itemsize = PIXEL_FORMATS[name].dtype.itemsize
    for one, result, (grid, job) in zip(frames, results, made, strict=True):
        assert [plane.shape for plane in result.planes] == [(24, 64), (12, 32, 2)]
        assert grid[2] == 4  # luma and chroma of two eyes
        for place, planes in enumerate(job["plane"]):
            slot = place % 2
            assert planes["data"] == one.planes[slot].data.ptr
            assert planes["out"] == result.planes[slot].data.ptr
            assert planes["pitch"] * itemsize == one.planes[slot].strides[0]
            assert planes["out_pitch"] * itemsize == result.planes[slot].strides[0]
            assert planes["channels"] == slot + 1
    first, second = made[0][1].copy(), made[1][1].copy()
    for job in (first, second):
        job["plane"]["data"] = job["plane"]["out"] = 0
    assert first.tobytes() == second.tobytes()


def test_another_kind_of_frame_is_described_anew(launches):
    _, kernels = launches
    shrink_frame(frame("nv12", 0), regions=EYES, size=(24, 64))
    shrink_frame(frame("nv12", 0), regions=EYES, size=(12, 32))
    shrink_frame(frame("p010le", 0), regions=EYES, size=(24, 64))
    assert len(kernels) == 3
