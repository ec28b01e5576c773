from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from clips import write_clip
from pictures import FORMATS, solid_frame
from vitascope.errors import InputError
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.kernels.color import rgb_from_yuv
from vitascope.gpu.kernels.fit import fit_frame
from vitascope.gpu.kernels.region import Region
from vitascope.segmentation.render.backgrounds import Background

RED = (0.8, 0.1, 0.1)


def rgb_at(frame, y, x):
    fmt = frame.format
    cy, cx = y >> fmt.chroma_shift_y, x >> fmt.chroma_shift_x
    chroma = frame.planes[1][cy, cx] if fmt.semi_planar else [plane[cy, cx] for plane in frame.planes[1:]]
    matrix, offset = rgb_from_yuv(frame.color, fmt)
    return matrix @ np.array([frame.planes[0][y, x], *chroma], float) + offset


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("color", [ColorSpec("bt601"), ColorSpec("bt2020", full_range=True)])
def test_a_picture_keeps_its_colour_in_every_format(name, color):
    picture = solid_frame(PIXEL_FORMATS["yuv444p"], (20, 30), RED)
    like = solid_frame(PIXEL_FORMATS[name], (17, 23), (0, 0, 0), color=color)
    fitted = fit_frame(picture, like=like, regions=[Region(0, 0, 23, 17)])
    assert fitted.format is like.format
    np.testing.assert_allclose(rgb_at(fitted, 8, 10), RED, atol=0.02)


def test_it_covers_without_distortion_and_each_eye_sees_the_same():
    picture = solid_frame(PIXEL_FORMATS["yuv444p"], (40, 40), (0, 0, 0))
    luma = picture.planes[0].copy()
    luma[:, :20] = 235
    picture = picture.with_planes((luma, *picture.planes[1:]))
    like = solid_frame(PIXEL_FORMATS["yuv420p"], (20, 80), (0, 0, 0))
    eyes = [Region(0, 0, 40, 20), Region(40, 0, 40, 20)]
    fitted = fit_frame(picture, like=like, regions=eyes)
    left, right = fitted.planes[0][:, :40], fitted.planes[0][:, 40:]
    np.testing.assert_array_equal(left, right)
    assert left[10, 5] == 235
    assert left[10, 35] == 16


def frames_of(count, size=(32, 48)):
    base = solid_frame(PIXEL_FORMATS["yuv420p"], size, (0, 0, 0))
    return [replace(base, index=n, pts=n, time_base=Fraction(1, 10)) for n in range(count)]


def test_a_video_background_runs_in_real_time_and_starts_over(tmp_path):
    levels = [40, 120, 200]
    path = write_clip(
        tmp_path / "bg.mkv",
        width=48,
        height=32,
        frame_count=3,
        frame_rate=Fraction(5),
        codec="ffv1",
        paint=lambda n: np.full((32, 48, 3), levels[n], np.uint8),
    )
    whole = [Region(0, 0, 48, 32)]
    with Background(path) as background:
        seen = [background.behind(frame, whole).planes[0][16, 24] for frame in frames_of(12)]
    steps = [int(value) for value in seen]
    # 10 frames a second over 5: each picture is behind two frames, and after three pairs it starts again.
    assert steps[0] == steps[1] == steps[6] == steps[7]
    assert steps[2] == steps[3] == steps[8]
    assert len(set(steps)) == 3


def test_a_still_is_fitted_once(tmp_path):
    path = write_clip(
        tmp_path / "bg.png", width=48, height=32, frame_count=1, codec="png", pixel_format="rgb24"
    )
    whole = [Region(0, 0, 48, 32)]
    with Background(path) as background:
        first, second = (background.behind(frame, whole) for frame in frames_of(2))
    assert first.planes[0] is second.planes[0]
    assert second.pts == 1


def test_a_missing_background_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.png"):
        Background(tmp_path / "nowhere.png")


@pytest.mark.parametrize("rate", [Fraction(24), Fraction(10)])
def test_far_into_a_film_it_is_where_it_would_have_played_to(tmp_path, rate):
    """Check that a process which starts in the middle seeks there, and does not play whole loops."""
    path = write_clip(
        tmp_path / "behind.mp4",
        frame_count=5,
        frame_rate=Fraction(12),
        paint=lambda n: np.full((64, 96, 3), 40 * n, np.uint8),
    )
    like = solid_frame(PIXEL_FORMATS["yuv420p"], (64, 96), RED)

    def frame(n):
        return replace(like, pts=7 + n, time_base=1 / rate)

    regions = [Region(0, 0, 96, 64)]
    begin = 7 / rate
    with Background(path, begin_seconds=begin) as played:
        shown = [played.behind(frame(n), regions).planes[0].mean() for n in range(80)]
    assert len(set(shown)) == 5
    for start in (1, 33, 50, 79):
        with Background(path, begin_seconds=begin) as jumped:
            ours = [jumped.behind(frame(n), regions).planes[0].mean() for n in range(start, 80)]
        assert ours == shown[start:]
