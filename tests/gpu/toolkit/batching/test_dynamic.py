"""Tests of the dynamic batcher: responses to clients, timing, and failures."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
import torch
from fake_clock import FakeClock

from vitascope.errors import (
    BatcherStoppedError,
    DeviceError,
    DeviceMemoryError,
    EngineError,
    RequestRejectedError,
)
from vitascope.gpu import AdaptiveBatchSizer, BatchConfig, DynamicBatcher, InferenceRequest, StreamBatcher
from waiting import eventually


def double(batch):
    return batch * 2


def request(n, *, shape=(2,), **more):
    return InferenceRequest(np.full(shape, n, np.float32), n, **more)


class Gate:
    """An inference function that blocks until it is released, and records its batches."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()
        self.batches = []

    def __call__(self, batch):
        self.batches.append(batch[:, 0].tolist())
        self.entered.set()
        assert self.go.wait(10)
        return batch * 2


# --- what clients get -----------------------------------------------------------------------------


def test_the_response_of_the_guide():
    frame = np.arange(6, dtype=np.float32).reshape(2, 3)
    with DynamicBatcher(BatchConfig(min_batch_size=1, max_batch_size=8, timeout_ms=0), double) as batcher:
        began = time.perf_counter()
        response = batcher.submit(InferenceRequest(data=frame, request_id="frame_001", timestamp=began))
    np.testing.assert_array_equal(response.data, frame * 2)
    assert response.request_id == "frame_001"
    assert response.batch_size == response.padded_size == 1
    assert 0 <= response.queue_ms + response.inference_ms <= response.latency_ms < 1e4


def test_many_threads_share_calls():
    calls = []

    def infer(batch):
        calls.append(len(batch))
        return batch + 1

    config = BatchConfig(max_batch_size=8, timeout_ms=10_000)  # so only full batches run
    with DynamicBatcher(config, infer, device="cpu") as batcher, ThreadPoolExecutor(16) as clients:
        responses = list(clients.map(batcher.submit, map(request, range(64))))
        stats = batcher.stats()
    assert [response.data[0] for response in responses] == [n + 1 for n in range(64)]
    assert calls == [8] * 8
    assert {response.batch_size for response in responses} == {8}
    assert (stats.submitted, stats.completed, stats.batches, stats.waiting) == (64, 64, 8, 0)
    assert stats.mean_batch_size == 8
    assert stats.latency.count == 64


class Answer(NamedTuple):
    sum: object
    picture: object


def test_requests_of_several_arrays_and_results_of_several_forms():
    def infer(batch):
        assert batch["picture"].shape == (2, 3)
        assert batch["state"][1].dtype == torch.int64
        return Answer({"s": batch["state"][0] + batch["state"][1]}, list(batch["picture"]))

    with DynamicBatcher(BatchConfig(max_batch_size=2), infer) as batcher:
        futures = [
            batcher.submit_async(
                InferenceRequest(
                    {"picture": np.full(3, n), "state": (torch.tensor([n]), torch.tensor([10]))}, n
                )
            )
            for n in range(2)
        ]
        answers = [future.result(10).data for future in futures]
    assert isinstance(answers[1], Answer)
    assert answers[1].sum["s"].tolist() == [11]
    assert answers[1].picture.tolist() == [1, 1, 1]


def test_batches_are_filled_up_to_a_bucket_with_the_last_request():
    seen = []

    def infer(batch):
        seen.append(batch[:, 0].tolist())
        return batch

    config = BatchConfig(max_batch_size=6, timeout_ms=10_000, bucket_sizes=(1, 4, 8))
    batcher = DynamicBatcher(config, infer).start()
    futures = [batcher.submit_async(request(n)) for n in range(3)]
    batcher.stop()
    assert seen == [[0, 1, 2, 2]]
    assert [future.result().padded_size for future in futures] == [4, 4, 4]
    assert [future.result().batch_size for future in futures] == [3, 3, 3]
    assert batcher.stats().rows == 4
    assert batcher.stats().padding_share == 0.25


def test_pictures_of_two_sizes_never_share_a_call():
    def infer(batch):
        return batch.reshape(len(batch), -1).sum(axis=1)

    config = BatchConfig(max_batch_size=4, timeout_ms=10_000)
    with DynamicBatcher(config, infer) as batcher:
        futures = [batcher.submit_async(request(1, shape=(2 + n % 2,))) for n in range(8)]
        assert [future.result(10).data for future in futures] == [2, 3] * 4
        assert {future.result().batch_size for future in futures} == {4}


# --- by the clock ---------------------------------------------------------------------------------


def test_a_batch_goes_when_its_oldest_has_waited_and_not_before():
    clock, gate = FakeClock(), Gate()
    gate.go.set()
    batcher = DynamicBatcher(BatchConfig(max_batch_size=8, timeout_ms=50), gate, clock=clock).start()
    first = batcher.submit_async(request(0, timestamp=clock.now()))
    clock.until_asleep()
    clock.advance(0.030)
    second = batcher.submit_async(request(1, timestamp=clock.now()))
    clock.until_asleep()
    clock.advance(0.019)
    clock.until_asleep()
    assert not first.done()
    assert clock.alarms[-1] == pytest.approx(0.001)
    clock.advance(0.001)
    assert first.result(10).latency_ms == pytest.approx(50)
    assert second.result(10).latency_ms == pytest.approx(20)
    assert gate.batches == [[0, 1]]
    batcher.stop()


def test_an_idle_batcher_sleeps_without_an_alarm():
    clock = FakeClock()
    with DynamicBatcher(BatchConfig(), double, clock=clock):
        clock.until_asleep()
        assert clock.alarms == [None]


def test_a_batch_goes_when_every_client_waits():
    clock, gate = FakeClock(), Gate()
    gate.go.set()
    batcher = DynamicBatcher(BatchConfig(max_batch_size=8, timeout_ms=50), gate, clock=clock).start()
    with batcher.client():
        alone = batcher.submit(request(0, timestamp=clock.now()), timeout_s=10)
        assert alone.latency_ms == 0
        preparing = batcher.client()
        preparing.__enter__()
        waiting = batcher.submit_async(request(1, timestamp=clock.now()))
        clock.until_asleep()
        assert not waiting.done()  # the other client may still join
        preparing.__exit__(None, None, None)
        assert waiting.result(10).batch_size == 1
    batcher.stop()
    assert gate.batches == [[0], [1]]


def test_what_came_while_the_network_was_busy_goes_together():
    gate = Gate()
    with DynamicBatcher(BatchConfig(max_batch_size=8, timeout_ms=0), gate) as batcher:
        futures = [batcher.submit_async(request(0))]
        assert gate.entered.wait(10)
        futures += [batcher.submit_async(request(n)) for n in (1, 2, 3)]
        gate.go.set()
        assert [future.result(10).request_id for future in futures] == [0, 1, 2, 3]
    assert gate.batches == [[0], [1, 2, 3]]


# --- when things go wrong -------------------------------------------------------------------------


def test_a_failing_call_fails_its_batch_and_no_other():
    def infer(batch):
        if 1 in batch:
            raise ValueError("a bad frame")
        return batch

    config = BatchConfig(max_batch_size=2, timeout_ms=10_000)
    with DynamicBatcher(config, infer) as batcher:
        futures = [batcher.submit_async(request(n)) for n in range(4)]
        for future in futures[:2]:
            with pytest.raises(ValueError, match="a bad frame") as caught:
                future.result(10)
            assert caught.value.__notes__ == ["batch of 2 requests: 0, 1"]
        assert [future.result(10).request_id for future in futures[2:]] == [2, 3]
        assert batcher.stats().failed == 2


@pytest.mark.parametrize(
    "wrong", [lambda batch: batch[:1], lambda batch: None, lambda batch: [1], lambda batch: 3.0]
)
def test_a_result_that_does_not_fit_is_an_error(wrong):
    with DynamicBatcher(BatchConfig(max_batch_size=2, timeout_ms=10_000), wrong) as batcher:
        futures = [batcher.submit_async(request(n)) for n in range(2)]
        with pytest.raises(EngineError, match="for a batch of 2"):
            futures[0].result(10)


def test_a_function_that_ends_its_thread_does_not_end_the_batcher():
    def infer(batch):
        if batch[0, 0] == 0:
            sys.exit("no")
        return batch

    with DynamicBatcher(BatchConfig(timeout_ms=0), infer) as batcher:
        with pytest.raises(SystemExit):
            batcher.submit(request(0))
        assert batcher.submit(request(1)).data[0] == 1


def test_memory_that_runs_out_cuts_the_batch_when_there_is_a_sizer():
    calls = []

    def infer(batch):
        calls.append(len(batch))
        if len(batch) > 2:
            raise DeviceMemoryError("too little")
        return batch

    def answers(**more):
        batcher = DynamicBatcher(BatchConfig(max_batch_size=8, timeout_ms=10_000), infer, **more).start()
        futures = [batcher.submit_async(request(n)) for n in range(8)]
        batcher.stop()
        return [future.result() for future in futures]

    with pytest.raises(DeviceMemoryError):
        answers()
    calls.clear()
    responses = answers(sizer=AdaptiveBatchSizer(8, max_batch_size=8, growing=False))
    assert [response.data[0] for response in responses] == list(range(8))
    assert calls == [8, 4, 2, 2, 2, 2]
    assert {response.batch_size for response in responses} == {2}


def test_a_full_queue_rejects_or_holds_up():
    gate = Gate()
    config = BatchConfig(max_batch_size=1, timeout_ms=0, max_queue_size=1, on_full="reject")
    with DynamicBatcher(config, gate) as batcher:
        futures = [batcher.submit_async(request(0))]
        assert gate.entered.wait(10)
        futures.append(batcher.submit_async(request(1)))
        with pytest.raises(RequestRejectedError, match="request 2 was rejected: 1 requests are waiting"):
            batcher.submit_async(request(2))
        assert batcher.stats().turned_away == 1
        gate.go.set()
    assert [future.result().request_id for future in futures] == [0, 1]
    config = BatchConfig(max_batch_size=2, timeout_ms=0, max_queue_size=2)
    with DynamicBatcher(config, double) as batcher:
        futures = [batcher.submit_async(request(n)) for n in range(100)]
        assert [future.result(10).request_id for future in futures] == list(range(100))


def test_a_withdrawn_request_is_not_computed():
    gate = Gate()
    with DynamicBatcher(BatchConfig(max_batch_size=1, timeout_ms=0), gate) as batcher:
        first = batcher.submit_async(request(0))
        assert gate.entered.wait(10)
        second = batcher.submit_async(request(1))
        assert second.cancel()
        assert not first.cancel()
        with pytest.raises(TimeoutError, match="no response to request 2"):
            batcher.submit(request(2), timeout_s=0.01)
        gate.go.set()
    assert gate.batches == [[0]]
    with pytest.raises(CancelledError):
        second.result()
    assert batcher.stats().cancelled == 2


def test_what_cannot_be_stacked_or_served_is_refused_at_the_door():
    with DynamicBatcher(BatchConfig(), double) as batcher:
        for data in ("text", None, [np.zeros(2)], {"a": object()}, np.array([None])):
            with pytest.raises(TypeError, match="a request carries"):
                batcher.submit(InferenceRequest(data, 0))
        with pytest.raises(ValueError, match="levels are 0 to 0"):
            batcher.submit(request(0, priority=1))
        with pytest.raises(ValueError, match="in the future"):
            batcher.submit(request(0, timestamp=time.perf_counter() + 1e9))
        with pytest.raises(ValueError, match="in the future"):
            batcher.submit(request(0, timestamp=float("nan")))


def test_a_stream_without_a_hash_harms_nobody_else():
    with DynamicBatcher(BatchConfig(timeout_ms=0), np.negative, device="cpu") as batcher:
        with pytest.raises(TypeError, match="unhashable"):
            batcher.submit_async(InferenceRequest(np.ones(2), 1, stream_id=["a list"]))
        assert batcher.submit(InferenceRequest(np.ones(2), 2), timeout_s=20).data.tolist() == [-1, -1]


def test_what_is_no_request_and_what_is_no_function_is_refused():
    batcher = DynamicBatcher(BatchConfig(timeout_ms=0), np.negative, device="cpu")
    with batcher, pytest.raises(TypeError, match="an InferenceRequest is expected, not ndarray"):
        batcher.submit(np.ones(2))
    with pytest.raises(TypeError, match="inference_fn is a function"):
        DynamicBatcher(BatchConfig(), "network", device="cpu")


def test_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(DeviceError):
        DynamicBatcher(BatchConfig(), double, device="cuda")


# --- its end --------------------------------------------------------------------------------------


def test_a_batcher_that_does_not_run_says_so():
    batcher = DynamicBatcher(BatchConfig(), double)
    with pytest.raises(BatcherStoppedError, match="not started"):
        batcher.submit(request(0))
    batcher.start()
    with pytest.raises(RuntimeError, match="starts once"):
        batcher.start()
    batcher.stop()
    batcher.stop()
    with pytest.raises(BatcherStoppedError, match="was stopped"):
        batcher.submit(request(0))


def when(condition, act):
    """Start a thread that acts once a condition is true."""
    thread = threading.Thread(target=lambda: (eventually(condition), act()))
    thread.start()
    return thread


def test_stopping_computes_what_waits_or_gives_it_up():
    for drain in (True, False):
        gate = Gate()
        batcher = DynamicBatcher(BatchConfig(max_batch_size=2, timeout_ms=0), gate).start()
        first = batcher.submit_async(request(0))
        assert gate.entered.wait(10)
        rest = [batcher.submit_async(request(n)) for n in (1, 2)]
        going = when(
            lambda rest=rest, drain=drain: drain or all(future.done() for future in rest), gate.go.set
        )
        batcher.stop(drain=drain)
        going.join()
        assert first.result().request_id == 0
        if drain:
            assert [future.result().batch_size for future in rest] == [2, 2]
        else:
            assert all(isinstance(future.exception(), BatcherStoppedError) for future in rest)


def test_a_client_that_waits_for_room_is_released_by_the_stop():
    gate = Gate()
    config = BatchConfig(max_batch_size=1, timeout_ms=0, max_queue_size=1)
    batcher = DynamicBatcher(config, gate).start()
    batcher.submit_async(request(0))
    assert gate.entered.wait(10)
    batcher.submit_async(request(1))
    with ThreadPoolExecutor(1) as clients:
        held = clients.submit(batcher.submit, request(2))
        time.sleep(0.02)
        going = when(held.done, gate.go.set)
        batcher.stop(drain=False)
        going.join()
        assert isinstance(held.exception(10), BatcherStoppedError)


def test_a_network_that_does_not_come_back_is_left_behind_and_nobody_waits_for_it():
    gate = Gate()
    batcher = DynamicBatcher(BatchConfig(max_batch_size=1, timeout_ms=0), gate).start()
    futures = [batcher.submit_async(request(n)) for n in range(2)]
    assert gate.entered.wait(10)
    with pytest.raises(EngineError, match=r"did not return within 0.02 s.*vitascope-batcher-0"):
        batcher.stop(timeout_s=0.02)
    assert all(isinstance(future.exception(1), BatcherStoppedError) for future in futures)
    gate.go.set()
    batcher.stop()


def test_stopping_from_a_callback_is_refused_instead_of_hanging():
    told = []

    def stop(_):
        try:
            batcher.stop()
        except RuntimeError as error:
            told.append(str(error))

    with DynamicBatcher(BatchConfig(timeout_ms=200), double) as batcher:
        batcher.submit_async(request(0)).add_done_callback(stop)
    assert told == ["a batcher cannot be stopped from its own thread"]


@pytest.mark.parametrize("streams", [1, 2])
def test_waiting_for_itself_is_refused_instead_of_hanging(streams):
    """Also check a second worker: batches are answered in the order in which they were taken."""

    def infer(batch):
        return batcher.submit(request(1), timeout_s=5).data[None] if batch[0, 0] == 0 else batch

    told = []

    def ask(_):
        with pytest.raises(RuntimeError) as refused:
            batcher.submit(request(1), timeout_s=5)
        told.append(str(refused.value))

    config, refusal = BatchConfig(timeout_ms=0), "cannot wait for its responses"
    with StreamBatcher(config, infer, num_streams=streams, device="cpu") as batcher:
        with pytest.raises(RuntimeError, match=refusal):
            batcher.submit(request(0), timeout_s=20)
        batcher.submit_async(request(2)).add_done_callback(ask)
    assert [refusal in text for text in told] == [True]


@pytest.mark.parametrize("streams", [1, 2])
def test_a_callback_that_waits_for_what_it_asked_for_is_refused_instead_of_hanging(streams):
    told, is_over = [], threading.Event()

    def ask(_):
        later = batcher.submit_async(request(1))
        for wait in (
            later.result,
            later.exception,
            lambda timeout: concurrent.futures.wait([first, later], timeout),
            lambda timeout: [*concurrent.futures.as_completed([first, later], timeout)],
        ):
            with pytest.raises((RuntimeError, TimeoutError)) as refused:
                wait(timeout=5)
            told.append(str(refused.value))
        assert concurrent.futures.wait([first]).done == {first}  # both are done
        assert [*concurrent.futures.as_completed([first])] == [first]
        with pytest.raises(TimeoutError):  # a check without waiting is allowed
            later.result(timeout=0)
        later.add_done_callback(lambda one: told.append(one.result().data[0]))
        later.add_done_callback(lambda _: is_over.set())

    with StreamBatcher(BatchConfig(timeout_ms=0), double, num_streams=streams, device="cpu") as batcher:
        first = batcher.submit_async(request(0))
        first.add_done_callback(ask)
        assert is_over.wait(20)
    assert ["cannot wait for its responses" in text for text in told[:4]] == [True] * 4
    assert told[4] == 2


@pytest.mark.parametrize("streams", [1, 2])
def test_waiting_for_room_that_the_waiting_thread_makes_is_refused_instead_of_hanging(streams):
    told = []

    def infer(batch):
        if batch[0, 0] == 0:
            with pytest.raises(RequestRejectedError) as refused:
                while True:
                    batcher.submit_async(request(1))
            told.append(str(refused.value))
        else:
            first_is_done.wait(20)
        return batch

    first_is_done = threading.Event()
    config = BatchConfig(max_batch_size=1, timeout_ms=0, max_queue_size=2)
    with StreamBatcher(config, infer, num_streams=streams, device="cpu") as batcher:
        first = batcher.submit_async(request(0))
        first.add_done_callback(lambda _: first_is_done.set())
        assert first.result(20).data[0] == 0
    assert len(told) == 1
    assert "the batcher's own thread cannot wait for room" in told[0]
