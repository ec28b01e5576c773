"""Tests of the rules for who goes next, event by event and without threads."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.gpu.toolkit.batching.requests import (
    BatchConfig,
    InferenceRequest,
    PriorityLevel,
    Waiting,
    WaitingRoom,
)


def rule(linger=5.0, *, most=100, deadline=None, on_deadline="reject"):
    return PriorityLevel(
        max_queue_size=most,
        timeout_ms=linger * 1e3,
        deadline_ms=None if deadline is None else deadline * 1e3,
        on_deadline=on_deadline,
    )


def entry(number, *, arrived=0.0, kind="a", stream=None, level=0):
    return Waiting(
        InferenceRequest(None, number, arrived, stream_id=stream, priority=level), kind, number, arrived
    )


def numbers(batch):
    return [one.number for one in batch]


def room_of(*entries, levels=None, starvation=None, **config):
    room = WaitingRoom(BatchConfig(**config), levels=levels or [rule()], starvation_seconds=starvation)
    for one in entries:
        room.add(one)
    return room


# --- Triton's rules -------------------------------------------------------------------------------


def test_a_full_batch_goes_at_once_and_the_rest_waits():
    room = room_of(*(entry(n) for n in range(6)), max_batch_size=4)
    assert numbers(room.take(0.0)) == [0, 1, 2, 3]
    assert room.take(0.0) == []
    assert room.wake_at() == 5.0


def test_the_largest_preferred_size_goes_at_once():
    room = room_of(*(entry(n) for n in range(7)), max_batch_size=8, preferred_batch_sizes=(2, 6))
    assert numbers(room.take(0.0)) == [0, 1, 2, 3, 4, 5]
    assert room.take(0.0) == []
    room.add(entry(7))
    assert numbers(room.take(0.0)) == [6, 7]


def test_what_is_there_goes_when_the_oldest_has_waited_long_enough():
    room = room_of(entry(0, arrived=0.0), entry(1, arrived=4.0), max_batch_size=8)
    assert room.take(4.9) == []
    assert numbers(room.take(5.0)) == [0, 1]


def test_nobody_waits_for_others_when_nobody_comes_any_more():
    room = room_of(entry(0), max_batch_size=8)
    assert numbers(room.take(0.0, closing=True)) == [0]


def test_kinds_do_not_mix_and_do_not_hold_one_another_up():
    room = room_of(entry(0, kind="wide"), *(entry(n) for n in (1, 2)), max_batch_size=2)
    assert numbers(room.take(0.0)) == [1, 2]
    assert numbers(room.take(5.0)) == [0]


def test_a_stream_of_two_kinds_is_not_reordered():
    room = room_of(
        entry(0, kind="wide", stream="s"), entry(1, stream="s"), entry(2, stream="t"), max_batch_size=2
    )
    assert room.take(0.0) == []  # 1 waits for 0 of its stream, so the second kind has no two
    assert numbers(room.take(5.0)) == [0]
    assert numbers(room.take(5.0)) == [1, 2]


# --- priorities -----------------------------------------------------------------------------------


def test_the_urgent_go_first_and_the_others_fill_up():
    room = room_of(
        entry(0, level=1), entry(1, level=1), entry(2), levels=(rule(0.0), rule(50.0)), max_batch_size=2
    )
    assert numbers(room.take(0.0)) == [2, 0]


def test_an_urgent_request_takes_the_earlier_ones_of_its_stream_along():
    waiting = entry(0, level=1), entry(1, level=1, stream="s"), entry(2, stream="s")
    room = room_of(*waiting, levels=(rule(0.0), rule(50.0)), max_batch_size=3)
    assert numbers(room.take(0.0)) == [1, 2, 0]


def test_who_starves_goes_before_everyone():
    waiting = entry(0, level=1, arrived=0.0), *(entry(n, arrived=9.0) for n in (1, 2, 3))
    room = room_of(*waiting, levels=(rule(0.0), rule(50.0)), starvation=10.0, max_batch_size=1)
    assert numbers(room.take(9.9)) == [1]
    assert numbers(room.take(10.0)) == [0]
    assert numbers(room.take(10.0)) == [2]


def test_past_its_deadline_a_request_is_rejected_or_put_behind_its_level():
    rejecting = room_of(entry(0), entry(1, arrived=2.0), levels=(rule(deadline=3.0),))
    assert numbers(rejecting.expire(3.0)) == [0]
    assert len(rejecting) == 1
    waiting = entry(0), entry(1, arrived=2.0), entry(2, level=1)
    delaying = room_of(*waiting, levels=(rule(deadline=3.0, on_deadline="delay"), rule()), max_batch_size=1)
    assert delaying.expire(3.0) == []
    assert [numbers(delaying.take(3.0)) for _ in range(4)] == [[1], [0], [2], []]


def test_a_level_is_full_for_itself():
    room = room_of(entry(0), levels=(rule(most=1), rule(most=1)))
    assert not room.has_room(0)
    assert room.has_room(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_batch_size": 0},
        {"min_batch_size": 9},
        {"max_batch_size": 2.5},
        {"timeout_ms": -1},
        {"timeout_ms": float("nan")},
        {"preferred_batch_sizes": (16,)},
        {"bucket_sizes": (1, 2, 4)},
        {"max_queue_size": 0},
        {"max_queue_size": 1.5},
        {"on_full": "drop"},
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ValueError):
        BatchConfig(**wrong)


def test_rows_of_a_call_are_those_of_the_next_bucket():
    config = BatchConfig(min_batch_size=2, max_batch_size=6, bucket_sizes=(1, 4, 8))
    assert [config.rows_for(count) for count in (1, 2, 4, 5, 6)] == [4, 4, 4, 8, 8]
    assert BatchConfig(min_batch_size=3).rows_for(1) == 3


# --- all of it, at random -------------------------------------------------------------------------

ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 20.0]),  # since the previous one
        st.sampled_from("aab"),
        st.sampled_from([None, "s", "t"]),
        st.integers(0, 2),
    ),
    max_size=40,
)
LEVELS = st.tuples(
    *[
        st.builds(
            rule,
            st.sampled_from([0.0, 2.0, 5.0]),
            deadline=st.sampled_from([None, 1.0, 8.0]),
            on_deadline=st.sampled_from(["reject", "delay"]),
        )
    ]
    * 3
)


@given(
    arrivals=ARRIVALS,
    levels=LEVELS,
    most=st.integers(1, 5),
    preferred=st.sets(st.integers(1, 5)),
    workers=st.integers(1, 3),
    durations=st.lists(st.sampled_from([0.0, 0.3, 2.0, 15.0]), min_size=1, max_size=5),
    starvation=st.sampled_from([None, 10.0]),
    closes_at=st.sampled_from([None, 0.0, 3.0, 10.0]),
)
def test_nothing_is_lost_doubled_or_reordered_and_no_free_worker_lets_anybody_wait(
    arrivals, levels, most, preferred, workers, durations, starvation, closes_at
):
    config = BatchConfig(
        max_batch_size=most, preferred_batch_sizes=tuple(size for size in preferred if size <= most)
    )
    room = WaitingRoom(config, levels=levels, starvation_seconds=starvation)
    coming, at = [], 0.0
    for number, (gap, kind, stream, level) in enumerate(arrivals):
        at += gap
        if closes_at is None or at <= closes_at:
            coming.append(entry(number, arrived=at, kind=kind, stream=stream, level=level))
    expected = [one.number for one in coming]
    by_number = {one.number: one for one in coming}
    now, busy, batches, rejected = 0.0, [], [], []
    while coming or len(room) or busy:
        while coming and coming[0].arrived <= now:
            room.add(coming.pop(0))
        while busy and busy[0] <= now:
            heapq.heappop(busy)
        closing = closes_at is not None and now >= closes_at
        while len(busy) < workers:
            rejected += numbers(room.expire(now))
            starving = [
                one for one in room._everyone()
                if starvation is not None and now >= one.arrived + starvation
            ]  # fmt: skip
            batch = room.take(now, closing=closing)
            if not batch:
                break
            if starving:
                assert min(one.number for one in starving) in numbers(batch)
            assert len(batch) <= most
            assert len({one.kind for one in batch}) == 1
            batches.append(numbers(batch))
            heapq.heappush(busy, now + durations[len(batches) % len(durations)])
        wake_at = room.wake_at()
        if len(busy) < workers:  # a worker is free and waits, so nothing may be due
            assert not any(
                now >= one.arrived + levels[one.request.priority].timeout_ms / 1e3 for one in room._everyone()
            )
            assert wake_at is None or wake_at > now
            assert len(room) == 0 or wake_at is not None
        times = [*busy[:1], *(one.arrived for one in coming[:1])]
        if len(busy) < workers and wake_at is not None:
            times.append(wake_at)
        if closes_at is not None and now < closes_at:
            times.append(closes_at)
        now = min(times, default=now)
    taken = [number for batch in batches for number in batch]
    assert sorted(taken + rejected) == expected
    for stream in ("s", "t"):
        order = [n for n in taken if by_number[n].request.stream_id == stream]
        assert order == sorted(order)
    assert all(levels[by_number[n].request.priority].on_deadline == "reject" for n in rejected)
