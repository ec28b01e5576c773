"""Tests of several batches in progress."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from vitascope.gpu import BatchConfig, InferenceRequest, StreamBatcher


def request(n, **more):
    return InferenceRequest(np.full(1, n), n, **more)


def test_batches_run_side_by_side_and_answer_in_order():
    together = threading.Barrier(2)
    second_is_done = threading.Event()
    answered = []

    def infer(batch):
        together.wait(10)  # passes once two calls are here
        if batch[0, 0] == 0:
            assert second_is_done.wait(10)  # makes the first batch the slower one
        else:
            second_is_done.set()
        return batch

    with StreamBatcher(BatchConfig(max_batch_size=1), infer, num_streams=2, device="cpu") as batcher:
        futures = [batcher.submit_async(request(n, stream_id="s")) for n in (0, 1)]
        for future in futures:
            future.add_done_callback(lambda done: answered.append(done.result().request_id))
        assert [future.result(10).data[0] for future in futures] == [0, 1]
    assert answered == [0, 1]


def test_each_stream_may_have_a_network_of_its_own():
    threads = {"a": set(), "b": set()}
    together = threading.Barrier(2)

    def network(name):
        def infer(batch):
            threads[name].add(threading.current_thread().name)
            together.wait(10)
            return batch

        return infer

    with StreamBatcher(BatchConfig(max_batch_size=1), [network("a"), network("b")]) as batcher:
        futures = [batcher.submit_async(request(n)) for n in range(2)]
        assert [future.result(10).data[0] for future in futures] == [0, 1]
    assert threads == {"a": {"vitascope-batcher-0"}, "b": {"vitascope-batcher-1"}}


def test_a_number_of_streams_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="num_streams is 0, expected a whole number, at least 1"):
        StreamBatcher(BatchConfig(), print, num_streams=0)
    with pytest.raises(ValueError, match="3 streams for 2 functions"):
        StreamBatcher(BatchConfig(), [print, print], num_streams=3)
