"""Tests of a batcher on a fake GPU: which stream waits for which, and when results are ready."""

from __future__ import annotations

import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fake_cupy import FakeArray, fake_cupy
from vitascope import device as device_module
from vitascope.device import Device
from vitascope.gpu import BatchConfig, DynamicBatcher, InferenceRequest
from vitascope.gpu.toolkit.batching import batcher as batcher_module
from vitascope.gpu.toolkit.worker_streams import origin_on


class OnGpu(FakeArray):
    @property
    def device(self):
        return types.SimpleNamespace(id=0)


OnGpu.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    module = fake_cupy()
    module.stack = lambda arrays: np.stack(arrays).view(OnGpu)
    module.cuda.runtime.deviceSynchronize = lambda: module.diary.append("device synchronizes")
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(device_module, "_gpu_device", lambda index: Device("cuda", "fake", index))
    return module


def test_a_batch_waits_for_its_requests_and_its_clients_for_its_results(cupy):
    streams = []

    def infer(batch):
        streams.append(cupy.cuda.get_current_stream().ptr)
        cupy.diary.append("computed")
        return {"a": batch * 2, "b": np.zeros(2)}

    config = BatchConfig(max_batch_size=2, timeout_ms=10_000)
    with DynamicBatcher(config, infer, device="cuda") as batcher:
        arrays = [np.full(3, n).view(OnGpu) for n in range(2)]
        futures = [batcher.submit_async(InferenceRequest(array, n)) for n, array in enumerate(arrays)]
        assert [future.result(10).data["a"].tolist() for future in futures] == [[0, 0, 0], [2, 2, 2]]
    (stream,) = streams
    (_, _, first), (_, _, second) = (entry for entry in cupy.diary if entry[0] == "record")
    assert stream > 0
    assert cupy.diary == [
        "device synchronizes",  # weights may still be loading when it starts
        ("record", 0, first),
        ("record", 0, second),
        ("wait", stream, first),
        ("wait", stream, second),
        "computed",
        ("synchronize", stream),
    ]


def test_one_mark_stands_for_all_threads_of_a_stream_that_stand_still(cupy):
    """Check that one event is enough: each would release the interpreter's lock, and the batch comes after all."""
    streams = []

    def infer(batch):
        streams.append(cupy.cuda.get_current_stream().ptr)
        cupy.diary.append("computed")
        return batch * 2

    config = BatchConfig(max_batch_size=3, timeout_ms=10_000)
    with DynamicBatcher(config, infer, device="cuda") as batcher, ThreadPoolExecutor(3) as clients:
        requests = [InferenceRequest(np.full(3, n).view(OnGpu), n) for n in range(3)]
        answers = [response.data.tolist() for response in clients.map(batcher.submit, requests)]
    assert answers == [[0, 0, 0], [2, 2, 2], [4, 4, 4]]
    (stream,) = streams
    (mark,) = (entry[2] for entry in cupy.diary if entry[0] == "record")
    assert cupy.diary == [
        "device synchronizes",
        ("record", 0, mark),
        ("wait", stream, mark),
        "computed",
        ("synchronize", stream),
    ]


def test_a_stream_that_is_another_in_each_thread_is_marked_by_its_own_thread(cupy):
    own = cupy.cuda.get_current_stream()
    own.ptr = 2  # cudaStreamPerThread
    origin = origin_on(0, None, stands_still=True)
    assert origin.cupy_event is not None
    assert cupy.diary == [("record", 2, origin.cupy_event.number)]


def test_a_batch_is_taken_apart_while_the_gpu_computes_it(cupy, monkeypatch):
    taken_apart = batcher_module.split

    def split(*args, **more):
        cupy.diary.append("taken apart")
        return taken_apart(*args, **more)

    monkeypatch.setattr(batcher_module, "split", split)
    with DynamicBatcher(BatchConfig(timeout_ms=0), lambda batch: batch * 2, device="cuda") as batcher:
        batcher.submit(InferenceRequest(np.ones(2).view(OnGpu), 0))
    words = [entry if isinstance(entry, str) else entry[0] for entry in cupy.diary]
    assert words.index("taken apart") < words.index("synchronize")


def test_results_in_the_host_s_memory_wait_for_nothing(cupy):
    with DynamicBatcher(BatchConfig(timeout_ms=0), np.negative, device="cuda") as batcher:
        assert batcher.submit(InferenceRequest(np.ones(2), 0)).data.tolist() == [-1, -1]
    assert cupy.diary == ["device synchronizes"]


def test_neither_torch_nor_cupy_is_needed_or_loaded():
    """Run in a separate process, where importing them fails."""
    script = """
import sys
sys.modules["torch"] = sys.modules["cupy"] = None
import numpy as np
from vitascope.gpu import (AdaptiveBatchSizer, BatchConfig, BatchSizeOptimizer, DynamicBatcher, InferenceRequest,
    PriorityBatcher, StreamBatcher)
for kind in (DynamicBatcher, PriorityBatcher, StreamBatcher):
    with kind(BatchConfig(timeout_ms=0), np.negative) as batcher:
        assert batcher.submit(InferenceRequest(np.ones(2), 0)).data.tolist() == [-1, -1]
assert AdaptiveBatchSizer(growing=False).process(range(9), list) == list(range(9))
assert 1 <= BatchSizeOptimizer(np.negative, np.ones(2), max_batch_size=2, rounds=1).search().batch_size <= 2
assert 1 <= AdaptiveBatchSizer(initial_batch_size=4, target_utilization=0.85).adjust_batch_size() <= 8
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
