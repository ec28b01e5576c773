"""Tests of verifying packed alpha in finished files: what counts as right, and what as wrong."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clips import write_clip
from pictures import solid_frame
from scripted import BrightnessNetwork, segment_with
from vitascope.cli import main
from vitascope.config import VideoSettings, load_settings
from vitascope.errors import UsageError
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.segmentation.segmenter import Segmenter
from vitascope.segmentation.vr.verification import PackedReport, _Discs, verify
from vitascope.vr.packing import disc_area, pack_discs

SIDE, FRAMES = 256, 12
WANTED = VideoSettings(stereo="sbs", projection="equirect180")


def light_disc(index, *, shift=0.0):
    """Make two equirectangular eyes with a light disc that moves, uint8 [h, w, 3]."""
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    eyes = []
    for eye in range(2):
        centre = SIDE / 2 + 5 * index + 4 * eye + shift
        light = np.hypot(x - centre, y - SIDE * 0.55) < SIDE / 6
        eyes.append(np.where(light, 225, 45).astype(np.uint8))
    return np.repeat(np.hstack(eyes)[..., None], 3, axis=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Write a packed video with x265 at CRF 18, and the lossless mask of the same video."""
    folder = tmp_path_factory.mktemp("packed")
    film = write_clip(
        folder / "film.mp4", width=2 * SIDE, height=SIDE, frame_count=FRAMES, paint=light_disc,
        frame_rate=Fraction(30),
    )  # fmt: skip
    packed, mask = folder / "film_FISHEYE190_alpha.mp4", folder / "film_mask.mkv"
    with pytest.MonkeyPatch.context() as patch:
        segment_with(patch, BrightnessNetwork())
        for kind, path, codec in (
            ("packed-alpha", packed, ["output.codec=h265", "output.crf=18", "output.player=heresphere"]),
            ("mask", mask, ["output.codec=ffv1"]),
        ):
            said = ["video.stereo=sbs", "video.projection=equirect180", *codec]
            with Segmenter(loaded=load_settings(profile="fast", assignments=said)) as segmenter:
                segmenter.write(film, [(kind, path)])
    return packed, mask


def test_after_compression_the_matte_is_still_right(runs):
    packed, mask = runs
    report = verify(packed, matte=mask, wanted=WANTED)
    assert report.frame_count == FRAMES
    assert report.empty_frames == 0
    assert report.found.layout is StereoLayout.SIDE_BY_SIDE
    assert report.problems == []
    assert report.matte is not None
    assert report.matte.mean_error <= 2
    assert report.matte.leakage <= 1
    assert report.matte.lag_frames == 0
    assert report.floor <= 1
    assert report.ceiling >= 250
    assert all("plays" in report.players[name] for name in ("heresphere", "deovr", "skybox", "4xvr", "quest"))


@pytest.mark.parametrize(
    ("color", "loss", "is_wrong"), [("red", 0, False), ("grey", 0, False), ("red", 20, True)]
)
def test_what_small_discs_of_420_cannot_hold_is_no_fault_of_the_file(color, loss, is_wrong):
    """Check many outlines in few samples.

    Fresh discs are off by more than the limit, and spoiled ones are still reported.
    """
    side, frames = 128, 3
    area = disc_area(side)
    y, x = np.mgrid[0 : area.shape[0], 0 : area.shape[1]]
    discs = _Discs(SimpleNamespace(height=side))
    for _ in range(frames):
        tiles = np.repeat((((x + y) % 12 < 6) & area).astype(np.float32)[None], 2, axis=0)
        frame = solid_frame(PIXEL_FORMATS["yuv420p"], (side, 2 * side), (90, 90, 90))
        pack_discs(frame, np.clip(tiles - loss / 255, 0, 1), color=color)
        discs.add(frame, tiles)
    figures = discs.figures(compared=True)
    found = figures["matte"]
    assert (found.mean_error - found.inherent_error > 2) == bool(loss)
    assert (found.inherent_error > 4) == (color == "red")
    described = SimpleNamespace(is_packed_alpha=True)
    report = PackedReport(Path("film.mp4"), found=described, players={}, **figures)
    assert [problem for problem in report.problems if "is off by" in problem] == (
        [f"alpha is off by {found.error_in_words}"] if is_wrong else []
    )


@pytest.mark.parametrize("shows_somebody", [(0,), range(1, 8)])
@pytest.mark.parametrize("is_lost", [False, True])
def test_each_frame_is_judged_by_its_own_outlines(shows_somebody, is_lost):
    """Check videos with people in one of eight frames, or in all but one, and files with their mattes or without."""
    side = 128
    area = disc_area(side)
    y, x = np.mgrid[0 : area.shape[0], 0 : area.shape[1]]
    people = np.repeat((((x + y) % 12 < 6) & area).astype(np.float32)[None], 2, axis=0)
    discs = _Discs(SimpleNamespace(height=side))
    for at in range(8):
        tiles = people * (at in shows_somebody)
        frame = solid_frame(PIXEL_FORMATS["yuv420p"], (side, 2 * side), (90, 90, 90))
        pack_discs(frame, 0 * tiles if is_lost else tiles, color="red")
        discs.add(frame, tiles)
    found = discs.figures(compared=True)["matte"]
    assert (found.mean_error - found.inherent_error > 2) == is_lost


def test_a_mask_of_other_frames_is_out_of_step(runs, tmp_path):
    packed, _ = runs
    late = write_clip(
        tmp_path / "late.mkv", width=2 * SIDE, height=SIDE, frame_count=FRAMES,
        paint=lambda n: np.where(light_disc(n + 2) > 128, np.uint8(255), np.uint8(0)), frame_rate=Fraction(30),
    )  # fmt: skip
    report = verify(packed, matte=late, wanted=WANTED)
    assert report.matte is not None
    assert report.matte.lag_frames == 2
    assert any("+2 frames" in problem for problem in report.problems)


@pytest.mark.parametrize(("ours", "theirs", "late"), [(2, 0, -2), (0, 3, 3), (0, 0, 0)])
def test_a_lag_either_way_is_found_among_the_last_few_pictures_alone(ours, theirs, late):
    """Check that no more frames are held than the longest lag needs, however long the video is."""
    discs = _Discs(SimpleNamespace(height=64))
    area = disc_area(64)
    rng = np.random.default_rng(3)
    tiles = (rng.random((40, 2, *area.shape)) * area).astype(np.float32)
    for index in range(30):
        frame = solid_frame(PIXEL_FORMATS["yuv444p"], (64, 128), (0, 0, 0))
        pack_discs(frame, tiles[index + ours])
        discs.add(frame, tiles[index + theirs])
    assert discs.figures(compared=True)["matte"].lag_frames == late
    assert len(discs._seen) == len(discs._meant) == 4


def test_frames_of_which_only_one_has_them_are_counted(runs, tmp_path):
    packed, _ = runs
    short = write_clip(
        tmp_path / "short.mkv", width=2 * SIDE, height=SIDE, frame_count=FRAMES - 3,
        paint=lambda n: np.where(light_disc(n) > 128, np.uint8(255), np.uint8(0)), frame_rate=Fraction(30),
    )  # fmt: skip
    report = verify(packed, matte=short, wanted=WANTED)
    assert report.matte is not None
    assert report.matte.missing_frames == 3
    assert any("3 frames" in problem for problem in report.problems)


@pytest.mark.parametrize(
    ("paint", "said"),
    [
        (lambda _: np.zeros((SIDE, 2 * SIDE, 3), np.uint8), "discs are empty"),
        (lambda _: np.full((SIDE, 2 * SIDE, 3), (40, 0, 0), np.uint8), "background shines"),
    ],
)
def test_what_a_viewer_would_see_is_a_problem(tmp_path, paint, said):
    video = write_clip(
        tmp_path / "x_FISHEYE190_alpha.mp4", width=2 * SIDE, height=SIDE, frame_count=3, paint=paint
    )
    assert any(said in problem for problem in verify(video).problems)


def test_what_is_no_packed_alpha_at_all_is_refused(runs, tmp_path):
    source = write_clip(
        tmp_path / "film_LR_180.mp4", width=2 * SIDE, height=SIDE, frame_count=2,
        paint=lambda _: np.full((SIDE, 2 * SIDE, 3), 90, np.uint8),
    )  # fmt: skip
    with pytest.raises(
        UsageError, match=r"hold no mattes.*half-equirectangular.*--type packed-alpha makes it"
    ):
        verify(source)
    renamed = tmp_path / "film_LR_180_SBS.mp4"
    renamed.write_bytes(runs[0].read_bytes())
    (problem,) = verify(renamed).problems
    assert problem.endswith("a name such as film_FISHEYE190_alpha")


def test_another_shape_or_a_flat_matte_is_refused(runs, tmp_path):
    video = write_clip(tmp_path / "wide.mp4", width=96, height=64, frame_count=1)
    with pytest.raises(UsageError, match="cannot be two fisheye eyes"):
        verify(video)
    with pytest.raises(UsageError, match="--stereo and --projection set"):
        verify(runs[0], matte=video)


def test_the_command_says_it_and_its_exit_code_too(runs, capsys):
    packed, mask = runs
    flags = ["--matte", str(mask), "--stereo", "sbs", "--projection", "equirect180"]
    with pytest.raises(SystemExit) as ended:
        main(["vr", "verify", str(packed), *flags])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert "sync" in said.out and "in step" in said.out
    with pytest.raises(SystemExit) as ended:
        main(["vr", "verify", str(packed), *flags, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (ended.value.code, told["video"], told["problems"]) == (0, str(packed), [])
    assert (told["found"]["projection"], told["matte"]["lag_frames"]) == ("fisheye", 0)
    assert told["frame_count"] == FRAMES
    renamed = packed.with_name("film.mkv.mp4")
    renamed.write_bytes(packed.read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["vr", "verify", str(renamed), "-q"])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "_FISHEYE190_alpha" in said.err
