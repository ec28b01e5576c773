"""Check with a fake CuPy that all uploads go through the one pool of page-locked memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from fake_cupy import FakeArray, fake_cupy
from vitascope.device import Device
from vitascope.gpu.interchange import to_cupy, to_kind
from vitascope.gpu.memory import pinned_pool
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool, shared_pool
from vitascope.gpu.toolkit.feeding import PrefetchDataLoader
from vitascope.media.planes import upload

LARGE = np.arange(3 << 20, dtype=np.uint8).reshape(
    1 << 10, -1
)  # larger than the copies on the reader's own stream


@pytest.fixture
def cupy(monkeypatch):
    module = fake_cupy()
    module.cuda.runtime.deviceSynchronize = lambda: None
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(pinned_pool, "_SHARED", {})
    monkeypatch.setattr("vitascope.device._gpu_device", lambda index: Device("cuda", "fake", index))
    return module


@pytest.mark.parametrize("array", [LARGE, LARGE[:, ::3], np.array(3.0), np.ones((0, 2))])
def test_an_array_of_the_host_goes_up_on_the_current_stream(cupy, array) -> None:
    with cupy.cuda.Stream() as mine:
        up = to_cupy(array)
    assert isinstance(up, FakeArray)
    np.testing.assert_array_equal(up, array)
    assert {entry[1] for entry in cupy.diary} <= {mine.ptr}
    assert "host waits" not in [entry[0] for entry in cupy.diary]
    stats = shared_pool(0).stats()
    assert (stats.leases, stats.leased_count) == (int(array.nbytes > 0), 0)


def test_a_tensor_of_the_host_goes_the_same_way(cupy) -> None:
    np.testing.assert_array_equal(to_cupy(torch.arange(5)), np.arange(5))
    np.testing.assert_array_equal(to_kind(np.arange(5), "cupy", on_gpu=True), np.arange(5))
    assert shared_pool(0).stats().leases == 2


def test_what_is_uploaded_may_be_written_at_once(cupy) -> None:
    picture = np.zeros(100)
    up = to_cupy(picture)
    picture[:] = 1
    assert not up.any()


def test_planes_of_a_decoder_on_the_processor(cupy) -> None:
    wide = np.arange(4 * 8, dtype=np.uint8).reshape(4, 8)
    planes = upload((wide[:, :6], np.ones((2, 3, 2), np.uint8)), device=0)
    np.testing.assert_array_equal(planes[0], wide[:, :6])
    assert planes[1].shape == (2, 3, 2)
    assert shared_pool(0).stats().leases == 2
    streams = {entry[1] for entry in cupy.diary}
    assert len(streams) == 1
    assert cupy.diary[-1] == ("synchronize", *streams)  # any stream may read them


def test_batches_of_a_loader(cupy) -> None:
    batches = [{"picture": LARGE, "name": n} for n in range(3)]
    loader = PrefetchDataLoader(batches, "cuda")
    for n, batch in enumerate(loader):
        assert batch["name"] == n
        np.testing.assert_array_equal(batch["picture"], LARGE)
    assert shared_pool(0).stats().leases == 3


def test_beside_is_what_a_large_upload_is_unless_told_otherwise(cupy) -> None:
    pool = PinnedMemoryPool(0.1, device=Device("cuda", "fake", 0))
    with cupy.cuda.Stream() as mine:
        pool.upload(LARGE, beside=False)
        assert {entry[1] for entry in cupy.diary} == {mine.ptr}
        pool.upload(LARGE)
        assert {entry[1] for entry in cupy.diary} > {mine.ptr}
