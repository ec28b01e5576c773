"""Tests of sharing a strip by colour, between two people of one colour each."""

import numpy as np
import pytest

from vitascope.segmentation.people.strip_colors import shares_by_color

SIZE, LINE, CELL = (48, 80), 41, 4.0
RED, BLUE = np.float32((0.8, 0.1, 0.1)), np.float32((0.1, 0.2, 0.7))


def two(left=RED, right=BLUE):
    """Draw two people; the left one ends within a cell."""
    rgb = np.empty((*SIZE, 3), np.float32)
    rgb[:, :LINE], rgb[:, LINE:] = left, right
    return rgb


def by_cells(column):
    """Return the left one's share by cells, which is accurate to a cell."""
    share = np.zeros(SIZE, np.float32)
    share[:, :column] = 1
    return share


@pytest.mark.parametrize("column", [38, 40, 44])
def test_the_line_is_where_colours_change(column):
    alpha = np.ones(SIZE, np.float32)
    found = shares_by_color(two(), by_cells(column), alpha, cell=CELL)
    assert np.abs(found - by_cells(LINE)).max() < 0.15
    assert found.dtype == np.float32


def test_of_two_who_look_alike_cells_tell():
    found = shares_by_color(
        two(RED, RED + np.float32(0.01)), by_cells(44), np.ones(SIZE, np.float32), cell=CELL
    )
    assert np.abs(found - by_cells(44)).max() < 0.05


def test_beyond_the_strip_and_beside_nobody_all_stays():
    rgb = two()
    rgb[:, 60:] = RED
    alpha = np.ones(SIZE, np.float32)
    found = shares_by_color(rgb, by_cells(40), alpha, cell=CELL)
    assert not found[:, 60:].any()  # a distant person in the kept one's colour
    alpha[:, LINE:] = 0
    found = shares_by_color(rgb, by_cells(40), alpha, cell=CELL)
    assert np.abs(found - by_cells(40)).max() < 0.05


def test_one_alone_is_left_as_they_are():
    for share in (np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)):
        assert shares_by_color(two(), share, np.ones(SIZE, np.float32), cell=CELL) is share
    far = by_cells(40)
    assert shares_by_color(two(), far, np.zeros(SIZE, np.float32), cell=CELL) is far
