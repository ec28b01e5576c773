"""Tests of each eye straightened in all directions, with the matte's edge drawn on it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from pictures import solid_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Projection, StereoLayout, VideoInfo
from vitascope.segmentation.render.contact_sheet import ContactSheet
from vitascope.segmentation.render.rectified_views import VIEW_SIDE, has_rectified_views, rectified_views
from vitascope.segmentation.render.renderer import Rendered
from vitascope.vr.detection import describe_vr

FMT = PIXEL_FORMATS["yuv420p"]
SIZE = (256, 512)
EDGE = np.array([255, 0, 200])
VIEWS = ("ahead", "left", "right", "up", "down", "behind")


def film(name="x_LR_180.mp4", size=SIZE):
    return VideoInfo(
        path=Path(name), width=size[1], height=size[0], format=FMT, source_format="yuv420p", color=ColorSpec(),
        codec="h264", container="mp4", time_base=Fraction(1, 25), average_frame_rate=Fraction(25),
        frame_count_estimate=None, duration_seconds=None,
    )  # fmt: skip


def described(projection=Projection.HALF_EQUIRECTANGULAR, layout=StereoLayout.SIDE_BY_SIDE, fov=None):
    return describe_vr(film(), layout=layout, projection=projection, fov_degrees=fov)


def light(rows, columns):
    """Make a dark frame with a light block, and the block's matte."""
    frame = solid_frame(FMT, SIZE, (0.1, 0.1, 0.1))
    luma, alpha = frame.planes[0].copy(), np.zeros(SIZE, np.uint8)
    luma[rows, columns], alpha[rows, columns] = 200, 255
    return frame.with_planes((luma, *frame.planes[1:])), alpha


def lit(page, eye, view):
    """Return the share of a view that is light, and whether it has an edge."""
    column = VIEWS.index(view) * VIEW_SIDE
    part = page[eye * VIEW_SIDE : (eye + 1) * VIEW_SIDE, column : column + VIEW_SIDE]
    edges = (np.abs(part.astype(int) - EDGE) < 60).all(axis=2)
    return float((part.min(axis=2) > 150).mean()), bool(edges.any())


@pytest.mark.parametrize(
    ("rows", "columns", "eye", "shown", "hidden"),
    [
        (slice(118, 138), slice(118, 138), 0, ["ahead"], []),
        (slice(118, 138), slice(30, 50), 0, ["left"], ["ahead", "right"]),
        (slice(118, 138), slice(462, 482), 1, ["right"], ["ahead", "left"]),
        (slice(25, 45), slice(118, 138), 0, ["up"], ["ahead", "down"]),
        (slice(215, 235), slice(374, 394), 1, ["down"], ["ahead", "up"]),
    ],
)
def test_people_stand_in_the_view_that_looks_there(rows, columns, eye, shown, hidden):
    page = rectified_views(*light(rows, columns), described())
    assert page.shape == (2 * VIEW_SIDE, 5 * VIEW_SIDE, 3)
    for view in shown:
        share, has_edge = lit(page, eye, view)
        assert share > 0.005
        assert has_edge
        assert lit(page, 1 - eye, view) == (0.0, False)
    for view in hidden:
        assert lit(page, eye, view) == (0.0, False)


@pytest.mark.parametrize(
    ("rows", "columns", "shown"),
    [
        (slice(118, 138), slice(246, 266), "ahead"),
        (slice(118, 138), slice(118, 138), "left"),
        (slice(118, 138), slice(0, 20), "behind"),
        (slice(118, 138), slice(492, 512), "behind"),  # on the other side of the seam
    ],
)
def test_of_an_eye_that_sees_all_around_there_is_a_view_behind(rows, columns, shown):
    vr = described(Projection.EQUIRECTANGULAR, StereoLayout.MONO)
    page = rectified_views(*light(rows, columns), vr)
    assert page.shape == (VIEW_SIDE, 6 * VIEW_SIDE, 3)
    assert {view for view in VIEWS if lit(page, 0, view)[1]} - {"up", "down"} == {shown}


def test_a_view_behind_is_whole_across_the_seam():
    frame, alpha = light(slice(118, 138), slice(0, 20))
    both = frame.planes[0].copy()
    both[118:138, 492:], alpha[118:138, 492:] = 200, 255
    vr = described(Projection.EQUIRECTANGULAR, StereoLayout.MONO)
    behind = rectified_views(frame.with_planes((both, *frame.planes[1:])), alpha, vr)[:, 5 * VIEW_SIDE :]
    middle = behind[VIEW_SIDE // 2, VIEW_SIDE // 2 - 20 : VIEW_SIDE // 2 + 20].astype(int)
    assert np.ptp(middle, axis=0).max() < 6  # no line where left and right meet


def test_straight_lines_are_straight():
    """Check a sphere that is light from 20 degrees right: its border is a meridian, straight in every view."""
    x = (np.arange(256) + 0.5) / 256 * 180 - 90
    frame, alpha = light(slice(0, 0), slice(0, 0))
    alpha[:, :256][:, x > 20] = 255
    page = rectified_views(frame, alpha, described())[:VIEW_SIDE, :VIEW_SIDE]
    marked = (np.abs(page.astype(int) - EDGE) < 110).all(axis=2)[20:-20, 20:-20]
    columns = np.array([np.flatnonzero(row).mean() for row in marked])
    expected = (1 + np.tan(np.radians(20))) / 2 * VIEW_SIDE - 20.5
    assert np.abs(columns - expected).max() < 2


@pytest.mark.parametrize(
    ("projection", "fov", "layout", "rows", "views"),
    [
        (Projection.FISHEYE, 190, StereoLayout.SIDE_BY_SIDE, 2, 5),
        (Projection.EQUIRECTANGULAR, None, StereoLayout.TOP_BOTTOM, 2, 6),
        (Projection.EQUIRECTANGULAR, None, StereoLayout.MONO, 1, 6),
    ],
)
def test_every_projection_has_its_views(projection, fov, layout, rows, views):
    vr = described(projection, layout, fov)
    frame, alpha = light(slice(100, 156), slice(100, 156))
    assert has_rectified_views(vr)
    assert rectified_views(frame, alpha.astype(np.uint16) * 257, vr).shape == (
        rows * VIEW_SIDE,
        views * VIEW_SIDE,
        3,
    )


def test_flat_video_and_guesses_have_none():
    assert not has_rectified_views(described(Projection.FLAT))
    assert not has_rectified_views(describe_vr(film("x_sbs.mp4")))  # square eyes alone are a guess


@pytest.mark.parametrize("count", [1, 3])
def test_the_sheet_of_a_vr_video_shows_the_views(tmp_path, count):
    sheet = ContactSheet(tmp_path / "sheet.png", film(), described(), kind="key")
    frame, alpha = light(slice(118, 138), slice(118, 138))
    for index in range(count):
        assert sheet.wants(index)
        sheet.add(Rendered(index, [frame], alpha, frame))
    sheet.save()
    page = cv2.cvtColor(cv2.imread(str(tmp_path / "sheet.png")), cv2.COLOR_BGR2RGB)
    assert page.shape[1] == (5 * VIEW_SIDE + 6) * min(count, 2)
    assert np.array_equal(page[: 2 * VIEW_SIDE, : 5 * VIEW_SIDE], rectified_views(frame, alpha, described()))


@pytest.mark.parametrize(
    ("turn", "aspect", "size"),
    [(0, 1, (180, 320)), (0, 2, (90, 320)), (90, 2, (1138, 320)), (0, Fraction(1, 2), (360, 320))],
)
def test_the_sheet_shows_pixels_as_wide_as_they_are(tmp_path, turn, aspect, size):
    flat = replace(film("x.mp4", (144, 256)), sample_aspect_ratio=Fraction(aspect), rotation_degrees=turn)
    sheet = ContactSheet(tmp_path / "sheet.png", flat, describe_vr(flat), kind="key")
    frame = solid_frame(FMT, (144, 256), (0.6, 0.6, 0.6))
    sheet.add(Rendered(0, [frame], np.zeros((144, 256), np.uint8), frame))
    sheet.save()
    height, width = size
    page = cv2.imread(str(tmp_path / "sheet.png"))
    assert page.shape[:2] == (3 * (height + 6), width + 6)
    source, result = page[2 : height - 30, :width], page[2 * (height + 6) + 2 :][: height - 4, :width]
    assert np.ptp(source[:, 100:].astype(int)) < 6  # filled
    assert np.ptp(result.astype(int)) < 6


def test_a_strip_makes_no_sheet_of_gigabytes(tmp_path):
    """Check stills of 2x300 pixels, which were 48,000 rows high."""
    strip = film("x.mp4", (300, 2))
    sheet = ContactSheet(tmp_path / "sheet.png", strip, describe_vr(strip), kind="key")
    frame = solid_frame(FMT, (300, 2), (0.6, 0.6, 0.6))
    sheet.add(Rendered(0, [frame], np.zeros((300, 2), np.uint8), frame))
    sheet.save()
    page = cv2.imread(str(tmp_path / "sheet.png"))
    assert page.shape[:2] == (3 * (1280 + 6), 9 + 6)
    assert np.ptp(page[-1280:-6, :9].astype(int)) < 6


@pytest.mark.parametrize(("size", "aspect"), [((512, 256), 1), ((256, 256), 1), ((256, 256), 2)])
def test_a_result_of_another_shape_than_its_source_keeps_it(tmp_path, size, aspect):
    """Check that packed alpha is shown side by side, in square pixels, whatever its source is."""
    result = solid_frame(FMT, (256, 512), (0.1, 0.1, 0.1))
    y, x = np.mgrid[:256, :512]
    luma = np.where(np.hypot(x - 128, y - 128) < 100, 220, 40).astype(np.uint8)  # the left eye's disc
    source, alpha = solid_frame(FMT, size, (0.1, 0.1, 0.1)), np.zeros(size, np.uint8)
    info = film("x_TB_180.mp4" if size[0] > size[1] else "x_HSBS_180.mp4", size)
    info = replace(info, sample_aspect_ratio=Fraction(aspect))
    sheet = ContactSheet(tmp_path / "sheet.png", info, describe_vr(info), kind="packed-alpha")
    sheet.add(Rendered(0, [result.with_planes((luma, *result.planes[1:]))], alpha, source))
    sheet.save()
    page = cv2.imread(str(tmp_path / "sheet.png"))
    light = page[2 * VIEW_SIDE :].min(axis=2) > 150
    rows, columns = np.flatnonzero(light[:, 800:].any(axis=1)), np.flatnonzero(light[:, 800:].any(axis=0))
    across, down = np.ptp(columns) + 1, np.ptp(rows) + 1
    assert across == pytest.approx(200 * 400 / 512, abs=3)
    assert down == pytest.approx(across, abs=3)
