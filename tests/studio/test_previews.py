"""Tests of single frames matted as in a run, on the CPU and on a GPU, without a server."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from clips import write_clip
from vitascope.config import SettingsSource
from vitascope.errors import UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.segmentation.segmenter import Segmenter
from vitascope.studio.library import Library
from vitascope.studio.previews import BusyError, Previews, Wanted
from vitascope.studio.still_frames import Look, places_in_eye
from vitascope.vr.detection import Reason, VrDescription
from vitascope.vr.projection import (
    OUTSIDE,
    Equirectangular,
    Fisheye,
    Rectilinear,
    reprojection_map,
    turned,
)

EXAMPLES = Path(__file__).parents[2] / "examples"


def decoded(preview):
    return cv2.imdecode(np.frombuffer(preview.jpeg, np.uint8), cv2.IMREAD_COLOR_RGB)


def opened(store, device="cpu", *assignments):
    return Previews(SettingsSource(assignments=(f"gpu.device={device}", *assignments)), store=store)


@pytest.fixture
def film(tmp_path):
    photograph = cv2.resize(cv2.imread(str(EXAMPLES / "astronaut.jpg"), cv2.IMREAD_COLOR_RGB), (192, 192))
    write_clip(
        tmp_path / "film.mp4",
        width=192,
        height=192,
        frame_count=30,
        codec_options={"g": "30", "bf": "3"},
        paint=lambda n: np.roll(photograph, 2 * n, 1),
    )
    (found,) = Library([tmp_path]).films()
    return found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_pictures_in_any_order_are_those_of_the_run(film, model_store, device):
    """Check the selfie network, which sees each frame alone, so that previews equal the run's mattes."""
    settings = {"gpu.device": device, "model.name": "selfie"}
    with Segmenter(settings=settings) as segmenter:
        mattes = [np.array(step.alpha) for step in segmenter.stream(film.path)]
    assert all(40 < matte.mean() < 200 for matte in mattes)
    previews = opened(model_store, device, "model.name=selfie")
    try:
        for n in (20, 3, 4, 29, 0, 21):
            wanted = Wanted(film, film.version, "a", n / 24, "mask", ("key", "overlay"), longest_side=480)
            made = previews.picture(wanted).result()
            assert made.seconds == pytest.approx(n / 24, abs=1e-3)
            assert np.abs(decoded(made)[..., 0].astype(int) - mattes[n]).mean() < 3, n
        source = previews.picture(Wanted(film, film.version, "", 0.5, "source", longest_side=480)).result()
        assert decoded(source).shape == (192, 192, 3)
    finally:
        previews.close()


def test_a_film_that_is_turned_and_one_of_two_eyes_are_shown_upright_and_one_by_one(tmp_path, model_store):
    def halves(_):
        picture = np.full((64, 128, 3), 40, np.uint8)
        picture[:, 64:] = 200
        return picture

    write_clip(tmp_path / "film_SBS.mp4", width=128, height=64, frame_count=3, paint=halves)
    (film,) = Library([tmp_path]).films()
    previews = opened(model_store)
    try:
        for eye, grey in (("left", 40), ("right", 200)):
            wanted = Wanted(film, film.version, "", 0, "source", eye=eye, longest_side=480)
            shown = decoded(previews.picture(wanted).result())
            assert shown.shape == (64, 64, 3)
            assert abs(shown[32, 32].mean() - grey) < 6
    finally:
        previews.close()


def test_who_looks_around_sees_what_lies_there(tmp_path, model_store):
    """Check a picture whose columns show their longitude: the middle of a view is its direction."""

    def longitudes(_):
        eye = np.repeat(np.linspace(0, 255, 180, dtype=np.uint8)[None, :, None], 180, 0).repeat(3, 2)
        return np.hstack([eye, eye])

    write_clip(tmp_path / "film_LR_180.mp4", width=360, height=180, frame_count=3, paint=longitudes)
    (film,) = Library([tmp_path]).films()
    previews = opened(model_store)
    try:
        for yaw in (-60.0, 0.0, 45.0):
            look = Look(yaw, 0.0, 60.0)
            wanted = Wanted(film, film.version, "", 0, "source", longest_side=480, look=look)
            shown = decoded(previews.picture(wanted).result())
            assert shown.shape == (270, 480, 3)
            assert shown[135, 240].mean() == pytest.approx((yaw + 90) / 180 * 255, abs=6)
    finally:
        previews.close()


@pytest.mark.parametrize("lens", [Equirectangular(180, 180), Fisheye(190), Equirectangular(360, 180)])
def test_what_is_pointed_at_lies_where_the_look_shows_it(lens):
    """Check that the place of a point is what the view's own map reads there."""
    reason = Reason("declared", "sure")
    vr = VrDescription(
        StereoLayout.MONO, Projection.HALF_EQUIRECTANGULAR, 180, (lens,), reason, reason, reason
    )
    look = Look(35.0, -20.0, 80.0)
    tall = np.degrees(2 * np.arctan(np.tan(np.radians(40)) * 9 / 16))
    map_x, map_y = reprojection_map(
        lens,
        Rectilinear(80.0, float(tall)),
        source_size=(1000, 1000),
        target_size=(90, 160),
        rotation=turned(yaw_degrees=35.0, pitch_degrees=-20.0),
    )
    pixels = [(0, 0), (159, 0), (80, 45), (12, 88), (159, 89)]
    points = [((x + 0.5) / 160, (y + 0.5) / 90) for x, y in pixels]
    for (x, y), place in zip(pixels, places_in_eye(points, vr, eye="left", look=look), strict=True):
        if map_x[y, x] < OUTSIDE / 2:
            assert place is None
        else:
            assert place == pytest.approx(((map_x[y, x] + 0.5) / 1000, (map_y[y, x] + 0.5) / 1000), abs=1e-5)


def test_nobody_looks_around_in_a_flat_film(film, model_store):
    previews = opened(model_store)
    try:
        wanted = Wanted(film, film.version, "", 0, "source", longest_side=480, look=Look(0, 0, 90))
        with pytest.raises(UsageError, match="you cannot look around in this video"):
            previews.picture(wanted).result()
    finally:
        previews.close()


def test_more_than_can_be_made_is_refused(film, model_store, monkeypatch):
    monkeypatch.setattr("vitascope.studio.previews._MOST_WAITING", 0)
    previews = opened(model_store)
    try:
        with pytest.raises(BusyError, match="too many pictures"):
            previews.picture(Wanted(film, film.version, "", 0, "source"))
        with pytest.raises(UsageError, match="view 'statue'"):
            previews.picture(Wanted(film, film.version, "", 0, "statue"))
    finally:
        previews.close()
