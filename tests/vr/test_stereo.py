from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.frames import PIXEL_FORMATS, ColorSpec, StereoLayout, VideoInfo
from vitascope.vr.projection import Fisheye, Rectilinear
from vitascope.vr.stereo import detect_layout, disparity_curves, eye_regions
from vitascope.vr.synthetic import Camera, stereo_map


def video(name: str, stereo: StereoLayout | None = None) -> VideoInfo:
    return VideoInfo(
        path=Path(name),
        width=64,
        height=32,
        format=PIXEL_FORMATS["yuv420p"],
        source_format="yuv420p",
        color=ColorSpec(),
        codec="h264",
        container="mp4",
        time_base=Fraction(1, 25),
        average_frame_rate=Fraction(25),
        frame_count_estimate=None,
        duration_seconds=None,
        stereo=stereo,
    )


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("wedding_SBS.mp4", "side-by-side"),
        ("wedding_LR_180.mp4", "side-by-side"),
        ("clip-180_180x180_3dh_LR.mp4", "side-by-side"),
        ("beach_MKX200_alpha.mp4", "side-by-side"),
        ("Trip [VR180].mp4", "side-by-side"),
        ("beach.fisheye190.mp4", "side-by-side"),
        ("concert_VR_TB.mkv", "top-bottom"),
        ("concert_htb.mkv", "top-bottom"),
        ("movie_flat_sbs.mp4", "side-by-side"),
        ("clip_2D_3D_sbs.mp4", "side-by-side"),
        ("fisheye_mono.mp4", "mono"),
        ("VR180_mono.mp4", "mono"),
        ("moi_ou_toi.mp4", "mono"),
        ("BT_advert.mp4", "mono"),
        ("concert 360 OU.mp4", "top-bottom"),
        ("concert_2D_180.mp4", "mono"),
        ("slr.mp4", "mono"),  # not a whole token
        ("ours_180.mp4", "mono"),
        ("holiday.mp4", "mono"),
    ],
)
def test_file_names(name, layout):
    assert detect_layout(video(name)).layout == layout


def test_what_the_user_declares_beats_the_box_and_the_box_beats_the_name():
    named = video("a_SBS.mp4", stereo=StereoLayout.TOP_BOTTOM)
    assert detect_layout(named).layout is StereoLayout.TOP_BOTTOM
    assert detect_layout(named).reason == "stereo box"
    declared = detect_layout(named, StereoLayout.MONO)
    assert (declared.layout, declared.reason) == (StereoLayout.MONO, "declared")


@given(width=st.integers(1, 99), height=st.integers(1, 99), layout=st.sampled_from(list(StereoLayout)))
def test_eyes_cover_every_sample_once(width, height, layout):
    covered = np.zeros((height, width), int)
    for region in eye_regions(width, height, layout):
        covered[region.rows, region.columns] += 1
    assert (covered == 1).all()


def test_eyes_are_halves():
    left, right = eye_regions(100, 40, StereoLayout.SIDE_BY_SIDE)
    assert (left.x, left.width, right.x, right.width) == (0, 50, 50, 50)
    top, bottom = eye_regions(100, 40, StereoLayout.TOP_BOTTOM)
    assert (top.y, top.height, bottom.y, bottom.height) == (0, 20, 20, 20)


def test_a_doubtful_word_is_mentioned():
    found = detect_layout(video("wedding_TB.mp4"))
    assert found.layout is StereoLayout.MONO
    assert "--stereo tb" in found.reason


@pytest.mark.parametrize("lens", [Fisheye(180), Fisheye(200, radius=(0.45, 0.5)), Rectilinear(90, 80)])
@pytest.mark.parametrize("depth_m", [0.5, 1.0, 5.0])
def test_curves_lead_where_the_other_eye_shows_a_thing(lens, depth_m):
    """Against the ray tracer's own geometry."""
    size = (64, 80)
    camera = Camera(lens, (64, 160))
    curves, shown = disparity_curves(lens, size, 0.17)
    disparity = camera.eye_distance_m / depth_m
    rows, columns = np.mgrid[:64, :80]
    for eye in range(2):
        map_x, map_y = stereo_map(camera, np.full(size, depth_m, np.float32), eye=eye)
        factors = curves[eye].reshape(2, 3, *size)
        across, down = (disparity * (one[0] + disparity * (one[1] + disparity * one[2])) for one in factors)
        seen = shown[eye] > 0
        assert seen.mean() > 0.5
        assert np.abs(columns + across - map_x)[seen].max() < 0.05
        assert np.abs(rows + down - map_y)[seen].max() < 0.05


def test_without_a_lens_things_move_along_rows():
    curves, shown = disparity_curves(None, (4, 50), 0.1)
    assert (shown == 1).all()
    assert (curves[0, 0] == -50).all()
    assert (curves[1, 0] == 50).all()
    assert not curves[:, 1:].any()
