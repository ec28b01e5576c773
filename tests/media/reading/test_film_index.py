"""Tests of keyframes from the container's index, and of a reader that moves between parts of a video."""

from __future__ import annotations

import pytest

from clips import write_clip
from vitascope.errors import InputError
from vitascope.media.reading.film_index import read_film_index
from vitascope.media.reading.reader import open_video


@pytest.mark.parametrize(("suffix", "stamp"), [(".mp4", "dts"), (".mkv", "pts"), (".mov", "dts")])
def test_keyframes_are_found_without_decoding(tmp_path, suffix, stamp):
    path = write_clip(tmp_path / f"in{suffix}", frame_count=40, codec_options={"g": "10", "bf": "2"})
    index = read_film_index(path)
    assert (index.why_none, index.stamp) == (None, stamp)
    with open_video(path) as reader:
        shown = [frame.pts for frame in reader if frame.keyframe]
    assert len(index.keyframes) == len(shown) == 4
    reorder = 0 if stamp == "pts" else 3 * (shown[1] - shown[0]) // 10
    assert all(0 <= pts - key <= reorder for pts, key in zip(shown, index.keyframes, strict=True))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("in.ts", {}, "mpegts has no index"),
        ("in.avi", {"codec": "mpeg4"}, "avi has no index"),
    ],
)
def test_what_cannot_be_cut_says_why(tmp_path, name, options, reason):
    index = read_film_index(write_clip(tmp_path / name, **options))
    assert reason in index.why_none
    assert index.keyframes == ()


def test_a_film_whose_clock_was_set_anew_is_not_cut(tmp_path):
    year = 365 * 86_400 * 24
    times = [*range(12), *range(year, year + 12)]
    path = write_clip(tmp_path / "in.mkv", pts=times, codec_options={"g": "6", "keyint_min": "6"})
    assert "was reset" in read_film_index(path).why_none


def test_a_file_that_is_no_film(tmp_path):
    (tmp_path / "in.mp4").write_bytes(b"text")
    with pytest.raises(InputError, match=r"in\.mp4"):
        read_film_index(tmp_path / "in.mp4")


def test_a_reader_plays_one_part_after_another(tmp_path):
    path = write_clip(tmp_path / "in.mp4", frame_count=40, codec_options={"g": "10"})
    with open_video(path) as reader:
        ticks = [frame.pts for frame in reader]
        for first, last in ((25, 33), (3, 30), (0, 5), (38, None)):
            reader.play(ticks[first], None if last is None else ticks[last])
            frames = list(reader)
            assert [frame.pts for frame in frames] == ticks[first:last]
            assert [frame.index for frame in frames] == list(range(len(frames)))
            assert reader.first_pts == ticks[first]
        reader.play(None, None)
        assert len(list(reader)) == 40
    with pytest.raises(ValueError, match="closed"):
        reader.play(None, None)
