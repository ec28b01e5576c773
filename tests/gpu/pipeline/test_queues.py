from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits, Turnstile, nbytes_of
from vitascope.gpu.pipeline.report import LatencyHistogram
from waiting import PATIENCE_SECONDS, eventually


def make_queue(*, items: int = 8, nbytes: int | None = None, overflow: str = "wait") -> BoundedQueue[int]:
    return BoundedQueue("a > b", limits=QueueLimits(items=items, nbytes=nbytes, overflow=overflow))


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


def test_items_come_in_order_with_gapless_positions_then_end_for_ever():
    queue = make_queue()
    for item in "xyz":
        assert queue.put(item)
    queue.end()
    assert [queue.get() for _ in range(5)] == [(0, "x"), (1, "y"), (2, "z"), Mark.END, Mark.END]


def test_stop_forgets_items_refuses_more_and_wins_over_end():
    queue = make_queue()
    queue.put(1)
    queue.stop()
    queue.end()
    assert queue.get() is Mark.STOP
    assert queue.put(2) is False
    assert queue.report().occupancy == 0


def test_put_after_end_is_a_bug_and_says_so():
    queue = make_queue()
    queue.end()
    with pytest.raises(RuntimeError, match="'a > b' has ended"):
        queue.put(1)


def test_full_queue_makes_the_producer_wait_until_an_item_is_taken(pool):
    queue = make_queue(items=2)
    queue.put(0)
    queue.put(1)
    third = pool.submit(queue.put, 2)
    eventually(lambda: queue.report().put_wait_seconds > 0)  # a wait in progress is in the figures
    assert not third.done()
    assert queue.get() == (0, 0)
    assert third.result(PATIENCE_SECONDS) is True
    report = queue.report()
    assert (report.count, report.dropped, report.occupancy, report.occupancy_max) == (3, 0, 2, 2)


def test_empty_queue_makes_the_consumer_wait_until_an_item_is_put(pool):
    queue = make_queue()
    waiting = pool.submit(queue.get)
    eventually(lambda: queue.report().get_wait_seconds > 0)
    queue.put(7)
    assert waiting.result(PATIENCE_SECONDS) == (0, 7)
    settled = queue.report().get_wait_seconds
    assert settled > 0
    assert queue.report().get_wait_seconds == settled


def test_bytes_bound_before_items_do(pool):
    queue = make_queue(items=100, nbytes=10)
    queue.put(0, nbytes=6)
    queue.put(1, nbytes=4)
    third = pool.submit(queue.put, 2, nbytes=1)
    eventually(lambda: queue.report().put_wait_seconds > 0)
    assert queue.report().occupancy == 2
    queue.get()
    assert third.result(PATIENCE_SECONDS)
    assert queue.report().nbytes_max == 10


def test_an_item_above_the_byte_limit_passes_alone(pool):
    queue = make_queue(nbytes=10)
    assert queue.put(0, nbytes=1000)
    second = pool.submit(queue.put, 1, nbytes=1)
    eventually(lambda: queue.report().put_wait_seconds > 0)
    assert queue.get() == (0, 0)
    assert second.result(PATIENCE_SECONDS)
    huge = pool.submit(queue.put, 2, nbytes=1000)
    eventually(lambda: queue.report().put_wait_seconds > 0)
    assert queue.get() == (1, 1)
    assert huge.result(PATIENCE_SECONDS)
    assert queue.get() == (2, 2)


def test_a_small_item_passes_a_large_one_that_still_waits_for_room(pool):
    queue = make_queue(nbytes=10)
    queue.put(0, nbytes=5)
    queue.put(1, nbytes=5)
    large = pool.submit(queue.put, "large", nbytes=9)
    eventually(lambda: queue.report().put_wait_seconds > 0)
    small = pool.submit(queue.put, "small", nbytes=4)
    queue.get()
    assert small.result(PATIENCE_SECONDS)
    assert not large.done()
    queue.get()
    queue.get()
    assert large.result(PATIENCE_SECONDS)


def test_drop_oldest_keeps_the_newest_and_never_waits():
    queue = make_queue(items=3, overflow="drop_oldest")
    for item in range(10):
        assert queue.put(item)
    queue.end()
    assert [queue.get() for _ in range(4)] == [(0, 7), (1, 8), (2, 9), Mark.END]
    report = queue.report()
    assert (report.count, report.dropped, report.put_wait_seconds) == (10, 7, 0.0)


def test_drop_oldest_drops_as_many_as_the_bytes_demand():
    queue = make_queue(nbytes=10, overflow="drop_oldest")
    for item in range(3):
        queue.put(item, nbytes=3)
    queue.put(3, nbytes=7)
    assert queue.report().dropped == 2
    assert [queue.get(), queue.get()] == [(0, 2), (1, 3)]
    queue.put(4, nbytes=1)
    queue.put(5, nbytes=99)
    assert queue.get() == (2, 5)


@pytest.mark.parametrize("waits_in", ["put", "get"])
def test_stop_releases_everyone_who_waits(pool, waits_in):
    queue = make_queue(items=1)
    if waits_in == "put":
        queue.put(0)
        waiting = [pool.submit(queue.put, n) for n in range(3)]
        expected = False
    else:
        waiting = [pool.submit(queue.get) for _ in range(3)]
        expected = Mark.STOP
    eventually(lambda: getattr(queue.report(), f"{waits_in}_wait_seconds") > 0)
    queue.stop()
    assert [future.result(PATIENCE_SECONDS) for future in waiting] == [expected] * 3


def test_end_releases_consumers_that_wait(pool):
    queue = make_queue()
    waiting = [pool.submit(queue.get) for _ in range(3)]
    queue.end()
    assert [future.result(PATIENCE_SECONDS) for future in waiting] == [Mark.END] * 3


@pytest.mark.parametrize(("items", "nbytes"), [(1, None), (3, 7), (50, 5)])
def test_many_producers_and_consumers_lose_nothing(pool, items, nbytes):
    queue = make_queue(items=items, nbytes=nbytes)

    def produce(first: int) -> None:
        for n in range(first, first + 300):
            queue.put(n, nbytes=n % 9)

    def consume() -> list[tuple[int, int]]:
        taken = []
        while not isinstance(entry := queue.get(), Mark):
            taken.append(entry)
        return taken

    consumers = [pool.submit(consume) for _ in range(3)]
    producers = [pool.submit(produce, 1000 * n) for n in range(3)]
    for producer in producers:
        producer.result(PATIENCE_SECONDS)
    queue.end()
    taken = sorted(entry for consumer in consumers for entry in consumer.result(PATIENCE_SECONDS))
    assert [position for position, _ in taken] == list(range(900))
    assert sorted(item for _, item in taken) == [1000 * n + i for n in range(3) for i in range(300)]
    for n in range(3):  # items of one producer stay in order
        own = [item for _, item in taken if item // 1000 == n]
        assert own == sorted(own)
    assert queue.report().occupancy_max <= items


def test_mean_occupancy_weighs_by_time_and_stands_still_once_the_queue_is_done():
    queue = make_queue()
    queue.put(0)
    queue.put(1)
    eventually(lambda: queue.report().occupancy_mean > 1.5)
    queue.get()
    queue.get()
    queue.end()
    mean = queue.report().occupancy_mean
    assert 0 < mean < 2
    time.sleep(0.01)
    assert queue.report().occupancy_mean == mean


@pytest.mark.parametrize("bad", [{"items": 0}, {"items": -1}, {"nbytes": 0}, {"overflow": "drop"}])
def test_impossible_limits_are_refused(bad):
    with pytest.raises(
        ValueError, match=r"^(items|nbytes) is .*, expected a whole number, at least 1|overflow is"
    ):
        QueueLimits(**bad)


def test_nbytes_of_looks_into_tuples_and_lists():
    plane = np.zeros((3, 5), np.uint16)
    assert nbytes_of(plane) == 30
    assert nbytes_of((plane, [plane, "text", None])) == 60
    assert nbytes_of(object()) == 0
    assert nbytes_of(()) == 0


def test_turnstile_lets_tickets_through_in_order_whatever_order_they_arrive_in(pool):
    turnstile = Turnstile()
    passed: list[int] = []

    def walk(ticket: int) -> bool:
        entered = turnstile.enter(ticket)
        passed.append(ticket)
        turnstile.leave()
        return entered

    futures = [pool.submit(walk, ticket) for ticket in (4, 2, 3, 1)]
    assert passed == []
    futures.append(pool.submit(walk, 0))
    assert all(future.result(PATIENCE_SECONDS) for future in futures)
    assert passed == [0, 1, 2, 3, 4]


def test_turnstile_stop_releases_those_before_and_after(pool):
    turnstile = Turnstile()
    waiting = pool.submit(turnstile.enter, 5)
    turnstile.stop()
    assert waiting.result(PATIENCE_SECONDS) is False
    assert turnstile.enter(0) is False


@settings(deadline=None, max_examples=80)
@given(
    durations=st.lists(st.floats(1e-6, 3600.0), min_size=1, max_size=200),
    parts=st.integers(1, 4),
)
def test_percentiles_are_within_a_bin_of_the_true_nearest_rank(durations, parts):
    histograms = [LatencyHistogram() for _ in range(parts)]
    for n, seconds in enumerate(durations):
        histograms[n % parts].add(seconds)
    latency = LatencyHistogram.summary(histograms)
    ranked = sorted(durations)
    for percent, measured in (
        (50, latency.p50_seconds),
        (95, latency.p95_seconds),
        (99, latency.p99_seconds),
    ):
        true = ranked[math.ceil(len(ranked) * percent / 100) - 1]
        assert measured == pytest.approx(true, rel=0.023)
    assert latency.count == len(durations)
    assert latency.max_seconds == ranked[-1]
    assert latency.mean_seconds == pytest.approx(sum(durations) / len(durations))


def test_histogram_takes_extremes_and_does_not_grow():
    histogram = LatencyHistogram()
    assert LatencyHistogram.summary([histogram]).count == 0
    assert LatencyHistogram.summary([]).count == 0
    for seconds in (0.0, 1e-12, 1e9):
        histogram.add(seconds)
    size = len(histogram._bins)
    for n in range(10_000):
        histogram.add(n * 1e-5)
    assert len(histogram._bins) == size
    latency = LatencyHistogram.summary([histogram])
    assert (latency.count, latency.max_seconds) == (10_003, 1e9)
    one = LatencyHistogram()
    one.add(0.0421)
    assert LatencyHistogram.summary([one]).p99_seconds == 0.0421


def test_reports_are_safe_while_the_queue_is_in_use():
    queue = make_queue(items=2)

    def produce() -> None:
        for n in range(2000):
            queue.put(n, nbytes=1)
        queue.end()

    producer = threading.Thread(target=produce)
    producer.start()
    last = 0
    while not isinstance(queue.get(), Mark):
        report = queue.report()
        assert last <= report.count
        assert 0 <= report.occupancy <= 2
        assert 0.0 <= report.occupancy_mean <= 2.0
        last = report.count
    producer.join(PATIENCE_SECONDS)
    assert queue.report().count == 2000


def test_a_wait_for_an_item_can_be_given_up():
    queue = BoundedQueue("q", limits=QueueLimits(items=1))
    assert queue.get(timeout_seconds=0) is Mark.NOTHING_YET
    assert queue.get(timeout_seconds=0.01) is Mark.NOTHING_YET
    queue.put("a")
    assert queue.get(timeout_seconds=0) == (0, "a")
    queue.end()
    assert queue.get(timeout_seconds=0) is Mark.END
    assert queue.report().get_wait_seconds >= 0.01


def test_a_wait_for_room_can_be_given_up_and_the_item_is_not_taken():
    queue = BoundedQueue("q", limits=QueueLimits(items=1))
    queue.put("a")
    with pytest.raises(TimeoutError, match=r"'q' had no room for 0\.01 s"):
        queue.put("b", timeout_seconds=0.01)
    assert queue.get() == (0, "a")
    assert queue.put("c", timeout_seconds=0)
    assert queue.report().count == 2


def test_whoever_waits_for_room_sees_new_limits():
    queue = BoundedQueue("q", limits=QueueLimits(items=1))
    queue.put("a")
    waiting = threading.Thread(target=queue.put, args=("b",))
    waiting.start()
    queue.relax(QueueLimits(items=2))
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert queue.report().occupancy == 2
