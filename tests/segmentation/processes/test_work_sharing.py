"""Segments go out once each, neighbours together, and nobody idles while it could help."""

from __future__ import annotations

import heapq

from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.segmentation.processes.segments import WorkSharing


@settings(deadline=None, max_examples=60)
@given(segments=st.integers(1, 60), workers=st.integers(1, 9), beginning=st.integers(0, 9), order=st.data())
def test_each_segment_once_in_whatever_order_workers_come(segments, workers, beginning, order):
    sharing = WorkSharing(segments, workers=workers, beginning=beginning)
    given_out, last, idle = [], {}, set()
    while len(idle) < workers:
        worker = order.draw(st.sampled_from(sorted(set(range(workers)) - idle)))
        assignment = sharing.next_for(worker)
        if assignment is None:
            idle.add(worker)
            continue
        given_out.append(assignment.number)
        assert assignment.goes_on == (last.get(worker) == assignment.number - 1)
        last[worker] = assignment.number
    assert sorted(given_out) == list(range(segments))


def test_equal_workers_have_one_seam_less_than_they_are():
    sharing = WorkSharing(100, workers=4, beginning=1)
    fresh = [not sharing.next_for(n % 4).goes_on for n in range(100)]
    assert fresh == [True] * 4 + [False] * 96


def test_of_two_who_are_as_fast_one_takes_half_of_the_rest_where_beginning_costs_nothing():
    sharing = WorkSharing(8, workers=2, beginning=0)
    sharing._left = [range(8), range(0)]  # as if the other had been done with its own at once
    stolen = sharing.next_for(1)
    assert (stolen.number, stolen.goes_on) == (4, False)
    assert [sharing.next_for(1) for _ in range(3)] == [(5, True), (6, True), (7, True)]
    assert [sharing.next_for(0).number for _ in range(4)] == [0, 1, 2, 3]


def test_who_is_done_takes_less_where_beginning_costs():
    sharing = WorkSharing(10, workers=2, beginning=3)
    sharing._left = [range(10), range(0)]
    assert sharing.next_for(1) == (7, False)  # 7 for the other, 3 and what 3 take for this one
    for _ in range(4):
        sharing.next_for(0)
    assert [sharing.next_for(1).number for _ in range(2)] == [8, 9]
    assert sharing.next_for(1) is None  # three are left, which take no longer than to begin
    assert [sharing.next_for(0).number for _ in range(3)] == [4, 5, 6]


def test_who_is_faster_takes_more():
    sharing = WorkSharing(40, workers=2, beginning=0)
    for _ in range(20):
        sharing.next_for(1)
    for _ in range(6):
        sharing.next_for(0)
    assert sharing.next_for(1) == (10, False)  # 6 to 9 for the other, which was a third as fast


def time_of(sharing, speeds, beginning):
    """When the last of some workers is done, each taking so long for a segment."""
    free, done = [(0.0, worker) for worker in range(len(speeds))], 0.0
    while free:
        now, worker = heapq.heappop(free)
        assignment = sharing.next_for(worker)
        if assignment is not None:
            end = now + speeds[worker] * (1 if assignment.goes_on else 1 + beginning)
            done = max(done, end)
            heapq.heappush(free, (end, worker))
    return done


@settings(deadline=None)
@given(
    segments=st.integers(1, 80),
    beginning=st.integers(0, 6),
    speeds=st.lists(st.integers(1, 8), min_size=2, max_size=5),
)
def test_helping_makes_nobody_wait_longer(segments, beginning, speeds):
    workers = len(speeds)
    alone = WorkSharing(segments, workers=workers, beginning=10**6)  # nobody ever helps
    helping = WorkSharing(segments, workers=workers, beginning=beginning)
    in_hand = max(speeds)  # what the slowest had begun when the others were done
    assert time_of(helping, speeds, beginning) <= time_of(alone, speeds, beginning) + in_hand
