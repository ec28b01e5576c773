"""Tests of VR video from file to file: packed alpha, and the projections that a user may name."""

from __future__ import annotations

import json

import av
import numpy as np
import pytest

import vitascope
from clips import write_clip
from vitascope.cli import main as command
from vitascope.config import load_settings
from vitascope.errors import UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.metadata.spherical import read_spherical
from vitascope.media.reading.reader import open_video, probe
from vitascope.segmentation.film_run import FilmRun
from vitascope.segmentation.segmenter import Segmenter
from vitascope.vr.packing import unpack_discs
from vitascope.vr.projection import Equirectangular, turned

SIDE = 256


RADIUS_DEGREES = 25
SOLID_ANGLE = 2 * np.pi * (1 - np.cos(np.radians(RADIUS_DEGREES)))


def eye(number):
    """Paint a light disc on dark grey, 50 degrees below the horizon of one VR180 eye: uint8 [h, w, 3]."""
    y, x = np.meshgrid(*[(np.arange(SIDE) + 0.5) / SIDE] * 2, indexing="ij")
    centre = turned(yaw_degrees=2 * number - 1, pitch_degrees=-50)[:, 2]
    angle = np.arccos(np.tensordot(centre, Equirectangular(180, 180).unproject(x, y), axes=1))
    light = angle < np.radians(RADIUS_DEGREES)
    return np.repeat(np.where(light, np.uint8(230), np.uint8(40))[..., None], 3, axis=2)


@pytest.fixture(scope="module")
def vr180(tmp_path_factory):
    frame = np.hstack([eye(0), eye(1)])
    return write_clip(
        tmp_path_factory.mktemp("vr") / "wedding.mp4",
        width=2 * SIDE, height=SIDE, frame_count=3, paint=lambda _: frame, audio="aac",
    )  # fmt: skip


def overrides(**values):
    assignments = ["video.stereo=sbs", "video.projection=equirect180"]
    return load_settings(profile="fast", assignments=[*assignments, *(f"{k}={v}" for k, v in values.items())])


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv420p10le", "yuv422p10le"])
def test_the_matte_lies_in_the_corners(tmp_path, pixel_format, vr180, scripted):
    video = vr180
    if pixel_format != "yuv420p":
        frame = np.hstack([eye(0), eye(1)])
        video = write_clip(
            tmp_path / "deep.mp4", width=2 * SIDE, height=SIDE, frame_count=2, paint=lambda _: frame,
            codec="libx265", pixel_format=pixel_format, codec_options={"x265-params": "log-level=none"},
        )  # fmt: skip
    out = tmp_path / "out_FISHEYE190_alpha.mp4"
    with Segmenter(loaded=overrides(**{"output.crf": 4})) as segmenter:
        report = segmenter.write(video, [("packed-alpha", out)])
    assert report.outputs[0].kind == "packed-alpha"
    info = probe(out)
    assert (info.width, info.height) == (2 * SIDE, SIDE)
    assert info.format.name == pixel_format.replace("422", "420")  # headsets decode 4:2:0
    boxes = read_spherical(out)
    assert (boxes.stereo, boxes.projection) == (StereoLayout.SIDE_BY_SIDE, Projection.FISHEYE)
    with open_video(out) as reader:
        packed = next(iter(reader))
    tiles = unpack_discs(packed)
    # The disc covers the same share of the sphere as in the eye, below the middle, and a little aside.
    radians = np.radians(190) / tiles.shape[2]
    y, x = np.meshgrid(*(np.arange(n) + 0.5 - n / 2 for n in tiles.shape[1:]), indexing="ij")
    for tile, yaw in zip(tiles, (-1, 1), strict=True):
        weight = tile * np.sinc(np.hypot(x, y) * radians / np.pi)
        assert weight.sum() * radians**2 == pytest.approx(SOLID_ANGLE, rel=0.05)
        assert np.degrees((tile * y).sum() / tile.sum() * radians) == pytest.approx(50, abs=1)
        assert np.degrees((tile * x).sum() / tile.sum() * radians) == pytest.approx(
            yaw * np.cos(np.radians(50)), abs=1
        )


def test_top_bottom_eyes_are_packed_side_by_side(tmp_path, scripted):
    frame = np.vstack([eye(0), eye(1)])
    video = write_clip(tmp_path / "in.mp4", width=SIDE, height=2 * SIDE, frame_count=2, paint=lambda _: frame)
    out = tmp_path / "out.mp4"
    vitascope.segment(
        video, out, profile="fast", output="packed-alpha",
        settings={"video.stereo": "tb", "video.projection": "equirect180"},
    )  # fmt: skip
    info = probe(out)
    assert (info.width, info.height) == (2 * SIDE, SIDE)
    assert info.stereo is StereoLayout.SIDE_BY_SIDE


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"video.stereo": "mono", "video.projection": "equirect180"}, "two eyes"),
        ({"video.stereo": "sbs", "video.projection": "flat"}, "VR180 or fisheye"),
        ({"video.stereo": "sbs", "video.projection": "equirect360"}, "covers 180 degrees"),
    ],
)
def test_what_cannot_be_packed_is_refused_before_anything_is_written(
    vr180, tmp_path, scripted, capsys, settings, said
):
    out = tmp_path / "out.mp4"
    with pytest.raises(UsageError, match=f"wedding.mp4: .*{said}"):
        vitascope.segment(vr180, out, profile="fast", output="packed-alpha", settings=settings)
    assert not list(tmp_path.iterdir())
    words = [f"--set={key}={value}" for key, value in settings.items()]
    with pytest.raises(SystemExit) as ended:
        command(["segment", str(vr180), str(out), "--type", "packed-alpha", *words, "--dry-run", "--json"])
    assert ended.value.code == 2
    said_by_dry_run = json.loads(capsys.readouterr().out)[0]
    assert said_by_dry_run["status"] == "failed"
    assert said in said_by_dry_run["error"]


def test_packed_alpha_is_not_cut_again_unless_it_is_said_to_be_a_fisheye(vr180, tmp_path, scripted, capsys):
    packed = tmp_path / "wedding_FISHEYE190_alpha.mp4"
    packed.write_bytes(vr180.read_bytes())
    with pytest.raises(UsageError, match=r"wedding_FISHEYE190_alpha.mp4: packed alpha, by its name"):
        vitascope.segment(packed, tmp_path / "out.mp4", profile="fast")
    with pytest.raises(SystemExit) as ended:
        command(["segment", str(packed), str(tmp_path / "out.mp4"), "--dry-run"])
    assert ended.value.code == 2
    assert "people are cut out already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [packed.name]
    vitascope.segment(packed, tmp_path / "out.mp4", profile="fast", settings={"video.projection": "fisheye"})
    assert (tmp_path / "out.mp4").stat().st_size


def test_field_of_view_and_colour_of_the_discs_are_the_users(vr180, tmp_path, scripted):
    """Check that a wider circle makes the disc smaller in it, and that grey has no red."""
    sizes = {}
    for fov in (180, 220):
        out = tmp_path / f"{fov}.mp4"
        values = {"output.packed_fov_degrees": fov, "output.packed_color": "grey", "output.crf": 4}
        with Segmenter(loaded=overrides(**values)) as segmenter:
            segmenter.write(vr180, [("packed-alpha", out)])
        with open_video(out) as reader:
            frame = next(iter(reader))
        corner = frame.to_rgb()[: SIDE // 10, SIDE - 8 : SIDE + 8].astype(int)
        assert np.ptp(corner, axis=-1).max() < 12
        sizes[fov] = unpack_discs(frame).sum()
    assert sizes[220] == pytest.approx(sizes[180] * (180 / 220) ** 2, rel=0.05)


def test_a_fisheye_video_stays_as_it_is_under_its_packed_alpha(vr180, tmp_path, scripted):
    out = tmp_path / "out.mp4"
    values = {"video.projection": "fisheye", "video.fov_degrees": 200, "output.crf": 4}
    values["edges.decontaminate"] = False  # else, edges would have the person's own colour
    with Segmenter(loaded=overrides(**values)) as segmenter:
        segmenter.write(vr180, [("packed-alpha", out)])
    with open_video(vr180) as reader, open_video(out) as written:
        before, after = (
            next(iter(video)).planes[0][64:192, 64:192].astype(int) for video in (reader, written)
        )
    assert np.abs(before - after).max() <= 3


def main(arguments):
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    return ended.value.code


@pytest.fixture
def named_vr180(vr180, tmp_path):
    video = tmp_path / "films" / "wedding_LR_180.mp4"
    video.parent.mkdir()
    video.write_bytes(vr180.read_bytes())
    return video


@pytest.mark.parametrize(
    ("player", "kind", "name", "described"),
    [
        ("heresphere", "packed-alpha", "wedding_FISHEYE190_alpha.mp4", "heresphere"),
        ("deovr", "packed-alpha", "wedding_FISHEYE190_alpha.mp4", "deovr"),
        ("skybox", "packed-alpha", "wedding_FISHEYE190_alpha.mp4", None),
        ("4xvr", "packed-alpha", "wedding_FISHEYE190_alpha.mp4", None),
        ("quest", "packed-alpha", "wedding_FISHEYE190_alpha.mp4", None),
        ("moon", "key", "wedding_LR_180_SBS_passthrough.mp4", None),
        ("visionpro", "key", "wedding_LR_180_SBS_passthrough.mp4", None),
    ],
)
def test_one_flag_writes_what_a_player_shows(
    named_vr180, tmp_path, scripted, player, kind, name, described, capsys
):
    out = tmp_path / "out"
    status = main(["segment", str(named_vr180), "-o", f"{out}/", "--profile", "fast", "--player", player])
    assert status == 0, capsys.readouterr().err
    assert {path.name for path in out.iterdir()} == (
        {name} | ({f"{name}.{described}.json"} if described else set())
    )
    info = probe(out / name)
    assert info.codec == "hevc"
    projection = Projection.FISHEYE if kind == "packed-alpha" else Projection.HALF_EQUIRECTANGULAR
    assert (info.stereo, info.projection) == (StereoLayout.SIDE_BY_SIDE, projection)
    if kind == "packed-alpha":
        assert info.fov_degrees == 190
    if described:
        said = json.loads((out / f"{name}.{described}.json").read_text())
        if player == "heresphere":
            assert (said["projection"], said["fov"], said["stereo"]) == ("fisheye", 190, "sbs")
            assert said["alphaPackedSettings"] == {"defaultSettings": True}
        else:
            assert said["screenType"] == "fisheye190"
            assert said["chromakey"]["hasAlpha"] == "true"


def test_a_description_that_cannot_say_the_order_of_the_eyes_is_told(named_vr180, tmp_path, scripted, capsys):
    right_first = named_vr180.rename(named_vr180.with_name("wedding_RL_180.mp4"))
    command = [
        "segment",
        str(right_first),
        "-o",
        f"{tmp_path}/out/",
        "--profile",
        "fast",
        "--player",
        "heresphere",
    ]
    assert main([*command, "--type", "key"]) == 0
    assert "the right eye comes first, which the JSON cannot say" in capsys.readouterr().out
    assert main(command) == 0  # packed alpha has the left one first
    assert "right eye" not in capsys.readouterr().out


def test_a_description_that_is_there_is_not_replaced_unasked(named_vr180, tmp_path, scripted, capsys):
    out = tmp_path / "out"
    out.mkdir()
    mine = out / "wedding_FISHEYE190_alpha.mp4.heresphere.json"
    mine.write_text("mine")
    command = ["segment", str(named_vr180), "-o", f"{out}/", "--profile", "fast", "--player", "heresphere"]
    assert main([*command, "--dry-run"]) == 0
    assert f"description for the player -> {mine} (replaces the file there)" in capsys.readouterr().out
    assert main(command) == 4
    assert f"{mine} already exists" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert list(out.iterdir()) == [mine]
    assert main([*command, "-y"]) == 0
    assert json.loads(mine.read_text())["projection"] == "fisheye"


def test_what_the_user_says_comes_over_the_player(named_vr180, tmp_path, scripted):
    out = tmp_path / "mine.mp4"
    flags = [
        "--profile",
        "fast",
        "--player",
        "heresphere",
        "-t",
        "key",
        "--codec",
        "h264",
        "--key-color",
        "lime",
    ]
    assert main(["segment", str(named_vr180), str(out), *flags]) == 0
    info = probe(out)
    assert (info.codec, info.projection) == ("h264", Projection.HALF_EQUIRECTANGULAR)
    with av.open(str(out)) as container:
        corner = next(container.decode(video=0)).to_ndarray(format="rgb24")[2, 2]
    assert np.abs(corner.astype(int) - (0, 255, 0)).max() < 12


def test_a_name_that_the_player_does_not_know_is_said(named_vr180, tmp_path, scripted, capsys):
    out = tmp_path / "mine.mp4"
    assert main(["segment", str(named_vr180), str(out), "--profile", "fast", "--player", "skybox"]) == 0
    assert "Skybox does not recognise it: name it mine_FISHEYE190_alpha" in capsys.readouterr().out


def test_two_videos_of_one_name_get_two_names(named_vr180, tmp_path, scripted):
    other = named_vr180.with_name("wedding_LR_180_SBS.mp4")
    other.write_bytes(named_vr180.read_bytes())
    out = tmp_path / "out"
    assert (
        main(["segment", str(named_vr180.parent), "-o", f"{out}/", "--profile", "fast", "--player", "quest"])
        == 0
    )
    names = sorted(path.name for path in out.iterdir())
    assert len(names) == 2
    assert all(name.endswith("_FISHEYE190_alpha.mp4") for name in names)


def test_a_flat_video_for_a_vr_player_is_refused(clip, tmp_path, scripted, capsys):
    assert (
        main(["segment", str(clip), "-o", f"{tmp_path}/out/", "--profile", "fast", "--player", "deovr"]) == 2
    )
    assert "packed-alpha needs a video of two eyes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ((), "wedding_FISHEYE190_alpha.mp4"),
        (("--player", "moon"), "wedding_FISHEYE190_alpha.mp4"),
        (("--set", "output.packed_fov_degrees=180"), "wedding_FISHEYE180_alpha.mp4"),
        (("--projection", "fisheye", "--fov", "200"), "wedding_FISHEYE200_alpha.mp4"),
    ],
)
def test_packed_alpha_in_a_folder_is_named_as_what_it_is(named_vr180, tmp_path, scripted, flags, name):
    arguments = [
        "segment",
        str(named_vr180),
        "-o",
        f"{tmp_path / 'out'}/",
        "--output",
        "packed-alpha",
        *flags,
    ]
    assert main([*arguments, "--profile", "fast"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
def test_a_player_that_knows_no_packed_alpha_is_told_of_before_the_work(
    named_vr180, tmp_path, scripted, capsys, monkeypatch, dry
):
    told, begin = [], FilmRun.__enter__

    def begun(film):
        told.append(capsys.readouterr())
        return begin(film)

    monkeypatch.setattr(FilmRun, "__enter__", begun)
    words = ["segment", str(named_vr180), "-o", f"{tmp_path / 'out'}/", "--type", "packed-alpha"]
    words += ["--player", "moon", "--profile", "fast", *(["--dry-run"] if dry else [])]
    assert main(words) == 0
    told.append(capsys.readouterr())
    note = (
        "note: Moon Player shows the mattes in the corners: it cannot show packed alpha; use a key colour\n"
    )
    assert told[0].err.endswith(note)
    assert sum((one.out + one.err).count("Moon Player") for one in told) == 1


def test_a_run_tells_that_both_eyes_are_one_picture(named_vr180, tmp_path, scripted, capsys):
    """Check a name that says enough at first, and is contradicted by the pictures."""
    twice = write_clip(
        tmp_path / "twice_LR_180.mp4",
        width=2 * SIDE, height=SIDE, frame_count=3, paint=lambda _: np.hstack([eye(0), eye(0)]),
    )  # fmt: skip
    said = "both eyes show the same picture: there is no depth"
    for video, is_told in ((twice, True), (named_vr180, False)):
        assert main(["segment", str(video), "-o", f"{tmp_path / video.stem}/", "--profile", "fast"]) == 0
        printed = capsys.readouterr()
        assert (said in printed.out + printed.err) is is_told
