"""Tests of each player's name, boxes and JSON."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from vitascope.errors import UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.vr.detection import Reason, VrDescription, lens_of
from vitascope.vr.file_names import read_name
from vitascope.vr.players import (
    PLAYERS,
    ServedVideo,
    as_played,
    deovr_json,
    heresphere_json,
    player_words,
    vr_words,
)

SBS, TB, MONO = StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM, StereoLayout.MONO
HALF, WHOLE, FISHEYE, FLAT = (
    Projection.HALF_EQUIRECTANGULAR,
    Projection.EQUIRECTANGULAR,
    Projection.FISHEYE,
    Projection.FLAT,
)


def described(layout=SBS, projection=HALF, fov_degrees=180.0, *, how="file name (LR)", **more):
    return VrDescription(
        layout,
        projection,
        fov_degrees,
        (lens_of(projection, fov_degrees),) * (1 if layout is MONO else 2),
        layout_reason=Reason("stereo box" if how == "boxes" else how, "sure"),
        projection_reason=Reason("projection box" if how == "boxes" else how, "sure"),
        fov_reason=Reason(how, "sure"),
        **more,
    )


FACTS = {"title": "beach", "url": "http://nas/beach.mp4", "width": 8192, "height": 4096, "size_bytes": 123}


@pytest.mark.parametrize(
    ("name", "alpha", "boxes", "described_for"),
    [
        ("heresphere", True, set(), "heresphere"),
        ("deovr", True, set(), "deovr"),
        ("skybox", True, set(), None),
        ("4xvr", True, set(), None),
        ("moon", False, set(), None),
        ("quest", True, {"st3d", "sv3d"}, None),
        ("visionpro", False, {"st3d", "sv3d", "vexu"}, None),
    ],
)
def test_each_player(name, alpha, boxes, described_for):
    player = PLAYERS[name]
    assert player.boxes == boxes
    assert player.json == described_for
    assert player.kinds[0] == ("packed-alpha" if alpha else "key-color")
    assert player_words(player, kind="key-color") == "_LR_180_SBS_passthrough"
    assert re.fullmatch(r"#[0-9A-F]{6}", player.key_color)
    if alpha:
        assert player_words(player, kind="packed-alpha") == "_FISHEYE190_alpha"
    else:
        with pytest.raises(UsageError, match="cannot show packed-alpha; use key-color"):
            player_words(player, kind="packed-alpha")


def test_those_are_all():
    assert list(PLAYERS) == ["heresphere", "deovr", "skybox", "4xvr", "moon", "quest", "visionpro"]


def test_xbvr_takes_every_packed_name_for_alpha():
    """Check its rule: one of five lenses, and "alpha" anywhere in the lower-case name."""
    for player in PLAYERS.values():
        if "packed-alpha" in player.kinds:
            for first in (False, True):
                name = player_words(player, kind="packed-alpha", right_eye_first=first).lower()
                assert re.search(r"mkx200|mkx220|rf52|fisheye190|vrca220", name)
                assert "alpha" in name


@pytest.mark.parametrize(
    ("words", "layout", "projection", "more"),
    [
        ("_LR_180_SBS", SBS, HALF, {}),
        ("_RL_180_SBS", SBS, HALF, {"right_eye_first": True}),
        ("_TB_360", TB, WHOLE, {}),
        ("_MONO_360", MONO, WHOLE, {}),
        ("_LR_FISHEYE190", SBS, FISHEYE, {"fov_degrees": 190.0}),
        ("_LRF_Full_SBS", SBS, FLAT, {}),
        ("", MONO, FLAT, {}),
    ],
)
def test_words(words, layout, projection, more):
    assert vr_words(layout, projection, **more) == words


@pytest.mark.parametrize(("layout", "projection"), list(itertools.product(StereoLayout, Projection)))
@pytest.mark.parametrize(("right_eye_first", "is_half"), list(itertools.product((False, True), repeat=2)))
def test_what_a_name_says_is_read_from_it(layout, projection, right_eye_first, is_half):
    two_eyes = layout is not MONO
    words = vr_words(
        layout, projection, fov_degrees=200, right_eye_first=right_eye_first, is_half=is_half and two_eyes
    )
    name = read_name(f"wedding{words}")
    if words:
        assert (name.layout, name.projection) == (layout, projection)
        assert name.fov_degrees == (200 if projection is FISHEYE else None)
    assert (name.right_eye_first, name.is_half) == (right_eye_first and two_eyes, is_half and two_eyes)
    assert name.doubts == ()


def test_heresphere():
    video = ServedVideo(described(), duration_seconds=61.5, subtitles={"en": "http://nas/a.srt"}, **FACTS)
    assert heresphere_json(video) == {
        "access": 1,
        "title": "beach",
        "duration": 61500,
        "projection": "equirectangular",
        "stereo": "sbs",
        "fov": 180.0,
        "lens": "Linear",
        "media": [
            {
                "name": "4096p",
                "sources": [
                    {
                        "resolution": 4096, "width": 8192, "height": 4096, "size": 123,
                        "url": "http://nas/beach.mp4",
                    }
                ],
            }
        ],
        "subtitles": [{"name": "en", "language": "en", "url": "http://nas/a.srt"}],
    }  # fmt: skip
    alpha = heresphere_json(ServedVideo(described(SBS, FISHEYE, 190.0, is_packed_alpha=True), **FACTS))
    assert (alpha["projection"], alpha["fov"], alpha["lens"]) == ("fisheye", 190.0, "Linear")
    assert alpha["alphaPackedSettings"] == {"defaultSettings": True}
    mkx = heresphere_json(ServedVideo(described(SBS, FISHEYE, 200.0, camera="MKX200"), **FACTS))
    assert mkx["lens"] == "MKX200"
    assert "alphaPackedSettings" not in mkx


@pytest.mark.parametrize(
    ("layout", "projection", "heresphere", "deovr"),
    [
        (MONO, FLAT, ("perspective", "mono"), ("flat", "off")),
        (SBS, FLAT, ("perspective", "sbs"), ("flat", "sbs")),
        (MONO, WHOLE, ("equirectangular360", "mono"), ("sphere", "off")),
        (TB, WHOLE, ("equirectangular360", "tb"), ("sphere", "tb")),
        (SBS, HALF, ("equirectangular", "sbs"), ("dome", "sbs")),
        (SBS, FISHEYE, ("fisheye", "sbs"), ("fisheye", "sbs")),
    ],
)
def test_words_of_the_two(layout, projection, heresphere, deovr):
    description = described(layout, projection, None if projection is FLAT else 180.0)
    ours = heresphere_json(ServedVideo(description, **FACTS))
    assert (ours["projection"], ours["stereo"]) == heresphere
    theirs = deovr_json(ServedVideo(description, **FACTS))
    assert (theirs["screenType"], theirs["stereoMode"]) == deovr
    assert theirs["is3d"] == (layout is not MONO)
    json.dumps([ours, theirs])


def test_deovr():
    assert deovr_json(ServedVideo(described(SBS, FISHEYE, 190.0, is_packed_alpha=True), **FACTS))["chromakey"] == {
        "enabled": "true", "hasAlpha": "true", "h": 0, "s": 0, "v": 0, "opacity": 1, "threshold": 0,
    }  # fmt: skip
    key = deovr_json(ServedVideo(described(), key_color=(43, 230, 64), duration_seconds=61.5, **FACTS))
    assert key["chromakey"] == {
        "enabled": "true", "hasAlpha": "false", "h": 0.352, "s": 0.813, "v": 0.902, "opacity": 1, "threshold": 0.1,
    }  # fmt: skip
    assert key["videoLength"] == 62
    assert key["encodings"][0]["videoSources"][0]["url"] == "http://nas/beach.mp4"
    assert "chromakey" not in deovr_json(ServedVideo(described(), **FACTS))
    screens = {
        camera or fov: deovr_json(ServedVideo(described(SBS, FISHEYE, fov, camera=camera), **FACTS))[
            "screenType"
        ]
        for fov, camera in (
            (190.0, None),
            (180.0, None),
            (200.0, "MKX200"),
            (220.0, "VRCA220"),
            (190.0, "RF52"),
        )
    }
    assert screens == {
        190.0: "fisheye190", 180.0: "fisheye", "MKX200": "mkx200", "VRCA220": "vrca220", "RF52": "rf52",
    }  # fmt: skip


def test_what_players_make_of_files():
    heresphere, moon, vision = (PLAYERS[name] for name in ("heresphere", "moon", "visionpro"))
    assert as_played(moon, described(), "a_LR_180_SBS") == "plays it correctly, by its name"
    assert as_played(moon, described(), "a_LR_180") == "plays it correctly, by its name"
    assert as_played(moon, described(), "a") == "does not recognise it: name it a_LR_180_SBS"
    assert "vitascope vr library" in as_played(heresphere, described(), "a")
    # Its JSON cannot express eyes in that order.
    assert as_played(heresphere, described(right_eye_first=True), "a") == (
        "does not recognise it: name it a_RL_180_SBS"
    )
    assert as_played(vision, described(how="boxes"), "a") == "plays it correctly, by its boxes"
    assert "name it a_LR_180_SBS" in as_played(moon, described(how="boxes"), "a")
    assert as_played(vision, described(), "a_LR_180") == (
        "does not recognise it: it needs boxes, which segment --player visionpro writes"
    )
    quest, fisheye = PLAYERS["quest"], described(SBS, FISHEYE, 190.0, how="boxes")
    assert as_played(quest, described(how="boxes"), "a") == "plays it correctly, by its boxes"
    assert as_played(quest, fisheye, "a") == "does not recognise it: name it a_LR_FISHEYE190"
    assert as_played(vision, fisheye, "a") == "plays it correctly, by its boxes"
    assert "name it a_LR_180_SBS" in as_played(PLAYERS["4xvr"], described(), "a_LR_180")
    assert as_played(PLAYERS["4xvr"], described(), "a_LR_180_SBS") == "plays it correctly, by its name"
    packed = described(SBS, FISHEYE, 190.0, is_packed_alpha=True, how="boxes")
    assert as_played(heresphere, packed, "a_FISHEYE190_alpha") == "plays it correctly, by its name"
    assert "name it a_FISHEYE190_alpha" in as_played(PLAYERS["quest"], packed, "a")
    assert "cannot show packed alpha" in as_played(moon, packed, "a_FISHEYE190_alpha")
    assert as_played(moon, described(MONO, FLAT, None), "a") == "plays it as a flat video"
