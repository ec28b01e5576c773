from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pictures import FORMATS, ODD_SIZES, random_frame, semi_planar_twin, solid_frame
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.color import alpha_dtype, alpha_peak, rgb_from_yuv
from vitascope.gpu.kernels.guided import grey_plane, guided_coefficients, refine_alpha
from vitascope.gpu.kernels.region import Region


def whole(frame):
    return [Region(0, 0, frame.width, frame.height)]


def bilinear(plane, size):
    """Resize bilinearly with half-pixel centres, written out as a reference for OpenCV."""
    rows = np.clip((np.arange(size[0]) + 0.5) * plane.shape[0] / size[0] - 0.5, 0, plane.shape[0] - 1)
    columns = np.clip((np.arange(size[1]) + 0.5) * plane.shape[1] / size[1] - 0.5, 0, plane.shape[1] - 1)
    r0, c0 = np.floor(rows).astype(int), np.floor(columns).astype(int)
    r1, c1 = np.minimum(r0 + 1, plane.shape[0] - 1), np.minimum(c0 + 1, plane.shape[1] - 1)
    wr, wc = (rows - r0)[:, None], (columns - c0)[None]
    top = plane[np.ix_(r0, c0)] * (1 - wc) + plane[np.ix_(r0, c1)] * wc
    bottom = plane[np.ix_(r1, c0)] * (1 - wc) + plane[np.ix_(r1, c1)] * wc
    return top * (1 - wr) + bottom * wr


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_grey_is_the_mean_of_rgb(name, size):
    frame = solid_frame(PIXEL_FORMATS[name], size, (0.9, 0.3, 0.6))
    np.testing.assert_allclose(grey_plane(frame), 0.6, atol=0.006)


def test_grey_of_444_is_the_matrix_applied():
    frame = random_frame(PIXEL_FORMATS["yuv444p10le"], (9, 14), color=ColorSpec("bt2020"))
    matrix, offset = rgb_from_yuv(frame.color, frame.format)
    rgb = np.einsum("cp,phw->chw", matrix, np.stack(frame.planes).astype(np.float64)) + offset[:, None, None]
    np.testing.assert_allclose(grey_plane(frame), rgb.mean(axis=0), atol=1e-5)


def test_coefficients_reproduce_a_matte_that_follows_the_picture():
    rng = np.random.default_rng(0)
    grey = rng.random((24, 24), dtype=np.float32)
    rgb = np.stack([grey, grey, grey])[None]
    gain, offset = guided_coefficients(rgb, (0.25 + 0.5 * grey)[None], radius=2, epsilon=1e-6)
    np.testing.assert_allclose(gain, 0.5, atol=1e-3)
    np.testing.assert_allclose(offset, 0.25, atol=1e-3)


def test_a_flat_picture_keeps_the_mean_matte():
    alpha = np.zeros((1, 16, 16), np.float32)
    alpha[:, :, 8:] = 1
    gain, offset = guided_coefficients(np.full((1, 3, 16, 16), 0.5, np.float32), alpha, radius=1)
    np.testing.assert_allclose(gain, 0, atol=1e-3)
    assert offset[0, 8, 2] == pytest.approx(0, abs=1e-3)
    assert offset[0, 8, 13] == pytest.approx(1, abs=1e-3)


def test_a_blurred_matte_snaps_to_the_edge_of_the_picture():
    frame = solid_frame(PIXEL_FORMATS["yuv444p"], (64, 64), (0.1, 0.1, 0.1))
    luma = frame.planes[0].copy()
    luma[:, 30:] = 220  # an edge between two samples of the small matte
    frame = frame.with_planes((luma, *frame.planes[1:]))
    small_grey = grey_plane(frame).reshape(16, 4, 16, 4).mean(axis=(1, 3))
    soft = np.clip((np.arange(16) - 4.5) / 5, 0, 1).astype(np.float32)[None].repeat(16, axis=0)
    gain, offset = guided_coefficients(np.stack([small_grey] * 3)[None], soft[None], radius=3, epsilon=1e-4)
    sharp = refine_alpha(frame, regions=whole(frame), gain=gain, offset=offset)[32]
    step_sharp = int(sharp[30]) - int(sharp[29])
    assert step_sharp > 80  # the plain enlarged matte rises by 13 codes a sample here


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_refined_alpha_is_the_formula(name, size):
    frame = random_frame(PIXEL_FORMATS[name], size)
    rng = np.random.default_rng(3)
    gain = rng.uniform(-2, 2, (1, 4, 5)).astype(np.float32)
    offset = rng.uniform(-0.5, 1.5, (1, 4, 5)).astype(np.float32)
    alpha = refine_alpha(frame, regions=whole(frame), gain=gain, offset=offset)
    assert alpha.dtype == alpha_dtype(frame)
    peak = alpha_peak(alpha)
    exact = bilinear(gain[0], size) * grey_plane(frame) + bilinear(offset[0], size)
    assert np.abs(alpha - np.clip(exact, 0, 1) * peak).max() <= 0.5 + peak * 2e-4


def test_semi_planar_and_planar_give_the_same_alpha():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (22, 34))
    gain, offset = np.full((1, 3, 3), 0.7, np.float32), np.full((1, 3, 3), 0.1, np.float32)
    planar = refine_alpha(frame, regions=whole(frame), gain=gain, offset=offset)
    twin = refine_alpha(semi_planar_twin(frame), regions=whole(frame), gain=gain, offset=offset)
    np.testing.assert_array_equal(planar, twin)


def test_eyes_do_not_mix():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (16, 40))
    regions = [Region(0, 0, 20, 16), Region(20, 0, 20, 16)]
    gain = np.zeros((2, 4, 4), np.float32)
    offset = np.stack([np.zeros((4, 4)), np.ones((4, 4))]).astype(np.float32)
    alpha = refine_alpha(frame, regions=regions, gain=gain, offset=offset)
    assert (alpha[:, :20] == 0).all()
    assert (alpha[:, 20:] == 255).all()


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_is_undone(degrees):
    """Check that a coefficient at the top left of the upright picture lands where that corner is coded."""
    frame = solid_frame(PIXEL_FORMATS["yuv420p"], (20, 20), (0, 0, 0))
    offset = np.zeros((1, 10, 10), np.float32)
    offset[:, :5, :5] = 1
    alpha = refine_alpha(
        frame, regions=whole(frame), gain=np.zeros_like(offset), offset=offset, rotation_degrees=degrees
    )
    upright = np.rot90(alpha, k=-degrees // 90)
    assert upright[2, 2] == 255
    assert upright[2, 17] == upright[17, 2] == upright[17, 17] == 0


@pytest.mark.parametrize("name", ["yuv420p", "yuv422p10le", "p010le"])
@pytest.mark.parametrize("location", ["left", "topleft"])
def test_a_window_of_grey_is_a_window_of_the_whole(name, location):
    frame = random_frame(PIXEL_FORMATS[name], (33, 47), color=ColorSpec(chroma_location=location))
    whole_plane = grey_plane(frame)
    for window in (Region(0, 0, 1, 1), Region(5, 7, 11, 13), Region(46, 32, 1, 1), Region(10, 0, 37, 33)):
        np.testing.assert_allclose(
            grey_plane(frame, window), whole_plane[window.rows, window.columns], atol=1e-6
        )


@given(
    size=st.tuples(st.integers(1, 300), st.integers(1, 120)),
    small=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    boxes=st.lists(st.tuples(*[st.integers(0, 23)] * 2, *[st.integers(0, 8)] * 2), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_small_people_anywhere_are_refined_exactly(size, small, boxes):
    """Check that computing only the visible parts changes nothing."""
    frame = random_frame(PIXEL_FORMATS["yuv420p"], size)
    gain = np.zeros((1, *small), np.float32)
    offset = np.full((1, *small), -0.2, np.float32)
    for top, left, height, width in boxes:
        offset[:, top : top + height, left : left + width] = 0.9
        gain[:, top : top + height, left : left + width] = -0.4
    alpha = refine_alpha(frame, regions=whole(frame), gain=gain, offset=offset)
    exact = bilinear(gain[0], size) * grey_plane(frame) + bilinear(offset[0], size)
    assert np.abs(alpha - np.clip(exact, 0, 1) * 255).max() <= 0.6


def test_grey_beside_the_seam_is_the_eyes_own():
    frame = random_frame(PIXEL_FORMATS["yuv420p"], (8, 32))
    other = frame.with_planes(tuple(plane.copy() for plane in frame.planes))
    other.planes[0][:, 16:] = 0
    for plane in other.planes[1:]:
        plane[:, 8:] = 255
    eyes = [Region(0, 0, 16, 8), Region(16, 0, 16, 8)]
    gain, offset = np.ones((2, 4, 4), np.float32), np.zeros((2, 4, 4), np.float32)
    left = [refine_alpha(f, regions=eyes, gain=gain, offset=offset)[:, :16] for f in (frame, other)]
    np.testing.assert_array_equal(*left)
