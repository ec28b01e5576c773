"""Check that cuts of a video lose and repeat nothing, and that videos without cuts have a reason."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.media.reading.film_index import FilmIndex, plan_segments

ordered_stamps = st.lists(st.integers(-1000, 10**9), min_size=2, max_size=60, unique=True).map(sorted)


@given(stamps=ordered_stamps, min_ticks=st.integers(1, 10**6))
def test_segments_join_without_gaps_and_begin_at_keyframes(stamps: list[int], min_ticks: int) -> None:
    plan = plan_segments(FilmIndex.of(stamps), min_ticks=min_ticks)
    if not plan.segments:
        assert plan.why_whole == "it has a single group of pictures"
        assert stamps[-1] - stamps[0] < min_ticks
        return
    assert plan.why_whole is None
    assert [segment.number for segment in plan.segments] == list(range(len(plan.segments)))
    assert plan.segments[0].start == stamps[0]
    assert plan.segments[-1].end is None
    assert {segment.start for segment in plan.segments} <= set(stamps)
    for earlier, later in pairwise(plan.segments):
        assert earlier.end == later.start
        assert later.start - earlier.start >= min_ticks


@given(stamps=ordered_stamps, when=st.integers(-2000, 10**9 + 10))
def test_segment_at_is_the_last_that_begins_no_later(stamps: list[int], when: int) -> None:
    plan = plan_segments(FilmIndex.of(stamps))
    chosen = plan.segments[plan.segment_at(when)]
    assert chosen.start <= when or chosen.number == 0
    assert chosen.end is None or when < chosen.end


@pytest.mark.parametrize(
    ("stamps", "why"),
    [
        ([], "its index lists no keyframes"),
        ([0], "it has a single group of pictures"),
        ([0, 20, 20], "the keyframes of its index are not in order"),
        ([0, 40, 20], "the keyframes of its index are not in order"),
    ],
)
def test_what_cannot_be_cut_says_why(stamps: list[int], why: str) -> None:
    plan = plan_segments(FilmIndex.of(stamps))
    assert plan.segments == ()
    assert plan.why_whole == why
