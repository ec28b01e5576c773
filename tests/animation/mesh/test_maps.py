"""Maps drawn from triangles, against OpenCV's and against affine functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.animation.mesh.layers import Patch
from vitascope.animation.mesh.maps import MapGrid, draw_triangles, mix_at_folds


def grid_of_triangles(rng, *, count, size):
    """A jittered grid that covers a rectangle, as points and triangles."""
    xs, ys = np.meshgrid(np.linspace(0, size[0], count), np.linspace(0, size[1], count))
    points = np.stack((xs, ys), -1)
    step = size[0] / (count - 1)
    points[1:-1, 1:-1] += rng.uniform(-0.3, 0.3, (count - 2, count - 2, 2)) * step
    index = np.arange(count * count).reshape(count, count)
    a, b, c, d = index[:-1, :-1], index[:-1, 1:], index[1:, :-1], index[1:, 1:]
    triangles = np.concatenate(
        (np.stack((a, b, c), -1).reshape(-1, 3), np.stack((b, d, c), -1).reshape(-1, 3))
    )
    return points.reshape(-1, 2).astype(np.float32), triangles.astype(np.int32)


@pytest.mark.parametrize("step", [1, 3])
def test_an_affine_picture_is_read_exactly_and_nothing_is_left_out(step):
    points, triangles = grid_of_triangles(np.random.default_rng(0), count=9, size=(200, 120))
    grid = MapGrid(1.0, 2.0, step, 190 // step, 110 // step)
    matrix = np.array([[0.8, 0.1], [-0.2, 1.3]], np.float32)
    made = np.full((grid.height, grid.width, 2), np.nan, np.float32)
    draw_triangles(points @ matrix + 5, points, triangles, grid=grid, into=made)
    assert np.isfinite(made).all()
    assert np.allclose(made, grid.blank() @ matrix + 5, atol=2e-3)


def test_later_triangles_cover_earlier_ones():
    places = np.array([[0, 0], [20, 0], [0, 20], [0, 0], [20, 0], [0, 20]], np.float32)
    sources = np.repeat(np.array([[1, 1], [2, 2]], np.float32), 3, axis=0)
    triangles = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    grid = MapGrid(0, 0, 1, 20, 20)
    for order, shown in (((0, 1), 2.0), ((1, 0), 1.0)):
        made = grid.blank() * 0
        draw_triangles(sources, places, triangles[list(order)], grid=grid, into=made)
        assert made[3, 3, 0] == pytest.approx(shown)
        assert made[19, 19, 0] == 0


coordinate = st.floats(-30, 60, width=32)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=3))
def test_a_triangle_covers_what_lies_in_it(corners):
    places = np.array(corners, np.float32)
    grid = MapGrid(0, 0, 1, 40, 32)
    made = np.zeros((grid.height, grid.width, 2), np.float32)
    draw_triangles(np.ones((3, 2), np.float32), places, np.array([[0, 1, 2]], np.int32), grid=grid, into=made)
    a, b, c = places.astype(np.float64)
    samples = grid.blank().astype(np.float64)

    def left_of(p, q):
        """Signed distance of all samples from a line."""
        along = (q - p) / max(np.linalg.norm(q - p), 1e-9)
        return along[0] * (samples[..., 1] - p[1]) - along[1] * (samples[..., 0] - p[0])

    sides = np.stack([left_of(a, b), left_of(b, c), left_of(c, a)])
    inside = (sides > 0.02).all(axis=0) | (sides < -0.02).all(axis=0)
    outside = ~((sides > -0.02).all(axis=0) | (sides < 0.02).all(axis=0))
    drawn = made[..., 0] > 0
    assert drawn[inside].all()
    assert not drawn[outside].any()


def test_lines_and_points_do_no_harm():
    places = np.array([[5, 5], [5, 5], [5, 5], [1, 3], [9, 3], [4, 3]], np.float32)
    made = np.zeros((10, 10, 2), np.float32)
    grid = MapGrid(0, 0, 1, 10, 10)
    draw_triangles(places, places, np.array([[0, 1, 2], [3, 4, 5]], np.int32), grid=grid, into=made)
    assert np.isfinite(made).all()
    draw_triangles(places, places, np.empty((0, 3), np.int32), grid=grid, into=made)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_colours_are_mixed_where_a_map_folds_and_nowhere_else(step):
    rgb = np.zeros((60, 90, 3), np.uint8)
    rgb[:, 45:] = 200
    grid = MapGrid((step - 1) / 2 - step, (step - 1) / 2 - step, step, 60 // step + 2, 60 // step + 2)
    whole = Patch(0, 0, 60, 60)

    def drawn(places):
        out = np.full((60, 60, 3), 7, np.uint8)
        mix_at_folds(out, rgb, places, grid=grid, within=whole)
        return out

    assert (drawn(grid.blank()) == 7).all()
    folded = grid.blank()
    columns = folded[0, :, 0] > 20
    folded[:, columns, 0] += 30  # what is right of column 20 shows the light part of the picture
    out = drawn(folded)
    changed = np.nonzero((out != 7).any(axis=(0, 2)))[0]
    assert 1 <= len(changed) <= step and 19 <= changed[0] <= changed[-1] <= 21
    mixed = out[30, changed, 0].astype(int)
    assert ((mixed > 0) & (mixed < 200)).all() and (np.diff(mixed) > 0).all()
    assert mixed.mean() == pytest.approx(100, abs=5)


def test_a_fold_outside_of_the_part_is_left():
    grid = MapGrid(-1.0, -1.0, 1, 42, 42)
    folded = grid.blank()
    folded[:, 30:, 0] += 20
    rgb = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    out = np.full((40, 40, 3), 7, np.uint8)
    mix_at_folds(out, rgb, folded, grid=grid, within=Patch(0, 0, 20, 40))
    assert (out == 7).all()
