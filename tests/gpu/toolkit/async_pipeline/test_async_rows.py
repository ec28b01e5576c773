"""Tests of batches filled row by row, with a fake CuPy that keeps a diary."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.gpu.toolkit import async_model as async_rows
from vitascope.gpu.toolkit.async_model import BatchRows, RowsInTurn, as_one_batch

SHAPE = (3, 4, 5)


def places_of(count, *, of=4):
    turn = RowsInTurn(of)
    return written([turn.next() for _ in range(count)])


def written(places):
    for number, place in enumerate(places):
        place.rows.view(place.number, SHAPE, np.float32)[...] = number
    return places


def test_what_lies_side_by_side_is_taken_as_it_is(cupy):
    places = places_of(8)
    batch = as_one_batch(places[4:], count=4)
    assert batch.shape == (4, *SHAPE)
    assert [int(row.max()) for row in batch] == [4, 5, 6, 7]
    assert np.shares_memory(batch, places[5].rows.view(1, SHAPE, np.float32))
    assert as_one_batch(places[:3], count=3).shape == (3, *SHAPE)


def test_what_does_not_must_be_brought_together(cupy):
    places = places_of(8)
    assert as_one_batch(places[1:5], count=4) is None  # from two batches
    assert as_one_batch(places[1:3], count=2) is None  # not from the first row
    assert as_one_batch([places[0], places[2]], count=2) is None
    assert as_one_batch([places[0], None], count=2) is None
    assert as_one_batch([None, places[1]], count=2) is None
    assert as_one_batch(places[:3], count=4) is None  # one row was not written


def test_a_picture_of_another_size_or_type_lies_elsewhere(cupy):
    rows = BatchRows(2)
    assert rows.first(2) is None
    assert rows.view(0, SHAPE, np.float32) is not None
    assert rows.view(1, (3, 4, 6), np.float32) is None
    assert rows.view(1, SHAPE, np.float16) is None


def test_other_streams_wait_for_the_one_that_allocated(cupy):
    cupy.is_slow = True
    rows = BatchRows(3)
    with cupy.cuda.Stream() as first:
        rows.view(0, SHAPE, np.float32)
        rows.view(1, SHAPE, np.float32)
    with cupy.cuda.Stream() as second:
        rows.view(2, SHAPE, np.float32)
    (recorded,) = [entry for entry in cupy.diary if entry[0] == "record"]
    assert recorded[1] == first.ptr
    assert [entry for entry in cupy.diary if entry[0] == "wait"] == [("wait", second.ptr, recorded[2])]


def test_behind_a_short_batch_frames_lie_side_by_side_again(cupy):
    turn = RowsInTurn(4)
    before = written(
        [turn.next() for _ in range(6)]
    )  # the last two are in progress when the short batch leaves
    turn.align(3)
    after = written([turn.next() for _ in range(13)])
    frames = [*before, *after]
    batches = [frames[:3], *(frames[first : first + 4] for first in range(3, 19, 4))]
    assert [as_one_batch(batch, count=len(batch)) is not None for batch in batches] == [
        True, False, True, True, True
    ]  # fmt: skip


@pytest.mark.parametrize("gathered", [[4, 4, 3, 4, 2, 4, 4, 4], [1, 4, 4, 1, 1, 4, 4], [4] * 5])
def test_places_follow_what_was_gathered(cupy, gathered):
    """Check that every batch is contiguous if nothing is in progress in between."""
    turn, total = RowsInTurn(4), 0
    for count in gathered:
        batch = written([turn.next() for _ in range(count)])
        total += count
        turn.align(total)
        assert as_one_batch(batch, count=count) is not None


def test_what_would_be_too_large_together_lies_elsewhere(cupy, monkeypatch):
    monkeypatch.setattr(async_rows, "_MOST_BYTES", 4 * 60 * 4 - 1)
    rows = BatchRows(4)
    assert rows.view(0, SHAPE, np.float32) is None
    assert rows.view(1, SHAPE, np.float32) is None
    assert rows.first(2) is None
    assert BatchRows(3).view(0, SHAPE, np.float32) is not None


def test_without_memory_for_all_each_lies_elsewhere(cupy, monkeypatch):
    tried = []

    def full(shape, dtype):
        tried.append(shape)
        raise cupy.cuda.memory.OutOfMemoryError

    monkeypatch.setattr(cupy, "empty", full)
    rows = BatchRows(4)
    assert rows.view(0, SHAPE, np.float32) is None
    assert rows.view(1, SHAPE, np.float32) is None
    assert tried == [(4, *SHAPE)]  # one attempt
