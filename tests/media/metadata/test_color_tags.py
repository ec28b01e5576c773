"""Tests of colour tags, HDR side data, and the location of chroma samples."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.errors import InputError
from vitascope.frames import DOLBY_VISION_5, ColorSpec, Projection, StereoLayout
from vitascope.media.metadata import color_tags
from vitascope.media.metadata.color_tags import (
    HdrMetadata,
    color_spec,
    default_chroma_location,
    read_chroma_location,
    read_side_data,
)
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.notes import notes_on_dynamic_hdr


def tagged_frame(
    *, matrix: int = 2, color_range: int = 0, primaries: int = 2, transfer: int = 2, size: tuple[int, int] = (64, 48),
    pixel_format: str = "yuv420p",
) -> av.VideoFrame:  # fmt: skip
    frame = av.VideoFrame(*size, pixel_format)
    frame.colorspace, frame.color_range = matrix, color_range
    frame.color_primaries, frame.color_trc = primaries, transfer
    return frame


def spec(frame: av.VideoFrame, codec: str = "h264") -> ColorSpec:
    return color_spec(frame, path=Path("clip.mp4"), codec=codec)


@pytest.mark.parametrize(
    ("code", "matrix"), [(1, "bt709"), (4, "bt601"), (5, "bt601"), (6, "bt601"), (7, "bt709"), (9, "bt2020")]
)
@pytest.mark.parametrize("color_range", [1, 2])
def test_tagged(code: int, matrix: str, color_range: int) -> None:
    found = spec(tagged_frame(matrix=code, color_range=color_range, primaries=9, transfer=16))
    assert found == ColorSpec(
        matrix=matrix,  # type: ignore[arg-type]
        full_range=color_range == 2,
        primaries=9,
        transfer=16,
        matrix_code=code,
        range_tagged=True,
    )


@pytest.mark.parametrize(
    ("size", "matrix"),
    [((1280, 720), "bt709"), ((720, 576), "bt601"), ((640, 578), "bt709"), ((2, 2), "bt601")],
)
def test_untagged_is_limited_and_follows_the_size(size: tuple[int, int], matrix: str) -> None:
    found = spec(tagged_frame(size=size))
    assert (found.matrix, found.full_range, found.range_tagged, found.matrix_code) == (
        matrix,
        False,
        False,
        2,
    )


def test_untagged_matrix_follows_tagged_primaries() -> None:
    assert spec(tagged_frame(primaries=9)).matrix == "bt2020"
    assert spec(tagged_frame(primaries=1)).matrix == "bt709"
    assert spec(tagged_frame(primaries=6, size=(1920, 1080))).matrix == "bt601"


@pytest.mark.parametrize("code", [8, 10, 11, 14])
def test_unsupported_matrix_is_an_error(code: int) -> None:
    with pytest.raises(InputError, match=rf"clip\.mp4: its colour matrix.*code {code}\)"):
        spec(tagged_frame(matrix=code))


def test_yuvj_is_full_range_by_name() -> None:
    found = spec(tagged_frame(pixel_format="yuvj420p"), codec="mjpeg")
    assert (found.full_range, found.range_tagged, found.chroma_location) == (True, True, "center")


def test_grey_range_depends_on_the_codec() -> None:
    grey = tagged_frame(pixel_format="gray")
    assert spec(grey, codec="png").full_range
    assert spec(grey, codec="ffv1").full_range
    assert not spec(grey, codec="h264").full_range
    assert not spec(tagged_frame(pixel_format="gray", color_range=1), codec="png").full_range


def test_rgb_becomes_bt709_full_range_but_keeps_its_own_gamut() -> None:
    assert spec(tagged_frame(pixel_format="gbrp", matrix=0)) == ColorSpec(
        "bt709", full_range=True, chroma_location="center", primaries=1, transfer=13, matrix_code=1
    )
    wide = spec(tagged_frame(pixel_format="gbrp10le", matrix=0, primaries=9, transfer=16))
    assert (wide.matrix, wide.primaries, wide.transfer) == ("bt709", 9, 16)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ((1, 1, 1, 1), ("bt709", False)),
        ((6, 6, 6, 1), ("bt601", False)),
        ((9, 14, 9, 1), ("bt2020", False)),
        ((1, 1, 1, 2), ("bt709", True)),
    ],
)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_tags_survive_a_file(
    tmp_path: Path, suffix: str, tags: tuple[int, int, int, int], expected: tuple[str, bool]
) -> None:
    with open_video(write_clip(tmp_path / f"a.{suffix}", color_tags=tags, frame_count=2)) as reader:
        frame = next(reader)
    color = frame.color
    assert (color.matrix, color.full_range) == expected
    assert (color.primaries, color.transfer, color.matrix_code) == tags[:3]
    assert color == reader.info.color


HDR_PARAMETERS = (
    "log-level=none:master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,1)"
    ":max-cll=1000,400"
)


HDR10_PLUS = bytes.fromhex("b5003c0001040140001f40177007d001f4007d0c080191901f43188ca00000")
"""ITU-T T.35 of SMPTE ST 2094-40: one window, a distribution of three percentiles, no tone mapping."""
DOLBY_VISION_RPU = bytes.fromhex(
    "19080908406136504f003ff801ffc00fffd000000800000680000040000034000002000000a6206a4a80"
)
"""Profile 8: a straight line for each component, no display management."""
DOLBY_VISION_5_RPU = bytes.fromhex(
    "190809004061b6504f003ff801ffc00fffd000000800000680000040000034000002000000e8afe09e80"
)
"""The same for profile 5: profile 0 in its numbering, and full range."""


def nal_unit(kind: int, payload: bytes) -> bytes:
    """Build an HEVC NAL unit, with emulation prevention and its length."""
    unit, zeros = bytearray([kind << 1, 1]), 0
    for byte in payload:
        if zeros >= 2 and byte <= 3:
            unit.append(3)
            zeros = 0
        unit.append(byte)
        zeros = zeros + 1 if byte == 0 else 0
    return struct.pack(">I", len(unit)) + unit


def with_units(source: Path, target: Path, *, before: bytes = b"", after: bytes = b"") -> Path:
    """Copy a video, and surround each of its pictures with NAL units."""
    with av.open(str(source)) as read, av.open(str(target), "w") as written:
        stream = read.streams.video[0]
        copied = written.add_stream_from_template(stream)
        for packet in read.demux(stream):
            if packet.size:
                made = av.Packet(before + bytes(packet) + after)
                made.pts, made.dts, made.time_base = packet.pts, packet.dts, packet.time_base
                made.is_keyframe, made.stream = packet.is_keyframe, copied
                written.mux(made)
    return target


@pytest.mark.parametrize(
    ("units", "kinds"),
    [
        ({}, ()),
        ({"before": nal_unit(39, bytes([4, len(HDR10_PLUS)]) + HDR10_PLUS + b"\x80")}, ("HDR10+",)),
        ({"after": nal_unit(62, DOLBY_VISION_RPU)}, ("Dolby Vision",)),
        ({"after": nal_unit(62, DOLBY_VISION_5_RPU)}, (DOLBY_VISION_5,)),
    ],
)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_hdr_metadata_of_each_frame_are_noticed(
    tmp_path: Path, suffix: str, units: dict[str, bytes], kinds: tuple[str, ...]
) -> None:
    plain = write_clip(
        tmp_path / f"hdr.{suffix}", codec="libx265", pixel_format="yuv420p10le", color_tags=(9, 16, 9, 1),
        codec_options={"x265-params": HDR_PARAMETERS}, frame_count=3,
    )  # fmt: skip
    with open_video(with_units(plain, tmp_path / f"in.{suffix}", **units)) as reader:
        assert reader.info.dynamic_hdr == kinds
        assert reader.info.has_hdr_side_data
        (note,) = notes_on_dynamic_hdr(reader.info) or ("",)
    assert ("left out" in note) == (kinds in (("HDR10+",), ("Dolby Vision",)))
    assert ("will be wrong" in note) == (kinds == (DOLBY_VISION_5,))


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_hdr_is_exact(tmp_path: Path, suffix: str) -> None:
    path = write_clip(
        tmp_path / f"hdr.{suffix}", codec="libx265", pixel_format="yuv420p10le", color_tags=(9, 16, 9, 1),
        codec_options={"x265-params": HDR_PARAMETERS}, frame_count=3,
    )  # fmt: skip
    with open_video(path) as reader:
        assert reader.info.has_hdr_side_data
        assert reader.hdr == HdrMetadata(
            display_primaries=(
                (Fraction(34000, 50000), Fraction(16000, 50000)),
                (Fraction(13250, 50000), Fraction(34500, 50000)),
                (Fraction(7500, 50000), Fraction(3000, 50000)),
            ),
            white_point=(Fraction(15635, 50000), Fraction(16450, 50000)),
            min_luminance=Fraction(1, 10000),
            max_luminance=Fraction(1000),
            max_content_light_level=1000,
            max_frame_average_light_level=400,
        )


def test_no_hdr(tmp_path: Path) -> None:
    with open_video(write_clip(tmp_path / "a.mp4")) as reader:
        assert reader.hdr is None


def test_side_data_that_pyav_cannot_name_is_no_error(tmp_path: Path) -> None:
    """Check the EXIF of a TIFF: PyAV cannot list side data if one item is newer than its enumeration."""
    path = write_clip(tmp_path / "a.tiff", codec="tiff", pixel_format="rgb24", frame_count=1)
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        assert read_side_data(frame, codec="tiff").hdr is None


@pytest.mark.parametrize(
    ("kind", "left", "right", "expected"),
    [
        (0, 0, 0, Projection.EQUIRECTANGULAR),
        (2, 0x3FFFFFFF, 0x3FFFFFFF, Projection.HALF_EQUIRECTANGULAR),
        (2, 0, 0x3FFFFFFF, Projection.EQUIRECTANGULAR),
        (3, 0, 0, Projection.HALF_EQUIRECTANGULAR),
        (4, 0, 0, Projection.FLAT),
        (5, 0, 0, Projection.FISHEYE),
        (1, 0, 0, None),
    ],
)
def test_spherical_side_data(kind: int, left: int, right: int, expected: Projection | None) -> None:
    assert color_tags._projection(struct.pack("=4i5I", kind, 0, 0, 0, left, 0, right, 0, 0)) is expected


def test_stereo_side_data() -> None:
    read = [color_tags._stereo(struct.pack("=2i", kind, 0)) for kind in range(4)]
    layouts = [StereoLayout.MONO, StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM, None]
    assert read == [(layout, False, None) for layout in layouts]
    full = struct.pack("=9i", 1, 1, 0, 0, 0, 0, 1, 190_000, 1000)
    assert color_tags._stereo(full) == (StereoLayout.SIDE_BY_SIDE, True, 190.0)
    assert color_tags._stereo(full[:-4] + bytes(4)) == (StereoLayout.SIDE_BY_SIDE, True, None)


LOCATIONS = ["left", "center", "topleft", "center", "left", "center"]


@pytest.mark.parametrize("kind", [None, *range(6)])
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_chroma_location_of_h264_and_h265(tmp_path: Path, codec: str, suffix: str, kind: int | None) -> None:
    parameters = "log-level=none:" if codec == "libx265" else "interlaced=1:" if kind == 2 else "cqm=jvt:"
    parameters += "bframes=4:ref=4:keyint=9" + (f":chromaloc={kind}" if kind is not None else "")
    # libx265 returns uninitialised decoding times for one or two frames, which the MP4 muxer may refuse.
    path = write_clip(
        tmp_path / f"a.{suffix}", width=98, height=64, codec=codec, codec_options={f"{codec[3:]}-params": parameters},
        frame_count=3, pixel_format="yuv420p10le" if codec == "libx265" else "yuv420p", color_tags=(9, 16, 9, 1),
    )  # fmt: skip
    expected = "left" if kind is None else LOCATIONS[kind]
    with open_video(path) as reader:
        assert reader.info.color.chroma_location == expected
        assert next(reader).color.chroma_location == expected


@pytest.mark.parametrize("position", [0, 1, 2])
def test_chroma_location_of_av1(position: int) -> None:
    record = bytes([0x81, 0x08, 0x0C | position, 0])
    assert read_chroma_location("libdav1d", record) == [None, "left", "topleft"][position]


def test_headers_that_lie_say_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for codec in ("h264", "hevc", "libdav1d", "vp9"):
        assert read_chroma_location(codec, None) is None
        for length in range(1, 80):
            read_chroma_location(codec, rng.integers(0, 256, length, dtype=np.uint8).tobytes())
            read_chroma_location(codec, b"\0\0\1" + rng.integers(0, 256, length, dtype=np.uint8).tobytes())


def test_default_chroma_location() -> None:
    assert [default_chroma_location(codec) for codec in ("h264", "vp9", "mjpeg", "mpeg1video")] == [
        "left", "left", "center", "center",
    ]  # fmt: skip
