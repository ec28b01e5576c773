"""Tests of a job's streams: how they copy, and how much of the GPU they leave to others."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fake_cupy import fake_cupy
from fake_vram import FakeVram
from vitascope.device import Device
from vitascope.errors import DeviceMemoryError
from vitascope.gpu.memory.pinned_pool import Download
from vitascope.gpu.streams import JobStreams

MIB = 1 << 20
GPU = Device("cuda", "fake", 0)


@pytest.fixture
def vram(monkeypatch):

    made = FakeVram()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return made


@pytest.mark.parametrize("pin_memory", [True, False])
def test_pin_memory_chooses_what_pictures_come_down_to(vram, monkeypatch, pin_memory) -> None:
    locked = []
    monkeypatch.setattr(
        vram.cupy.cuda, "PinnedMemory", lambda size, flags=0: locked.append(size) or bytearray(size)
    )
    streams = JobStreams(GPU, pin_memory=pin_memory)
    streams.host_memory.trim()
    assert streams.host_memory.page_locked == pin_memory
    array = vram.cupy.asarray(np.arange(1000))
    (view,) = Download([array], stream=streams.copying, pool=streams.host_memory).wait()
    np.testing.assert_array_equal(view, array)
    assert bool(locked) == pin_memory
    del view
    streams.release_idle_memory()
    assert streams.host_memory.stats().idle_count == 0
    streams.close()


def test_idle_memory_stays_for_the_next_job_where_that_is_as_large(vram, monkeypatch) -> None:
    freed = []
    monkeypatch.setattr(vram.cupy.get_default_memory_pool(), "free_all_blocks", lambda: freed.append(1))
    streams = JobStreams(GPU)

    def send_down() -> int:
        array = vram.cupy.asarray(np.arange(1000))
        Download([array], stream=streams.copying, pool=streams.host_memory).wait()
        return streams.host_memory.stats().allocations

    before = send_down()
    streams.keeps_idle_memory = True
    streams.finish()
    assert send_down() == before
    assert freed == []
    streams.finish(is_last=True)
    assert freed == [1]
    assert streams.host_memory.stats().idle_count == 0
    assert send_down() == before + 1
    streams.keeps_idle_memory = False
    streams.finish()
    assert freed == [1, 1]
    streams.close()


def test_max_vram_usage_is_a_limit_until_the_streams_are_closed(vram) -> None:
    streams = JobStreams(GPU, max_vram_usage=0.5)
    block = vram.allocate(500 * MIB)
    with pytest.raises(DeviceMemoryError):
        vram.allocate(MIB)
    streams.close()
    assert vram.allocate(400 * MIB).size + block.size == 900 * MIB


def test_the_limit_follows_what_others_take(vram) -> None:
    streams = JobStreams(GPU, max_vram_usage=0.5)
    vram.used += 200 * MIB
    assert streams.check_memory() == 200 * MIB
    assert vram.pool.limit == 300 * MIB
    streams.close()


def test_memory_fraction_is_taken_at_once_and_given_back(vram) -> None:
    streams = JobStreams(GPU, memory_fraction=0.256)
    assert streams.used_bytes() == 256 * MIB
    streams.finish()
    assert streams.used_bytes() == 256 * MIB
    streams.close()
    assert streams.used_bytes() == 0


def test_a_fake_is_a_gpu_of_nobody(monkeypatch) -> None:
    """Check that a fake GPU is not limited without settings."""
    cupy = fake_cupy()
    limits = []
    pool = type(
        "Pool",
        (),
        {"total_bytes": lambda _: 0, "set_limit": lambda _, size: limits.append(size), "malloc": None},
    )()
    cupy.get_default_memory_pool = lambda: pool
    cupy.cuda.set_allocator = lambda _: None
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    JobStreams(GPU)
    assert limits == [3 * 2**30]  # all that is free


@pytest.mark.parametrize(
    ("shares", "allowed"),
    [
        ({}, 1000),
        ({"max_vram_usage": 0.5}, 500),
        ({"memory_fraction": 0.25}, 250),
        ({"max_vram_usage": 0.2, "memory_fraction": 0.25}, 200),
    ],
)
def test_what_is_chosen_by_memory_is_chosen_by_what_is_allowed(vram, shares, allowed) -> None:
    streams = JobStreams(GPU, **shares)
    assert streams.allowed_bytes() == allowed * MIB
    streams.close()


def test_pictures_are_prepared_on_several_streams_in_turn(vram, monkeypatch) -> None:
    used = []
    streams = JobStreams(GPU, preparing_streams=3)
    monkeypatch.setattr(type(streams.preparing), "use", lambda stream: used.append(stream), raising=False)
    for _ in range(6):
        streams.next_preparing()
    assert len({id(stream) for stream in used}) == 3
    assert used[:3] == used[3:]
    assert any(stream is streams.preparing for stream in used)
    streams.close()
