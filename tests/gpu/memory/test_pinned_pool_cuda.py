"""Tests of page-locked memory and copies on a GPU: right values whatever overlaps, and no leaks."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

pytestmark = pytest.mark.cuda


@pytest.fixture
def pool():
    with PinnedMemoryPool(0.5, device="cuda") as made:
        yield made


@pytest.mark.parametrize("shape", [(1,), (), (0, 4), (7, 5), (1081, 1919, 3), (4320, 7680)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
def test_round_trip(pool, shape, dtype) -> None:
    picture = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
    up = pool.upload(picture)
    assert type(up).__module__.startswith("cupy")
    np.testing.assert_array_equal(pool.download(up).wait(), picture)


def test_memory_is_page_locked(pool) -> None:
    import cupy

    with pool.lease(10_000) as array:
        attributes = cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data)
        assert attributes.type == 1  # cudaMemoryTypeHost
    assert pool.page_locked


def test_uploads_overlap_kernels_and_stay_right(pool) -> None:
    """Check slow reads on another stream, while the next uploads are copied and dropped."""
    import cupy

    reader = cupy.cuda.Stream(non_blocking=True)
    sums = []
    for n in range(100):
        up = pool.upload(np.full(1 << 20, n, np.float32), stream=reader)
        with reader:
            heavy = up
            for _ in range(4):
                heavy = heavy * 1.0
            sums.append(heavy.sum())
        del up, heavy
    reader.synchronize()
    assert [float(one) for one in sums] == [n * 2.0**20 for n in range(100)]


def test_downloads_wait_for_what_makes_them(pool) -> None:
    import cupy

    maker = cupy.cuda.Stream(non_blocking=True)
    pending = []
    for n in range(50):
        with maker:
            array = cupy.zeros(1 << 20, cupy.float32)
            for _ in range(n):
                array += 1
        pending.append(pool.download(array, stream=maker))
        del array
    for n, one in enumerate(pending):
        assert (one.wait() == n).all()


def test_a_torch_tensor_comes_down(pool) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(1000, device="cuda", dtype=torch.float16).reshape(10, 100)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(pool.download(tensor.T).wait(), tensor.T.cpu().numpy())


def test_round_trips_of_many_threads(pool) -> None:
    def work(seed: int) -> None:
        import cupy

        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True):
            for n in range(100):
                picture = np.full((300, 400 + n), seed * 100 + n, np.int32)
                up = pool.upload(picture)
                down = pool.download(up + 1).wait()
                assert (down == picture + 1).all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


@pytest.mark.whole_gpu
def test_nothing_is_left_after_many_round_trips(pool) -> None:
    import cupy

    free_before = None
    for n in range(3000):
        pool.download(pool.upload(np.full(100_000, n % 7, np.uint8))).wait()
        if n == 100:
            free_before = cupy.cuda.runtime.memGetInfo()[0]
    gc.collect()
    assert pool.stats().leased_count == 0
    assert pool.stats().reserved_bytes < 4e6
    assert free_before - cupy.cuda.runtime.memGetInfo()[0] < 64 << 20


def test_a_pageable_pool_serves_a_gpu_too(monkeypatch) -> None:
    import cupy

    from vitascope.gpu.memory.pinned_pool import Download, shared_pool

    array = cupy.arange(1 << 20)
    (view,) = Download(
        [array], stream=cupy.cuda.Stream(non_blocking=True), pool=shared_pool(0, page_locked=False)
    ).wait()
    np.testing.assert_array_equal(view, array.get())
