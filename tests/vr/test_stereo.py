from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.frames import StereoLayout
from vitascope.vr.projection import Fisheye, Rectilinear
from vitascope.vr.stereo import disparity_curves, eye_regions
from vitascope.vr.synthetic import Camera, stereo_map


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


@pytest.mark.parametrize("lens", [Fisheye(180), Fisheye(200, radius=(0.45, 0.5)), Rectilinear(90, 80)])
@pytest.mark.parametrize("depth_m", [0.5, 1.0, 5.0])
def test_curves_lead_where_the_other_eye_shows_a_thing(lens, depth_m):
    """Check curves against the ray tracer's geometry."""
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
