"""Tests of maps drawn from triangles, against OpenCV's and against affine functions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from faces import SIZE, made_face
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import FaceMotion, rotation_from_degrees
from vitascope.animation.mesh.deform import Gains, bend
from vitascope.animation.mesh.layers import Patch
from vitascope.animation.mesh.maps import (
    MapGrid,
    draw_around,
    draw_folds,
    draw_maps,
    draw_triangles,
    feature_grid,
    find_folds,
    pixel_grid,
    plan_maps,
)
from vitascope.animation.mesh.rig import build_rig


def grid_of_triangles(rng, *, count, size):
    """Make points and triangles of a jittered grid that covers a rectangle."""
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
        """Return the signed distance of all samples from a line."""
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


def test_maps_drawn_in_one_go_are_those_drawn_one_by_one():
    points, triangles = grid_of_triangles(np.random.default_rng(4), count=7, size=(90, 60))
    shown = points @ np.array([[0.9, 0.2], [0.1, 1.1]], np.float32)
    parts = [
        (triangles, MapGrid(0.0, 0.0, 3, 30, 20)),
        (triangles[:0], MapGrid(0.0, 0.0, 1, 8, 8)),  # nothing to draw
        (triangles[::-1], MapGrid(70.5, 40.5, 1, 40, 12)),  # also outside the edge
        (triangles, MapGrid(500.0, 500.0, 1, 5, 5)),  # all outside
    ]
    together = draw_maps(shown, points, parts)
    assert len(together) == len(parts)
    for drawn, (some, grid) in zip(together, parts, strict=True):
        made, expected = (np.full((grid.height, grid.width, 2), -1, np.float32) for _ in range(2))
        drawn.onto(made)
        draw_triangles(shown, points, some, grid=grid, into=expected)
        assert (made == expected).all()
    assert [len(drawn.places) > 0 for drawn in together] == [True, False, True, False]
    with pytest.raises(ValueError, match="needed is for a single map, not for 4"):
        draw_maps(shown, points, parts, needed=np.ones((21, 31), np.int32))


def grid_of(step, *, size):
    """Make samples in the middles of squares of ``step`` pixels, with a border of one sample."""
    first = (step - 1) / 2 - step
    return MapGrid(first, first, step, -(-size // step) + 2, -(-size // step) + 2)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
@pytest.mark.parametrize("corner", [(0, 0), (7, 5), (13, 2)])
def test_folds_are_found_where_a_map_folds_and_nowhere_else(step, corner):
    grid = grid_of(step, size=60)
    within = Patch(*corner, 60 - corner[0], 60 - corner[1])
    assert not find_folds(grid.blank(), grid=grid, within=within).any()
    folded = grid.blank()
    last = int(np.flatnonzero(folded[0, :, 0] <= 20)[-1])
    folded[:, last + 1 :, 0] += 30
    found = find_folds(folded, grid=grid, within=within)
    first = folded[0, last, 0]
    expected = [x for x in range(60) if first <= x < first + step]
    assert found.shape == (within.height, within.width)
    assert (np.flatnonzero(found.all(axis=0)) + corner[0]).tolist() == expected
    assert found.any(axis=0).sum() == len(expected)


def test_a_fold_outside_of_the_part_is_left():
    grid = MapGrid(-1.0, -1.0, 1, 42, 42)
    folded = grid.blank()
    folded[:, 30:, 0] += 20
    assert not find_folds(folded, grid=grid, within=Patch(0, 0, 20, 40)).any()


def test_colours_are_mixed_where_the_finest_map_folds():
    rgb = np.zeros((60, 90, 3), np.uint8)
    rgb[:, 45:] = 200
    grid = grid_of(1, size=60)
    folded = grid.blank()
    columns = folded[0, :, 0] > 20
    folded[:, columns, 0] += 30  # right of column 20 is the light part of the picture
    out = np.full((60, 60, 3), 7, np.uint8)
    within = Patch(0, 0, 60, 60)
    draw_folds(out, rgb, find_folds(folded, grid=grid, within=within), folded, grid=grid, within=within)
    assert np.flatnonzero((out != 7).any(axis=(0, 2))).tolist() == [20]
    assert out[30, 20, 0] == pytest.approx(100, abs=1)


@pytest.mark.parametrize("step", [2, 4, 7])
def test_skin_ends_in_a_straight_line_whatever_the_steps_of_the_map(step):
    """Check a light sheet in front of a dark one: its slanting border is as exact as pixels allow."""
    corners = np.array([[-20, -20], [100, -20], [100, 100], [-20, 100]], np.float32)
    sheet = np.array([[21, -20], [100, -20], [100, 100], [57, 100]], np.float32)
    rgb = np.zeros((100, 300, 3), np.uint8)
    rgb[:, 150:] = 240
    places = np.concatenate((corners, sheet))
    sources = np.concatenate((corners, sheet + np.array([170, 0], np.float32)))
    triangles = np.array([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]], np.int32)
    grid, within = grid_of(step, size=80), Patch(3, 2, 70, 72)
    coarse = grid.blank()
    draw_triangles(sources, places, triangles, grid=grid, into=coarse)
    folded = find_folds(coarse, grid=grid, within=within)
    out = np.zeros((80, 80, 3), np.uint8)
    bent = SimpleNamespace(places=places, sources=sources)
    finest = draw_around(folded, bent, triangles, within=within, coarse=coarse, coarse_grid=grid)
    draw_folds(out, rgb, folded, finest, grid=pixel_grid(within), within=within)
    rows, columns = np.nonzero(folded)
    rows, columns = rows + within.top, columns + within.left
    border = 21 + (rows + 20) * (57 - 21) / 120
    light = out[rows, columns, 0] / 240
    assert (light[columns > border + 1] == 1).all()
    assert not light[columns < border - 1].any()
    inside = np.clip(columns - border + 0.5, 0, 1)
    assert np.abs(light - inside).max() < 0.35
    ends = np.bincount(rows, light - inside)  # each row's distance from its end to the border
    assert np.abs(ends).max() < 0.6 and abs(ends.mean()) < 0.1


def test_what_no_triangle_covers_is_read_in_the_coarser_map(monkeypatch):
    """A new map's memory is arbitrary, and must not show at a fold."""
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda *shape, **kind: np.full_like(empty(*shape, **kind), 1e6))
    grid, within = grid_of(3, size=30), Patch(3, 2, 20, 16)
    folded = np.ones((within.height, within.width), np.bool_)
    corners = np.array([[-1, -1], [12, -1], [12, 30], [-1, 30]], np.float32)
    bent = SimpleNamespace(places=corners, sources=corners + np.array([40, 0], np.float32))
    triangles = np.array([[0, 1, 2], [0, 2, 3]], np.int32)
    coarse = grid.blank() * np.float32(1.5)
    made = draw_around(folded, bent, triangles, within=within, coarse=coarse, coarse_grid=grid)
    place = pixel_grid(within).blank()
    covered = place[..., :1] <= 12
    assert 0 < covered.mean() < 1
    assert made == pytest.approx(
        np.where(covered, place + np.array([40, 0], np.float32), place * 1.5), abs=1e-3
    )


def test_the_nose_of_a_bowed_head_covers_the_lip_in_the_mouths_map_too(mesh):
    basis = ExpressionBasis(mesh)
    smile = sum(
        1.2 * basis.field(f"mouthSmile{at}") + basis.field(f"mouthUpperUp{at}") for at in ("Left", "Right")
    )
    smile = np.asarray(smile, np.float32)
    rig = build_rig(mesh, made_face(mesh, scale=18.0, pitch=-16), size=SIZE[::-1])
    motion = FaceMotion(rotation=rotation_from_degrees(0, -22, 0), vertices=smile)
    bent = bend(rig, mesh, motion, displacement=smile, gains=Gains())
    mouth = plan_maps(rig, mesh).features[2]
    patch = mouth.patch(bent)
    assert bent.places[4, 1] > patch.top + 1  # the tip of the nose covers the lip
    order = np.argsort(-bent.depths[rig.skin_triangles].sum(axis=1), kind="stable")
    triangles = rig.skin_triangles[order]
    grid, maps = feature_grid(mouth, patch), []
    for part in (triangles, triangles[mouth.of_skin[order]]):
        maps.append(np.full((grid.height, grid.width, 2), np.nan, np.float32))
        draw_triangles(bent.sources, bent.places, part, grid=grid, into=maps[-1])
    drawn = np.isfinite(maps[1]).all(axis=-1)
    assert drawn.any()
    assert np.abs(maps[0] - maps[1])[drawn].max() < 0.01
