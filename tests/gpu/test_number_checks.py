"""Check that a number of the wrong kind is refused by name, in one line, where it is passed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitascope import gpu
from vitascope.errors import UsageError
from vitascope.gpu.number_checks import check_count, check_number
from vitascope.gpu.pipeline import Batched, QueueLimits
from vitascope.gpu.toolkit.batching.requests import PriorityLevel


def same(batch):
    return batch


def lent(shape):
    with gpu.MemoryPool(max_size_gb=0.01, device="cpu") as pool:
        pool.get_tensor(shape)


REFUSED = [
    (lambda: gpu.BatchConfig(timeout_ms="5"), "timeout_ms is '5', expected a number from 0"),
    (lambda: gpu.BatchConfig(timeout_ms=None), "timeout_ms is None, expected a number from 0"),
    (lambda: gpu.BatchConfig(max_batch_size=8.0), "a batch size is 8.0, expected a whole number, at least 1"),
    (lambda: gpu.BatchConfig(bucket_sizes=4), "bucket_sizes is 4, expected sizes such as (1, 2, 4, 8)"),
    (lambda: PriorityLevel(max_queue_size=1.5), "max_queue_size is 1.5, expected a whole number, at least 1"),
    (
        lambda: PriorityLevel(deadline_ms="30"),
        "deadline_ms is '30', expected a number from 0, or None",
    ),
    (
        lambda: gpu.PriorityBatcher(gpu.BatchConfig(), same, starvation_ms="1", device="cpu"),
        "starvation_ms is '1', expected a number from 0, or None",
    ),
    (
        lambda: gpu.StreamBatcher(gpu.BatchConfig(), same, num_streams=0, device="cpu"),
        "num_streams is 0, expected a whole number, at least 1, or None",
    ),
    (lambda: gpu.MemoryPool(max_size_gb="1"), "max_size_gb is '1', expected a number above 0, or None"),
    (
        lambda: lent((2.7, 3)),
        "buffers cannot have shape (2.7, 3): a side is 2.7, expected a whole number, at least 0",
    ),
    (lambda: gpu.PinnedMemoryPool(None), "max_size_gb is None, expected a number above 0"),
    (lambda: gpu.PinnedMemoryPool(timeout_s=math.inf), "timeout_s is inf, expected a number from 0, or None"),
    (lambda: gpu.CacheManager(disk_cache_gb="10"), "disk_cache_gb is '10', expected a number from 0"),
    (lambda: gpu.VRAMMonitor(device="cpu", interval_s="x"), "interval_s is 'x', expected a number above 0"),
    (
        lambda: gpu.VRAMMonitor(device="cpu").on_usage_above("90", print),
        "the share of memory is '90', expected a number above 0 and up to 1",
    ),
    (
        lambda: gpu.VRAMMonitor(device="cpu").leak(last_s=-1),
        "last_s is -1, expected a number above 0, or None",
    ),
    (lambda: QueueLimits(items=1.5), "items is 1.5, expected a whole number, at least 1"),
    (lambda: QueueLimits(nbytes=math.nan), "nbytes is nan, expected a whole number, at least 1, or None"),
    (lambda: Batched(same, size=1.5), "size is 1.5, expected a whole number, at least 1"),
    (
        lambda: Batched(same, size=4, timeout_seconds=-1),
        "timeout_seconds is -1, expected a number from 0, or None",
    ),
    (
        lambda: gpu.Map("infer", same, workers=2.0),
        "workers of stage 'infer' is 2.0, expected a whole number, at least 1",
    ),
    (
        lambda: gpu.Pipeline([gpu.Source("a", []), gpu.Sink("b", print)], stop_timeout_seconds="1"),
        "stop_timeout_seconds is '1', expected a number from 0",
    ),
    (
        lambda: gpu.CUDAKernelProcessor(device="cpu", stream_count=1.5),
        "stream_count is 1.5, expected a whole number, at least 1",
    ),
    (
        lambda: gpu.PreprocessingPipeline(num_threads="2"),
        "num_threads is '2', expected a whole number, at least 1, or None",
    ),
    (
        lambda: gpu.PrefetchDataLoader([], "cpu", prefetch_factor=True),
        "prefetch_factor is True, expected a whole number, at least 1",
    ),
    (
        lambda: gpu.TemporalOptimizer(skip_threshold="1%"),
        "skip_threshold is '1%', expected a number from 0 to 1",
    ),
    (
        lambda: gpu.AdaptiveBatchSizer(target_utilization="85%"),
        "target_utilization is '85%', expected a number above 0 and up to 1",
    ),
    (
        lambda: gpu.BatchSizeOptimizer(same, np.zeros(3), max_memory_percent=90),
        "max_memory_percent is 90, expected a number above 0 and up to 1",
    ),
    (
        lambda: gpu.MemoryProfiler(interval_seconds="1"),
        "interval_seconds is '1', expected a number from 0.005 to 3600",
    ),
    (
        lambda: gpu.BatchSizeOptimizer(same, np.zeros(3), tolerance=1),
        "tolerance is 1, expected a number from 0 to below 1",
    ),
    (lambda: gpu.Profiler(keep_spans=1e5), "keep_spans is 100000.0, expected a whole number, at least 0"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[said.partition(" is ")[0] for _, said in REFUSED])
def test_it_is_named_with_what_is_expected(call, said):
    with pytest.raises(UsageError) as caught:
        call()
    assert str(caught.value) == said


def test_numbers_of_numpy_are_numbers():
    check_count("size", np.int64(3))
    check_number("share", np.float32(0.5), above=0, most=1)
    assert gpu.BatchConfig(max_batch_size=np.int64(4), timeout_ms=np.float64(2)).rows_for(3) == 3
