"""Check when a queue wakes its consumer: not before there is work, and never too late."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_queues import make_queue

from vitascope.gpu.pipeline import queues
from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits
from waiting import PATIENCE_SECONDS, eventually


@pytest.fixture(autouse=True)
def nobody_looks_by_himself(monkeypatch):
    """Turn off the check every half second, so that only a notification wakes a thread."""
    monkeypatch.setattr(queues, "INTERRUPT_CHECK_SECONDS", None)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


def waking(wake_items: int, **limits) -> BoundedQueue[int]:
    return BoundedQueue("a > b", limits=QueueLimits(wake_items=wake_items, **{"nbytes": None} | limits))


def asleep(pool, queue):
    """Start a consumer that waits."""
    waiting = pool.submit(queue.get)
    eventually(lambda: queue.report().get_wait_seconds > 0)
    return waiting


def test_a_consumer_sleeps_until_as_many_items_wait_as_it_gathers(pool):
    queue = waking(3)
    waiting = asleep(pool, queue)
    queue.put(0)
    queue.put(1)
    time.sleep(0.05)
    assert not waiting.done()
    queue.put(2)
    assert waiting.result(PATIENCE_SECONDS) == (0, 0)
    assert [queue.get(), queue.get()] == [(1, 1), (2, 2)]


def test_a_consumer_sleeps_while_more_follow(pool):
    queue = make_queue()
    waiting = asleep(pool, queue)
    queue.put(0, more_follow=True)
    time.sleep(0.05)
    assert not waiting.done()
    queue.put(1)
    assert waiting.result(PATIENCE_SECONDS) == (0, 0)


@pytest.mark.parametrize("limits", [{"items": 2}, {"items": 8, "nbytes": 2}])
@pytest.mark.parametrize("more_follow", [False, True])
def test_a_producer_that_needs_room_wakes_the_consumer(pool, limits, more_follow):
    queue = waking(5, **limits)
    waiting = asleep(pool, queue)
    for item in range(3):
        assert queue.put(item, nbytes=1, more_follow=more_follow, timeout_seconds=PATIENCE_SECONDS)
    assert waiting.result(PATIENCE_SECONDS) == (0, 0)


@pytest.mark.parametrize(("close", "found"), [("end", (0, 0)), ("stop", Mark.STOP)])
def test_a_consumer_is_woken_for_the_last_items(pool, close, found):
    queue = waking(5)
    waiting = asleep(pool, queue)
    queue.put(0)
    getattr(queue, close)()
    assert waiting.result(PATIENCE_SECONDS) == found


def test_whose_patience_ends_gets_what_is_there(pool):
    queue = waking(5)
    waiting = pool.submit(queue.get, timeout_seconds=0.2)
    eventually(lambda: queue.report().get_wait_seconds > 0)
    queue.put(0)
    assert waiting.result(PATIENCE_SECONDS) == (0, 0)


def test_a_queue_that_drops_cannot_let_its_consumer_sleep():
    with pytest.raises(ValueError, match="for each"):
        QueueLimits(wake_items=2, overflow="drop_oldest")
    with pytest.raises(ValueError, match=r"^wake_items is 0, expected a whole number, at least 1"):
        QueueLimits(wake_items=0)


def test_other_limits_wake_who_waited_for_more(pool):
    queue = waking(5)
    waiting = asleep(pool, queue)
    queue.put(0)
    queue.relax(QueueLimits(items=8))
    assert waiting.result(PATIENCE_SECONDS) == (0, 0)


def test_all_consumers_wake_for_what_came_together(pool):
    queue = make_queue()
    waiting = [pool.submit(queue.get) for _ in range(3)]
    eventually(lambda: len(queue._has_item._waiters) == 3)
    queue.put(0, more_follow=True)
    queue.put(1, more_follow=True)
    queue.put(2)
    assert sorted(one.result(PATIENCE_SECONDS) for one in waiting) == [(0, 0), (1, 1), (2, 2)]


def test_a_producer_whom_no_interrupt_reaches_sleeps_until_there_is_room(pool, monkeypatch):
    monkeypatch.setattr(queues, "INTERRUPT_CHECK_SECONDS", 0.001)
    queue = make_queue(items=1)
    limits_of_waits = []
    wait = queue._has_room.wait
    monkeypatch.setattr(queue._has_room, "wait", lambda limit: limits_of_waits.append(limit) or wait(limit))
    queue.put(0)
    waiting = pool.submit(queue.put, 1)
    eventually(lambda: queue.report().put_wait_seconds > 0.02)
    queue.get()
    assert waiting.result(PATIENCE_SECONDS)
    assert limits_of_waits == [None]
    with pytest.raises(TimeoutError):
        queue.put(2, timeout_seconds=0.02)  # in the main thread, which interrupts can reach
    assert len(limits_of_waits) > 2
    assert max(limits_of_waits[1:]) <= 0.001


def test_nobody_is_told_where_nobody_waits(monkeypatch):
    queue = make_queue()
    for condition in (queue._has_item, queue._has_room):
        monkeypatch.setattr(condition, "notify", lambda count=1: pytest.fail("nobody waits"))
    for item in range(3):
        queue.put(item)
    assert [queue.get() for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("producers", [1, 2])
@pytest.mark.parametrize("consumers", [1, 3])
def test_nobody_sleeps_for_ever(pool, producers, consumers):
    for items, wake in itertools.product((1, 2, 5), (1, 3, 9)):
        queue = waking(wake, items=items)

        def produce(queue=queue):
            for item in range(60):
                queue.put(item, more_follow=item % 3 == 1)

        def consume(queue=queue):
            count = 0
            while not isinstance(queue.get(), Mark):
                count += 1
            return count

        putting = [pool.submit(produce) for _ in range(producers)]
        taking = [pool.submit(consume) for _ in range(consumers)]
        for one in putting:
            one.result(PATIENCE_SECONDS)
        queue.end()
        assert sum(one.result(PATIENCE_SECONDS) for one in taking) == 60 * producers
