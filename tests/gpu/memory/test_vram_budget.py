"""Tests of limits on the GPU memory of this process, whatever others use, and of what it reserves."""

from __future__ import annotations

import sys

import pytest

from fake_vram import MIB, FakeVram
from vitascope.device import Device
from vitascope.errors import DeviceMemoryError
from vitascope.gpu.memory.shortage import VramBudget

GPU = Device("cuda", "fake", 0)


@pytest.fixture
def gpu(monkeypatch):
    made = FakeVram()
    monkeypatch.setitem(sys.modules, "cupy", made.cupy)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return made


def installed(**shares) -> VramBudget:
    budget = VramBudget(GPU, **shares)
    budget.install()
    return budget


def test_no_more_than_the_share_is_in_use(gpu) -> None:
    gpu.used = 100 * MIB  # used by another process
    installed(max_usage=0.5)
    taken = [gpu.allocate(100 * MIB) for _ in range(4)]
    with pytest.raises(DeviceMemoryError, match=r"as far as gpu\.max_vram_usage.*limit set to") as caught:
        gpu.allocate(MIB)
    assert isinstance(caught.value.__cause__, gpu.cupy.cuda.memory.OutOfMemoryError)
    assert gpu.used == 500 * MIB
    assert len(taken) == 4


def test_what_idles_is_freed_before_the_limit_is_an_error(gpu) -> None:
    installed(max_usage=0.5)
    for size in (400, 450, 300):
        gpu.pool.free(gpu.allocate(size * MIB))
    assert gpu.used == 300 * MIB


def test_others_that_grow_leave_less(gpu) -> None:
    budget = installed(max_usage=0.5)
    gpu.used += 300 * MIB
    budget.refresh()
    with pytest.raises(DeviceMemoryError):
        gpu.allocate(300 * MIB)
    block = gpu.allocate(200 * MIB)
    gpu.used -= 300 * MIB
    # The limit is measured again before it becomes an error.
    more = gpu.allocate(300 * MIB)
    assert block.size + more.size == 500 * MIB


def test_others_that_take_all_leave_nothing_rather_than_everything(gpu) -> None:
    gpu.used = 900 * MIB
    installed(max_usage=0.5)
    assert gpu.pool.limit == 1
    with pytest.raises(DeviceMemoryError):
        gpu.allocate(MIB)


def test_torch_and_cupy_share_the_limit(gpu, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    budget = installed(max_usage=0.8)
    assert gpu.torch_fraction == pytest.approx(0.8)
    block = gpu.allocate(300 * MIB)
    gpu.take_as_torch(200 * MIB)
    budget.refresh()
    assert gpu.torch_fraction == pytest.approx(0.5)
    assert gpu.pool.limit == 600 * MIB
    budget.close()
    assert (gpu.torch_fraction, gpu.pool.limit) == (1.0, 0)
    assert gpu.allocate == gpu.pool.malloc
    del block


def test_the_share_is_reserved_at_once_and_exactly(gpu) -> None:
    gpu.used = 50 * MIB
    budget = installed(max_usage=0.9, reserve=0.512)
    assert gpu.used == 50 * MIB + 512 * MIB
    blocks = [gpu.allocate(100 * MIB) for _ in range(5)]
    assert gpu.used <= 50 * MIB + 512 * MIB
    assert budget.reserved_bytes < 64 * MIB
    with pytest.raises(DeviceMemoryError):
        gpu.allocate(100 * MIB)
    gpu.pool.free(blocks.pop())
    gpu.pool.free_all_blocks()
    budget.refresh()  # what was freed is reserved again
    assert 512 * MIB - 64 * MIB < gpu.used - 50 * MIB <= 512 * MIB
    budget.close()
    assert gpu.used == 50 * MIB + 400 * MIB


def test_what_is_reserved_others_cannot_take(gpu) -> None:
    installed(reserve=0.512)
    with pytest.raises(gpu.cupy.cuda.runtime.CUDARuntimeError):
        gpu.cupy.cuda.Memory(600 * MIB)
    gpu.used += 1000 * MIB - gpu.used  # others take everything that is free
    assert gpu.allocate(200 * MIB).size == 200 * MIB


def test_the_reserve_gives_way_to_torch(gpu, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    budget = installed(reserve=0.512)
    gpu.take_as_torch(128 * MIB)
    budget.refresh()
    assert gpu.used == 512 * MIB
    assert budget.reserved_bytes == 384 * MIB


def test_a_reserve_that_is_not_there_is_as_large_as_it_can_be(gpu) -> None:
    gpu.used = 800 * MIB
    budget = installed(reserve=0.512)
    assert budget.reserved_bytes == 192 * MIB


def test_closing_twice_and_without_installing(gpu) -> None:
    budget = VramBudget(GPU, max_usage=0.5)
    budget.refresh()
    budget.close()
    assert gpu.pool.limit == 0
    budget.install()
    budget.close()
    budget.close()


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan")])
def test_shares_are_checked(gpu, share) -> None:
    with pytest.raises(ValueError, match="share of memory"):
        VramBudget(GPU, max_usage=share)
    with pytest.raises(ValueError, match="share of memory"):
        VramBudget(GPU, reserve=share)
