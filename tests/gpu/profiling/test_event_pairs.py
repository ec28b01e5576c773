"""Tests of pairs of events, on a simulated GPU that lags behind the host."""

from __future__ import annotations

import types
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.gpu.profiling.gpu_clock import EventPairs


class CountingEvents:
    """Simulates events whose times are the numbers of their records; the GPU has passed those up to ``through``."""

    def __init__(self):
        self.records = count(1)
        self.through = float("inf")
        self.created = self.asked = self.host_waits = 0
        self.is_broken = False

    def create(self):
        self.created += 1
        event = types.SimpleNamespace(at=None)
        event.record = lambda: setattr(event, "at", next(self.records))
        return event

    def done(self, event):
        self.asked += 1
        return event.at <= self.through

    def synchronize(self, event):
        self.host_waits += 1
        self.through = max(self.through, event.at)

    def elapsed_ms(self, start, stop):
        if self.is_broken:
            raise RuntimeError("an illegal memory access was encountered")
        return float(stop.at - start.at)


def purposes(pairs, *, wait=False):
    found = []
    for start, stop, purpose in pairs.passed(wait=wait):
        assert pairs.seconds(start, stop) > 0
        pairs.reuse(start, stop)
        found.append(purpose)
    return found


def test_pairs_come_from_the_oldest_on_and_only_those_that_the_gpu_has_passed():
    events = CountingEvents()
    pairs = EventPairs(events)
    starts = [pairs.mark() for _ in range(3)]
    for number, start in enumerate(starts):
        pairs.close(start, number)
    events.through = 5  # records 4 to 6 are stops
    assert purposes(pairs) == [0, 1]
    assert purposes(pairs) == []
    assert events.host_waits == 0
    assert purposes(pairs, wait=True) == [2]
    assert (events.host_waits, purposes(pairs, wait=True)) == (1, [])


def test_a_time_is_that_between_the_two_records():
    pairs = EventPairs(CountingEvents())
    outer = pairs.mark()
    pairs.close(pairs.mark(), "inner")
    pairs.close(outer, "outer")
    times = {purpose: pairs.seconds(start, stop) for start, stop, purpose in list(pairs.passed(wait=False))}
    assert times == {"inner": pytest.approx(1e-3), "outer": pytest.approx(3e-3)}


@given(lag=st.integers(0, 200), spans=st.integers(1, 400))
def test_events_are_used_again_and_seldom_asked(lag, spans):
    events = CountingEvents()
    pairs = EventPairs(events)
    found = []
    for number in range(spans):
        events.through = 2 * (number - lag)
        if pairs.close(pairs.mark(), number):
            found += purposes(pairs)
    assert events.created <= 2 * (max(lag, 32) + 2)
    assert events.asked <= 2 * spans
    assert events.host_waits == 0
    assert found + purposes(pairs, wait=True) == list(range(spans))


def test_what_cannot_be_read_costs_its_own_pair_alone():
    events = CountingEvents()
    pairs = EventPairs(events)
    for number in range(3):
        pairs.close(pairs.mark(), number)
    events.is_broken = True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        purposes(pairs)
    events.is_broken = False
    assert purposes(pairs) == [1, 2]


def test_threads_that_record_at_once_never_share_an_event():
    pairs = EventPairs(OwnedEvents())

    def record(first):
        for number in range(first, first + 500):
            pairs.close(pairs.mark(), number)

    def collect():
        for start, stop, number in pairs.passed(wait=False):
            start.is_taken = stop.is_taken = False
            pairs.reuse(start, stop)
            found.append(number)

    found = []
    with ThreadPoolExecutor(4) as pool:
        threads = [pool.submit(record, 1000 * n) for n in range(4)]
        while not all(thread.done() for thread in threads):
            collect()
        for thread in threads:
            thread.result()
    collect()
    assert sorted(found) == [1000 * n + i for n in range(4) for i in range(500)]


class OwnedEvents:
    """Simulates events that must not be recorded while others use them."""

    def create(self):
        event = types.SimpleNamespace(is_taken=False)

        def record():
            assert not event.is_taken
            event.is_taken = True

        event.record = record
        return event

    def done(self, event):
        return True


def test_a_pair_that_cannot_be_asked_for_is_dropped_and_those_behind_it_come():
    events = CountingEvents()
    pairs = EventPairs(events)
    for name in "ab":
        pairs.close(pairs.mark(), name)
    events.done, done = lambda event: 1 / 0, events.done
    with pytest.raises(ZeroDivisionError):
        next(pairs.passed(wait=False))
    events.done = done
    assert [purpose for _, _, purpose in pairs.passed(wait=False)] == ["b"]
