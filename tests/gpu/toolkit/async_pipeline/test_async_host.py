"""Tests of calls one after another on a thread: order, errors, and how it ends."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from watched_runs import BoomError, watched

from vitascope.gpu.toolkit.async_pipeline import HostStream

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


@pytest.fixture
def stream():
    made = HostStream()
    made.start()
    yield made
    watched(made.close)


def test_calls_run_in_order_on_one_thread_of_its_own(stream) -> None:
    threads = set()

    def work(n):
        threads.add(threading.current_thread())
        return n * n

    calls = [stream.launch(lambda n=n: work(n)) for n in range(20)]
    outputs, seconds = zip(*watched(lambda: [call.result() for call in calls]), strict=True)
    assert list(outputs) == [n * n for n in range(20)]
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    assert min(seconds) >= 0


def test_launching_does_not_wait_and_the_thread_knows_itself(stream) -> None:
    gate = threading.Event()
    first = stream.launch(lambda: gate.wait(20) and stream.owns_current_thread())
    second = stream.launch(lambda: "second")
    assert not stream.owns_current_thread()
    gate.set()
    assert watched(first.result)[0] is True
    assert watched(second.result)[0] == "second"
    assert stream.cpu_seconds >= 0


def test_a_failure_reaches_whoever_waits_and_nothing_is_computed_after_it(stream) -> None:
    computed = []

    def boom():
        raise BoomError("boom")

    calls = [stream.launch(boom), stream.launch(lambda: computed.append(1))]
    for call in calls:
        with pytest.raises(BoomError):
            watched(call.result)
    with pytest.raises(BoomError):
        watched(stream.launch(lambda: computed.append(2)).result)
    assert computed == []


def test_close_waits_for_the_call_that_goes_on_and_drops_the_others() -> None:
    stream = HostStream()
    stream.start()
    begun, gate, computed = threading.Event(), threading.Event(), []

    def slow():
        begun.set()
        gate.wait(20)
        return "done"

    first = stream.launch(slow)
    second = stream.launch(lambda: computed.append(1))
    begun.wait(20)
    closing = threading.Thread(target=stream.close)
    closing.start()
    gate.set()
    watched(closing.join)
    assert watched(first.result)[0] == "done"
    with pytest.raises(RuntimeError, match="has ended"):
        watched(second.result)
    with pytest.raises(RuntimeError, match="has ended"):
        watched(stream.launch(lambda: 1).result)
    assert computed == []


def test_neither_input_nor_answer_is_kept(stream) -> None:
    batch = np.zeros(3)
    gone = weakref.ref(batch)
    call = stream.launch(lambda batch=batch: batch + 1)
    answer, _ = watched(call.result)
    also_gone = weakref.ref(answer)
    del batch, answer, call
    watched(stream.launch(lambda: None).result)
    gc.collect()
    assert gone() is None
    assert also_gone() is None
