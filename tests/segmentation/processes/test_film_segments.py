"""The plan of a film that several share: every picture has one owner, whatever keyframes and rates do."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.segmentation.processes.segments import FilmSpan, plan_film

spans = st.builds(
    FilmSpan,
    begin=st.integers(-2000, 5000),
    length=st.integers(0, 200_000),
    frame_ticks=st.fractions(Fraction(1, 4), 4000, max_denominator=1001),
)


def owners(segments, pts):
    return [
        segment.number
        for segment in segments
        if (segment.begin is None or pts >= segment.begin) and (segment.end is None or pts < segment.end)
    ]


@settings(deadline=None, max_examples=60)
@given(
    span=spans,
    gaps=st.none() | st.lists(st.integers(1, 40_000), max_size=40),
    workers=st.integers(1, 8),
    most_frames=st.integers(1, 400),
    warm_up_frames=st.integers(0, 200),
    probes=st.lists(st.integers(-5000, 300_000), max_size=30),
)
def test_every_moment_has_one_owner(span, gaps, workers, most_frames, warm_up_frames, probes):
    keyframes = None
    if gaps is not None:
        keyframes = [span.begin]
        for gap in gaps:
            keyframes.append(keyframes[-1] + gap)
    most_frames = max(most_frames, span.frame_count // 50)  # more segments are as right, and slow
    segments = plan_film(
        span, keyframes=keyframes, workers=workers, most_frames=most_frames, warm_up_frames=warm_up_frames
    )
    assert [segment.number for segment in segments] == list(range(len(segments)))
    assert (segments[0].begin, segments[0].warm_up_from, segments[-1].end) == (None, None, None)
    for before, after in pairwise(segments):
        assert before.end == after.begin
        assert after.begin > (span.begin if before.begin is None else before.begin)
        assert span.begin <= after.warm_up_from <= after.begin
    for pts in [*probes, *(segment.begin for segment in segments[1:])]:
        assert len(owners(segments, pts)) == 1


def test_equal_parts_of_at_most_so_many_frames():
    span = FilmSpan(begin=100, length=1000, frame_ticks=Fraction(1))
    segments = plan_film(span, keyframes=None, workers=2, most_frames=300, warm_up_frames=10)
    assert [segment.begin for segment in segments] == [None, 350, 600, 850]
    assert [segment.warm_up_from for segment in segments] == [None, 340, 590, 840]


def test_decoding_for_a_segment_starts_at_a_keyframe():
    """The lead of 4 frames is for an index of decoding times; the warm-up of 20 follows it."""
    span = FilmSpan(begin=0, length=100_000, frame_ticks=Fraction(100))
    keyframes = [n * 2500 for n in range(40)]
    segments = plan_film(span, keyframes=keyframes, workers=4, most_frames=250, warm_up_frames=20)
    assert len(segments) == 4
    for segment in segments[1:]:
        assert (segment.warm_up_from - 400) in keyframes
        assert segment.begin == segment.warm_up_from + 2000


@pytest.mark.parametrize(("frames", "count"), [(1, 1), (2, 2), (60, 2), (0, 1)])
def test_each_worker_gets_a_part(frames, count):
    span = FilmSpan(begin=0, length=frames, frame_ticks=Fraction(1))
    segments = plan_film(span, keyframes=None, workers=2, most_frames=10_000, warm_up_frames=128)
    assert len(segments) == count


def test_keyframes_far_apart_make_long_segments():
    span = FilmSpan(begin=0, length=1000, frame_ticks=Fraction(1))
    segments = plan_film(span, keyframes=[0, 480], workers=2, most_frames=100, warm_up_frames=6)
    begins = [segment.begin for segment in segments]
    assert begins == [None, 10, 490]  # the first is of the keyframe that the film begins with


def test_a_film_of_one_group_is_cut_anywhere():
    span = FilmSpan(begin=0, length=1000, frame_ticks=Fraction(1))
    segments = plan_film(span, keyframes=[0], workers=2, most_frames=500, warm_up_frames=6)
    assert [segment.begin for segment in segments] == [None, 500]


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"most_frames": 0}, {"warm_up_frames": -1}, {"keyframes": [5, 5]}],
)
def test_nonsense_is_refused(wrong):
    span = FilmSpan(begin=0, length=10, frame_ticks=Fraction(1))
    arguments = {"keyframes": None, "workers": 2, "most_frames": 5, "warm_up_frames": 0} | wrong
    with pytest.raises(ValueError, match=r"workers|order"):
        plan_film(span, **arguments)
    with pytest.raises(ValueError, match="span"):
        FilmSpan(begin=0, length=-1, frame_ticks=Fraction(1))
