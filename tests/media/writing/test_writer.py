"""Round trips: frames pass through a real encoder and muxer, and a real demuxer and decoder read them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from written_films import decode, encode, make_frame, make_info, plane

from vitascope.frames import PIXEL_FORMATS, Projection, StereoLayout
from vitascope.media.metadata.spherical import SphericalMetadata, read_spherical
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter


@pytest.mark.parametrize(
    ("codec", "suffix"),
    [
        ("h264", ".mp4"),
        ("h265", ".mp4"),
        ("av1", ".mp4"),
        ("vp9", ".webm"),
        ("prores", ".mov"),
        ("ffv1", ".mkv"),
    ],
)
@pytest.mark.parametrize(
    "format_name", ["yuv420p", "yuv420p10le", "nv12", "p010le", "yuv422p", "yuv444p10le"]
)
def test_pictures_survive_every_codec(tmp_path: Path, codec: Any, suffix: str, format_name: str) -> None:
    info = make_info(64, 48, format_name=format_name)
    path = tmp_path / f"out{suffix}"
    encoding = choose_encoding(path, codec=codec, source_format=info.format, speed="fast", crf=None)
    writer = encode(path, info, pts=range(3), encoding=encoding)
    frames = decode(path)
    assert len(frames) == writer.frame_count == writer.report.frame_count == 3
    assert writer.report.byte_count == path.stat().st_size
    for index, frame in enumerate(frames):
        source = make_frame(info, index)
        bits = frame.format.components[0].bits
        got = plane(frame, 0, np.uint8 if bits == 8 else np.uint16).astype(float) / (1 << bits)
        depth = info.format.bit_depth
        want = (source.planes[0] >> info.format.sample_shift).astype(float) / (1 << depth)
        tolerance = 1e-9 if codec == "ffv1" else 0.012
        assert np.abs(got - want).mean() < tolerance
        chroma = plane(frame, 2, np.uint8 if bits == 8 else np.uint16).astype(float) / (1 << bits)
        assert abs(chroma.mean() - 0.6) < 0.02


@pytest.mark.parametrize(
    ("codec", "suffix", "tag"), [("h265", ".mp4", "hvc1"), ("h265", ".mov", "hvc1"), ("h264", ".mp4", "avc1")]
)
@pytest.mark.parametrize("encoders", [1, 2])
def test_apples_players_know_the_codec(
    tmp_path: Path, codec: Any, suffix: str, tag: str, encoders: int
) -> None:
    """Check the tag: they do not play ``hev1``, whose parameter sets may be among the pictures."""
    info = make_info(64, 48)
    path = tmp_path / f"out{suffix}"
    encoding = choose_encoding(path, codec=codec, source_format=info.format, speed="fast")
    encode(path, info, pts=range(4), encoding=replace(encoding, parallel_encoders=encoders))
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.codec_tag == tag
        assert len(container.streams.video[0].codec_context.extradata) > 20
    assert len(decode(path)) == 4


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("a.mp4", "h264"),
        ("a.mov", "prores"),
        ("a.mp4", "av1"),
        ("a.mkv", "h264"),
        ("a.mkv", "ffv1"),
        ("a.mkv", "av1"),
        ("a.webm", "vp9"),
    ],
)
@pytest.mark.parametrize("ratio", [Fraction(4, 3), Fraction(10, 11), Fraction(1, 2), Fraction(64, 45)])
@pytest.mark.parametrize("stereo", [None, StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM])
def test_sample_aspect_ratio(
    tmp_path: Path, name: str, codec: Any, ratio: Fraction, stereo: StereoLayout | None
) -> None:
    path = tmp_path / name
    info = make_info(sample_aspect_ratio=ratio, stereo=stereo)
    encode(
        path,
        info,
        pts=range(2),
        encoding=choose_encoding(path, codec=codec, source_format=info.format, speed="fast"),
    )
    with av.open(str(path)) as container:
        assert container.streams.video[0].sample_aspect_ratio == ratio
        assert container.streams.video[0].metadata.get("title", "") == ""
        assert len(list(container.decode(video=0))) == 2
    got = read_spherical(path)
    assert (got.stereo if got is not None else None) is stereo


@pytest.mark.parametrize("size", [(97, 65), (33, 48), (48, 33), (1, 1), (2, 1)])
@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".mkv"])
def test_odd_sizes_come_out_as_they_went_in(tmp_path: Path, size: tuple[int, int], suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    writer = encode(path, make_info(*size), pts=range(2))
    assert {(frame.width, frame.height) for frame in decode(path)} == {size}
    assert bool(writer.report.notes) == (suffix != ".webm" and (size[0] % 2 or size[1] % 2) == 1)


@pytest.mark.parametrize("format_name", ["yuv420p", "nv12", "yuv420p10le", "yuv422p", "yuv444p"])
@pytest.mark.parametrize(("suffix", "degrees"), [(".mp4", 0), (".mkv", 90)])
def test_an_odd_size_for_a_headset_repeats_its_last_row_and_column(
    tmp_path: Path, format_name: str, suffix: str, degrees: int
) -> None:
    info = make_info(97, 67, format_name=format_name, rotation_degrees=degrees)
    path = tmp_path / f"out{suffix}"
    depth = info.format.bit_depth
    narrow = PIXEL_FORMATS["yuv420p" if depth == 8 else "yuv420p10le"]
    writer = encode(path, info, encoding=choose_encoding(path, source_format=narrow, is_even=True, crf=4))
    frame = decode(path)[0]
    assert (frame.width, frame.height) == ((98, 68) if degrees == 0 else (68, 98))
    assert frame.format.name == narrow.name
    assert any("98x68" in note or "68x98" in note for note in writer.report.notes)
    want = np.rot90(make_frame(info, 0).planes[0] >> info.format.sample_shift, -degrees // 90).astype(int)
    want = np.pad(want, ((0, 1), (0, 1)), mode="edge")
    luma = frame.to_ndarray()[: frame.height].astype(int)
    assert np.abs(luma - want).mean() < 3 << depth - 8


@pytest.mark.parametrize("degrees", [90, 180, 270])
@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_rotation_is_written_as_display_matrix(tmp_path: Path, degrees: int, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    encode(path, make_info(rotation_degrees=degrees))
    frame = decode(path)[0]
    assert (frame.width, frame.height) == (96, 64)
    assert frame.rotation % 360 == -degrees % 360


@pytest.mark.parametrize("degrees", [90, 180, 270])
@pytest.mark.parametrize("format_name", ["yuv420p", "yuv422p", "nv12"])
def test_rotation_is_done_on_pixels_where_the_container_cannot_say_it(
    tmp_path: Path, degrees: int, format_name: str
) -> None:
    info = make_info(
        96, 64, format_name=format_name, rotation_degrees=degrees, sample_aspect_ratio=Fraction(2)
    )
    path = tmp_path / "out.mkv"
    encode(path, info, pts=range(1))
    frame = decode(path)[0]
    want = np.rot90(make_frame(info, 0).planes[0], -degrees // 90)
    assert plane(frame, 0).shape == want.shape
    assert np.abs(plane(frame, 0).astype(int) - want).mean() < 3
    with av.open(str(path)) as container:
        aspect = container.streams.video[0].sample_aspect_ratio
    assert aspect == (Fraction(2) if degrees == 180 else Fraction(1, 2))


def test_spherical_metadata_of_the_source_is_carried_over(tmp_path: Path) -> None:
    vr180 = SphericalMetadata(StereoLayout.SIDE_BY_SIDE, Projection.HALF_EQUIRECTANGULAR)
    source = tmp_path / "in.mp4"
    encode(source, make_info(), spherical=vr180)
    encode(tmp_path / "out.mov", make_info(), copy_from=source)
    assert read_spherical(tmp_path / "out.mov") == read_spherical(source)
    encode(tmp_path / "none.mp4", make_info(), copy_from=source, spherical=None)
    assert read_spherical(tmp_path / "none.mp4") is None
    for name in ("out.mkv", "out.webm"):
        writer = encode(tmp_path / name, make_info(), copy_from=source)
        assert read_spherical(tmp_path / name) == vr180
        assert writer.report.notes == ()
        assert len(decode(tmp_path / name)) == 6
    encode(source, make_info(), spherical=SphericalMetadata(StereoLayout.TOP_BOTTOM, Projection.FISHEYE))
    writer = encode(tmp_path / "out.mkv", make_info(), copy_from=source)
    got = read_spherical(tmp_path / "out.mkv")
    assert got == SphericalMetadata(StereoLayout.TOP_BOTTOM)
    assert any("fisheye" in note for note in writer.report.notes)


def test_strided_planes(tmp_path: Path) -> None:
    info = make_info()
    wide = make_frame(make_info(192, 128), 0)
    frame = replace(make_frame(info, 0), planes=tuple(p[::2, ::2] for p in wide.planes))
    path = tmp_path / "a.mkv"
    with VideoWriter(
        path, info=info, encoding=choose_encoding(path, codec="ffv1", source_format=info.format)
    ) as writer:
        writer.write(frame)
    np.testing.assert_array_equal(plane(decode(path)[0], 0), wide.planes[0][::2, ::2])


def test_encoders_are_silent(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from written_films import encode, make_info
from vitascope.media.writing.encoding import choose_encoding
info = make_info()
for codec in ("h264", "h265", "av1"):
    path = Path(sys.argv[1]) / f"{codec}.mp4"
    encode(path, info, encoding=choose_encoding(path, codec=codec, source_format=info.format, speed="fast"))
"""
    here = Path(__file__)
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(here.parent)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(here.parent.parent), "PATH": ""},
    )
    assert (result.stdout, result.stderr) == ("", "")


def test_report_names_what_was_used(tmp_path: Path) -> None:
    report = encode(tmp_path / "a.mp4", make_info()).report
    assert (report.codec, report.encoder, report.pixel_format, report.container) == (
        "h264",
        "libx264",
        "yuv420p",
        "mp4",
    )
    assert report.frame_count == 6
    assert report.streams == ()
