"""Batches that are filled row by row, on a CuPy that keeps a diary."""

from __future__ import annotations

import sys
from itertools import islice

import numpy as np
import pytest

from fake_cupy import fake_cupy
from vitascope.gpu.async_rows import BatchRows, as_one_batch, rows_in_turn

SHAPE = (3, 4, 5)


@pytest.fixture
def cupy(monkeypatch):
    module = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def written(places):
    for number, place in enumerate(places):
        place.rows.view(place.number, SHAPE, np.float32)[...] = number
    return places


def test_what_lies_side_by_side_is_taken_as_it_is(cupy):
    places = written(list(islice(rows_in_turn(4), 8)))
    batch = as_one_batch(places[4:], count=4)
    assert batch.shape == (4, *SHAPE)
    assert [int(row.max()) for row in batch] == [4, 5, 6, 7]
    assert np.shares_memory(batch, places[5].rows.view(1, SHAPE, np.float32))
    assert as_one_batch(places[:3], count=3).shape == (3, *SHAPE)


def test_what_does_not_must_be_brought_together(cupy):
    places = written(list(islice(rows_in_turn(4), 8)))
    assert as_one_batch(places[1:5], count=4) is None  # of two batches
    assert as_one_batch(places[1:3], count=2) is None  # not from the first row on
    assert as_one_batch([places[0], places[2]], count=2) is None
    assert as_one_batch([places[0], None], count=2) is None
    assert as_one_batch([None, places[1]], count=2) is None
    assert as_one_batch(places[:3], count=4) is None  # a row that nobody wrote


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
