"""Tests of all batchers with random arrivals, slow and failing functions, and a stop at any point."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import Future

import numpy as np
from fake_clock import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_runs import watched

from vitascope.errors import BatchingError
from vitascope.gpu import BatchConfig, DynamicBatcher, InferenceRequest, PriorityBatcher, StreamBatcher
from vitascope.gpu.toolkit.batching.batcher import Answers, BatchTally, ComputedPart
from vitascope.gpu.toolkit.batching.requests import PriorityLevel, Waiting


class BoomError(Exception):
    pass


BATCHERS = {
    "dynamic": DynamicBatcher,
    "streams": lambda config, fn: StreamBatcher(config, fn, num_streams=3),
    "priority": lambda config, fn: PriorityBatcher(
        config,
        fn,
        levels=[
            PriorityLevel(timeout_ms=0.0, on_full="wait", max_queue_size=4),
            PriorityLevel(deadline_ms=2.0, on_deadline="delay"),
            PriorityLevel(deadline_ms=1.0, max_queue_size=4),
        ],
        starvation_ms=5.0,
    ),
}

CLIENTS = st.lists(
    st.lists(  # for each request of a client: pause before, kind, level, whether the network fails
        st.tuples(
            st.sampled_from([0.0, 0.0, 0.001]),
            st.integers(1, 2),
            st.integers(0, 2),
            st.integers(0, 9).map(lambda n: n == 0),
        ),
        max_size=8,
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(
    which=st.sampled_from(sorted(BATCHERS)),
    clients=CLIENTS,
    config=st.builds(
        BatchConfig,
        max_batch_size=st.integers(1, 4),
        timeout_ms=st.sampled_from([0.0, 1.0]),
        bucket_sizes=st.sampled_from([(), (2, 4)]),
        max_queue_size=st.integers(1, 8),
        on_full=st.sampled_from(["wait", "reject"]),
    ),
    durations=st.lists(st.sampled_from([0.0, 0.0005, 0.003]), min_size=1, max_size=4),
    stop_after=st.sampled_from([None, 0.0, 0.001, 0.004]),
    drain=st.booleans(),
)
def test_every_request_gets_its_own_answer_once_and_streams_keep_their_order(
    which, clients, config, durations, stop_after, drain
):
    seen, answered, calls = [], [], itertools.count()
    lock = threading.Lock()

    def infer(batch):
        time.sleep(durations[next(calls) % len(durations)])
        with lock:
            seen.extend(set(batch[:, 0].tolist()))
        if (batch[:, 1] == 1).any():
            raise BoomError
        return batch[:, 0] * 10

    batcher = BATCHERS[which](config, infer)
    outcomes = {}

    def client(number, plan):
        for n, (pause, shape, level, fails) in enumerate(plan):
            time.sleep(pause)
            name = number * 100 + n
            data = np.zeros(shape + 1)
            data[:2] = name, fails
            priority = level if which == "priority" else 0
            try:
                future = batcher.submit_async(
                    InferenceRequest(data, name, stream_id=number, priority=priority)
                )
            except BatchingError as error:  # refused, or stopped
                outcomes[name] = error
                continue
            outcomes[name] = future
            future.add_done_callback(lambda done, name=name: answered.append((name, done)))

    def run():
        batcher.start()
        threads = [threading.Thread(target=client, args=pair) for pair in enumerate(clients)]
        for thread in threads:
            thread.start()
        if stop_after is not None:
            time.sleep(stop_after)
            batcher.stop(drain=drain)
        for thread in threads:
            thread.join()
        batcher.stop()

    watched(run)
    futures = {name: one for name, one in outcomes.items() if not isinstance(one, BatchingError)}
    assert len(outcomes) == sum(map(len, clients))
    assert all(future.done() for future in futures.values())
    assert len(seen) == len(set(seen)), "computed twice"
    assert sorted(name for name, _ in answered) == sorted(futures), "answered not at all, or twice"
    for name, future in futures.items():
        error = future.exception()
        if error is None:
            assert future.result().request_id == name
            assert future.result().data == name * 10
            assert name in seen
            assert future.result().batch_size <= config.max_batch_size
        elif isinstance(error, BatchingError):
            assert name not in seen
        else:
            assert isinstance(error, BoomError)
            assert name in seen
    for number in range(len(clients)):
        order = [name for name, done in answered if name // 100 == number and done.exception() is None]
        assert order == sorted(order), "reordered"
    stats = batcher.stats()
    assert stats.submitted == len(futures) == stats.completed + stats.failed + stats.expired
    assert stats.waiting == stats.running == 0


class GivenUpInTheLastMoment(Future):
    """Is answered by another thread between the check and the answer."""

    def set_result(self, result):
        super().set_exception(TimeoutError("the batcher stopped"))
        super().set_result(result)


def test_a_request_is_counted_once_when_stop_comes_between():
    tally = BatchTally()
    answers = Answers(tally, FakeClock())
    plain, raced = Future(), GivenUpInTheLastMoment()
    entries = [
        Waiting(InferenceRequest(0, request_id=number), "kind", number, 0.0, future)
        for number, future in enumerate((plain, raced))
    ]
    answers.give(ComputedPart(entries, [1, 2], 2), began=0.0, ended=1.0)
    tally.count(failed=1)  # as the thread that gave it up does
    assert plain.result().data == 1
    assert isinstance(raced.exception(), TimeoutError)
    stats = tally.stats(waiting=0, running=0)
    assert (stats.completed, stats.failed) == (1, 1)
