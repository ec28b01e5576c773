"""Tests of leases of host memory, with ordinary memory: exclusive, limited, and returned after use."""

from __future__ import annotations

import gc
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.errors import DeviceError, MemoryLimitError
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool, size_class
from waiting import eventually

SHAPES = [(1,), (0,), (), (7, 5), (2, 3, 4), (1081, 1919), (540, 960, 2)]


def pool_of(nbytes: int, **options) -> PinnedMemoryPool:
    return PinnedMemoryPool(nbytes / 1e9, device="cpu", **options)


@pytest.fixture
def pool() -> PinnedMemoryPool:
    return pool_of(64 << 20)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32, np.complex128, "M8[s]", "S3"])
def test_a_lease_is_an_array_of_any_shape_and_dtype(pool: PinnedMemoryPool, shape, dtype) -> None:
    with pool.lease(shape, dtype) as array:
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.flags.aligned
        assert array.ctypes.data % 4096 == 0
    assert pool.stats().leased_count == 0


def test_a_buffer_is_used_again(pool: PinnedMemoryPool) -> None:
    with pool.lease((1000, 1000)) as array:
        address = array.ctypes.data
    with pool.lease(1_000_000 // 4, np.float32) as array:
        assert array.ctypes.data == address
    stats = pool.stats()
    assert (stats.leases, stats.allocations, stats.idle_count) == (2, 1, 1)
    pool.trim()
    assert pool.stats().reserved_bytes == 0


@given(st.integers(0, 1 << 40))
def test_a_class_is_little_larger_than_what_it_holds(nbytes: int) -> None:
    size = size_class(nbytes, None)
    assert max(nbytes, 4096) <= size <= max(nbytes * 1.125, nbytes + 4096)
    assert size_class(size, None) == size


def test_classes_are_few() -> None:
    assert len({size_class(n, None) for n in range(1 << 20, 1 << 21, 777)}) == 9


def test_giving_back_twice_is_once(pool: PinnedMemoryPool) -> None:
    lease = pool.lease(10)
    lease.release()
    lease.release()
    with lease:
        pass
    first, second = pool.lease(10), pool.lease(10)
    assert first.array.ctypes.data != second.array.ctypes.data


def test_an_array_comes_back_with_its_last_view(pool: PinnedMemoryPool) -> None:
    array = pool.empty((100, 100), np.float32)
    view = array[3:, ::2].T.view(np.int32)
    del array
    gc.collect()
    assert pool.stats().leased_count == 1
    view[:] = 7
    del view
    assert pool.stats().leased_count == 0
    assert pool.stats().idle_count == 1


def test_an_array_in_a_cycle_comes_back(pool: PinnedMemoryPool) -> None:
    holder: list[object] = [pool.empty(10)]
    holder.append(holder)
    del holder
    gc.collect()
    assert pool.stats().leased_count == 0


# --- the cap -------------------------------------------------------------------------------------------------------


def test_the_cap_is_an_error_at_once_when_nobody_shall_wait() -> None:
    pool = pool_of(10_000, timeout_s=0)
    with pool.lease(8000):
        with pytest.raises(MemoryLimitError, match="8192 of 10000 bytes are in use"):
            pool.lease(8000)
        assert pool.stats().timeouts == 1
    assert pool.lease(8000).array.size == 8000


def test_what_is_larger_than_the_pool_is_never_waited_for(pool: PinnedMemoryPool) -> None:
    with pytest.raises(MemoryLimitError, match="more than the whole pool"):
        pool.lease(65 << 20, timeout_s=None)
    assert pool_of(1_000_000).lease(1_000_000).array.size == 1_000_000


def test_idle_buffers_of_other_sizes_make_room() -> None:
    pool = pool_of(100_000, timeout_s=0)
    for size in (60_000, 90_000, 30_000, 60_000):
        with pool.lease(size):
            assert pool.stats().reserved_bytes <= 100_000
    assert pool.stats().peak_reserved_bytes <= 100_000


def test_a_request_waits_for_room() -> None:
    pool = pool_of(10_000, timeout_s=30)
    first = pool.lease(8000)

    def release_soon() -> None:
        eventually(lambda: pool.stats().waits == 1)
        time.sleep(0.02)
        first.release()

    releasing = threading.Thread(target=release_soon)
    releasing.start()
    with pool.lease(8000):
        stats = pool.stats()
    assert stats.waits == 1
    assert stats.wait_seconds > 0.01
    releasing.join()


def test_a_request_waits_for_the_last_view() -> None:
    pool = pool_of(10_000, timeout_s=30)
    held = [pool.empty(8000)[5:]]
    timer = threading.Timer(0.05, held.clear)
    timer.start()
    assert pool.empty(8000).size == 8000
    timer.join()


def test_waiting_ends_in_time() -> None:
    pool = pool_of(10_000)
    with pool.lease(8000):
        began = time.monotonic()
        with pytest.raises(MemoryLimitError, match=r"no buffer was returned in 0\.02 s"):
            pool.lease(8000, timeout_s=0.02)
        assert time.monotonic() - began >= 0.02
    assert pool.stats().wait_seconds >= 0.02


def test_closing_ends_all_waiting() -> None:
    pool = pool_of(10_000, timeout_s=None)
    lease = pool.lease(8000)
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            pool.lease(8000)
        except ValueError as error:
            seen.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not pool.stats().waits:
        time.sleep(0.001)
    pool.close()
    waiting.join(10)
    assert "closed" in str(seen[0])
    assert lease.array[0] is not None  # the lent memory stays valid
    lease.release()
    assert pool.stats().reserved_bytes == 0


@pytest.mark.parametrize(
    "bad",
    [{"max_size_gb": 0}, {"max_size_gb": float("inf")}, {"max_size_gb": float("nan")}, {"timeout_s": -1}],
)
def test_what_makes_no_sense_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="expected"):
        PinnedMemoryPool(**{"device": "cpu", **bad})


@pytest.mark.parametrize(("shape", "dtype"), [((-1,), np.uint8), ((3,), object), ((3,), "O,i4")])
def test_impossible_arrays_are_refused(pool: PinnedMemoryPool, shape, dtype) -> None:
    with pytest.raises(ValueError, match="buffers cannot have"):
        pool.lease(shape, dtype)


def test_a_gpu_that_is_missing_is_an_error() -> None:
    with pytest.raises(DeviceError):
        PinnedMemoryPool(1.0, device="cuda", device_id=77)


# --- many, and many at once ----------------------------------------------------------------------------------------


def test_a_hundred_thousand_leases_leave_nothing_behind(pool: PinnedMemoryPool) -> None:
    for _ in range(50_000):
        pool.lease(64).release()
        pool.empty(64)
    stats = pool.stats()
    assert stats.leases == 100_000
    assert (stats.leased_count, stats.leased_bytes, stats.copying_count) == (0, 0, 0)
    assert (stats.reserved_bytes, stats.allocations) == (4096, 1)
    assert not pool._lent


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 40_000), st.booleans()), max_size=60), st.integers(20_000, 120_000))
def test_leases_never_share_memory_and_the_books_balance(steps, cap: int) -> None:
    """Check random leases: numbers are sizes in bytes; True returns the oldest lease, False the newest."""
    pool = pool_of(cap, timeout_s=0)
    lent: list = []
    for number, step in enumerate(steps):
        if isinstance(step, bool):
            if lent:
                lease, value = lent.pop(0 if step else -1)
                assert (lease.array == value).all()
                lease.release()
        else:
            try:
                lease = pool.lease(step)
            except MemoryLimitError:
                sizes = [size_class(one.array.nbytes, cap) for one, _ in lent]
                assert sum(sizes) + size_class(step, cap) > cap or step > cap
                continue
            lease.array[:] = number % 251
            lent.append((lease, number % 251))
        stats = pool.stats()
        assert stats.reserved_bytes == stats.leased_bytes + stats.idle_bytes <= cap
        assert stats.leased_count == len(lent)
    for lease, value in lent:
        assert (lease.array == value).all()


def test_threads_share_a_pool_that_is_too_small_for_all() -> None:
    pool = pool_of(64 * 1024, timeout_s=60)

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(300):
            size = dice.choice([100, 5000, 9000, 20_000, 33_000])
            if dice.random() < 0.5:
                with pool.lease(size) as array:
                    array[:] = seed
                    time.sleep(0)
                    assert (array == seed).all()
            else:
                array = pool.empty(size)
                array[:] = seed
                view = array[::2]
                del array
                time.sleep(0)
                assert (view == seed).all()
                del view

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    stats = pool.stats()
    assert stats.leases == 1800
    assert stats.waits > 0
    assert stats.peak_reserved_bytes <= 64 * 1024
    assert stats.leased_count == 0


# --- faults --------------------------------------------------------------------------------------------------------


def test_memory_that_cannot_be_had_is_asked_for_twice_and_not_counted(
    pool: PinnedMemoryPool, monkeypatch
) -> None:
    from vitascope.gpu.memory import pinned_pool

    with pool.lease(5000):
        pass
    calls = []

    def fail(nbytes: int):
        calls.append(pool.stats().idle_count)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pinned_pool, "_ordinary_memory", fail)
    with pytest.raises(MemoryLimitError, match="Cannot allocate memory"):
        pool.lease(100_000)
    assert calls == [1, 0]  # idle memory was freed before the second attempt
    assert pool.stats().reserved_bytes == 0


class Event:
    """Becomes done on demand, or when it is waited for."""

    def __init__(self) -> None:
        self.done = False
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        self.done = True


def test_a_buffer_that_is_copied_is_not_lent(pool: PinnedMemoryPool) -> None:
    event = Event()
    first = pool.lease(5000)
    first.release(after=event)
    assert pool.stats().copying_count == 1
    second = pool.lease(5000)
    assert second.array.ctypes.data != first.array.ctypes.data
    event.done = True
    assert pool.lease(5000).array.ctypes.data == first.array.ctypes.data


def test_where_there_is_no_room_a_copy_is_waited_for() -> None:
    pool = pool_of(10_000, timeout_s=5)
    event = Event()
    array = pool.empty(8000)
    pool.hold(array[10:], event)
    del array
    assert pool.empty(8000).size == 8000
    assert event.waits == 1


def test_nobody_holds_what_is_not_lent(pool: PinnedMemoryPool) -> None:
    with pytest.raises(ValueError, match="not in memory that this pool has lent"):
        pool.hold(np.zeros(3), Event())


def test_closing_waits_for_copies() -> None:
    pool = pool_of(100_000)
    event = Event()
    pool.lease(100).release(after=event)
    pool.close()
    assert event.waits == 1
    assert pool.stats().reserved_bytes == 0


# --- up and down ---------------------------------------------------------------------------------------------------


def test_a_round_trip_on_a_processor_is_a_copy(pool: PinnedMemoryPool) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    up = pool.upload(picture[:, ::-1])
    pending = pool.download(up)
    picture[:] = 0
    assert pending.done
    down = pending.wait()
    np.testing.assert_array_equal(down, up)
    assert down.any()
    assert pool.is_lent(down)
    del down, pending
    assert pool.stats().leased_count == 0
