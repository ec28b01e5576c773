"""Segments go out once each, neighbours together, and nobody idles while another has more than one before it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.segmentation.work_sharing import WorkSharing


@settings(deadline=None, max_examples=60)
@given(segments=st.integers(1, 60), workers=st.integers(1, 9), order=st.data())
def test_each_segment_once_in_whatever_order_workers_come(segments, workers, order):
    sharing = WorkSharing(segments, workers=workers)
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
    sharing = WorkSharing(100, workers=4)
    fresh = [not sharing.next_for(n % 4).goes_on for n in range(100)]
    assert fresh == [True] * 4 + [False] * 96


def test_who_is_done_takes_half_of_the_longest_rest():
    sharing = WorkSharing(8, workers=2)
    for _ in range(4):
        sharing.next_for(1)  # 4 to 7, while the other has not begun
    stolen = sharing.next_for(1)
    assert (stolen.number, stolen.goes_on) == (2, False)
    assert sharing.next_for(1) == (3, True)
    assert [sharing.next_for(0).number for _ in range(2)] == [0, 1]
    assert sharing.next_for(0) is None
