"""Figures of a real GPU."""

from __future__ import annotations

import pytest

from vitascope.gpu.memory.vram_monitor import VRAMMonitor

pytestmark = [pytest.mark.cuda, pytest.mark.whole_gpu]


def test_memory_that_is_taken_is_seen_by_all_who_tell() -> None:
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    monitor = VRAMMonitor(0, device="cuda")
    with monitor.measure() as block:
        taken = cupy.ones(256 << 20, cupy.uint8)
        cupy.cuda.Device(0).synchronize()
        count = block.count
        while block.count < count + 3:
            pass
        del taken
        cupy.get_default_memory_pool().free_all_blocks()
    stats = monitor.get_stats()
    assert 0 < stats.allocated_vram_gb < stats.total_vram_gb
    assert block.peak_bytes() - block.before.allocated_bytes >= 250 << 20
    assert block.peak_bytes("in_tensors") - block.before.in_tensors_bytes >= 256 << 20
    assert abs(block.growth_bytes()) < 64 << 20
    monitor.close()


def test_torch_is_counted_where_it_is_used() -> None:
    torch = pytest.importorskip("torch")
    monitor = VRAMMonitor(0, device="cuda")
    before = monitor.get_stats()
    taken = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
    after = monitor.get_stats()
    assert after.in_tensors_bytes - before.in_tensors_bytes >= 64 << 20
    assert after.reserved_bytes >= after.in_tensors_bytes
    del taken
    monitor.close()


def test_the_driver_and_the_runtime_agree() -> None:
    import cupy

    stats = VRAMMonitor(0, device="cuda").get_stats()
    free, total = cupy.cuda.runtime.memGetInfo()
    assert stats.total_bytes == pytest.approx(total, rel=0.02)
    assert stats.total_bytes - stats.allocated_bytes == pytest.approx(free, rel=0.02)
