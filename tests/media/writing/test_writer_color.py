"""Tests of colour tags, range, chroma location and HDR metadata in written files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_films import decode, encode, make_frame, make_info, plane

from vitascope.frames import ColorSpec
from vitascope.media.metadata.color_tags import HdrMetadata, read_hdr
from vitascope.media.reading.reader import probe
from vitascope.media.writing.encoding import choose_encoding


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
    ("name", "codec", "sites"),
    [
        ("a.mp4", "h264", ("left", "center", "topleft")),
        ("a.mkv", "h264", ("left", "center", "topleft")),
        ("a.mp4", "h265", ("left", "center", "topleft")),
        ("a.mp4", "av1", ("left", "topleft")),  # AV1 cannot express the centre
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
