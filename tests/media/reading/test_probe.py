"""Tests of facts about a video, found without reading all of it."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import pytest

from clips import copied, write_clip
from vitascope.errors import CorruptInputError
from vitascope.frames import PIXEL_FORMATS, Projection, StereoLayout
from vitascope.media.reading.reader import open_video, probe, read_headers


def patch_display_matrix(path: Path, matrix: tuple[int, ...]) -> None:
    """Write the nine numbers of an MP4 track header's matrix (ISO 14496-12 8.3.2, version 0)."""
    data = bytearray(path.read_bytes())
    header = data.index(b"tkhd") + 4
    assert data[header] == 0
    data[header + 40 : header + 76] = struct.pack(">9i", *matrix)
    path.write_bytes(data)


def test_it_describes_a_clip(tmp_path: Path) -> None:
    path = write_clip(
        tmp_path / "a.mp4", width=98, height=66, frame_count=30, frame_rate=Fraction(30000, 1001), audio="aac",
        metadata={"title": "Ō"}, color_tags=(1, 1, 1, 1),
    )  # fmt: skip
    info = probe(path)
    assert info.path == path
    assert (info.width, info.height) == (98, 66)
    assert info.format is PIXEL_FORMATS["yuv420p"]
    assert info.source_format == "yuv420p"
    assert info.codec == "h264"
    assert "mp4" in info.container
    assert info.average_frame_rate == Fraction(30000, 1001)
    assert info.frame_count_estimate == 30
    assert info.duration_seconds == pytest.approx(1.001, abs=1e-3)
    assert info.audio_stream_count == 1
    assert info.subtitle_stream_count == 0
    assert info.rotation_degrees == 0
    assert info.sample_aspect_ratio == 1
    assert not info.interlaced
    assert not info.has_hdr_side_data
    assert info.stereo is None
    assert info.projection is None
    assert info.metadata["title"] == "Ō"


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "webm", "avi", "mov", "gif"])
def test_probe_says_what_the_reader_says(tmp_path: Path, suffix: str) -> None:
    codec, pixel_format = {
        "webm": ("libvpx-vp9", "yuv420p"),
        "avi": ("mpeg4", "yuv420p"),
        "gif": ("gif", "rgb8"),
    }.get(suffix, ("libx264", "yuv420p"))
    path = write_clip(tmp_path / f"a.{suffix}", frame_count=24, codec=codec, pixel_format=pixel_format)
    info = probe(path)
    with open_video(path) as reader:
        assert reader.info == info
        frames = list(reader)
    assert info.frame_count_estimate == pytest.approx(len(frames), abs=1)
    assert info.duration_seconds == pytest.approx(1, abs=0.05)
    assert info.format is frames[0].format
    assert info.color == frames[0].color
    headers = read_headers(path)
    assert headers.size == (info.height, info.width)
    assert headers.frame_count_estimate == info.frame_count_estimate
    assert headers.duration_seconds == info.duration_seconds


def test_headers_are_read_of_a_video_without_a_whole_picture(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", frame_count=24)
    data = bytearray(path.read_bytes())
    begin = data.index(b"mdat") + 4
    data[begin : begin + int.from_bytes(data[begin - 8 : begin - 4], "big") - 8] = bytes(
        int.from_bytes(data[begin - 8 : begin - 4], "big") - 8
    )
    path.write_bytes(data)
    with pytest.raises(CorruptInputError):
        probe(path)
    assert read_headers(path).frame_count_estimate == 24


@pytest.mark.parametrize(
    ("matrix", "degrees"),
    [((0, 1, -1, 0), 90), ((-1, 0, 0, -1), 180), ((0, -1, 1, 0), 270), ((1, 0, 0, 1), 0)],
)
def test_rotation_is_reported_not_applied(tmp_path: Path, matrix: tuple[int, ...], degrees: int) -> None:
    path = write_clip(tmp_path / "a.mp4")
    a, b, c, d = (value << 16 for value in matrix)
    patch_display_matrix(path, (a, b, 0, c, d, 0, 0, 0, 1 << 30))
    with open_video(path) as reader:
        assert reader.info.rotation_degrees == degrees
        frame = next(reader)
    assert (frame.width, frame.height) == (reader.info.width, reader.info.height) == (96, 64)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("suffix", ["mov", "mkv"])
def test_rotation_as_ffmpeg_writes_it(tmp_path: Path, suffix: str, degrees: int) -> None:
    """Check Matroska, where rotation is the roll of a projection."""
    path = tmp_path / f"turned.{suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.set_display_rotation(-degrees)
        container.mux(stream.encode(av.VideoFrame(96, 64, "yuv420p")))
        container.mux(stream.encode(None))
    assert probe(path).rotation_degrees == degrees


@pytest.mark.parametrize("parameters", ["tff=1", "bff=1"])
def test_interlaced_is_flagged(tmp_path: Path, parameters: str) -> None:
    path = write_clip(tmp_path / "a.mp4", codec_options={"flags": "+ildct+ilme", "x264-params": parameters})
    assert probe(path).interlaced


def test_sample_aspect_ratio(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", codec_options={"x264-params": "sar=4/3"})
    assert probe(path).sample_aspect_ratio == Fraction(4, 3)


def test_variable_frame_rate_has_an_average(tmp_path: Path) -> None:
    path = write_clip(
        tmp_path / "a.mp4", pts=[0, 10, 100, 400, 900], time_base=Fraction(1, 1000), codec_options={"bf": "0"}
    )  # fmt: skip
    assert 3 < probe(path).average_frame_rate < 8


def test_subtitles_are_counted(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "a.mp4")
    captions = tmp_path / "a.srt"
    captions.write_text("1\n00:00:00,000 --> 00:00:00,400\nHello\n", encoding="utf-8")
    path = tmp_path / "both.mkv"
    with av.open(str(clip)) as video, av.open(str(captions)) as text, av.open(str(path), "w") as out:
        streams = [out.add_stream_from_template(source.streams[0]) for source in (video, text)]
        for source, stream in zip((video, text), streams, strict=True):
            for packet in source.demux():
                if packet.dts is not None:
                    packet.stream = stream
                    out.mux(packet)
    assert probe(path).subtitle_stream_count == 1


def test_foreign_metadata_encoding_does_not_matter(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mkv", metadata={"title": "XXXX"})
    path.write_bytes(path.read_bytes().replace(b"XXXX", b"\xff\xe9\xe8\xe7"))
    assert len(probe(path).metadata["title"]) == 4


def test_stereo_of_matroska(tmp_path: Path) -> None:
    path = copied(
        write_clip(tmp_path / "plain.mp4"),
        tmp_path / "a.mkv",
        prepare=lambda stream: stream.metadata.update(stereo_mode="left_right"),
    )
    assert probe(path).stereo is StereoLayout.SIDE_BY_SIDE


def test_stereo_and_projection_boxes_of_mp4(tmp_path: Path) -> None:
    """Check a hand-made ``st3d`` and ``sv3d`` (equi, a quarter left out on both sides) in the sample entry."""

    def box(kind: bytes, payload: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(payload), kind) + payload

    path = write_clip(tmp_path / "a.mp4")
    quarter = 0x3FFFFFFF
    extra = box(b"st3d", bytes(4) + b"\2") + box(
        b"sv3d",
        box(b"svhd", bytes(4) + b"x\0")
        + box(b"proj", box(b"prhd", bytes(16)) + box(b"equi", struct.pack(">5I", 0, 0, 0, quarter, quarter))),
    )
    data = bytearray(path.read_bytes())
    assert data.index(b"mdat") < data.index(b"moov")  # growing the moov box moves no samples
    entry = data.index(b"avc1", data.index(b"stsd")) - 4
    (length,) = struct.unpack_from(">I", data, entry)
    data[entry + length : entry + length] = extra
    starts = [data.index(kind) - 4 for kind in (b"moov", b"mdia", b"minf", b"stbl", b"stsd")]
    starts += [data.index(b"trak") - 4, entry]
    for start in starts:
        struct.pack_into(">I", data, start, struct.unpack_from(">I", data, start)[0] + len(extra))
    path.write_bytes(data)
    info = probe(path)
    assert info.stereo is StereoLayout.SIDE_BY_SIDE
    assert info.projection is Projection.HALF_EQUIRECTANGULAR
