"""Round trips: frames go through a real encoder and muxer, and are read back by a real demuxer and decoder."""

from __future__ import annotations

import resource
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.errors import CorruptInputError, OutputError, PipelineError, UsageError
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, Projection, StereoLayout, VideoInfo
from vitascope.media.color_tags import HdrMetadata
from vitascope.media.encoding import Encoding, choose_encoding
from vitascope.media.hdr import read_hdr
from vitascope.media.probe import probe
from vitascope.media.spherical import SphericalMetadata, read_rotation, read_spherical
from vitascope.media.writer import VideoWriter

NTSC = Fraction(30000, 1001)


def make_info(
    width: int = 96,
    height: int = 64,
    *,
    format_name: str = "yuv420p",
    time_base: Fraction = Fraction(1, 24),
    rate: Fraction = Fraction(24),
    color: ColorSpec | None = None,
    **changes: Any,
) -> VideoInfo:
    info = VideoInfo(
        path=Path("in.mp4"),
        width=width,
        height=height,
        format=PIXEL_FORMATS[format_name],
        source_format=format_name,
        color=color or ColorSpec(matrix="bt709", matrix_code=1, primaries=1, transfer=1),
        codec="h264",
        container="mov,mp4,m4a,3gp,3g2,mj2",
        time_base=time_base,
        average_frame_rate=rate,
        frame_count_estimate=None,
        duration_seconds=None,
    )
    return replace(info, **changes)


def make_frame(info: VideoInfo, index: int, *, pts: int | None = None, duration: int = 0) -> Frame:
    """A smooth picture whose brightness says which one it is."""
    fmt = info.format
    x, y = np.meshgrid(np.arange(info.width), np.arange(info.height))
    top = (1 << fmt.bit_depth) - 1
    luma = (top * (0.2 + 0.4 * (x + y) / (info.width + info.height) + 0.02 * (index % 8))).astype(fmt.dtype)
    chroma_width, chroma_height = fmt.chroma_size(info.width, info.height)
    blue = np.full((chroma_height, chroma_width), int(top * 0.45), fmt.dtype)
    red = np.full((chroma_height, chroma_width), int(top * 0.6), fmt.dtype)
    planes: tuple[np.ndarray, ...] = (luma, blue, red)
    if fmt.semi_planar:
        planes = (luma << fmt.sample_shift, np.stack([blue, red], axis=2) << fmt.sample_shift)
    return Frame(
        planes=planes,
        format=fmt,
        color=info.color,
        index=index,
        pts=index if pts is None else pts,
        time_base=info.time_base,
        duration=duration,
    )


def encode(
    path: Path,
    info: VideoInfo,
    *,
    pts: Sequence[int] = tuple(range(6)),
    encoding: Encoding | None = None,
    duration: int = 0,
    **options: Any,
) -> VideoWriter:
    encoding = encoding or choose_encoding(path, source_format=info.format, speed="fast")
    with VideoWriter(path, info=info, encoding=encoding, **options) as writer:
        for index, when in enumerate(pts):
            writer.write(make_frame(info, index, pts=when, duration=duration))
    return writer


def decode(path: Path, decoder: str | None = None) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        if decoder is None:
            return list(container.decode(video=0))
        context = av.CodecContext.create(decoder, "r")
        return [
            frame
            for packet in container.demux(video=0)
            for frame in context.decode(packet if packet.size else None)
        ]


def plane(frame: av.VideoFrame, index: int, dtype: type = np.uint8) -> np.ndarray:
    source = frame.planes[index]
    rows = np.frombuffer(source, dtype).reshape(source.height, -1)
    return rows[:, : source.width]


def seconds(path: Path) -> list[Fraction]:
    return [frame.pts * frame.time_base for frame in decode(path)]


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


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
@pytest.mark.parametrize(
    ("pts", "time_base", "rate"),
    [
        (range(10), Fraction(1, 24), Fraction(24)),
        ([n * 1001 for n in range(10)], Fraction(1, 30000), NTSC),
        ([0, 1001, 3003, 4004, 9009, 9010, 20020], Fraction(1, 30000), NTSC),
        ([150007 + n * 1001 for n in range(6)], Fraction(1, 30000), NTSC),
        ([0, 40, 55, 1000, 1001], Fraction(1, 1000), Fraction(25)),
        ([7, 8, 10], Fraction(1001, 30000), NTSC),
        ([3], Fraction(1, 600), Fraction(30)),
    ],
)
def test_presentation_times_are_exact(
    tmp_path: Path, suffix: str, pts: Sequence[int], time_base: Fraction, rate: Fraction
) -> None:
    path = tmp_path / f"out{suffix}"
    encode(path, make_info(time_base=time_base, rate=rate), pts=pts)
    assert seconds(path) == [when * time_base for when in pts]
    if time_base.numerator == 1:
        with av.open(str(path)) as container:
            assert container.streams.video[0].time_base == time_base


@pytest.mark.parametrize("codec", ["h264", "h265", "av1", "vp9"])
@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_short_films_keep_count_and_times(tmp_path: Path, codec: Any, count: int) -> None:
    path = tmp_path / "out.mp4"
    info = make_info(time_base=Fraction(1, 90000))
    pts = [1000 + n * 3750 for n in range(count)]
    encoding = choose_encoding(path, codec=codec, source_format=info.format, speed="fast")
    encode(path, info, pts=pts, encoding=encoding)
    assert seconds(path) == [Fraction(when, 90000) for when in pts]


def test_matroska_keeps_milliseconds_and_order(tmp_path: Path) -> None:
    path = tmp_path / "out.mkv"
    pts = [0, 1001, 3003, 4004, 9009]
    encode(path, make_info(time_base=Fraction(1, 30000), rate=NTSC), pts=pts)
    for got, want in zip(seconds(path), [Fraction(when, 30000) for when in pts], strict=True):
        assert abs(got - want) <= Fraction(1, 2000)


@pytest.mark.parametrize("frame_duration", [0, 100])
def test_the_last_frame_is_shown_as_long_as_the_source_says(tmp_path: Path, frame_duration: int) -> None:
    path = tmp_path / "out.mp4"
    info = make_info(time_base=Fraction(1, 1000), rate=Fraction(25))
    encode(path, info, pts=[0, 40, 80, 120], duration=frame_duration)
    with av.open(str(path)) as container:
        assert container.streams.video[0].duration == 120 + (frame_duration or 40)


def test_colour_tags_arrive_in_bitstream_and_container(tmp_path: Path) -> None:
    color = ColorSpec(matrix="bt2020", primaries=9, transfer=16, matrix_code=9, chroma_location="topleft")
    for name, codec in (
        ("a.mp4", "h264"),
        ("a.mkv", "h265"),
        ("b.mp4", "av1"),
        ("a.webm", "vp9"),
        ("b.mkv", "ffv1"),
    ):
        info = make_info(color=color)
        path = tmp_path / name
        encode(
            path, info, pts=range(2), encoding=choose_encoding(path, codec=codec, source_format=info.format)
        )
        frame = decode(path)[0]
        assert (frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range) == (
            9,
            16,
            9,
            1,
        ), name
    mov = tmp_path / "a.mov"
    encode(mov, info, pts=range(2), encoding=choose_encoding(mov, codec="prores", source_format=info.format))
    frame = decode(mov)[0]
    assert (frame.color_primaries, frame.color_trc, frame.colorspace) == (9, 16, 9)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm"])
def test_full_range_stays_full(tmp_path: Path, suffix: str) -> None:
    info = make_info(color=ColorSpec(matrix="bt709", matrix_code=1, full_range=True))
    path = tmp_path / f"out{suffix}"
    encode(path, info, pts=range(2))
    frame = decode(path)[0]
    assert frame.color_range == 2 or frame.format.name == "yuvj420p"
    assert np.abs(plane(frame, 0).astype(int) - make_frame(info, 0).planes[0]).mean() < 3


def test_prores_has_no_range_flag_so_full_becomes_limited(tmp_path: Path) -> None:
    info = make_info(color=ColorSpec(matrix="bt709", matrix_code=1, full_range=True))
    path = tmp_path / "out.mov"
    encode(
        path, info, pts=range(1), encoding=choose_encoding(path, codec="prores", source_format=info.format)
    )
    want = make_frame(info, 0).planes[0].astype(float) / 255 * 876 + 64
    assert np.abs(plane(decode(path)[0], 0, np.uint16) - want).mean() < 4


def test_untagged_colour_stays_untagged(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    encode(path, make_info(color=ColorSpec(matrix="bt601", range_tagged=False)), pts=range(2))
    frame = decode(path)[0]
    assert (frame.color_primaries, frame.color_trc, frame.colorspace, frame.color_range) == (2, 2, 2, 0)


def test_untagged_colour_is_tagged_when_players_would_assume_another(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    encode(path, make_info(color=ColorSpec(matrix="bt709", range_tagged=False)), pts=range(2))
    assert decode(path)[0].colorspace == 1


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


@pytest.mark.parametrize("degrees", [90, 180, 270])
@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_rotation_is_written_as_display_matrix(tmp_path: Path, degrees: int, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    encode(path, make_info(rotation_degrees=degrees))
    assert read_rotation(path) == degrees
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


HDR = HdrMetadata(
    display_primaries=(
        (Fraction(34000, 50000), Fraction(16000, 50000)),
        (Fraction(13250, 50000), Fraction(34500, 50000)),
        (Fraction(7500, 50000), Fraction(3000, 50000)),
    ),
    white_point=(Fraction(15635, 50000), Fraction(16450, 50000)),
    min_luminance=Fraction(1, 1000),
    max_luminance=Fraction(1000),
    max_content_light_level=1000,
    max_frame_average_light_level=400,
)


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("o.mp4", "h264"),
        ("o.mp4", "h265"),
        ("o.mkv", "h265"),
        ("o.mp4", "av1"),
        ("o.mov", "prores"),
        ("o.mkv", "av1"),
    ],
)
def test_hdr_side_data(tmp_path: Path, name: str, codec: Any) -> None:
    info = make_info(
        format_name="yuv420p10le", color=ColorSpec(matrix="bt2020", primaries=9, transfer=16, matrix_code=9)
    )
    path = tmp_path / name
    encoding = choose_encoding(path, codec=codec, source_format=info.format, speed="fast")
    encode(path, info, pts=range(3), encoding=encoding, hdr=HDR)
    got = read_hdr(path)
    assert got is not None
    assert (got.max_content_light_level, got.max_frame_average_light_level) == (1000, 400)
    assert got.max_luminance is not None and abs(got.max_luminance - 1000) < 1
    assert got.display_primaries is not None and HDR.display_primaries is not None
    for point, want in zip(got.display_primaries, HDR.display_primaries, strict=True):
        assert all(abs(a - b) < Fraction(1, 10000) for a, b in zip(point, want, strict=True))


def test_hdr_of_the_source_is_carried_over(tmp_path: Path) -> None:
    info = make_info(format_name="yuv420p10le")
    source = tmp_path / "in.mp4"
    encode(source, info, hdr=HDR)
    encode(tmp_path / "out.mp4", replace(info, has_hdr_side_data=True), copy_from=source)
    got = read_hdr(tmp_path / "out.mp4")
    assert got is not None and got.max_content_light_level == 1000


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


@pytest.mark.parametrize(
    ("name", "decoder", "bits"),
    [("a.mov", None, 12), ("a.webm", "libvpx-vp9", 8), ("a.mkv", None, 8)],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_alpha_comes_back(tmp_path: Path, name: str, decoder: str | None, bits: int, dtype: type) -> None:
    info = make_info(98, 66)
    path = tmp_path / name
    encoding = choose_encoding(path, source_format=info.format, with_alpha=True)
    opaque = np.iinfo(dtype).max
    alpha = np.zeros((66, 98), dtype)
    alpha[10:50, 20:70] = opaque
    alpha[50:60, 20:70] = opaque // 2
    with VideoWriter(path, info=info, encoding=encoding) as writer:
        for index in range(3):
            writer.write_with_alpha(make_frame(info, index), alpha)
    frames = decode(path, decoder)
    assert len(frames) == 3
    depth = frames[0].format.components[0].bits
    assert depth == bits
    got = plane(frames[2], 3, np.uint8 if depth == 8 else np.uint16) / ((1 << depth) - 1)
    assert np.abs(got - alpha / opaque).mean() < 0.004
    assert got[30, 40] == 1.0
    assert got[5, 5] == 0.0


def test_ffv1_alpha_is_lossless(tmp_path: Path) -> None:
    for format_name in ("yuv420p", "yuv422p10le", "yuv444p12le"):
        info = make_info(33, 17, format_name=format_name)
        path = tmp_path / f"{format_name}.mkv"
        encoding = choose_encoding(path, source_format=info.format, with_alpha=True)
        alpha = np.arange(33 * 17, dtype=np.uint8).reshape(17, 33)
        with VideoWriter(path, info=info, encoding=encoding) as writer:
            writer.write_with_alpha(make_frame(info, 0), alpha)
        frame = decode(path)[0]
        dtype = info.format.dtype.type
        for index in range(3):
            np.testing.assert_array_equal(plane(frame, index, dtype), make_frame(info, 0).planes[index])
        top = (1 << info.format.bit_depth) - 1
        np.testing.assert_array_equal(plane(frame, 3, dtype), np.rint(alpha / 255 * top))


def test_write_without_alpha_is_opaque(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "a.mkv"
    encode(path, info, pts=[0], encoding=choose_encoding(path, source_format=info.format, with_alpha=True))
    assert (plane(decode(path)[0], 3) == 255).all()


def test_alpha_needs_an_encoding_that_has_it(tmp_path: Path) -> None:
    info = make_info()
    encoding = choose_encoding(tmp_path / "a.mp4", source_format=info.format)
    with (
        pytest.raises(OutputError, match="no alpha plane"),
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=encoding) as writer,
    ):
        writer.write_with_alpha(make_frame(info, 0), np.zeros((64, 96), np.uint8))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["cut", "cut/frame_%04d.png"])
def test_png_sequence(tmp_path: Path, target: str) -> None:
    info = make_info(33, 17)
    path = tmp_path / target
    alpha = np.linspace(0, 255, 33 * 17).astype(np.uint8).reshape(17, 33)
    encoding = choose_encoding(path, source_format=info.format, with_alpha=True)
    for _ in range(2):  # a second run replaces the first
        with VideoWriter(path, info=info, encoding=encoding) as writer:
            for index in range(3):
                writer.write_with_alpha(make_frame(info, index), alpha)
    names = sorted(file.name for file in (tmp_path / "cut").iterdir())
    pattern = "frame_%04d.png" if "%" in target else "%06d.png"
    assert names == [pattern % n for n in range(3)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["cut"]
    picture = decode(tmp_path / "cut" / names[1])[0]
    assert picture.format.name == "rgba"
    rgba = picture.to_ndarray(format="rgba")
    np.testing.assert_array_equal(rgba[..., 3], alpha)
    y, cb, cr = (float(p[8, 8]) for p in make_frame(info, 1).planes)
    grey = (y - 16) * 255 / 219
    want = grey + 1.5748 * (cr - 128) * 255 / 224
    assert (
        abs(rgba[8, 16, 0] - ((float(make_frame(info, 1).planes[0][8, 16]) - 16) * 255 / 219 + want - grey))
        <= 2
    )
    assert cb < 128


def test_one_png_takes_one_frame(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "one.png"
    encode(path, info, pts=[0])
    assert decode(path)[0].width == 96
    with pytest.raises(OutputError, match="cannot hold a video"):
        encode(tmp_path / "two.png", info, pts=[0, 1])
    assert [entry.name for entry in tmp_path.iterdir()] == ["one.png"]


@pytest.mark.parametrize("name", ["m.mkv", "m.png"])
@pytest.mark.parametrize("format_name", ["yuv420p", "yuv420p10le", "p010le"])
def test_grey_is_stored_without_chroma(tmp_path: Path, name: str, format_name: str) -> None:
    info = make_info(
        format_name=format_name, color=ColorSpec(matrix="bt709", matrix_code=1, full_range=name == "m.mkv")
    )
    path = tmp_path / name
    codec: Any = "ffv1" if name == "m.mkv" else "auto"
    encode(
        path, info, pts=[0], encoding=choose_encoding(path, codec=codec, source_format=info.format, grey=True)
    )
    picture = decode(path)[0]
    assert picture.format.name.startswith("gray")
    depth = info.format.bit_depth
    luma = (make_frame(info, 0).planes[0] >> info.format.sample_shift).astype(float)
    bits = picture.format.components[0].bits
    got = plane(
        picture,
        0,
        np.uint8 if bits == 8 else np.dtype(">u2") if picture.format.name.endswith("be") else np.uint16,
    )
    if name == "m.mkv":
        np.testing.assert_array_equal(got, luma)
    else:
        want = (luma - (16 << depth - 8)) * ((1 << bits) - 1) / (219 << depth - 8)
        assert np.abs(got - want.clip(0)).max() <= 0.5 + 1e-6


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


def test_times_that_stand_still_are_moved_on(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    encode(path, make_info(time_base=Fraction(1, 1000)), pts=[0, 40, 40, 30, 120])
    assert seconds(path) == [Fraction(n, 1000) for n in (0, 40, 41, 42, 120)]


def test_frames_of_another_size_are_refused(tmp_path: Path) -> None:
    info = make_info()
    encoding = choose_encoding(tmp_path / "a.mp4", source_format=info.format)
    with (
        pytest.raises(OutputError, match="32x32"),
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=encoding) as writer,
    ):
        writer.write(make_frame(make_info(32, 32), 0))


def test_no_frames_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no frame"):
        encode(tmp_path / "deep" / "er" / "a.mp4", make_info(), pts=[])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    path.write_bytes(b"old")
    with VideoWriter(path, info=info, encoding=choose_encoding(path, source_format=info.format)) as writer:
        writer.write(make_frame(info, 0))
        assert path.read_bytes() == b"old"
    assert len(decode(path)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize("target", ["a.mp4", "a.mkv", "frames"])
def test_an_error_leaves_the_old_output_alone(tmp_path: Path, target: str) -> None:
    info = make_info()
    path = tmp_path / target
    with pytest.raises(ZeroDivisionError):  # noqa: SIM117 - the writer's block is what is tested
        with VideoWriter(
            path, info=info, encoding=choose_encoding(path, source_format=info.format)
        ) as writer:
            writer.write(make_frame(info, 0))
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["a.mp4", "a.mkv", "a.webm", "frames"])
def test_an_interrupt_keeps_what_there_is(tmp_path: Path, target: str) -> None:
    info = make_info()
    path = tmp_path / target
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with VideoWriter(
            path, info=info, encoding=choose_encoding(path, source_format=info.format)
        ) as writer:
            for index in range(5):
                writer.write(make_frame(info, index))
            raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{target}.part"]
    kept = tmp_path / f"{target}.part"
    if kept.is_dir():
        assert len(list(kept.iterdir())) == 5
    else:
        assert len(decode(kept)) == 5


def test_an_interrupt_before_the_first_frame_leaves_nothing(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    with (
        pytest.raises(KeyboardInterrupt),
        VideoWriter(path, info=info, encoding=choose_encoding(path, source_format=info.format)),
    ):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_corrupt_input_keeps_what_decoded_when_asked(tmp_path: Path, wanted: bool, grouped: bool) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    error: Exception = CorruptInputError("in.mp4: ends early")
    if grouped:
        error = PipelineError("failed", [error])
    with pytest.raises(type(error)):  # noqa: SIM117
        with VideoWriter(
            path, info=info, encoding=choose_encoding(path, source_format=info.format), keep_partial=wanted
        ) as writer:
            writer.write(make_frame(info, 0))
            raise error
    assert [entry.name for entry in tmp_path.iterdir()] == (["a.mp4.part"] if wanted else [])


def test_output_equal_to_input_is_refused(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "in.mp4")
    before = source.read_bytes()
    with pytest.raises(UsageError, match="is the input"):
        encode(source, make_info(), copy_from=source)
    assert source.read_bytes() == before


def test_an_encoder_that_refuses_is_an_output_error(tmp_path: Path) -> None:
    info = make_info(8, 8)
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, codec="h265", source_format=info.format)
    with pytest.raises(OutputError, match=r"a\.mp4: cannot encode 8x8 .* libx265"):
        encode(path, info, encoding=encoding)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_output_error_and_leaves_nothing(tmp_path: Path) -> None:
    info = make_info(256, 256)
    path = tmp_path / "a.mkv"
    encoding = choose_encoding(path, codec="ffv1", source_format=info.format)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0)
    planes = tuple(noise.integers(0, 256, p.shape, np.uint8) for p in make_frame(info, 0).planes)
    try:
        with pytest.raises(OutputError, match=r"a\.mkv: cannot"):  # noqa: SIM117
            with VideoWriter(path, info=info, encoding=encoding) as writer:
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
                for index in range(40):
                    writer.write(replace(make_frame(info, index), planes=planes))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a part of the path is a file"):
        encode(tmp_path / "file" / "a.mp4", make_info())


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    encode(tmp_path / "a.mp4", make_info(), pts=[0])
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "a.mp4").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "plain").stat().st_mode
    )


def test_encoders_are_silent(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_writer import encode, make_info
from vitascope.media.encoding import choose_encoding
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


@pytest.mark.parametrize(
    ("name", "codec", "sites"),
    [
        ("a.mp4", "h264", ("left", "center", "topleft")),
        ("a.mkv", "h264", ("left", "center", "topleft")),
        ("a.mp4", "h265", ("left", "center", "topleft")),
        ("a.mp4", "av1", ("left", "topleft")),  # AV1 has no word for the centre
    ],
)
def test_chroma_location(tmp_path: Path, name: str, codec: Any, sites: Sequence[Any]) -> None:
    for site in sites:
        info = make_info(color=ColorSpec(matrix="bt709", matrix_code=1, chroma_location=site))
        path = tmp_path / name
        encode(
            path, info, pts=range(2), encoding=choose_encoding(path, codec=codec, source_format=info.format)
        )
        assert probe(path).color.chroma_location == site
