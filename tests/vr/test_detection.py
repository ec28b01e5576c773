"""Tests of what a video is to a VR player: detection, its certainty, and notes on contradictions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage import data

from vitascope.errors import UsageError
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Projection, StereoLayout, VideoInfo
from vitascope.vr.detection import describe_vr, detect_layout, find_circle
from vitascope.vr.packing import pack_discs, shows_discs, tile_size
from vitascope.vr.projection import Equirectangular, Fisheye

SBS, TB, MONO = StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM, StereoLayout.MONO
HALF, WHOLE, FISHEYE, FLAT = (
    Projection.HALF_EQUIRECTANGULAR,
    Projection.EQUIRECTANGULAR,
    Projection.FISHEYE,
    Projection.FLAT,
)
SIDE = 256


def video(name="film.mp4", size=(5760, 2880), **facts):
    return VideoInfo(
        path=Path(name),
        width=size[0],
        height=size[1],
        format=PIXEL_FORMATS["yuv420p"],
        source_format="yuv420p",
        color=ColorSpec(),
        codec="h264",
        container="mp4",
        time_base=Fraction(1, 25),
        average_frame_rate=Fraction(25),
        **facts,
    )


def grey(name="astronaut"):
    picture = getattr(data, name)()
    luma = picture if picture.ndim == 2 else cv2.cvtColor(picture[..., :3], cv2.COLOR_RGB2GRAY)
    return cv2.resize(luma, (SIDE, SIDE), interpolation=cv2.INTER_AREA)


def two_eyes(picture):
    return np.hstack([picture, np.roll(picture, 4, axis=1)])


def in_circle(picture, center=(0.5, 0.5), radius=(0.5, 0.5)):
    """Draw a circle with black corners, as from a decoder."""
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5) / SIDE
    inside = np.hypot((x - center[0]) / radius[0], (y - center[1]) / radius[1]) <= 1
    painted = np.where(inside, picture * 0.86 + 16, 16).astype(np.uint8)
    return cv2.imdecode(
        cv2.imencode(".jpg", painted, [cv2.IMWRITE_JPEG_QUALITY, 60])[1], cv2.IMREAD_GRAYSCALE
    )


def found(description):
    return description.layout, description.projection, description.fov_degrees


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("beach_LR_180.mp4", (5760, 2880), (SBS, HALF, 180)),
        ("beach_TB_180.mp4", (2880, 5760), (TB, HALF, 180)),
        ("beach_mono_360.mp4", (5760, 2880), (MONO, WHOLE, 360)),
        ("beach_TB_360.mp4", (4096, 4096), (TB, WHOLE, 360)),
        ("beach_FISHEYE190_alpha.mp4", (8192, 4096), (SBS, FISHEYE, 190)),
        ("film_SBS.mp4", (3840, 1080), (SBS, FLAT, None)),
        ("film_SBS.mp4", (5760, 2880), (SBS, HALF, 180)),
        ("film.mp4", (1920, 1080), (MONO, FLAT, None)),
    ],
)
def test_by_name_and_shape(name, size, expected):
    description = describe_vr(video(name, size))
    assert found(description) == expected
    assert description.doubts == ()
    assert len(description.lenses) == (1 if expected[0] is MONO else 2)


def test_reasons_say_how_sure():
    guessed = describe_vr(video("beach_SBS.mp4"))
    assert (guessed.layout_reason.how, guessed.layout_reason.sureness) == ("file name (SBS)", "likely")
    assert (guessed.projection_reason.how, guessed.projection_reason.sureness) == (
        "each eye is square",
        "likely",
    )
    boxed = describe_vr(video(stereo=SBS, projection=HALF))
    assert {boxed.layout_reason.sureness, boxed.projection_reason.sureness, boxed.fov_reason.sureness} == {
        "sure"
    }
    declared = describe_vr(video(), layout=TB, projection=FISHEYE, fov_degrees=200)
    assert found(declared) == (TB, FISHEYE, 200)
    assert declared.fov_reason.how == "declared"
    assert describe_vr(video(size=(1920, 1080))).layout_reason.sureness == "a guess"


def test_the_user_wins_over_the_box_and_the_box_over_the_name_and_each_is_said():
    boxed = video("beach_FISHEYE190_SBS.mp4", stereo=TB, projection=HALF)
    by_box = describe_vr(boxed)
    assert found(by_box) == (TB, HALF, 180)
    assert by_box.doubts == (
        "the file name (SBS) says side-by-side, which is not top-bottom (stereo box)",
        "the file name (FISHEYE190): fisheye, which is not half-equirectangular (projection box)",
    )
    by_user = describe_vr(boxed, layout=MONO, projection=FISHEYE)
    assert found(by_user) == (MONO, FISHEYE, 190)
    assert "the stereo box says top-bottom, which is not mono (declared)" in by_user.doubts
    assert "the projection box: half-equirectangular, which is not fisheye (declared)" in by_user.doubts


def test_fields_of_view_that_disagree_or_cannot_be():
    boxed = describe_vr(video("beach_FISHEYE190.mp4", stereo=SBS, projection=FISHEYE, fov_degrees=200.0))
    assert boxed.fov_degrees == 200
    assert boxed.doubts == ("the file name (FISHEYE190): 190 degrees, which is not 200 (field of view box)",)
    odd = describe_vr(video("beach_LR.mp4", stereo=SBS, projection=FISHEYE, fov_degrees=4000.0))
    assert odd.fov_degrees == 180
    assert odd.doubts[0] == "the field of view box says 4000 degrees, which no fisheye picture has"
    assert odd.doubts[1].startswith("the field of view of the fisheye is unknown")
    with pytest.raises(UsageError, match="fisheye: a field of view of 400 degrees"):
        describe_vr(video(), projection=FISHEYE, fov_degrees=400)
    with pytest.raises(UsageError, match="flat: a field of view of 180 degrees"):
        describe_vr(video(), projection=FLAT, fov_degrees=180)


def test_a_bare_number_needs_the_shape():
    plain = describe_vr(video("Studio 180.mp4", (1920, 1080)))
    assert found(plain) == (MONO, FLAT, None)
    assert plain.doubts[0].startswith("180 in the file name of a video of this shape")
    assert found(describe_vr(video("dive_360.mp4", (3840, 1920)))) == (MONO, WHOLE, 360)


def test_the_right_eye_first():
    assert describe_vr(video("beach_RL_180.mp4")).right_eye_first
    boxed = describe_vr(video("beach_LR_180.mp4", stereo=SBS, right_eye_first=True))
    assert boxed.right_eye_first
    assert boxed.doubts == ("the stereo box says that the right eye is first, the file name (LR) not",)
    other = describe_vr(video("beach_RL_180.mp4", stereo=SBS))
    assert not other.right_eye_first
    assert len(other.doubts) == 1


@pytest.mark.parametrize(
    ("name", "size", "squeezed"),
    [
        ("film_HSBS.mp4", (1920, 1080), "width"),
        ("film_SBS.mp4", (1920, 1080), "width"),
        ("beach_LR_180.mp4", (2880, 2880), "width"),
        ("beach_LR_360.mp4", (3840, 1920), "width"),
        ("beach_TB_180.mp4", (2880, 2880), "height"),
        ("film_SBS.mp4", (1920, 540), None),
        ("film_SBS.mp4", (3840, 1080), None),
    ],
)
def test_squeezed_eyes(name, size, squeezed):
    description = describe_vr(video(name, size))
    assert description.is_half == (squeezed is not None)
    assert description.doubts == ((f"each eye is squeezed to half its {squeezed}",) if squeezed else ())


def test_pixels_that_are_not_square_count():
    info = video("beach_LR_180.mp4", (2880, 2880), sample_aspect_ratio=Fraction(2))
    assert not describe_vr(info).is_half


def test_odd_eyes_are_told():
    (doubt,) = describe_vr(video("film_SBS_180.mp4", (1001, 500))).doubts
    assert doubt == "the eyes have an odd size: the first is 501x500, the other 500x500"


@pytest.mark.parametrize(
    ("name", "size", "eye"),
    [("film_SBS_180.mp4", (1002, 500), "501x500"), ("film_TB_180.mp4", (500, 1002), "500x501")],
)
def test_eyes_that_share_samples_of_colour_are_told(name, size, eye):
    (doubt,) = describe_vr(video(name, size)).doubts
    assert doubt == f"the eyes have an odd size, {eye}: they share samples of colour at the seam"
    assert not describe_vr(replace(video(name, size), format=PIXEL_FORMATS["yuv444p"])).doubts


@pytest.mark.parametrize("order", [1, -1])
def test_an_eye_that_shows_nothing_is_told(order):
    info = video("beach_LR_180.mp4", (512, 256))
    eyes = [grey(), np.full_like(grey(), 16)][::order]
    told = describe_vr(info, [np.hstack(eyes)] * 3).doubts
    assert f"the {'second' if order == 1 else 'first'} eye shows nothing" in told
    dark = [np.hstack([np.full_like(grey(), 16)] * 2)] * 3
    assert not any("shows nothing" in doubt for doubt in describe_vr(info, dark).doubts)


def test_one_picture_twice_is_told():
    info = video("beach_LR_180.mp4", (512, 256))
    twice = describe_vr(info, [np.hstack([grey(), grey()])] * 3)
    assert any("both eyes show the same picture" in doubt for doubt in twice.doubts)
    assert describe_vr(info, [two_eyes(grey())] * 3).doubts == ()


def test_halves_that_do_not_fit_what_is_said():
    info = video("beach_LR_180.mp4", (512, 256))
    unlike = describe_vr(info, [np.hstack([grey("coffee"), grey("chelsea")])] * 3)
    assert any("do not show the same scene" in doubt for doubt in unlike.doubts)
    alike = describe_vr(video(size=(512, 256), stereo=MONO), [two_eyes(grey())] * 3)
    assert alike.layout is MONO
    assert any("the halves show the same scene" in doubt for doubt in alike.doubts)


def test_pictures_decide_between_two_layouts_of_a_name():
    side_by_side = two_eyes(grey())
    one_above = np.vstack(np.hsplit(side_by_side, 2))
    for layout, picture, word in ((SBS, side_by_side, "RL"), (TB, one_above, "tb")):
        info = video("beach_RL_180_tb.mp4", picture.shape[::-1])
        told = describe_vr(info, [picture] * 3)
        assert told.layout is layout
        assert told.layout_reason.how == f"file name ({word})"
        assert told.layout_reason.sureness == "likely"
        assert told.right_eye_first == (layout is SBS)
        (doubt,) = (doubt for doubt in told.doubts if "squeezed" not in doubt)
        assert f"both RL and tb: the eyes are {layout.value}" in doubt
        assert not told.is_half
    unsure = describe_vr(video("beach_RL_180_tb.mp4"))
    assert (unsure.layout, unsure.layout_reason.sureness) == (SBS, "a guess")
    assert "RL is used" in unsure.doubts[0]
    nothing = describe_vr(info, [np.full_like(one_above, 16)] * 3)
    assert nothing.layout is SBS


@pytest.mark.parametrize("layout", [SBS, TB])
def test_no_doubt_about_two_layouts_of_a_name_where_it_is_said(layout):
    size = (512, 256) if layout is SBS else (256, 512)
    for told in (
        describe_vr(video("beach_LR_180_tb.mp4", size), layout=layout),
        describe_vr(video("beach_LR_180_tb.mp4", size, stereo=layout)),
    ):
        assert (told.layout, told.doubts) == (layout, ())


@pytest.mark.parametrize(
    ("name", "joined", "expected"),
    [
        ("beach_TB_180.mp4", np.hstack, "those that are side-by-side do: --stereo sbs says so"),
        ("beach_SBS_180.mp4", np.vstack, "those that are top-bottom do: --stereo tb says so"),
    ],
)
def test_halves_that_fit_the_other_layout_name_it(name, joined, expected):
    picture = joined([grey(), np.roll(grey(), 4, axis=1)])
    height, width = picture.shape
    (doubt,) = describe_vr(video(name, (10 * width, 10 * height)), pictures=[picture]).doubts
    assert doubt.endswith(expected)


def test_an_upright_picture_whose_halves_are_alike_is_asked_about():
    eyes = np.vstack(np.hsplit(two_eyes(grey()), 2))
    curtain = np.tile((np.sin(np.arange(256) / 5) * 60 + 128).astype(np.uint8), (512, 1))
    for picture in (eyes, curtain):
        found = describe_vr(video(size=(256, 512)), [picture] * 3)
        assert (found.layout, found.projection) == (MONO, FLAT)
        assert any("--stereo tb" in doubt for doubt in found.doubts)
    telephone = describe_vr(video(size=(256, 512)), [np.vstack([grey("coffee"), grey("chelsea")])] * 3)
    assert (telephone.layout, telephone.doubts) == (MONO, ())
    assert describe_vr(video(size=(270, 555)), [np.resize(curtain, (555, 270))] * 3).doubts == ()


@pytest.mark.parametrize("name", ["astronaut", "coffee", "rocket", "page", "moon"])
def test_a_fisheye_is_known_by_its_black_corners(name):
    scenes = [np.roll(grey(name), 20 * n, axis=1) for n in range(4)]
    pictures = [np.hstack([in_circle(scene), in_circle(np.roll(scene, 4, axis=1))]) for scene in scenes]
    description = describe_vr(video(size=(512, 256), stereo=SBS), pictures)
    assert found(description) == (SBS, FISHEYE, 180)
    assert description.projection_reason.how == "black corners around a circle"
    assert description.projection_reason.sureness == "likely"
    assert description.lenses == (Fisheye(180.0), Fisheye(180.0))


def test_one_circle_alone_is_a_guess():
    planet = [in_circle(grey("moon"), radius=(0.45, 0.45))] * 3
    alone = describe_vr(video("planet.mp4", (256, 256)), planet)
    assert (alone.projection, alone.projection_reason.sureness) == (FISHEYE, "a guess")
    named = describe_vr(video("planet_mono.mp4", (256, 256)), planet)
    assert (named.projection, named.projection_reason.sureness) == (FISHEYE, "likely")


def test_each_eyes_circle_is_where_it_is():
    eyes = [in_circle(grey(), (0.42, 0.5), (0.42, 0.42)), in_circle(grey(), (0.56, 0.5), (0.42, 0.42))]
    description = describe_vr(video("a_FISHEYE190.mp4", (512, 256), stereo=SBS), [np.hstack(eyes)] * 3)
    for lens, x in zip(description.lenses, (0.42, 0.56), strict=True):
        assert isinstance(lens, Fisheye)
        assert lens.fov_degrees == 190
        assert lens.center == pytest.approx((x, 0.5), abs=0.025)
        assert lens.radius == pytest.approx((0.42, 0.42), abs=0.025)
    said = [doubt for doubt in description.doubts if "is off centre or too small" in doubt]
    assert [doubt.split(" is off")[0] for doubt in said] == [
        "the fisheye circle of eye 1",
        "the fisheye circle of eye 2",
    ]


@pytest.mark.parametrize(
    "name", ["astronaut", "coffee", "chelsea", "grass", "camera", "coins", "brick", "moon"]
)
def test_ordinary_pictures_have_no_circle(name):
    assert find_circle([grey(name)]) is None


def test_darkness_and_specks_have_no_circle():
    assert find_circle([]) is None
    assert find_circle([np.full((SIDE, SIDE), 16, np.uint8)]) is None
    assert find_circle([np.zeros((4, 4), np.uint8)]) is None
    night = np.full((SIDE, SIDE), 16, np.uint8)
    night[100:110, 120:140] = 200
    assert find_circle([night]) is None
    letterbox = grey().copy()
    letterbox[:40] = letterbox[-40:] = 16
    assert find_circle([letterbox]) is None
    window = np.full((SIDE, SIDE), 16, np.uint8)
    window[30:-30, 30:-30] = grey()[30:-30, 30:-30]
    assert find_circle([window]) is None


def test_packed_alpha_is_known_by_its_name_and_its_corners_are_no_rim():
    painted = in_circle(grey())
    painted[:50, 100:150] = 120  # a matte at the upper border
    description = describe_vr(video("a_FISHEYE190_alpha.mp4", (512, 256)), [two_eyes(painted)] * 3)
    assert description.is_packed_alpha
    assert description.lenses == (Fisheye(190.0), Fisheye(190.0))
    assert not describe_vr(video("a_LR_180_alpha.mp4")).is_packed_alpha


def packed(person, color="red", side=256, *, moved=0):
    """Make luma of two fisheye eyes with mattes in the corners, slightly compressed."""
    luma = two_eyes(in_circle(grey()))
    neutral = np.full((side // 2, side), 128, np.uint8)
    frame = Frame(
        (luma, neutral, neutral.copy()), format=PIXEL_FORMATS["yuv420p"], color=ColorSpec(), index=0, pts=0,
        time_base=Fraction(1, 25),
    )  # fmt: skip
    height, width = tile_size(side)
    y, x = np.mgrid[:height, :width]
    tiles = np.stack([np.hypot((x - moved - at) / 12, (y - 55) / 30) < 1 for at in (50, 53)]).astype(
        np.float32
    )
    pack_discs(frame, tiles * person, color=color)
    return cv2.imdecode(cv2.imencode(".jpg", luma, [cv2.IMWRITE_JPEG_QUALITY, 60])[1], cv2.IMREAD_GRAYSCALE)


@pytest.mark.parametrize("color", ["red", "grey"])
def test_packed_alpha_without_a_name_is_known_by_its_mattes(color):
    pictures = [packed(0, color), *[packed(1, color)] * 2]
    description = describe_vr(video("holiday.mp4", (512, 256)), pictures)
    assert found(description) == (SBS, FISHEYE, 190)
    assert description.is_packed_alpha
    assert description.projection_reason.how == "mattes in the corners"
    assert description.doubts == (
        "the field of view of the fisheye is unknown: 190 degrees are assumed; if that is wrong, give --fov",
    )
    boxed = video("holiday.mp4", (512, 256), stereo=SBS, projection=FISHEYE, fov_degrees=190.0)
    assert describe_vr(boxed, pictures).is_packed_alpha
    # A name that says something else is believed, and the pictures are reported.
    other = describe_vr(video("holiday_LR_180.mp4", (512, 256)), pictures)
    assert (other.projection, other.is_packed_alpha) == (HALF, False)
    assert (
        "the mattes in the corners: fisheye, which is not half-equirectangular (file name (180))"
        in other.doubts
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda luma: luma.__setitem__(np.s_[:, np.r_[:40, 472:512]], 16),
        lambda luma: luma.__setitem__(np.s_[:8, 120:392], 60),
        lambda luma: np.copyto(luma, two_eyes(in_circle(grey()))),
        lambda luma: np.copyto(luma, two_eyes(grey())),
    ],
    ids=["one disc", "a bar beyond the discs", "nobody", "no corners"],
)
def test_what_lies_in_the_corners_and_is_no_pair_of_mattes_is_none(spoil):
    luma = packed(1).copy()
    assert shows_discs([luma])
    spoil(luma)
    assert not shows_discs([luma])
    assert not shows_discs([])
    assert not shows_discs([luma[:, :256]])


def test_what_is_the_same_in_all_frames_is_a_logo_and_no_matte():
    def noisy(luma, seed):
        noise = np.random.default_rng(seed).normal(0, 2, luma.shape)
        return np.clip(luma + noise, 0, 255).astype(np.uint8)

    stays = [noisy(packed(1), seed) for seed in range(3)]
    assert not shows_discs(stays)
    assert not describe_vr(video("studio.mp4", (512, 256)), stays).is_packed_alpha
    assert shows_discs([noisy(packed(1, moved=moved), moved) for moved in range(3)])
    assert shows_discs([stays[0]] * 3)  # from a video with one keyframe


def test_one_whole_sphere_is_known_by_its_borders():
    sphere = np.hstack([grey("moon"), grey("moon")[:, ::-1]])
    sphere[:12], sphere[-12:] = 90, 140
    description = describe_vr(video(size=(512, 256)), [sphere.astype(np.uint8)] * 3)
    assert found(description) == (MONO, WHOLE, 360)
    assert description.lenses == (Equirectangular(360.0, 180.0),)
    assert found(describe_vr(video(size=(512, 256)), [cv2.resize(grey("coffee"), (512, 256))] * 3)) == (
        MONO,
        FLAT,
        None,
    )


def test_a_file_in_a_folder_of_pictures_needs_no_pictures():
    assert found(describe_vr(replace(video("shots"), container="images"), [])) == (MONO, FLAT, None)


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
        ("slr.mp4", "mono"),  # not a whole word
        ("ours_180.mp4", "mono"),
        ("holiday.mp4", "mono"),
    ],
)
def test_what_file_names_say_of_the_layout(name, layout):
    assert detect_layout(video(name)).layout == layout


def test_what_the_user_declares_beats_the_box_and_the_box_beats_the_name():
    named = video("a_SBS.mp4", stereo=TB)
    assert detect_layout(named).layout is TB
    assert detect_layout(named).reason == "stereo box"
    declared = detect_layout(named, MONO)
    assert (declared.layout, declared.reason) == (MONO, "declared")


def test_a_doubtful_word_is_mentioned():
    found = detect_layout(video("wedding_TB.mp4"))
    assert found.layout is MONO
    assert "--stereo tb" in found.reason
