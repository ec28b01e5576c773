"""Tests of uploads and downloads with a fake CuPy: who waits for whom, and what is held until when."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from vitascope.device import Device
from vitascope.gpu.memory import pinned_pool
from vitascope.gpu.memory.pinned_pool import Download, PinnedMemoryPool, shared_pool


@pytest.fixture
def pool(cupy, monkeypatch) -> PinnedMemoryPool:
    """Return a pool that makes copies of all sizes on separate streams."""
    monkeypatch.setattr(pinned_pool, "_SMALL_BYTES", -1)
    return PinnedMemoryPool(0.01, device=Device("cuda", "fake", 0))


@pytest.fixture
def plain_pool(cupy) -> PinnedMemoryPool:
    """Return a pool that makes small copies on the stream that uses them."""
    return PinnedMemoryPool(0.01, device=Device("cuda", "fake", 0))


@pytest.fixture
def pending_events(cupy, monkeypatch):
    """Make events finish only once they were waited for."""
    waited = set()
    monkeypatch.setattr(cupy.cuda.Event, "done", property(lambda event: event.number in waited))
    monkeypatch.setattr(cupy.cuda.Event, "synchronize", lambda event: waited.add(event.number))
    return waited


def copies(cupy):
    return [entry for entry in cupy.diary if entry[0] == "copy"]


@pytest.mark.parametrize(
    "picture", [np.arange(24.0).reshape(4, 6), np.arange(24)[::2], np.float32(3), np.ones((0, 3))]
)
def test_what_goes_up_comes_down(pool, picture) -> None:
    up = pool.upload(picture)
    np.testing.assert_array_equal(up, picture)
    np.testing.assert_array_equal(pool.download(up).wait(), picture)


def test_the_copy_runs_beside_the_stream_that_reads_it(cupy, pool) -> None:
    reader = cupy.cuda.Stream()
    pool.upload(np.zeros(100), stream=reader)
    (copy,) = copies(cupy)
    assert copy[1] not in (0, reader.ptr)
    recorded, waited = (next(e for e in cupy.diary if e[0] == word) for word in ("record", "wait"))
    assert recorded[1] == copy[1]  # after the copy, on its own stream
    assert waited == ("wait", reader.ptr, recorded[2])


def test_a_download_waits_for_the_stream_that_makes_the_array(cupy, pool) -> None:
    maker = cupy.cuda.Stream()
    pool.download(cupy.asarray(np.ones(5)), stream=maker)
    kinds = [entry[:2] for entry in cupy.diary]
    copying = copies(cupy)[0][1]
    assert (
        kinds.index(("record", maker.ptr)) < kinds.index(("wait", copying)) < kinds.index(("copy", copying))
    )


def test_the_staging_buffer_comes_back_after_the_copy(cupy, pool, pending_events) -> None:
    pool.upload(np.zeros(100, np.uint8))
    assert pool.stats().copying_count == 1
    other = pool.lease(100)
    assert pool.stats().allocations == 2
    other.release()
    pool.close()
    assert pool.stats().reserved_bytes == 0


def test_what_lies_in_a_lease_is_copied_from_there(cupy, pool, pending_events) -> None:
    lease = pool.lease((4, 5), np.int32)
    lease.array[:] = 3
    pool.upload(lease.array)
    pool.upload(lease.array[2:])
    assert pool.stats().allocations == 1
    lease.wait()
    assert len(pending_events) == 2
    pool.upload(lease.array.T)  # not contiguous, so this one is staged
    assert pool.stats().allocations == 2


def test_uploading_one_lease_for_ever_does_not_grow(cupy, pool) -> None:
    lease = pool.lease(10)
    for _ in range(1000):
        pool.upload(lease.array)
    assert all(len(buffer.pending) <= 1 for buffer in lease._held)


def test_a_block_is_not_given_back_before_its_reader_is_done(cupy, pool, pending_events) -> None:
    reader = cupy.cuda.Stream()
    up = pool.upload(np.arange(10), stream=reader)
    view = up[3:]
    del up
    gc.collect()
    streams = pool._copying
    assert not streams._leaving
    del view
    gc.collect()
    assert cupy.diary[-1][:2] == ("record", reader.ptr)
    assert len(streams._leaving) == 1
    streams.forget_finished()
    assert len(streams._leaving) == 1
    streams.synchronize()
    assert not streams._leaving


def test_many_round_trips_leave_nothing(cupy, pool) -> None:
    for n in range(2000):
        pool.download(pool.upload(np.full(50, n))).wait()
    gc.collect()
    stats = pool.stats()
    assert (stats.leased_count, stats.allocations) == (0, 1) or stats.allocations <= 3
    assert len(pool._copying._owners) == 0
    pool.trim()
    assert pool.stats().reserved_bytes == 0


# --- small copies --------------------------------------------------------------------------------------------------


def test_a_small_copy_goes_on_the_stream_that_reads_it_and_no_stream_waits(cupy, plain_pool) -> None:
    reader = cupy.cuda.Stream()
    up = plain_pool.upload(np.arange(100), stream=reader)
    assert [entry[0] for entry in cupy.diary] == ["copy", "record"]
    assert {entry[1] for entry in cupy.diary} == {reader.ptr}
    np.testing.assert_array_equal(up, np.arange(100))
    del cupy.diary[:]
    np.testing.assert_array_equal(plain_pool.download(up, stream=reader).wait(), np.arange(100))
    assert [entry[0] for entry in cupy.diary] == ["copy", "record", "host waits"]
    assert {entry[1] for entry in cupy.diary[:2]} == {reader.ptr}


def test_a_large_copy_of_the_same_pool_has_a_stream_of_its_own(cupy, plain_pool) -> None:
    reader = cupy.cuda.Stream()
    down = plain_pool.download(plain_pool.upload(np.zeros(3 << 20, np.uint8), stream=reader), stream=reader)
    assert down.wait().shape == (3 << 20,)
    first, second = copies(cupy)
    assert len({first[1], second[1], reader.ptr}) == 3


def test_the_staging_buffer_of_a_small_copy_comes_back_after_it(cupy, plain_pool, pending_events) -> None:
    plain_pool.upload(np.zeros(100, np.uint8))
    assert plain_pool.stats().copying_count == 1
    lease = plain_pool.lease(100)
    plain_pool.upload(lease.array)
    assert plain_pool.stats().allocations == 2
    lease.wait()
    assert len(pending_events) == 1
    lease.release()
    plain_pool.close()
    assert plain_pool.stats().reserved_bytes == 0


def test_many_small_round_trips_leave_nothing(cupy, plain_pool) -> None:
    for n in range(2000):
        plain_pool.download(plain_pool.upload(np.full(50, n))).wait()
    gc.collect()
    assert plain_pool.stats().leased_count == 0
    assert plain_pool.stats().allocations <= 3
    plain_pool.trim()
    assert plain_pool.stats().reserved_bytes == 0


# --- Download ------------------------------------------------------------------------------------------------------


def test_arrays_share_one_lease_and_are_held_until_they_arrived(cupy, pool, pending_events) -> None:
    arrays = [cupy.asarray(np.arange(7, dtype=np.uint16)), cupy.asarray(np.ones((3, 5), np.float32))]
    kept = [object()]
    download = Download(arrays, stream=cupy.cuda.Stream(), pool=pool, keep=kept)
    assert not download.done
    assert download.nbytes == 512
    assert pool.stats().leased_count == 1
    references = sys.getrefcount(kept)
    views = download.wait()
    assert sys.getrefcount(kept) == references - 1
    for view, array in zip(views, arrays, strict=True):
        np.testing.assert_array_equal(view, array)
        assert view.dtype == array.dtype
    del download, view, views[0]
    assert pool.stats().leased_count == 1
    del views
    assert pool.stats().leased_count == 0


def test_neighbours_come_in_one_copy_only_within_one_allocation(cupy, pool) -> None:
    whole = cupy.asarray(np.arange(64, dtype=np.uint8))
    first, second = whole[:32], whole[32:]
    cupy.diary.clear()
    for view, expected in zip(
        Download([first, second], stream=cupy.cuda.Stream(), pool=pool).wait(), (first, second), strict=True
    ):
        np.testing.assert_array_equal(view, expected)
    assert [entry[2] for entry in cupy.diary if entry[0] == "copy"] == [64]

    class Elsewhere(type(second)):
        @property
        def data(self):
            return SimpleNamespace(ptr=self.ctypes.data, mem=object())

    # The same addresses from two allocations: CUDA refuses to copy across them.
    cupy.diary.clear()
    Download([first, second.view(Elsewhere)], stream=cupy.cuda.Stream(), pool=pool).wait()
    assert [entry[2] for entry in cupy.diary if entry[0] == "copy"] == [32, 32]


def test_a_download_that_nobody_waits_for_still_holds_its_memory(cupy, pool, pending_events) -> None:
    array = cupy.asarray(np.zeros(100))
    references = sys.getrefcount(array)
    Download([array], stream=cupy.cuda.Stream(), pool=pool)
    gc.collect()
    assert sys.getrefcount(array) > references
    assert pool.stats().copying_count == 1
    pool.close()
    gc.collect()
    assert sys.getrefcount(array) == references


def test_only_dense_arrays_come_down_and_nothing_is_lent_for_others(cupy, pool) -> None:
    with pytest.raises(ValueError, match="C-contiguous"):
        Download([cupy.asarray(np.zeros((4, 4)))[:, ::2]], stream=cupy.cuda.Stream(), pool=pool)
    assert pool.stats().leases == 0


def test_ordinary_memory_takes_the_same_way(cupy) -> None:
    pool = shared_pool(0, page_locked=False)
    assert pool is shared_pool(0, page_locked=False)
    assert not pool.page_locked
    array = cupy.asarray(np.arange(5))
    (view,) = Download([array], stream=cupy.cuda.Stream(), pool=pool).wait()
    np.testing.assert_array_equal(view, array)
    assert pool.is_lent(view)


def test_pages_that_cannot_be_locked_are_one_clear_line(cupy, pool, monkeypatch) -> None:
    from vitascope.errors import MemoryLimitError

    def fail(*_: object) -> None:
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(cupy.cuda, "PinnedMemory", fail)
    with pytest.raises(MemoryLimitError, match="bytes of memory cannot be page-locked: cudaError"):
        pool.lease(100_000)
    assert pool.stats().reserved_bytes == 0
