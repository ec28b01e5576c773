"""Tests of buffers by shape and dtype: reused, held by one at a time, and in the order of streams."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fake_cupy import FakeArray
from vitascope.device import Device
from vitascope.errors import DeviceMemoryError, MissingDependencyError
from vitascope.gpu.memory.device_pool import MemoryPool

GPU = Device("cuda", "a GPU", 0)


def test_a_tensor_is_the_same_at_every_call_until_it_is_cleared() -> None:
    pool = MemoryPool(device="cpu")
    first = pool.get_tensor((4, 5), np.float16)
    first[:] = 3
    assert pool.get_tensor([4, 5], "float16") is first
    assert pool.get_tensor((5, 4), "float16") is not first
    assert pool.get_tensor((4, 5), "float32") is not first
    assert pool.stats().leased_count == 3
    pool.clear()
    assert pool.stats().reserved_bytes == 0
    assert pool.get_tensor((4, 5), np.float16) is not first
    assert (first == 3).all()  # its holder may still use it


def test_a_lease_is_exclusive_and_used_again() -> None:
    pool = MemoryPool(device="cpu")
    with pool.lease((8, 8)) as one, pool.lease((8, 8)) as other:
        assert not np.shares_memory(one, other)
        assert (one.shape, one.dtype) == ((8, 8), np.float32)
    with pool.lease(8, "u1") as third:
        assert third.shape == (8,)
    with pool.lease((8, 8)) as again:
        assert again is one or again is other
    lease = pool.lease((8, 8))
    lease.release()
    lease.release()
    assert pool.stats().allocations == 3
    assert pool.stats().leased_count == 0
    pool.trim()
    assert pool.stats().reserved_bytes == 0


def test_the_cap_is_what_running_out_of_memory_is() -> None:
    pool = MemoryPool(1e-6, device="cpu")
    lease = pool.lease(800, "u1")
    with pytest.raises(DeviceMemoryError, match="800 of 1000 bytes of the pool are in use"):
        pool.lease(300, "u1")
    with pytest.raises(DeviceMemoryError, match="more than the whole pool"):
        pool.get_tensor(2000, "u1")
    lease.release()
    assert pool.lease(300, "u1").array.size == 300  # the idle buffer was freed for it
    timer = threading.Timer(0.05, pool.clear)
    pool.get_tensor(600, "u1")
    timer.start()
    assert pool.lease(700, "u1", timeout_s=30).array.size == 700
    timer.join()


@pytest.mark.parametrize(("shape", "dtype"), [(-1, "u1"), ((2, -2), "u1"), (3, object), (3, "nonsense")])
def test_impossible_buffers_are_refused(shape, dtype) -> None:
    with pytest.raises(ValueError, match=r"buffers cannot have|not a dtype"):
        MemoryPool(device="cpu").lease(shape, dtype)


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf")])
def test_sizes_are_checked(size) -> None:
    with pytest.raises(ValueError, match="above 0"):
        MemoryPool(size, device="cpu")


def test_nothing_is_lent_after_closing() -> None:
    with MemoryPool(device="cpu") as pool:
        lease = pool.lease(5)
        pool.get_tensor(6)
    with pytest.raises(ValueError, match="closed"):
        pool.lease(5)
    lease.release()
    assert pool.stats().reserved_bytes == 0


def test_threads_get_one_tensor_and_leases_of_their_own() -> None:
    pool = MemoryPool(device="cpu")

    def work(seed: int) -> int:
        tensor = id(pool.get_tensor((3, 3)))
        for _ in range(300):
            with pool.lease(50, "i4") as array:
                array[:] = seed
                assert (array == seed).all()
        return tensor

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(work, range(4)))) == 1


# --- on a GPU ------------------------------------------------------------------------------------------------------


def test_the_next_holders_stream_waits_for_the_last_holders(cupy) -> None:
    pool = MemoryPool(device=GPU)
    first, second = cupy.cuda.Stream(), cupy.cuda.Stream()
    with first, pool.lease((4, 4)) as array:
        assert isinstance(array, FakeArray)
    (_, stream, event) = cupy.diary[-1]
    assert stream == first.ptr
    with second, pool.lease((4, 4)) as again:
        assert cupy.diary[-1] == ("wait", second.ptr, event)
        assert again is array
    assert pool.stats().allocations == 1


def test_clearing_gives_memory_back_through_cupys_own_pool(cupy) -> None:
    freed = []
    cupy.get_default_memory_pool = lambda: type("Pool", (), {"free_all_blocks": lambda _: freed.append(1)})()
    pool = MemoryPool(device=GPU)
    pool.get_tensor(5)
    pool.clear()
    assert freed == [1]


def test_a_gpu_without_memory_is_our_error_once_idle_buffers_were_dropped(cupy, monkeypatch) -> None:
    pool = MemoryPool(device=GPU)
    with pool.lease(5):
        pass
    idle = []

    def full(shape, dtype):
        idle.append(pool.stats().idle_count)
        raise cupy.cuda.memory.OutOfMemoryError("Out of memory allocating 1 bytes")

    monkeypatch.setattr(cupy, "empty", full)
    with pytest.raises(DeviceMemoryError, match="used up"):
        pool.lease(6)
    assert idle == [1, 0]


# --- PyTorch -------------------------------------------------------------------------------------------------------


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    pool = MemoryPool(device="cpu", framework="torch")
    tensor = pool.get_tensor((2, 3), torch.float16)
    assert isinstance(tensor, torch.Tensor)
    assert pool.get_tensor((2, 3), np.float16) is tensor
    assert pool.get_tensor((2, 3), torch.bfloat16).dtype == torch.bfloat16
    assert pool.stats().leased_bytes == 24
    with pytest.raises(ValueError, match="no dtype"):
        pool.get_tensor(3, "M8[s]")
    pool.clear()
    with pytest.raises(DeviceMemoryError, match="PyTorch got no memory"):
        pool.lease((1 << 22, 1 << 22), torch.float64)


def test_a_framework_must_be_there_and_fit(monkeypatch) -> None:
    with pytest.raises(ValueError, match="cupy has no arrays on CPU"):
        MemoryPool(device="cpu", framework="cupy")
    with pytest.raises(ValueError, match="numpy has no arrays on a GPU"):
        MemoryPool(device=GPU, framework="numpy")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match="PyTorch"):
        MemoryPool(device="cpu", framework="torch")


def test_a_dtype_of_pytorch_gives_tensors() -> None:
    torch = pytest.importorskip("torch")
    pool = MemoryPool(device="cpu")
    tensor = pool.get_tensor((2, 3), torch.float32)
    assert isinstance(tensor, torch.Tensor)
    assert (tuple(tensor.shape), tensor.dtype) == ((2, 3), torch.float32)
    assert pool.get_tensor((2, 3), torch.float32) is tensor
    array = pool.get_tensor((2, 3), "float32")
    assert isinstance(array, np.ndarray)
    with pool.lease((2, 3), torch.float16) as half:
        assert half.dtype == torch.float16
    pool.clear()
    assert pool.get_tensor((2, 3), torch.float32) is not tensor
