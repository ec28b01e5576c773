"""Tests of ``vitascope vr`` from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from clips import write_clip
from vitascope.frames import Projection, StereoLayout
from vitascope.media.metadata.spherical import SphericalMetadata, write_spherical
from vitascope.media.reading.reader import probe


@pytest.fixture
def clip(tmp_path):
    picture = np.random.default_rng(0).integers(
        0, 255, (64, 128, 3), np.uint8
    )  # two eyes with nothing in common
    return write_clip(tmp_path / "wedding_LR_180.mp4", width=128, height=64, paint=lambda _: picture)


def test_info(run, clip):
    code, printed, complained = run("vr", "info", clip)
    assert (code, complained) == (0, "")
    lines = printed.splitlines()
    assert lines[0] == f"{clip}: 128x64"
    assert lines[1].split("  ")[0] == "layout"
    assert "side-by-side (file name (LR); likely)" in lines[1]
    assert "half-equirectangular (file name (180); likely)" in lines[2]
    assert "the halves do not show the same scene" in printed
    (moon,) = [line for line in lines if line.startswith("Moon Player")]
    assert moon.endswith("plays it correctly, by its name")
    (xr,) = [line for line in lines if line.startswith("4XVR")]
    assert xr.endswith("does not recognise it: name it wedding_LR_180_SBS")


def test_info_for_machines(run, clip):
    write_spherical(clip, SphericalMetadata(StereoLayout.SIDE_BY_SIDE, Projection.HALF_EQUIRECTANGULAR))
    told = json.loads(run("vr", "info", clip, "--json")[1])
    assert told["layout"] == {"value": "side-by-side", "how": "stereo box", "sureness": "sure"}
    assert told["projection"] == {
        "value": "half-equirectangular", "how": "projection box", "sureness": "sure",
    }  # fmt: skip
    assert told["fov_degrees"] == {"value": 180.0, "how": "field of view box", "sureness": "sure"}
    assert told["players"]["visionpro"] == "plays it correctly, by its boxes"
    assert list(told["players"]) == ["heresphere", "deovr", "skybox", "4xvr", "moon", "quest", "visionpro"]


def test_what_the_user_says_wins_and_the_contradiction_is_told(run, clip):
    _, printed, _ = run("vr", "info", clip, "--stereo", "tb", "--projection", "fisheye", "--fov", "200")
    assert "top-bottom (declared; sure)" in printed
    assert "fisheye (declared; sure)" in printed
    assert "200 degrees (declared; sure)" in printed
    assert "the file name (LR) says side-by-side, which is not top-bottom (declared)" in printed
    code, _, complained = run("vr", "info", clip, "--projection", "fisheye", "--fov", "999")
    assert code == 2
    assert complained.startswith(
        "vitascope: --fov: video.fov_degrees is 999, expected a number from 20 to 360"
    )


def test_convert(run, clip, tmp_path):
    code, printed, complained = run("vr", "convert", clip, "--to", "fisheye190")
    assert code == 0
    out = tmp_path / "wedding_LR_FISHEYE190.mp4"
    assert printed.startswith(f"{out}  128x64, side-by-side, fisheye190, h264, ")
    assert "12 frames in" in printed
    assert complained.startswith(f"note: {clip.name}: the halves do not show the same scene")
    code, printed, complained = run("vr", "convert", clip, "--to", "fisheye190")
    assert (code, printed) == (4, "")
    assert complained.splitlines()[-1] == f"vitascope: {out} already exists; -y replaces it"
    code, printed, _ = run("vr", "convert", clip, "--to", "fisheye190", "-y", "--json", "-q")
    assert code == 0
    told = json.loads(printed)
    assert (told["output"], told["to"], told["from"], told["frame_count"]) == (
        str(out), "fisheye190", "half-equirectangular", 12,
    )  # fmt: skip
    assert run("vr", "convert", clip, "--to", "flat", "-q")[1:] == ("", "")
    code, _, complained = run("vr", "convert", tmp_path / "gone.mp4", "--to", "flat")
    assert code == 3
    assert "gone.mp4" in complained
    assert run("vr", "convert", clip, "--to", "cube")[0] == 2


def test_convert_takes_the_output_and_the_layout_as_segment_does(run, clip, tmp_path):
    view = tmp_path / "view.mp4"
    code, printed, complained = run("vr", "convert", clip, view, "--to", "flat", "--layout", "sbs")
    assert code == 0
    assert "do not show the same scene" in complained
    assert printed.startswith(f"{view}  ")
    code, _, complained = run("vr", "convert", clip, view, "-o", tmp_path / "b.mp4", "--to", "flat")
    assert (code, complained) == (
        2,
        f"vitascope: the output is given twice: {view} and --out {tmp_path / 'b.mp4'}\n",
    )
    assert "top-bottom (declared; sure)" in run("vr", "info", clip, "--layout", "tb")[1]


@pytest.mark.parametrize(("name", "expected"), [("view.mp4", "yuv420p"), ("view.mkv", "yuv444p")])
def test_convert_makes_of_a_gif_what_players_show(run, tmp_path, name, expected):
    gif = write_clip(
        tmp_path / "in.gif", width=64, height=64, frame_count=3, codec="gif", pixel_format="rgb8"
    )
    code, _, _ = run(
        *(
            "vr",
            "convert",
            gif,
            tmp_path / name,
            "--to",
            "flat",
            "--layout",
            "mono",
            "--projection",
            "equirect180",
        ),
        *(() if name.endswith(".mp4") else ("--codec", "ffv1")),
    )
    assert code == 0
    assert probe(tmp_path / name).format.name == expected


def test_a_library_goes_on_with_what_segment_said_of_its_videos(run, clip, tmp_path):
    folder = tmp_path / "cut"
    for player in ("heresphere", "deovr"):
        code, _, complained = run(
            "segment", clip, "-o", f"{folder / player}/", "--player", player, "--profile", "fast"
        )
        assert code == 0, complained
        (told,) = (folder / player).glob(f"*.{player}.json")
        assert "http" not in told.read_text()
        library = ("vr", "library", folder, "-r", "--base-url")
        assert run(*library, "http://nas:8080/films/")[0] == 0
        assert f"http://nas:8080/films/{player}/" in told.read_text()
        code, _, complained = run(*library, "http://elsewhere/")  # may be replaced only on request
        assert (code, complained.endswith("-y replaces them\n")) == (4, True)
        for index in folder.glob("*.json"):
            index.unlink()
        for other in folder.glob(f"{player}/*.json"):
            other.unlink()


def test_names_that_hold_line_feeds_stay_on_their_line(run, clip):
    code, printed, _ = run("vr", "info", clip.rename(clip.with_name("first\nday.mp4")), "--stereo", "sbs")
    assert code == 0
    assert "first\\nday.mp4: 128x64\n" in printed
    assert not any(line.startswith("day") for line in printed.splitlines())


def test_library(run, clip, tmp_path):
    code, printed, complained = run("vr", "library", tmp_path)
    assert (code, complained) == (0, "")
    assert printed.splitlines()[0] == f"{clip}: side-by-side, half-equirectangular 180"
    assert printed.splitlines()[-1].startswith("4 files; indexes ")
    for path in (tmp_path / "heresphere.json", *tmp_path.glob("*.mp4.heresphere.json")):
        content = path.read_text()
        assert run("vr", "library", tmp_path)[0] == 0  # the content is the same, so nothing is lost
        path.write_text(content.replace('"access": 1', '"access": 2'))
        code, _, complained = run("vr", "library", tmp_path)
        assert (code, complained) == (4, f"vitascope: {path} already exists; -y replaces it\n")
        path.write_text(content)
    for path in tmp_path.glob("*.json"):
        path.write_text("mine")
    code, _, complained = run("vr", "library", tmp_path)
    assert code == 4
    assert complained.endswith("and 3 more outputs; -y replaces them\n")
    (tmp_path / "broken.mp4").write_text("no video")
    code, printed, complained = run("vr", "library", tmp_path, "-y", "--json")
    assert code == 3
    assert "broken.mp4" in complained
    told = json.loads(printed)
    assert len(told["files"]) == 4
    assert list(told["failures"]) == [str(tmp_path / "broken.mp4")]
    code, _, complained = run("vr", "library", tmp_path, "-y", "--key-color", "nocolour")
    assert code == 2
    assert complained.startswith("vitascope: --key-color nocolour: expected a colour")
