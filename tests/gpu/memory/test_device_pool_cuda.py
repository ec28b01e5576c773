"""Tests of buffers on a GPU, from CuPy's and PyTorch's allocators, across streams."""

from __future__ import annotations

import pytest

from vitascope.errors import DeviceMemoryError
from vitascope.gpu.memory.device_pool import MemoryPool

pytestmark = pytest.mark.cuda


def test_memory_is_that_of_cupys_pool() -> None:
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    before = cupy.get_default_memory_pool().used_bytes()
    pool = MemoryPool(device="cuda")
    pool.get_tensor((1024, 1024), "f4")
    assert cupy.get_default_memory_pool().used_bytes() - before == 4 << 20
    pool.clear()
    assert cupy.get_default_memory_pool().used_bytes() == before


def test_memory_is_that_of_torchs_allocator() -> None:
    torch = pytest.importorskip("torch")
    before = torch.cuda.memory_allocated()
    pool = MemoryPool(device="cuda", framework="torch")
    pool.get_tensor((1024, 1024), torch.float32)
    assert torch.cuda.memory_allocated() - before == 4 << 20
    pool.clear()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("framework", ["cupy", "torch"])
def test_streams_hand_a_buffer_on_in_order(framework) -> None:
    """Check slow work of each holder: nobody may write before the previous one has read."""
    pool = MemoryPool(0.05, device="cuda", framework=framework)
    seen = []
    if framework == "torch":
        torch = pytest.importorskip("torch")
        streams = [torch.cuda.Stream() for _ in range(3)]
        with pool.lease(1 << 22) as array:
            array.zero_()
        for n in range(60):
            with torch.cuda.stream(streams[n % 3]), pool.lease(1 << 22) as array:
                for _ in range(5):
                    array += 1
                seen.append(array.double().mean())
        torch.cuda.synchronize()
    else:
        import cupy

        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        with pool.lease(1 << 22) as array:
            array.fill(0)
        for n in range(60):
            with streams[n % 3], pool.lease(1 << 22) as array:
                for _ in range(5):
                    array += 1
                seen.append(array.mean(dtype=cupy.float64))
        cupy.cuda.Device().synchronize()
    assert [float(one) for one in seen] == [5.0 * (n + 1) for n in range(60)]
    assert pool.stats().allocations == 1


def test_the_cap_on_a_gpu() -> None:
    pool = MemoryPool(0.01, device="cuda")
    with pytest.raises(DeviceMemoryError, match="whole pool"):
        pool.lease(1 << 24)
