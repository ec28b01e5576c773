"""Tests of projections against their inverse, against each other, and against known places."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.gpu.kernels.remap import remap
from vitascope.vr.projection import (
    OUTSIDE,
    Equirectangular,
    Fisheye,
    Lens,
    Rectilinear,
    reprojection_map,
    turned,
)

fovs = st.floats(20, 360)
lenses = st.one_of(
    st.builds(Equirectangular, fovs, st.floats(20, 180)),
    st.builds(
        Fisheye,
        st.floats(20, 359),
        st.tuples(st.floats(0.4, 0.6), st.floats(0.4, 0.6)),
        st.tuples(st.floats(0.2, 0.6), st.floats(0.2, 0.6)),
    ),
    st.builds(
        lambda fov, share: Fisheye(fov, bend=share * 180 / fov), st.floats(20, 359), st.floats(1e-3, 0.95)
    ),
    st.builds(Rectilinear, st.floats(20, 170), st.floats(20, 170)),
)


@given(lens=lenses, x=st.floats(0, 1), y=st.floats(0, 1))
def test_projecting_undoes_unprojecting(lens: Lens, x: float, y: float) -> None:
    rays = lens.unproject(np.array([x]), np.array([y]))
    if np.isnan(rays).any():
        return  # outside the circle
    assert np.linalg.norm(rays, axis=0) == pytest.approx(1.0)
    back_x, back_y = lens.project(rays)
    tolerance = 0.1 / 8192  # a tenth of a sample of an 8K picture
    if isinstance(lens, Equirectangular) and (lens.vertical_fov_degrees == 180 or lens.wraps):
        assert lens.unproject(back_x, back_y) == pytest.approx(
            rays, abs=1e-9
        )  # a pole or the seam has many places
    else:
        assert back_x[0] == pytest.approx(x, abs=tolerance)
        assert back_y[0] == pytest.approx(y, abs=tolerance)


@pytest.mark.parametrize(
    ("lens", "ray", "place"),
    [
        (Equirectangular(180, 180), (0, 0, 1), (0.5, 0.5)),
        (Equirectangular(180, 180), (1, 0, 1), (0.75, 0.5)),
        (Equirectangular(360, 180), (1, 0, 0), (0.75, 0.5)),
        (Equirectangular(180, 180), (0, 1, 1), (0.5, 0.75)),
        (Fisheye(180), (1, 0, 0), (1.0, 0.5)),
        (Fisheye(180), (0, -1, 1), (0.5, 0.25)),
        (Fisheye(200), (0, 1, 0), (0.5, 0.95)),
        (Fisheye(180, (0.4, 0.5), (0.2, 0.3)), (1, 0, 1), (0.5, 0.5)),
        (Fisheye(180, bend=0.5), (1, 0, 0), (1.0, 0.5)),
        (Fisheye(180, bend=0.5), (0, 3, 4), (0.5, 0.5 + 0.5 / 3)),  # stereographic: y / (1 + z)
        (Fisheye(90, bend=1), (0, 1, 2), (0.5, 0.75)),  # as in a flat picture
        (Rectilinear(90, 90), (1, 0, 1), (1.0, 0.5)),
        (Rectilinear(90, 60), (0, 0, 2), (0.5, 0.5)),
    ],
)
def test_known_places(lens: Lens, ray: tuple[float, ...], place: tuple[float, float]) -> None:
    x, y = lens.project(np.array(ray, float).reshape(3, 1))
    assert (x[0], y[0]) == pytest.approx(place)


@pytest.mark.parametrize(
    ("lens", "ray"),
    [
        (Equirectangular(180, 180), (0, 0, -1)),
        (Fisheye(180), (0.01, 0, -1)),
        (Fisheye(180, bend=0.5), (0.01, 0, -1)),
        (Fisheye(120, bend=1), (0.01, 0, -1)),
        (Rectilinear(90, 90), (0, 0, -1)),
        (Rectilinear(90, 90), (2, 0, 1)),
    ],
)
def test_what_a_picture_does_not_show(lens: Lens, ray: tuple[float, ...]) -> None:
    x, y = lens.project(np.array(ray, float).reshape(3, 1))
    assert np.isnan(x[0])
    assert np.isnan(y[0])


def test_a_stereographic_picture_keeps_shapes() -> None:
    """Check a small square of directions: it stays square, also near the rim; an equidistant fisheye stretches it."""
    angle = np.radians(np.array([80.0, 81.0, 80.0]))
    turn = np.radians(np.array([0.0, 0.0, 1 / np.sin(np.radians(80))]))  # one degree of arc to the side
    rays = np.stack([np.sin(angle) * np.cos(turn), np.sin(angle) * np.sin(turn), np.cos(angle)])
    for bend, stretch in ((0.5, 1.0), (0.0, np.radians(80) / np.sin(np.radians(80)))):
        x, y = Fisheye(180, bend=bend).project(rays)
        outwards, aside = np.hypot(x[1] - x[0], y[1] - y[0]), np.hypot(x[2] - x[0], y[2] - y[0])
        assert aside / outwards == pytest.approx(stretch, rel=0.02)


def test_a_fisheye_shows_nothing_outside_its_circle() -> None:
    assert np.isnan(Fisheye(180).unproject(np.array([0.01]), np.array([0.01]))).all()


@pytest.mark.parametrize(
    ("yaw", "pitch", "place"), [(0, 0, (0.5, 0.5)), (45, 0, (0.75, 0.5)), (0, 45, (0.5, 0.25))]
)
def test_a_turned_camera_looks_right_and_up(yaw: float, pitch: float, place: tuple[float, float]) -> None:
    ahead = turned(yaw_degrees=yaw, pitch_degrees=pitch) @ np.array([[0.0], [0.0], [1.0]])
    x, y = Equirectangular(180, 180).project(ahead)
    assert (x[0], y[0]) == pytest.approx(place)


def test_a_map_to_the_same_projection_is_the_picture() -> None:
    lens = Equirectangular(180, 180)
    map_x, map_y = reprojection_map(lens, lens, source_size=(33, 47), target_size=(33, 47))
    columns, rows = np.meshgrid(np.arange(47), np.arange(33))
    np.testing.assert_allclose(map_x, columns, rtol=0, atol=1e-3, equal_nan=False)
    np.testing.assert_allclose(map_y, rows, rtol=0, atol=1e-3, equal_nan=False)


def test_a_picture_survives_the_way_to_a_fisheye_and_back() -> None:
    equirect, fisheye = Equirectangular(180, 180), Fisheye(180)
    y, x = np.mgrid[0:256, 0:256] / 256
    picture = np.float32(np.sin(9 * x) * np.cos(7 * y))
    there = reprojection_map(equirect, fisheye, source_size=(256, 256), target_size=(512, 512))
    back = reprojection_map(fisheye, equirect, source_size=(512, 512), target_size=(256, 256))
    again = remap(remap(picture, *there), *back)
    # Near the border, a bilinear sample at the circle's edge reads what is outside it.
    np.testing.assert_allclose(
        again[16:-16, 16:-16], picture[16:-16, 16:-16], rtol=0, atol=0.01, equal_nan=False
    )


def test_maps_point_outside_where_the_source_shows_nothing() -> None:
    map_x, map_y = reprojection_map(
        Fisheye(180), Equirectangular(360, 180), source_size=(64, 64), target_size=(64, 128)
    )
    assert (map_x[:, :30] == OUTSIDE).all()
    assert (map_y[:, :30] == OUTSIDE).all()
    assert (map_x[:, 34:94] > -1).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Equirectangular(361, 180), "at most 360"),
        (lambda: Equirectangular(180, 181), "at most 180"),
        (lambda: Fisheye(0), "more than 0"),
        (lambda: Fisheye(180, radius=(0.0, 0.5)), "radius"),
        (lambda: Fisheye(200, bend=-0.1), "bend of -0.1"),
        (lambda: Fisheye(200, bend=0.9), "below 0.9"),
        (lambda: Rectilinear(180, 90), "at most 180"),
    ],
)
def test_impossible_lenses_are_refused(make, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("fov_degrees", "mean"), [(180, 2 / math.pi), (90, math.sin(math.pi / 4) / (math.pi / 4))]
)
def test_areas_of_rows_are_those_of_bands_of_the_sphere(fov_degrees: float, mean: float) -> None:
    areas = Equirectangular(180, fov_degrees).row_areas(512)
    assert areas.mean() == pytest.approx(mean, rel=1e-5)
    np.testing.assert_allclose(areas, areas[::-1])
    assert areas.argmax() in (255, 256)
