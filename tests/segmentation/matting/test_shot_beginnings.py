"""Tests of the frames that are held at the beginning of a shot."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lever_network import frame_of
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.scene_cuts import Change
from vitascope.segmentation.matting.shot_windows import ShotBeginnings

FRAME = frame_of([])


def batch_of(numbers, starts):
    images = np.array(numbers, np.float32).reshape(-1, 1, 1, 1, 1)
    return Batch([FRAME] * len(numbers), images, list(map(Change, starts)), tiles=images[:, 0])


def numbers_of(batch):
    assert len(batch) == len(batch.images) == len(batch.starts_shot) == len(batch.tiles)
    return [int(number) for number in batch.images.flat]


@given(
    starts=st.lists(st.booleans(), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 9), min_size=40, max_size=40),
    frames=st.integers(0, 12),
)
def test_a_shot_begins_with_all_its_first_frames_in_one_batch(starts, sizes, frames):
    beginnings, came_out, at = ShotBeginnings(frames), [], 0
    for size in sizes:
        if at >= len(starts):
            break
        part = range(at, min(at + size, len(starts)))
        came_out += beginnings.add(batch_of(part, (starts[n] for n in part)))
        at += len(part)
        assert at - sum(map(len, came_out)) < max(frames, 1)
    came_out += beginnings.flush()
    assert [number for batch in came_out for number in numbers_of(batch)] == list(range(len(starts)))
    begins = [n for n, starts_shot in enumerate(starts) if starts_shot or n == 0]
    for batch in came_out:
        numbers = numbers_of(batch)
        assert [bool(s) for s in batch.starts_shot] == [starts[n] for n in numbers]
        for begin in set(begins).intersection(numbers):
            end = min([n for n in begins if n > begin] + [len(starts), begin + frames])
            assert set(range(begin, end)) <= set(numbers)
    assert beginnings.flush() == []


def test_what_needs_no_pictures_does_not_wait_and_what_follows_begins_anew():
    beginnings = ShotBeginnings(4)
    known = Batch([FRAME] * 2, None, [Change.SMALL] * 2)
    assert beginnings.add(known) == [known]
    assert beginnings.add(batch_of([0, 1], [False] * 2)) == []
    (whole,) = beginnings.add(batch_of([2, 3], [False] * 2))
    assert numbers_of(whole) == [0, 1, 2, 3]
    assert len(whole.made_of) == 2
    assert not whole.is_cut_short


def test_the_end_of_a_run_cuts_a_beginning_short():
    beginnings = ShotBeginnings(4)
    (whole,) = beginnings.add(batch_of(range(6), [False] * 5 + [True]))
    assert numbers_of(whole) == [0, 1, 2, 3, 4]
    (rest,) = beginnings.flush()
    assert numbers_of(rest) == [5]
    assert rest.is_cut_short
    assert rest.take([0]).is_cut_short


def test_memory_of_what_a_batch_is_made_of_is_held_and_no_more():
    """Check short shots: a chain of batches would hold the whole video."""
    beginnings = ShotBeginnings(8)
    for number in range(50):
        for batch in beginnings.add(batch_of([2 * number, 2 * number + 1], [False, True])):
            assert len(batch.made_of) <= 2
            assert not any(one.made_of for one in batch.made_of)


def test_joined_batches_hold_their_pictures_as_they_came():
    pictures = np.arange(7 * 2 * 3, dtype=np.float32).reshape(7, 2, 3)
    batches = [
        Batch([None] * len(part), part, shown=part + 100, tiles=part)
        for part in (pictures[:2], pictures[2:3], pictures[3:])
    ]
    joined = Batch.joined([Batch.joined(batches[:2]), batches[2]])
    assert (len(joined.images), joined.images.shape) == (7, pictures.shape)
    assert (joined.images.size, joined.images.nbytes) == (pictures.size, pictures.nbytes)
    np.testing.assert_array_equal(joined.tiles, pictures)
    np.testing.assert_array_equal(joined.shown.together(), pictures + 100)
    for first, end in ((0, 1), (1, 4), (3, 7), (2, 2)):
        part = joined.images[first:end]
        np.testing.assert_array_equal(part.together(), pictures[first:end])
    assert np.shares_memory(joined.images[4], pictures)
    taken = joined.take([0, 3, 5])
    np.testing.assert_array_equal(taken.images.together(), pictures[[0, 3, 5]])
    np.testing.assert_array_equal(joined.take([1, 2]).shown.together(), pictures[1:3] + 100)
