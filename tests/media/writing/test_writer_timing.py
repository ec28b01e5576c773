"""Tests of when each written frame is shown, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from written_films import NTSC, encode, make_info, seconds

from vitascope.media.writing.encoding import choose_encoding


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


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv"])
@pytest.mark.parametrize("codec", ["h264", "h265"])
@pytest.mark.parametrize("first", [0, 700])
def test_a_film_with_pauses_is_as_long_as_its_source(
    tmp_path: Path, suffix: str, codec: Any, first: int
) -> None:
    """Check encoders that reorder frames, which decode ahead, while the format counts decoding time."""
    path = tmp_path / f"out{suffix}"
    info = make_info(time_base=Fraction(1, 1000), rate=Fraction(25))
    pts = [first + when for when in (0, 40, 80, 120, 160, 200, 1200, 1240, 1280, 1320, 3320)]
    encoding = choose_encoding(path, codec=codec, source_format=info.format)
    encode(path, info, pts=pts, encoding=encoding)
    assert seconds(path) == [Fraction(when, 1000) for when in pts]
    with av.open(str(path)) as container:
        counted_from = first if suffix == ".mkv" else 0
        assert container.duration == pytest.approx((counted_from + 3360) * 1000, abs=1500)
        if suffix != ".mkv":
            assert container.streams.video[0].duration == 3360


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [
        (".mp4", "h264"),
        (".mov", "h264"),
        (".mkv", "h264"),
        (".mp4", "h265"),
        (".mkv", "h265"),
        (".mkv", "av1"),
    ],
)
@pytest.mark.parametrize(
    "pts", [[0, 1, 720], [0, 40, 5000], [7, 90_000, 90_040], [0, 40, 80, 60_000, 60_040]]
)
def test_a_pause_among_the_first_frames(tmp_path: Path, suffix: str, codec: Any, pts: Sequence[int]) -> None:
    """Check that decoding starts before the first frame by the frames that an encoder holds back."""
    path = tmp_path / f"out{suffix}"
    info = make_info(time_base=Fraction(1, 1000), rate=Fraction(25))
    encoding = choose_encoding(path, codec=codec, source_format=info.format, speed="fast")
    encode(path, info, pts=pts, encoding=encoding)
    assert seconds(path) == [Fraction(when, 1000) for when in pts]


def test_times_that_stand_still_are_moved_on(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    encode(path, make_info(time_base=Fraction(1, 1000)), pts=[0, 40, 40, 30, 120])
    assert seconds(path) == [Fraction(n, 1000) for n in (0, 40, 41, 42, 120)]
