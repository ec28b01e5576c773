"""Tests of priorities in a running batcher; test_waiting tests the order itself."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from fake_clock import FakeClock

from vitascope.errors import RequestRejectedError
from vitascope.gpu import BatchConfig, InferenceRequest, PriorityBatcher
from vitascope.gpu.toolkit.batching.requests import PriorityLevel


def request(n, level, *, clock=None, **more):
    stamp = {} if clock is None else {"timestamp": clock.now()}
    return InferenceRequest(np.full(1, n), n, priority=level, **stamp, **more)


class Held:
    """An inference function whose first call blocks until it is released."""

    def __init__(self):
        self.entered, self.go, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, batch):
        self.batches.append(batch[:, 0].tolist())
        self.entered.set()
        assert self.go.wait(10)
        return batch


@pytest.fixture
def held():
    return Held()


def test_urgent_requests_overtake(held):
    with PriorityBatcher(BatchConfig(max_batch_size=2, timeout_ms=5), held) as batcher:
        futures = [batcher.submit_async(request(0, 0))]
        assert held.entered.wait(10)
        futures += [batcher.submit_async(request(n, level)) for n, level in ((1, 1), (2, 1), (3, 0))]
        held.go.set()
        assert [future.result(10).request_id for future in futures] == [0, 1, 2, 3]
    assert held.batches == [[0], [3, 1], [2]]


def test_urgent_requests_wait_for_nobody_and_others_do():
    clock, batches = FakeClock(), []

    def infer(batch):
        batches.append(batch[:, 0].tolist())
        return batch

    batcher = PriorityBatcher(BatchConfig(max_batch_size=8, timeout_ms=50), infer, clock=clock).start()
    slow = batcher.submit_async(request(0, 1, clock=clock))
    clock.until_asleep()
    assert batches == []
    assert clock.alarms[-1] == pytest.approx(0.05)
    urgent = batcher.submit_async(request(1, 0, clock=clock))
    assert urgent.result(10).latency_ms == 0
    assert slow.result(10).batch_size == 2  # it joined the urgent one
    batcher.stop()


def test_levels_are_full_for_themselves(held):
    levels = [PriorityLevel(max_queue_size=1), PriorityLevel(max_queue_size=1)]
    batcher = PriorityBatcher(BatchConfig(max_batch_size=1), held, levels=levels).start()
    first = batcher.submit_async(request(0, 0))
    assert held.entered.wait(10)
    batcher.submit_async(request(1, 0))
    batcher.submit_async(request(2, 1))
    with pytest.raises(RequestRejectedError, match="request 3 was rejected"):
        batcher.submit_async(request(3, 0))
    held.go.set()
    batcher.stop()
    assert first.result().request_id == 0


def test_a_deadline_that_passes_is_an_error_with_the_time_waited():
    clock, batches = FakeClock(), []
    levels = [PriorityLevel(timeout_ms=1000, deadline_ms=20)]
    batcher = PriorityBatcher(
        BatchConfig(max_batch_size=8), lambda batch: batches.append(batch), levels=levels, clock=clock
    ).start()
    future = batcher.submit_async(request(7, 0, clock=clock))
    clock.until_asleep()
    assert clock.alarms[-1] == pytest.approx(0.02)
    clock.advance(0.021)
    with pytest.raises(RequestRejectedError, match=r"request 7 waited 21.0 ms"):
        future.result(10)
    batcher.stop()
    assert batches == []
    assert batcher.stats().expired == 1


def test_levels_that_contradict_themselves_are_refused():
    for wrong in (
        {"max_queue_size": 0},
        {"timeout_ms": -1},
        {"deadline_ms": float("inf")},
        {"on_full": "drop"},
        {"on_deadline": "wait"},
    ):
        with pytest.raises(ValueError):
            PriorityLevel(**wrong)
    with pytest.raises(ValueError, match="at least one level"):
        PriorityBatcher(BatchConfig(), print, levels=())
    with pytest.raises(ValueError, match="starvation_ms"):
        PriorityBatcher(BatchConfig(), print, starvation_ms=-1)


def test_a_level_may_be_a_number_of_numpy():
    with PriorityBatcher(BatchConfig(timeout_ms=0), lambda batch: batch, device="cpu") as batcher:
        assert batcher.submit(InferenceRequest(np.zeros(3), 1, priority=np.int64(1))).batch_size == 1


def test_what_is_no_level_and_no_config_is_named():
    with pytest.raises(TypeError, match=r"^levels are PriorityLevels, not \['BatchConfig'\]"):
        PriorityBatcher(BatchConfig(), lambda batch: batch, levels=[BatchConfig()], device="cpu")
    with pytest.raises(TypeError, match=r"^config is a BatchConfig, not dict"):
        PriorityBatcher({"max_batch_size": 4}, lambda batch: batch, device="cpu")
