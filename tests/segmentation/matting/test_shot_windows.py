"""Tests of windows of shots, in whatever batches frames arrive."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lever_network import frame_of
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shot_windows import FOLLOWING_FRAMES, WINDOW_FRAMES, ShotWindows

FRAME = frame_of([])
MOST = WINDOW_FRAMES + FOLLOWING_FRAMES


def batch_of(numbers, starts):
    frames = [replace(FRAME, index=number) for number in numbers]
    return Batch(frames, np.zeros((len(frames), 1, 1, 1, 1), np.float32), list(map(Change, starts)))


def numbers_of(frames):
    return [frame.index for frame in frames]


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=9),
)
def test_windows_are_counted_from_a_shots_beginning_and_know_what_follows(lengths, sizes):
    ends = np.cumsum(lengths).tolist()
    starts = [number in ends for number in range(ends[-1])]
    windows, came_out, at = ShotWindows(), [], 0
    while at < len(starts):
        part = range(at, min(at + sizes[at % len(sizes)], len(starts)))
        came_out += windows.add(batch_of(part, (starts[number] for number in part)))
        at = part.stop
        assert at - sum(map(len, came_out)) < MOST
        assert not any(one.is_cut_short for one in came_out)
    came_out += windows.flush()
    begin = 0
    expected = []
    for end in ends:
        expected += [(at, min(at + WINDOW_FRAMES, end), end) for at in range(begin, end, WINDOW_FRAMES)]
        begin = end
    assert len(came_out) == len(expected)
    for window, (first, end, shot_end) in zip(came_out, expected, strict=True):
        assert numbers_of(window.frames) == list(range(first, end))
        assert numbers_of(window.following) == list(range(end, min(end + FOLLOWING_FRAMES, shot_end)))
        assert [bool(one) for one in window.starts_shot] == starts[first:end]
    assert came_out[-1].is_cut_short
    assert windows.flush() == []


def test_what_needs_no_pictures_does_not_wait_and_what_follows_begins_anew():
    windows = ShotWindows()
    known = Batch([FRAME] * 2, None, [Change.SMALL] * 2)
    assert windows.add(batch_of(range(3), [False] * 3)) == []
    before, same = windows.add(known)
    assert (numbers_of(before.frames), same) == ([0, 1, 2], known)
    assert not before.is_cut_short
    (window,) = windows.add(batch_of(range(5, 5 + MOST), [False] * MOST))
    assert numbers_of(window.frames) == list(range(5, 5 + WINDOW_FRAMES))


def test_memory_of_what_a_window_is_made_of_is_held_and_no_more():
    """Check a long shot: a chain of batches would hold the whole video."""
    windows, of_a_batch = ShotWindows(), 7
    for number in range(60):
        for window in windows.add(
            batch_of(range(of_a_batch * number, of_a_batch * (number + 1)), [False] * of_a_batch)
        ):
            assert len(window.made_of) <= WINDOW_FRAMES // of_a_batch + 2
            assert not any(one.made_of for one in window.made_of)


@pytest.mark.parametrize(("size", "length"), [((64, 64), 24), ((4096, 8192), 13), ((8192, 8192), 8)])
def test_large_frames_make_short_windows(size, length):
    planes = [
        np.broadcast_to(np.uint8(0), size),
        *[np.broadcast_to(np.uint8(0), (size[0] // 2, size[1] // 2))] * 2,
    ]
    frames = [FRAME.with_planes(planes)] * MOST
    batch = Batch(frames, np.zeros((MOST, 1, 1, 1, 1), np.float32), [Change.SMALL] * MOST)
    assert len(ShotWindows().add(batch)[0]) == length
