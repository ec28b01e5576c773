"""Tests of synthetic views against independent geometry: solid angles, similar triangles, centroids."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from vitascope.frames import StereoLayout
from vitascope.gpu.kernels.remap import remap
from vitascope.vr.projection import Equirectangular, Fisheye, Lens, Rectilinear
from vitascope.vr.stereo import eye_regions
from vitascope.vr.synthetic import (
    Camera,
    Figure,
    Place,
    Scene,
    Surround,
    View,
    clip,
    drift,
    eye_disagreement,
    noise_surround,
    person_picture,
    render,
    stereo_map,
)

LENSES = [Equirectangular(180, 180), Fisheye(190), Rectilinear(100, 100)]
RED, BLUE = (255, 0, 0, 255), (0, 0, 255, 255)


def board(rgba: tuple[int, ...] = RED, size: tuple[int, int] = (64, 32)) -> npt.NDArray[np.uint8]:
    return np.broadcast_to(np.array(rgba, np.uint8), (*size, 4)).copy()


def disc(side: int = 65) -> npt.NDArray[np.float32]:
    y, x = np.mgrid[:side, :side] - side // 2
    alpha = np.clip(side / 2 - np.hypot(x, y), 0, 1)
    return np.dstack([np.ones((side, side, 3)), alpha]).astype(np.float32)


def mono(lens: Lens, size: tuple[int, int] = (256, 256)) -> Camera:
    return Camera(lens, size, StereoLayout.MONO)


def steradians(lens: Lens, size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """Return the solid angle of each sample: the parallelogram between its neighbours' directions."""
    height, width = size
    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    step = 1e-5
    across = (lens.unproject(x + step, y) - lens.unproject(x - step, y)) / (2 * step * width)
    down = (lens.unproject(x, y + step) - lens.unproject(x, y - step)) / (2 * step * height)
    return np.nan_to_num(np.linalg.norm(np.cross(across, down, axis=0), axis=0))


def centroid(alpha: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Return (x, y) in samples, with centres at whole numbers."""
    y, x = np.mgrid[: alpha.shape[0], : alpha.shape[1]]
    return float((alpha * x).sum() / alpha.sum()), float((alpha * y).sum() / alpha.sum())


def halves(view: View, camera: Camera) -> list[npt.NDArray[np.float32]]:
    return [view.alpha[eye.rows, eye.columns] for eye in camera.regions]


@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize(
    "place", [Place(0, 0, 2), Place(20, -15, 1), Place(-33, 8, 3)], ids=["ahead", "low", "aside"]
)
def test_a_figure_covers_the_solid_angle_that_its_rectangle_has(lens: Lens, place: Place) -> None:
    height, width, far = 1.0, 0.5, place.distance_m
    expected = 4 * math.atan(width * height / (2 * far * math.sqrt(4 * far**2 + width**2 + height**2)))
    view = render(Scene((Figure(board(), place, height_m=height),), camera=mono(lens)))
    assert float((view.alpha * steradians(lens, (256, 256))).sum()) == pytest.approx(expected, rel=0.004)
    assert view.alpha.max() == 1
    half = render(Scene((Figure(board((9, 9, 9, 51)), place, height_m=height),), camera=mono(lens)))
    np.testing.assert_allclose(half.alpha, view.alpha / 5, rtol=0, atol=1e-3, equal_nan=False)


def test_a_figure_behind_the_viewer_goes_on_over_the_seam() -> None:
    lens = Equirectangular(360, 180)
    size = (128, 256)
    view = render(Scene((Figure(board(), Place(178, 0, 2), height_m=1),), camera=mono(lens, size)))
    expected = 4 * math.atan(0.5 / (4 * math.sqrt(16 + 1.25)))
    assert float((view.alpha * steradians(lens, size)).sum()) == pytest.approx(expected, rel=0.01)
    assert view.alpha[64, 0] == 1
    assert view.alpha[64, -1] == 1


@pytest.mark.parametrize(
    ("lens", "rows"),
    [
        (Equirectangular(180, 180), 2 * math.atan(0.25) / math.pi * 256),
        (Fisheye(190), 2 * math.atan(0.25) / math.radians(190) * 256),
        (Rectilinear(100, 100), 0.25 / math.tan(math.radians(50)) * 256),
    ],
)
def test_a_figure_straight_ahead_is_as_tall_as_the_lens_makes_it(lens: Lens, rows: float) -> None:
    for figure in (
        Figure(board(), Place(0, 0, 2), height_m=1.0),
        Figure(board(), Place(0, 0, 7), height_degrees=math.degrees(2 * math.atan(0.25))),
    ):
        view = render(Scene((figure,), camera=mono(lens)))
        assert float(view.alpha[:, 127:129].mean(axis=1).sum()) == pytest.approx(rows, abs=0.3)


def test_edges_are_shares_of_pixels() -> None:
    camera = mono(Rectilinear(90, 90), (64, 64))
    sums = []
    for shift in np.linspace(0, 1, 5):
        degrees = math.degrees(math.atan(shift / 32))
        view = render(Scene((Figure(board(), Place(degrees, 0, 2), height_m=1),), camera=camera))
        sums.append(view.alpha.sum())
        if shift == 0.25:
            assert ((view.alpha > 0.1) & (view.alpha < 0.9)).any()
    assert sums == pytest.approx([128.0] * 5, rel=0.02)


@pytest.mark.parametrize("distance_m", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("azimuth_degrees", [0.0, 25.0])
@pytest.mark.parametrize("lens", LENSES)
def test_the_eyes_see_a_figure_where_triangles_say(
    lens: Lens, azimuth_degrees: float, distance_m: float
) -> None:
    camera = Camera(lens, (512, 1024), eye_distance_m=0.064)
    place = Place(azimuth_degrees, 0, distance_m)
    view = render(Scene((Figure(disc(), place, height_degrees=3),), camera=camera))
    right = distance_m * math.sin(math.radians(azimuth_degrees))
    ahead = distance_m * math.cos(math.radians(azimuth_degrees))
    for alpha, offset in zip(halves(view, camera), (-0.032, 0.032), strict=True):
        if isinstance(lens, Rectilinear):
            share = (right - offset) / ahead / math.tan(math.radians(50)) / 2
        else:
            field = 180 if isinstance(lens, Equirectangular) else 190
            share = math.degrees(math.atan2(right - offset, ahead)) / field
        assert centroid(alpha) == pytest.approx(((share + 0.5) * 512 - 0.5, 255.5), abs=0.1)


@pytest.mark.parametrize("lens", LENSES)
def test_the_other_eye_shows_the_same_where_the_map_says(lens: Lens) -> None:
    camera = Camera(lens, (256, 512))
    figures = (
        Figure(person_picture(256), Place(15, 10, 0.7), height_m=0.5),
        Figure(person_picture(256, seed=1), Place(-20, -20, 1.5), height_m=1),
    )
    view = render(Scene(figures, Surround(noise_surround(256), radius_m=5), camera))
    for eye, (here, there) in enumerate(zip(camera.regions, camera.regions[::-1], strict=True)):
        map_x, map_y = stereo_map(camera, view.depth_m[here.rows, here.columns], eye=eye)
        other = remap(np.ascontiguousarray(view.rgb[there.rows, there.columns]), map_x, map_y)
        seen_by_both = (map_x > 0) & (map_x < 255) & (map_y > 0) & (map_y < 255)
        apart = np.abs(other.astype(int) - view.rgb[here.rows, here.columns])[seen_by_both]
        unmapped = np.abs(view.rgb[:, :256].astype(int) - view.rgb[:, 256:])[seen_by_both]
        assert np.median(apart) <= 2
        assert apart.mean() < unmapped.mean() / 2


def test_the_nearer_figure_hides_the_other() -> None:
    near = Figure(board(RED), Place(0, 0, 1), height_m=0.3)
    far = Figure(board(BLUE), Place(0, 0, 2), height_m=1.2)
    for figures in ((near, far), (far, near)):
        view = render(Scene(figures, Surround(noise_surround(64), radius_m=9), mono(Equirectangular())))
        assert view.rgb[128, 128].tolist() == [255, 0, 0]
        assert view.rgb[150, 128].tolist() == [0, 0, 255]
        assert view.depth_m[128, 128] == pytest.approx(1, rel=1e-3)
        assert view.depth_m[150, 128] == pytest.approx(2, rel=0.05)
        assert view.depth_m[10, 10] == pytest.approx(9)
        assert view.alpha[150, 128] == 1
        assert view.alpha[10, 10] == 0


def test_what_shines_through_is_mixed() -> None:
    glass = Figure(board((255, 0, 0, 128)), Place(0, 0, 1), height_m=0.5)
    wall = Surround(np.full((32, 64, 3), (0, 100, 200), np.uint8))
    view = render(Scene((glass,), wall, mono(Fisheye(180))))
    assert view.rgb[128, 128] == pytest.approx([128, 50, 100], abs=1)
    assert view.rgb[60, 128].tolist() == [0, 100, 200]
    assert np.isinf(view.depth_m[60, 128])
    assert not view.rgb[0, 0].any()  # outside the circle
    assert view.depth_m[0, 0] == 0


@pytest.mark.parametrize("layout", list(StereoLayout))
@pytest.mark.parametrize("size", [(64, 128), (65, 131)])
def test_each_eye_lies_where_a_run_will_look_for_it(layout: StereoLayout, size: tuple[int, int]) -> None:
    figure = Figure(board(), Place(10, 5, 1), height_m=0.8)
    surround = Surround(noise_surround(128), radius_m=4)
    camera = Camera(Equirectangular(), size, layout)
    view = render(Scene((figure,), surround, camera))
    regions = eye_regions(size[1], size[0], layout)
    for region, eye in zip(regions, camera.eyes, strict=True):
        # What one eye alone sees: two eyes, of which the other has no room.
        alone = Camera(Equirectangular(), region.size, StereoLayout.MONO)
        moved = _seen_from(alone, figure, surround, float(eye[0]))
        assert np.array_equal(view.rgb[region.rows, region.columns], moved.rgb)
        assert np.array_equal(view.alpha[region.rows, region.columns], moved.alpha)
    if layout is not StereoLayout.MONO:
        (left, _), (right, _) = (centroid(view.alpha[eye.rows, eye.columns]) for eye in regions)
        assert left > right + 1


def _seen_from(camera: Camera, figure: Figure, surround: Surround, x: float) -> View:
    """Render the right half of a side-by-side frame whose right eye is at ``x``."""
    height, width = camera.size
    both = replace(camera, size=(height, 2 * width), layout=StereoLayout.SIDE_BY_SIDE, eye_distance_m=2 * x)
    view = render(Scene((figure,), surround, both))
    return View(view.rgb[:, width:], view.alpha[:, width:], view.depth_m[:, width:])


def test_figures_move() -> None:
    camera = mono(Equirectangular(), (180, 180))  # a sample a degree
    path = drift(
        Place(-20, 0, 2),
        azimuth_degrees_per_second=10,
        elevation_degrees_per_second=4,
        distance_m_per_second=-0.5,
    )
    scene = Scene((Figure(disc(), path, height_m=0.4),), camera=camera)
    views = list(clip(scene, frame_rate=Fraction(2), frame_count=5))
    for index, view in enumerate(views):
        seconds = index / 2
        assert centroid(view.alpha) == pytest.approx((69.5 + 10 * seconds, 89.5 - 4 * seconds), abs=0.1)
        assert view.depth_m[view.alpha == 1].min() == pytest.approx(2 - 0.5 * seconds, rel=0.01)
    assert views[-1].alpha.sum() > 2 * views[0].alpha.sum()
    circling = Figure(disc(), lambda seconds: Place(40 * math.sin(seconds), 0, 1), height_m=0.2)
    seen = render(Scene((circling,), camera=camera), time_seconds=math.pi / 2)
    assert centroid(seen.alpha)[0] == pytest.approx(129.5, abs=0.1)


def test_the_surround_ends_at_the_poles() -> None:
    halves = np.repeat(np.array([255, 0], np.uint8), 8)[:, None, None]
    surround = Surround(np.broadcast_to(halves, (16, 32, 3)).copy())
    view = render(Scene((), surround, mono(Equirectangular(360, 180), (64, 128))))
    assert (view.rgb[:16] == 255).all()
    assert (view.rgb[48:] == 0).all()


def test_an_eye_that_is_past_a_figure_does_not_see_it() -> None:
    camera = Camera(Equirectangular(180, 180), (64, 128), eye_distance_m=0.2)
    aside = Figure(board(), Place(60, 0, 0.05), height_m=0.4)
    left, right = halves(render(Scene((aside,), camera=camera)), camera)
    assert left.any()
    assert not right.any()


def test_fine_texture_does_not_alias() -> None:
    checks = np.indices((512, 512)).sum(axis=0) % 2 * 255
    picture = np.dstack([checks, checks, checks, np.full((512, 512), 255)]).astype(np.uint8)
    view = render(Scene((Figure(picture, Place(0, 0, 2), height_m=0.5),), camera=mono(Equirectangular())))
    inside = view.rgb[..., 0][view.alpha == 1]
    assert inside.min() > 110
    assert inside.max() < 145


def test_the_drawn_person_and_surround_are_textured_and_whole() -> None:
    person, surround = person_picture(256), noise_surround(128)
    assert person.shape == (256, 128, 4)
    soft = (person[..., 3] > 20) & (person[..., 3] < 235)
    assert soft[:48].sum() > 100  # hair
    assert person[..., 3][0].max() < person[..., 3][20].max() == 255
    assert person[..., :3][person[..., 3] == 255].std(axis=0).min() > 20
    assert not np.array_equal(person, person_picture(256, seed=1))
    assert np.array_equal(surround, noise_surround(128))
    assert surround.std(axis=(0, 1)).min() > 15
    neighbours = np.abs(np.diff(surround.astype(int), axis=1)).mean()
    assert np.abs(surround[:, 0].astype(int) - surround[:, -1]).mean() < 2 * neighbours  # no seam


def test_the_eyes_disagree_by_what_was_done_to_one_of_them() -> None:
    camera = Camera(Equirectangular(), (256, 512))
    figures = (
        Figure(person_picture(256), Place(20, 0, 1), height_m=1),
        Figure(person_picture(256, seed=1), Place(-10, 30, 3), height_m=1),
    )
    truth = render(Scene(figures, Surround(noise_surround(128)), camera))
    floor = eye_disagreement(truth.alpha, truth, camera)
    assert 0 < floor < 0.03
    without_parallax = Camera(Equirectangular(), (256, 512), eye_distance_m=0)
    assert eye_disagreement(truth.alpha, truth, without_parallax) > 4 * floor
    shifted = [truth.alpha.copy(), truth.alpha.copy()]
    for alpha, samples in zip(shifted, (1, 3), strict=True):
        alpha[:, 256:] = np.roll(alpha[:, 256:], samples, axis=1)
    small, large = (eye_disagreement(alpha, truth, camera) for alpha in shifted)
    assert 2 * floor < small < large
    blind = truth.alpha.copy()
    blind[:, 256:] = 0
    assert eye_disagreement(blind, truth, camera) == pytest.approx(0.5, abs=0.1)
    assert math.isnan(eye_disagreement(truth.alpha, render(Scene((), camera=camera)), camera))


def test_what_lies_at_a_pole_counts_by_the_area_that_it_shows() -> None:
    camera = Camera(Equirectangular(), (256, 512))
    truth = render(Scene((Figure(person_picture(256), Place(0, -80, 1), height_m=0.8),), camera=camera))

    def wrong_in(rows: slice) -> float:
        alpha = truth.alpha.copy()
        alpha[rows, 256:] = 1 - alpha[rows, 256:]
        return eye_disagreement(alpha, truth, camera)

    # The lower rows show a quarter of what the upper ones do, and have three times as much of the outline.
    assert wrong_in(slice(252, 256)) < wrong_in(slice(220, 224)) / 2


def test_a_figure_at_the_rim_is_compared_where_both_eyes_look() -> None:
    camera = Camera(Fisheye(200), (256, 512))
    truth = render(Scene((Figure(person_picture(256), Place(0, -95, 1), height_m=0.6),), camera=camera))
    below = truth.alpha[250:].any(), truth.depth_m[255].any()
    assert below == (True, True)  # cut by the circle, outside of which there is no depth
    assert eye_disagreement(truth.alpha, truth, camera) < 0.03


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(8, 8, 3\): expected \[height, width, 4\]"):
        Figure(np.zeros((8, 8, 3), np.uint8), height_m=1)
    with pytest.raises(ValueError, match="height_m or height_degrees"):
        Figure(board())
    with pytest.raises(ValueError, match="height_m or height_degrees"):
        Figure(board(), height_m=1, height_degrees=10)
    with pytest.raises(ValueError, match="distance of 0 m"):
        drift(Place(distance_m=1), distance_m_per_second=-1)(1.0)
    with pytest.raises(ValueError, match=r"float64 \(8, 8, 3\): expected uint8"):
        Surround(np.zeros((8, 8, 3)))  # type: ignore[arg-type]
