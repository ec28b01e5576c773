"""Tests of the words in a VR video's name, and of the name without them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.frames import Projection, StereoLayout
from vitascope.vr.file_names import read_name, without_vr_words

SBS, TB, MONO = StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM, StereoLayout.MONO
HALF, WHOLE, FISHEYE, FLAT = (
    Projection.HALF_EQUIRECTANGULAR,
    Projection.EQUIRECTANGULAR,
    Projection.FISHEYE,
    Projection.FLAT,
)


@pytest.mark.parametrize(
    ("stem", "layout", "projection", "fov_degrees"),
    [
        ("beach_FISHEYE190_alpha", SBS, FISHEYE, 190),
        ("beach_FISHEYE_LR", SBS, FISHEYE, None),
        ("beach_LR_180_FISHEYE_F190_alpha", SBS, FISHEYE, 190),
        ("beach_MKX200", SBS, FISHEYE, 200),
        ("beach_MKX220_alpha", SBS, FISHEYE, 220),
        ("beach_RF52", SBS, FISHEYE, 190),
        ("beach-vrca220", SBS, FISHEYE, 220),
        ("beach_LR_180", SBS, HALF, None),
        ("Trip [VR180]", SBS, HALF, None),
        ("beach_180x180_3dh", SBS, HALF, None),
        ("beach_TB_360", TB, WHOLE, None),
        ("beach_mono_360", MONO, WHOLE, None),
        ("film_LRF_Full_SBS", SBS, FLAT, None),
        ("film_3dv", TB, FLAT, None),
        ("film_SBS", SBS, None, None),
        ("Ford_F150", None, None, None),
        ("alpha_centauri", None, None, None),
    ],
)
def test_names(stem, layout, projection, fov_degrees):
    name = read_name(stem)
    assert (name.layout, name.projection, name.fov_degrees) == (layout, projection, fov_degrees)
    assert name.doubts == ()


def test_packed_alpha_is_a_fisheye_with_that_word():
    assert read_name("beach_FISHEYE190_alpha").is_packed_alpha
    assert read_name("beach-rf52-ALPHA").is_packed_alpha
    assert not read_name("project_alpha_LR_180").is_packed_alpha
    assert not read_name("beach_FISHEYE190_alphabet").is_packed_alpha


def test_order_and_squeeze():
    assert read_name("beach_RL_180").right_eye_first
    assert not read_name("beach_LR_180").right_eye_first
    assert not read_name("rl_mono").is_half
    assert read_name("film_HSBS").is_half
    assert read_name("film_HOU").is_half
    assert not read_name("film_FSBS").is_half
    both = read_name("beach_RL_180_tb")
    assert both.right_eye_first
    assert both.otherwise is not None
    assert both.otherwise.layout_word == "tb"
    assert not both.otherwise.right_eye_first
    assert not read_name("beach_LR_180_bt").right_eye_first


def test_words_that_make_no_sense_are_told():
    (doubt,) = read_name("beach_FISHEYE999").doubts
    assert doubt.startswith("FISHEYE999 in the file name is not the field of view")
    assert read_name("beach_FISHEYE999").fov_degrees is None
    (doubt,) = read_name("beach_SBS_TB_180").doubts
    assert "both SBS and TB" in doubt
    assert read_name("moi_ou_toi_LR").doubts == ()


@pytest.mark.parametrize(
    ("stem", "left"),
    [
        ("wedding_LR_180", "wedding"),
        ("wedding_8K_LR_180_SBS_passthrough", "wedding_8K"),
        ("wedding_LR_180_FISHEYE_F180_alpha", "wedding"),
        ("wedding_FISHEYE190_alpha", "wedding"),
        ("wedding_LRF_Full_SBS", "wedding"),
        ("Trip [VR180]", "Trip"),
        ("clip (180_LR)", "clip"),
        ("wedding_LR_180_cut", "wedding_cut"),
        ("party_TB_180_vr", "party_vr"),
        ("clip (TB 180) v2", "clip v2"),
        ("Trip [VR180] (2)", "Trip (2)"),
        ("LR_180-day 1", "day 1"),
        ("Mono_Lake_LR_180", "Lake"),
        ("day 1 [part LR 180 2]", "day 1 [part 2]"),
        ("project_alpha", "project_alpha"),
        ("project_alpha_LR_180", "project_alpha"),
        ("wedding_TB_360", "wedding"),
        ("wedding_MONO_180", "wedding"),
        ("wedding_OU_VR180", "wedding"),
        ("moi_ou_LR_180", "moi_ou"),
        ("moi_ou", "moi_ou"),
        ("Ford_F150", "Ford_F150"),
        ("full_house", "full_house"),
        ("slr", "slr"),
        ("LR_180", "vr"),
        ("", ""),
    ],
)
def test_endings(stem, left):
    assert without_vr_words(stem) == left


@given(st.text(max_size=40))
def test_any_name_can_be_read(stem):
    read_name(stem)
    assert bool(without_vr_words(stem)) == bool(stem)


@pytest.mark.parametrize(
    "ending", ["_FISHEYE190_alpha", "_LR_180_SBS", "_TB_360", "_LRF_Full_SBS", "_MONO_180"]
)
@given(
    words=st.lists(
        st.sampled_from(
            [
                "TB",
                "BT",
                "LR",
                "SBS",
                "mono",
                "2D",
                "180",
                "360",
                "VR180",
                "MKX200",
                "fisheye",
                "flat",
                "day",
                "1",
            ]
        ),
        min_size=1,
    )
)
def test_no_word_that_is_left_speaks_against_a_new_ending(ending, words):
    named, wanted = (read_name(stem + ending) for stem in (without_vr_words("_".join(words)), "x"))
    assert (named.layout, named.projection, named.fov_degrees, named.right_eye_first, named.doubts) == (
        wanted.layout,
        wanted.projection,
        wanted.fov_degrees,
        wanted.right_eye_first,
        (),
    )
