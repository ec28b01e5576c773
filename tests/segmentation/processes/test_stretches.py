"""Tests of the plan of a shared video: every frame has one owner, whatever keyframes and rates it has."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.segmentation.processes.stretches import FilmSpan, plan_film, stretch_count

spans = st.builds(
    FilmSpan,
    begin=st.integers(-2000, 5000),
    length=st.integers(0, 200_000),
    frame_ticks=st.fractions(Fraction(1, 4), 4000, max_denominator=1001),
)


def owners(stretches, pts):
    return [
        stretch.number
        for stretch in stretches
        if (stretch.begin is None or pts >= stretch.begin) and (stretch.end is None or pts < stretch.end)
    ]


@settings(deadline=None, max_examples=60)
@given(
    span=spans,
    gaps=st.none() | st.lists(st.integers(1, 40_000), max_size=40),
    count=st.integers(1, 50),
    warm_up_frames=st.integers(0, 200),
    probes=st.lists(st.integers(-5000, 300_000), max_size=30),
)
def test_every_moment_has_one_owner(span, gaps, count, warm_up_frames, probes):
    keyframes = None
    if gaps is not None:
        keyframes = [span.begin]
        for gap in gaps:
            keyframes.append(keyframes[-1] + gap)
    stretches = plan_film(span, keyframes=keyframes, count=count, warm_up_frames=warm_up_frames)
    assert [stretch.number for stretch in stretches] == list(range(len(stretches)))
    assert (stretches[0].begin, stretches[0].warm_up_from, stretches[-1].end) == (None, None, None)
    for before, after in pairwise(stretches):
        assert before.end == after.begin
        assert after.begin > (span.begin if before.begin is None else before.begin)
        assert span.begin <= after.warm_up_from <= after.begin
    for pts in [*probes, *(stretch.begin for stretch in stretches[1:])]:
        assert len(owners(stretches, pts)) == 1


def test_equal_parts():
    span = FilmSpan(begin=100, length=1000, frame_ticks=Fraction(1))
    stretches = plan_film(span, keyframes=None, count=4, warm_up_frames=10)
    assert [stretch.begin for stretch in stretches] == [None, 350, 600, 850]
    assert [stretch.warm_up_from for stretch in stretches] == [None, 340, 590, 840]


def test_decoding_for_a_segment_starts_at_a_keyframe():
    """Check the lead of 4 frames for an index of decoding times; the warm-up of 20 follows it."""
    span = FilmSpan(begin=0, length=100_000, frame_ticks=Fraction(100))
    keyframes = [n * 2500 for n in range(40)]
    stretches = plan_film(span, keyframes=keyframes, count=4, warm_up_frames=20)
    assert len(stretches) == 4
    for stretch in stretches[1:]:
        assert (stretch.warm_up_from - 400) in keyframes
        assert stretch.begin == stretch.warm_up_from + 2000


@pytest.mark.parametrize(
    ("frames", "warm_up", "most", "count"),
    [
        (0, 192, None, 1),
        (767, 192, None, 1),  # half of it is shorter than twice the warm-up
        (768, 192, None, 2),
        (1000, 192, None, 2),
        (6000, 192, None, 8),
        (108_000, 192, None, 32),
        (108_000, 16, None, 92),
        (60, 20, 15, 3),  # not shorter than the warm-up
        (60, 0, 15, 4),
        (500, 192, 100_000, 1),
    ],
)
def test_how_many_there_are(frames, warm_up, most, count):
    assert stretch_count(frames, warm_up_frames=warm_up, opening_frames=10, most_frames=most) == count


@pytest.mark.parametrize(
    ("frames", "count"),
    [(1800, 1), (3599, 1), (3600, 2), (12_000, 6), (48_000, 14)],
)
def test_a_stretch_is_long_beside_the_opening_of_decoders(frames, count):
    assert stretch_count(frames, warm_up_frames=192, opening_frames=300) == count


@given(frames=st.integers(0, 10**6), warm_up=st.integers(0, 500), opening=st.integers(1, 300))
def test_warm_ups_are_less_than_half_of_a_film(frames, warm_up, opening):
    count = stretch_count(frames, warm_up_frames=warm_up, opening_frames=opening)
    assert (count - 1) * warm_up <= frames / 2


def test_keyframes_far_apart_make_long_stretches():
    span = FilmSpan(begin=0, length=1000, frame_ticks=Fraction(1))
    stretches = plan_film(span, keyframes=[0, 480], count=10, warm_up_frames=6)
    begins = [stretch.begin for stretch in stretches]
    assert begins == [None, 10, 490]  # the first keyframe is the start of the video


def test_a_film_of_one_group_is_cut_anywhere():
    span = FilmSpan(begin=0, length=1000, frame_ticks=Fraction(1))
    stretches = plan_film(span, keyframes=[0], count=2, warm_up_frames=6)
    assert [stretch.begin for stretch in stretches] == [None, 500]


@pytest.mark.parametrize(
    "wrong",
    [{"count": 0}, {"warm_up_frames": -1}, {"keyframes": [5, 5]}],
)
def test_nonsense_is_refused(wrong):
    span = FilmSpan(begin=0, length=10, frame_ticks=Fraction(1))
    arguments = {"keyframes": None, "count": 2, "warm_up_frames": 0} | wrong
    with pytest.raises(ValueError, match=r"count|order"):
        plan_film(span, **arguments)
    with pytest.raises(ValueError, match="span"):
        FilmSpan(begin=0, length=-1, frame_ticks=Fraction(1))
