"""Tests of unpacking packed alpha: as a matte, and as people on a colour, in any projection."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from clips import write_clip
from vitascope.cli import main
from vitascope.config import VideoSettings
from vitascope.errors import UsageError
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Projection, StereoLayout
from vitascope.gpu.kernels.rgb import planes_from_rgb
from vitascope.media.metadata.spherical import read_spherical
from vitascope.media.reading.reader import open_video, probe
from vitascope.segmentation.vr.conversion import convert
from vitascope.vr.packing import pack_discs, tile_size
from vitascope.vr.players import PLAYERS

SIDE = 256
PERSON, SCENE = (200, 120, 60), (60, 90, 160)
CENTRES, RADIUS = (0.52, 0.48), 0.2
"""A round person in each eye, in shares of its side."""
REC709 = ColorSpec("bt709")


def people():
    """Make alpha of both fisheye eyes, 0..1: float [h, w]."""
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5) / SIDE
    return np.hstack([(np.hypot(x - at, y - 0.5) < RADIUS).astype(np.float32) for at in CENTRES])


def packed_picture():
    """Make the packed picture, uint8 [h, w, 3]."""
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5) / SIDE
    circle = np.hypot(x - 0.5, y - 0.5) <= 0.5
    rgb = np.where(people()[..., None] > 0.5, PERSON, SCENE) * np.hstack([circle, circle])[..., None]
    fmt = PIXEL_FORMATS["yuv444p"]
    planes = planes_from_rgb((rgb / 255).astype(np.float32).transpose(2, 0, 1), color=REC709, fmt=fmt)
    frame = Frame(planes, fmt, REC709, index=0, pts=0, time_base=Fraction(1, 25))
    height, width = tile_size(SIDE)
    y, x = np.mgrid[:height, :width]
    tiles = [
        (np.hypot((x + 0.5) / width - at, (y + 0.5) / height - 0.5) < RADIUS).astype(np.float32)
        for at in CENTRES
    ]
    pack_discs(frame, np.stack(tiles))
    return frame.to_rgb()


@pytest.fixture(params=["yuv420p", "yuv420p10le"])
def packed(request, tmp_path):
    picture = packed_picture()
    return write_clip(
        tmp_path / "dance_FISHEYE190_alpha.mp4", width=2 * SIDE, height=SIDE, frame_count=3, audio="aac",
        paint=lambda _: picture, codec="libx265", pixel_format=request.param,
        codec_options={"x265-params": "log-level=none:crf=10"},
    )  # fmt: skip


def picture_of(path):
    with open_video(path) as reader:
        return next(iter(reader)).to_rgb().astype(float)


def test_the_mask_is_the_matte_that_was_packed(packed):
    report = convert(packed, None, "fisheye190", unpack="mask")
    assert report.output.name == "dance_LR_FISHEYE190_mask.mp4"
    assert report.notes == ()
    info = probe(report.output)
    assert (info.width, info.height, info.color.primaries) == (2 * SIDE, SIDE, 1)
    assert info.format.bit_depth == probe(packed).format.bit_depth
    boxes = read_spherical(report.output)
    assert (boxes.stereo, boxes.projection) == (StereoLayout.SIDE_BY_SIDE, Projection.FISHEYE)
    got = picture_of(report.output)[..., 0] / 255
    assert np.abs(got - people()).mean() < 0.02  # outlines differ: discs have 0.4 of the size
    assert got[people() == 0].mean() < 0.02
    assert np.median(got[people() == 1]) > 0.97


def test_people_stand_on_the_colour_of_the_players(packed):
    key = tuple(bytes.fromhex(PLAYERS["moon"].key_color[1:]))
    report = convert(packed, None, "equirect180", unpack="key")
    assert report.output.name == "dance_LR_180_SBS_passthrough.mp4"
    got = picture_of(report.output)
    middle, corner = got[SIDE // 2, [SIDE // 2, SIDE + SIDE // 2]], got[[2, 2, -3, -3], [2, -3, 2, -3]]
    assert np.abs(middle - PERSON).max() < 8
    assert np.abs(corner - key).max() < 8  # neither disc nor scene
    boxes = read_spherical(report.output)
    assert (boxes.stereo, boxes.projection) == (StereoLayout.SIDE_BY_SIDE, Projection.HALF_EQUIRECTANGULAR)
    red = convert(packed, packed.with_name("b.mp4"), "fisheye190", unpack="key", key_color=(255, 0, 0))
    got = picture_of(red.output)
    corner = got[[2, 2, -3, -3], [2, -3, 2, -3]]  # outside the circles as inside
    assert np.abs([got[SIDE // 2, SIDE // 8], *corner] - np.array([255, 0, 0])).max() < 8
    assert "dance_LR_FISHEYE190_passthrough.mp4 would" in red.notes[0]


def test_packed_alpha_without_a_name_is_unpacked_too(packed):
    plain = packed.rename(packed.with_name("dance.mp4"))
    url = Path(f"file://{plain}")  # as the command passes it on
    report = convert(url, None, "equirect180", unpack="key", wanted=VideoSettings(fov_degrees=200))
    assert report.output.name == "dance_LR_180_SBS_passthrough.mp4"
    assert report.source.projection_reason.how == "mattes in the corners"


def test_what_holds_no_mattes_is_refused(tmp_path):
    film = write_clip(tmp_path / "a_LR_180.mp4", width=2 * SIDE, height=SIDE, frame_count=2)
    with pytest.raises(
        UsageError, match=r"is not packed alpha, but side-by-side .*; there is nothing to unpack"
    ):
        convert(film, None, "fisheye190", unpack="key")
    narrow = write_clip(tmp_path / "a_FISHEYE190_alpha.mp4", width=96, height=64, frame_count=2)
    with pytest.raises(UsageError, match="96x64 cannot be two fisheye eyes"):
        convert(narrow, None, "fisheye190", unpack="mask")


def test_the_command(tmp_path, capsys):
    picture = packed_picture()
    packed = write_clip(
        tmp_path / "dance_FISHEYE190_alpha.mp4",
        width=2 * SIDE,
        height=SIDE,
        frame_count=2,
        paint=lambda _: picture,
    )
    words = ["vr", "convert", str(packed), "--to", "equirect180"]
    for flags, code, said in (
        ([], 2, "--unpack key shows people on a colour, --unpack mask the matte"),
        (["--unpack", "mask", "--key-color", "lime"], 2, "--key-color lime is for --unpack key"),
        (["--unpack", "key", "--key-color", "limestone"], 2, "--key-color limestone: expected a colour"),
        (
            ["--unpack", "key", "--key-color", "lime", "-o", f"{tmp_path}/new/"],
            0,
            "LR_180_SBS_passthrough.mp4",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*words, *flags])
        told = capsys.readouterr()
        assert ended.value.code == code, told.err
        assert said in (told.err if code else told.out)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["dance_LR_180_SBS_passthrough.mp4"]
    with pytest.raises(SystemExit) as ended:
        main(["segment", str(packed), str(tmp_path / "cut.mp4")])
    assert "vitascope vr convert --unpack key" in capsys.readouterr().err
