"""Check that two eyes are detected from the halves of the frames, if the file says nothing."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from skimage import data

import vitascope
from clips import write_clip
from photographs import astronaut
from vitascope.config import VideoSettings
from vitascope.frames import Projection, StereoLayout
from vitascope.media.reading.reader import probe
from vitascope.segmentation.layout import vr_of
from vitascope.vr import detection
from vitascope.vr.detection import NO_SIGN, compare_halves, possible_layout

SIDE = 256


def scene(index=0):
    return np.ascontiguousarray(np.roll(astronaut()[::2, ::2], 2 * index, axis=1))


def other_eye(picture):
    """Simulate the other eye: shifted right, more for near things, with another exposure and noise."""
    height, width = picture.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    shift = (1 + np.sin(x / width * 5) * np.cos(y / height * 3)) * 0.02 * width
    moved = cv2.remap(picture, x + shift, y + 1, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    noise = np.random.default_rng(0).normal(0, 4, moved.shape)
    return np.clip(moved * 0.93 + 6 + noise, 0, 255).astype(np.uint8)


def film(path, paint, *, width, height):
    return write_clip(path, width=width, height=height, frame_count=12, paint=paint, codec_options={"g": "4"})


@pytest.fixture
def side_by_side(tmp_path):
    return film(
        tmp_path / "wedding.mp4",
        lambda n: np.hstack([scene(n), other_eye(scene(n))]),
        width=2 * SIDE, height=SIDE,
    )  # fmt: skip


def test_two_eyes_side_by_side(side_by_side):
    found = vr_of(probe(side_by_side), VideoSettings(stereo="auto"))
    assert found.layout is StereoLayout.SIDE_BY_SIDE
    assert found.layout_reason.how == "both halves show the same scene"
    assert vr_of(probe(side_by_side), VideoSettings(stereo="mono")).layout is StereoLayout.MONO


def test_a_field_of_view_is_one_of_what_the_pictures_show(tmp_path):
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5) / SIDE
    circle = (np.hypot(x - 0.5, y - 0.5) <= 0.5)[..., None]
    path = film(
        tmp_path / "a.mp4",
        lambda n: np.hstack([scene(n) * circle, other_eye(scene(n)) * circle]),
        width=2 * SIDE, height=SIDE,
    )  # fmt: skip
    found = vr_of(probe(path), VideoSettings(fov_degrees=200))
    assert (found.projection, found.fov_degrees) == (Projection.FISHEYE, 200)


@pytest.mark.parametrize("size", [(SIDE, SIDE), (2 * SIDE, 288)], ids=["VR180", "16:9"])
def test_squeezed_eyes_in_the_shape_of_plain_video_are_told(tmp_path, size):
    path = film(
        tmp_path / "a.mp4",
        lambda n: cv2.resize(np.hstack([scene(n), other_eye(scene(n))]), size, interpolation=cv2.INTER_AREA),
        width=size[0], height=size[1],
    )  # fmt: skip
    found = vr_of(probe(path), VideoSettings(), always_looks=True)
    assert (found.layout, found.doubts) == (
        StereoLayout.MONO,
        ("the halves show the same scene, as two eyes do that are side-by-side: --stereo sbs says so",),
    )
    assert vr_of(probe(path), VideoSettings(stereo="sbs")).is_half


def test_two_eyes_one_above_the_other(tmp_path):
    path = film(
        tmp_path / "a.mp4",
        lambda n: np.vstack([cv2.resize(eye, (SIDE, SIDE // 2)) for eye in (scene(n), other_eye(scene(n)))]),
        width=SIDE, height=SIDE,
    )  # fmt: skip
    assert vr_of(probe(path), VideoSettings(stereo="auto")).layout is StereoLayout.TOP_BOTTOM


def test_the_run_says_so_and_cuts_each_eye(side_by_side, tmp_path):
    report = vitascope.segment(
        side_by_side, tmp_path / "o.mp4", profile="fast", settings={"gpu.device": "cpu"}
    )
    assert (report.stereo, report.stereo_reason) == ("side-by-side", "both halves show the same scene")


@pytest.mark.parametrize(
    "name", ["astronaut", "coffee", "chelsea", "rocket", "grass", "camera", "page", "coins", "brick"]
)
@pytest.mark.parametrize("layout", [StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM])
def test_halves_of_one_picture_are_no_eyes(name, layout):
    picture = getattr(data, name)()
    grey = picture if picture.ndim == 2 else cv2.cvtColor(picture[..., :3], cv2.COLOR_RGB2GRAY)
    height, width = grey.shape
    if layout is StereoLayout.SIDE_BY_SIDE:
        grey = grey[: min(height, width // 2)]
    assert compare_halves([np.ascontiguousarray(grey)] * 3, layout) is None


def test_halves_are_compared_once_for_a_video_and_no_longer_than_it_takes(side_by_side, monkeypatch):
    likeness, compared = detection._likeness, []

    def watched(picture, layout):
        compared.append(layout)
        return likeness(picture, layout)

    monkeypatch.setattr(detection, "_likeness", watched)
    found = [vr_of(probe(side_by_side), VideoSettings(stereo="auto")) for _ in range(2)]
    assert found[0] == found[1]
    assert len(compared) == 3  # of five frames
    assert vr_of(probe(side_by_side), VideoSettings(stereo="tb")).layout is StereoLayout.TOP_BOTTOM


def test_a_verdict_waits_for_what_may_change_it(monkeypatch):
    scores = iter([0.9, 0.9, 0.1, 0.1, 0.75])
    monkeypatch.setattr(detection, "_likeness", lambda *_: next(scores))
    assert detection.halves_alike([np.zeros((4, 8), np.uint8)] * 5, StereoLayout.SIDE_BY_SIDE) == "maybe"


@pytest.mark.parametrize("value", [0, 128])
def test_where_nothing_is_to_be_seen_nothing_is_said(value):
    flat = np.full((SIDE, 2 * SIDE), value, np.uint8)
    assert compare_halves([flat] * 5, StereoLayout.SIDE_BY_SIDE) is None


def test_what_may_be_eyes_is_a_doubt(side_by_side, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(detection, "_likeness", lambda *_: 0.75)
    found = compare_halves([np.zeros((4, 8), np.uint8)], StereoLayout.SIDE_BY_SIDE)
    assert (found.layout, found.reason) == (StereoLayout.MONO, NO_SIGN)
    assert "--stereo sbs" in found.doubt
    seen = []
    with vitascope.Segmenter(profile="fast", settings={"gpu.device": "cpu"}) as segmenter:
        segmenter.write(side_by_side, [("key", tmp_path / "o.mp4")], on_start=seen.append)
    assert seen[0].doubts == (found.doubt,)


@pytest.mark.parametrize(
    ("size", "layout"),
    [
        ((1920, 1080), None), ((1080, 1920), None), ((1440, 1080), None),
        ((5760, 2880), StereoLayout.SIDE_BY_SIDE), ((3840, 1080), StereoLayout.SIDE_BY_SIDE),
        ((2880, 2880), StereoLayout.TOP_BOTTOM), ((1920, 2160), StereoLayout.TOP_BOTTOM),
    ],
)  # fmt: skip
def test_shapes_of_plain_video_are_not_looked_at(size, layout):
    assert possible_layout(*size) is layout


def test_a_video_that_cannot_be_read_is_told_later(tmp_path, side_by_side):
    info = probe(side_by_side)
    side_by_side.write_bytes(side_by_side.read_bytes()[:2000])
    assert vr_of(info, VideoSettings(stereo="auto")).layout_reason.how == NO_SIGN
