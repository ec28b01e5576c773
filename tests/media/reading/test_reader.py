"""Tests of reading (pixels, times, trims, lifetimes) against PyAV or what was written."""

from __future__ import annotations

import gc
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clips import write_clip
from vitascope.errors import InputError, UsageError
from vitascope.frames import PIXEL_FORMATS, Frame
from vitascope.media.reading.reader import PresentationClock, keyframe_lumas, open_video


def joined(frame: Frame) -> npt.NDArray[np.generic]:
    """Concatenate the planes, as PyAV's ``to_ndarray`` does for contiguous YUV."""
    return np.concatenate([plane.ravel() for plane in frame.planes])


def reference(path: Path) -> list[npt.NDArray[np.generic]]:
    """Return each picture's samples from PyAV's ``to_ndarray`` if it knows the layout, else row by row."""
    with av.open(str(path)) as container:
        return [_samples(frame) for frame in container.decode(video=0)]


def _samples(frame: av.VideoFrame) -> npt.NDArray[np.generic]:
    if (
        frame.format.name in ("yuv420p", "yuv422p", "nv12", "yuv420p10le")
        and not (frame.width | frame.height) & 1
    ):
        return frame.to_ndarray().ravel()
    wide = frame.format.components[0].bits > 8
    rows = []
    for plane in frame.planes:
        data = bytes(plane)
        length = plane.width * (2 if wide else 1)
        rows += [data[y * plane.line_size : y * plane.line_size + length] for y in range(plane.height)]
    return np.frombuffer(b"".join(rows), np.uint16 if wide else np.uint8)


@pytest.fixture(scope="module")
def long_gop_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 72 frames at 24 fps with keyframes at 0 and 50 only, and B-frames."""
    path = tmp_path_factory.mktemp("clips") / "long_gop.mp4"
    options = {"g": "250", "bf": "3", "x264-params": "keyint=50:min-keyint=50:scenecut=0:b-adapt=0"}
    return write_clip(path, frame_count=72, codec_options=options)


@pytest.mark.parametrize(
    ("suffix", "codec", "pixel_format"),
    [
        ("mp4", "libx264", "yuv420p"),
        ("mp4", "libx264", "yuv422p"),
        ("mp4", "libx264", "yuv444p"),
        ("mp4", "libx265", "yuv420p10le"),
        ("mp4", "libx265", "yuv420p12le"),
        ("mkv", "libx264", "yuv420p10le"),
        ("mkv", "ffv1", "yuv422p10le"),
        ("mkv", "ffv1", "yuv444p12le"),
        ("mkv", "rawvideo", "nv12"),
        ("webm", "libvpx-vp9", "yuv420p"),
        ("mov", "prores_ks", "yuv422p10le"),
        ("avi", "mpeg4", "yuv420p"),
        ("ts", "libx264", "yuv420p"),
    ],
)
def test_planes_are_the_decoders_to_the_last_bit(
    tmp_path: Path, suffix: str, codec: str, pixel_format: str
) -> None:
    quiet = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    path = write_clip(
        tmp_path / f"a.{suffix}", width=96, height=64, frame_count=7, codec=codec, pixel_format=pixel_format,
        codec_options=quiet,
    )  # fmt: skip
    with open_video(path) as reader:
        frames = list(reader)
    assert reader.info.format is PIXEL_FORMATS[pixel_format]
    assert [frame.index for frame in frames] == list(range(7))
    for frame, expected in zip(frames, reference(path), strict=True):
        assert frame.format.name == pixel_format
        np.testing.assert_array_equal(joined(frame), expected)


@pytest.mark.parametrize("size", [(97, 65), (33, 2), (1, 1), (2, 1), (1, 17)])
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p10le", "yuv444p"])
def test_odd_and_tiny_sizes(tmp_path: Path, size: tuple[int, int], pixel_format: str) -> None:
    width, height = size
    path = write_clip(
        tmp_path / "odd.nut", width=width, height=height, frame_count=2, codec="rawvideo", pixel_format=pixel_format
    )  # fmt: skip
    with open_video(path) as reader:
        frames = list(reader)
    for frame, expected in zip(frames, reference(path), strict=True):
        assert (frame.width, frame.height) == size
        chroma_width, chroma_height = frame.format.chroma_size(width, height)
        assert frame.planes[1].shape == frame.planes[2].shape == (chroma_height, chroma_width)
        np.testing.assert_array_equal(joined(frame), expected)


def test_planes_are_read_only_views(tmp_path: Path) -> None:
    with open_video(write_clip(tmp_path / "a.mp4", width=90)) as reader:
        frame = next(reader)
    for plane in frame.planes:
        assert not plane.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            plane[0, 0] = 1
    assert frame.planes[0].strides[0] >= 90


def test_frames_outlive_reader_and_decoder(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", frame_count=20)
    kept = list(open_video(path))
    gc.collect()
    for _ in range(3):  # other decoders, which would reuse freed buffers
        with open_video(path, start_seconds=0.3) as reader:
            list(reader)
        gc.collect()
    for frame, expected in zip(kept, reference(path), strict=True):
        np.testing.assert_array_equal(joined(frame), expected)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov"])
def test_variable_frame_rate_keeps_every_pts(tmp_path: Path, suffix: str) -> None:
    times = [0, 40, 41, 100, 350, 351, 352, 900]
    path = write_clip(
        tmp_path / f"vfr.{suffix}", frame_count=len(times), pts=times, time_base=Fraction(1, 1000),
        codec_options={"bf": "0"},
    )  # fmt: skip
    with open_video(path) as reader:
        found = [frame.pts * frame.time_base for frame in reader]
        assert reader.adjusted_pts_count == 0
        assert reader.first_pts == reader.origin_pts
    assert found == [Fraction(time, 1000) for time in times]


def test_fractional_frame_rate_is_exact(tmp_path: Path) -> None:
    rate = Fraction(30000, 1001)
    with open_video(write_clip(tmp_path / "ntsc.mp4", frame_rate=rate, frame_count=30)) as reader:
        assert reader.info.average_frame_rate == rate
        assert [f.pts * f.time_base for f in reader] == [n / rate for n in range(30)]


def test_raw_stream_without_pts_gets_the_frame_rate(tmp_path: Path) -> None:
    """Check an elementary stream, which has no times."""
    path = write_clip(
        tmp_path / "raw.h264", frame_count=10, frame_rate=Fraction(25), codec_options={"bf": "2"}
    )
    with open_video(path) as reader:
        frames = list(reader)
    assert len(frames) == 10
    steps = {(b.pts - a.pts) * b.time_base for a, b in pairwise(frames)}
    assert steps == {Fraction(1, 25)}


def test_joined_recordings_go_on_in_time(tmp_path: Path) -> None:
    """Check two joined transport streams whose clocks both begin at zero."""
    part = write_clip(tmp_path / "part.ts", frame_count=60, codec_options={"bf": "0"})
    path = tmp_path / "joined.ts"
    path.write_bytes(part.read_bytes() * 2)
    with open_video(path) as reader:
        frames = list(reader)
        assert reader.adjusted_pts_count >= 60
    assert len(frames) == 120
    times = [frame.pts_seconds for frame in frames]
    assert all(0 < b - a < 0.1 for a, b in pairwise(times))


@pytest.mark.parametrize("bframes", ["0", "3"])
@pytest.mark.parametrize("frame_count", [2, 10, 24])
def test_takes_shorter_than_a_second_are_shown_at_full_length(
    tmp_path: Path, frame_count: int, bframes: str
) -> None:
    part = write_clip(tmp_path / "part.ts", frame_count=frame_count, codec_options={"bf": bframes})
    path = tmp_path / "joined.ts"
    path.write_bytes(part.read_bytes() * 3)
    with open_video(path) as reader:
        times = [frame.pts_seconds for frame in reader]
        assert (reader.clock_jump_count, reader.repeated_pts_count) == (2, 0)
        assert reader.corrupt_count == 0
    assert np.diff(times) == pytest.approx([1 / 24] * (3 * frame_count - 1), abs=1e-4)


def test_a_stretch_of_joined_takes_counts_from_the_first(tmp_path: Path) -> None:
    first = write_clip(tmp_path / "first.ts", frame_count=24)
    second = write_clip(tmp_path / "second.ts", frame_count=96, codec_options={"g": "12"})
    path = tmp_path / "joined.ts"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    with open_video(path) as reader:
        whole = [joined(frame) for frame in reader]
    assert len(whole) == 120
    with open_video(path, start_seconds=2, end_seconds=3) as reader:
        stretch = [joined(frame) for frame in reader]
    np.testing.assert_array_equal(stretch, whole[48:72])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0, 1, 2, 1, 3, 4], [0, 1, 2, 3, 3.5, 4]),  # one late frame
        ([0, 1, 2, 5, 3, 4, 6, 7], [0, 1, 2, 5, 6, 7, 7.5, 8]),  # out of order after damage
        ([0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6, 7]),  # another, longer take
        ([0, 1, 2, 10**9, 3, 4], [0, 1, 2, 3, 3.5, 4]),  # a damaged time
        ([0, 1, 2, 2, 3], [0, 1, 2, 2.5, 3]),  # a repeated time
    ],
)
def test_another_take_is_told_from_pictures_out_of_order(given: list[int], expected: list[float]) -> None:
    clock = PresentationClock(Fraction(1, 20), Fraction(10))  # two ticks a frame
    stamps = [clock.stamp(2 * pts, 2) / 2 for pts in given]
    assert stamps == expected
    assert clock.jump_count == (1 if given[3:5] == [0, 1] else 0)


@pytest.mark.parametrize("length", [20, 40, 50])
@pytest.mark.parametrize("begin", [1020, 1080, 1180, 1190, 1250])
def test_a_take_off_the_grid_of_the_one_it_overlaps_is_shown_at_full_length(begin: int, length: int) -> None:
    """Check takes that overlap by fewer frames than may be out of order, with one just after the first's end."""
    clock = PresentationClock(Fraction(1, 1000), Fraction(25))
    stamps = [clock.stamp(pts, 40) for pts in range(1000, 1361, 40)]
    stamps += [clock.stamp(pts, length) for pts in range(begin, begin + 1000, length)]
    assert [b - a for a, b in pairwise(stamps)] == [40] * 10 + [length] * (len(stamps) - 11)
    assert (clock.jump_count, clock.repeated_count) == (1, 0)


@pytest.mark.parametrize(
    "given",
    [
        [0, 1, 2, 6, 3, 4, 5, 7, 8],  # one is early by three
        [0, 1, 2, 6, 7, 3, 4, 5, 8, 9],  # two are early
        [0, 1, 2, 7, 8, 3, 4, 5, 6, 9, 10],
        [0, 1, 2, 3, 1, 2, 4, 5],  # two are repeated
    ],
)
def test_pictures_that_fill_a_hole_are_no_take(given: list[int]) -> None:
    clock = PresentationClock(Fraction(1, 1000), Fraction(25))
    stamps = [clock.stamp(40 * pts, 40) for pts in [*given, *range(given[-1] + 1, 20)]]
    assert stamps[-1] == 40 * 19
    assert clock.jump_count == 0
    assert clock.repeated_count > 0


@given(st.integers(3, 40), st.integers(3, 40), st.integers(0, 3000), st.integers(20, 60), st.integers(20, 60))
def test_clock_grows_over_takes_that_overlap(
    first: int, second: int, begin: int, first_length: int, second_length: int
) -> None:
    clock = PresentationClock(Fraction(1, 1000), Fraction(25))
    takes = [(1000 + n * first_length, first_length) for n in range(first)]
    takes += [(begin + n * second_length, second_length) for n in range(second)]
    stamps = [clock.stamp(pts, length) for pts, length in takes]
    assert all(b > a for a, b in pairwise(stamps))


def test_a_clock_that_jumps_ahead_by_a_year_goes_on(tmp_path: Path) -> None:
    year = 365 * 86_400 * 24
    path = write_clip(tmp_path / "gap.mkv", pts=[*range(12), *range(year, year + 12)])
    with open_video(path) as reader:
        times = [frame.pts_seconds for frame in reader]
        assert (reader.clock_jump_count, reader.repeated_pts_count) == (1, 0)
    assert len(times) == 24
    assert all(0 < b - a < 0.1 for a, b in pairwise(times))


@given(
    st.lists(
        st.tuples(st.none() | st.integers(-(10**6), 10**6), st.integers(0, 5000)), min_size=1, max_size=60
    )
)
def test_clock_always_grows(pictures: list[tuple[int | None, int]]) -> None:
    clock = PresentationClock(Fraction(1, 90000), Fraction(25))
    stamps = [clock.stamp(pts, duration) for pts, duration in pictures]
    assert all(b > a for a, b in pairwise(stamps))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60))
def test_clock_leaves_growing_pts_alone(steps: list[int]) -> None:
    clock = PresentationClock(Fraction(1, 1000), Fraction(25))
    times = np.cumsum(steps).tolist()
    assert [clock.stamp(time, 0) for time in times] == times
    assert clock.adjusted_count == 0


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi", "h264"])
@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0.0, None, range(72)),
        (1.0, None, range(24, 72)),
        (2.5, None, range(60, 72)),
        (None, 1.0, range(24)),
        (0.5, 2.25, range(12, 54)),
        (1.01, 1.1, range(25, 27)),
        (2.95, 9.0, range(71, 72)),
        (5.0, None, range(0)),
    ],
)
def test_trim_is_exact_to_the_frame(
    long_gop_clip: Path, tmp_path: Path, suffix: str, start: float | None, end: float | None, expected: range
) -> None:
    path = long_gop_clip
    if suffix != "mp4":
        options = {"bf": "0" if suffix == "avi" else "2", "x264-params": "keyint=50:min-keyint=50:scenecut=0"}
        path = write_clip(tmp_path / f"a.{suffix}", frame_count=72, codec_options=options)
    decoded = reference(path)
    with open_video(path, start_seconds=start, end_seconds=end) as reader:
        frames = list(reader)
        assert reader.decoded_count == len(expected)
        if expected and start:
            assert reader.start_pts is not None
            assert reader.first_pts == frames[0].pts >= reader.start_pts
    assert [frame.index for frame in frames] == list(range(len(expected)))
    for frame, n in zip(frames, expected, strict=True):
        np.testing.assert_array_equal(joined(frame), decoded[n])
        assert frame.pts - reader.origin_pts == round(n / 24 / frame.time_base)


def test_trim_counts_from_the_first_picture_not_from_the_clock(tmp_path: Path) -> None:
    """Recordings may begin at any time on the clock."""
    pts = [86_400_000 + 40 * n for n in range(50)]
    path = write_clip(tmp_path / "late.mkv", pts=pts, time_base=Fraction(1, 1000), codec_options={"g": "10"})
    with open_video(path, start_seconds=1.0, end_seconds=1.2) as reader:
        assert [frame.pts - reader.origin_pts for frame in reader] == [1000, 1040, 1080, 1120, 1160]
        assert reader.origin_pts * reader.info.time_base == 86_400


def test_expected_frame_count_follows_the_trim(long_gop_clip: Path) -> None:
    counts = []
    for start, end in [(None, None), (1.0, None), (None, 1.0), (1.0, 2.0), (10.0, None)]:
        with open_video(long_gop_clip, start_seconds=start, end_seconds=end) as reader:
            counts.append(reader.expected_frame_count)
    assert counts == [72, 48, 24, 24, 0]


def test_times_may_be_numbers_of_numpy(long_gop_clip: Path) -> None:
    times: list[tuple[Any, Any]] = [(1, 2), (np.float32(1), np.int64(2)), (Fraction(1), np.float64(2))]
    for start, end in times:
        with open_video(long_gop_clip, start_seconds=start, end_seconds=end) as reader:
            assert len(list(reader)) == 24


@pytest.mark.parametrize(
    ("start", "end"), [(-1.0, None), (float("nan"), None), (2.0, 1.0), (1.0, 1.0), (None, 0.0)]
)
def test_impossible_times_are_usage_errors(
    long_gop_clip: Path, start: float | None, end: float | None
) -> None:
    with pytest.raises(UsageError, match=r"long_gop\.mp4.*time"):
        open_video(long_gop_clip, start_seconds=start, end_seconds=end)


def test_negative_counts_are_usage_errors(long_gop_clip: Path) -> None:
    with pytest.raises(UsageError, match="threads=-1"):
        open_video(long_gop_clip, threads=-1)


def test_keyframes_and_durations(long_gop_clip: Path) -> None:
    with open_video(long_gop_clip) as reader:
        frames = list(reader)
    assert [frame.index for frame in frames if frame.keyframe] == [0, 50]
    assert {frame.duration * frame.time_base for frame in frames} == {Fraction(1, 24)}


def test_picture_size_change_is_an_input_error(tmp_path: Path) -> None:
    first = write_clip(tmp_path / "a.ts", frame_count=30)
    second = write_clip(tmp_path / "b.ts", frame_count=30, width=128, height=96)
    path = tmp_path / "both.ts"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    with open_video(path) as reader, pytest.raises(InputError, match="from 96x64 to 128x96 at 1") as caught:
        list(reader)
    assert "\n" not in str(caught.value)
    assert reader.decoded_count == 30


def test_closed_reader_says_so(long_gop_clip: Path) -> None:
    reader = open_video(long_gop_clip)
    next(reader)
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        next(reader)


def test_it_iterates_once(long_gop_clip: Path) -> None:
    with open_video(long_gop_clip) as reader:
        assert len(list(reader)) == 72
        assert list(reader) == []


def test_names_that_look_like_protocols_and_patterns(tmp_path: Path) -> None:
    for name in ("talk: part 1.mp4", "http:x.mp4", "100%d.mp4", "ünïcödé [1].mp4", "-dash.mp4"):
        path = write_clip(tmp_path / "plain.mp4", frame_count=2).rename(tmp_path / name)
        with open_video(path) as reader:
            assert len(list(reader)) == 2


_EARLY_EXITS = """
import sys, os, gc
from vitascope.media.reading.reader import open_video

path = sys.argv[1]
def threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0

def open_and_leave(n):
    if n % 3 == 0:
        with open_video(path, threads=4) as reader:
            for frame in reader:
                if frame.index == n % 11:
                    break
    elif n % 3 == 1:
        try:
            with open_video(path, threads=4, start_seconds=1.0) as reader:
                for frame in reader:
                    raise KeyError
        except KeyError:
            pass
    else:
        next(open_video(path, threads=4))  # dropped without close

open_and_leave(0)
gc.collect()
before = threads()
files = len(os.listdir("/proc/self/fd")) if before else 0
for n in range(45):
    open_and_leave(n)
gc.collect()
assert threads() <= before, (before, threads())
assert not files or len(os.listdir("/proc/self/fd")) <= files
left_open = open_video(path, threads=4)  # and the interpreter exits with a decoder running
next(left_open)
print("done")
"""


@pytest.mark.parametrize("damaged", [False, True])
def test_leaving_early_neither_hangs_nor_leaks(long_gop_clip: Path, tmp_path: Path, damaged: bool) -> None:
    path = long_gop_clip
    if damaged:  # damage makes FFmpeg log, which caused a deadlock
        data = bytearray(path.read_bytes())
        with av.open(str(path)) as container:
            entry = container.streams.video[0].index_entries[30]
            data[entry.pos + 5 : entry.pos + entry.size] = bytes(entry.size - 5)
        path = tmp_path / "damaged.mp4"
        path.write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-c", _EARLY_EXITS, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_keyframes_are_of_one_size_where_the_size_of_pictures_changes(tmp_path: Path) -> None:
    path = tmp_path / "changes.mkv"
    with av.open(str(path), "w") as film:
        stream = film.add_stream("mjpeg", rate=24)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for n in range(48):
            shape = (48, 64, 3) if n < 24 else (64, 64, 3)
            encoder = av.CodecContext.create("mjpeg", "w")
            encoder.height, encoder.width, encoder.pix_fmt = *shape[:2], "yuvj420p"
            encoder.time_base = Fraction(1, 24)
            picture = av.VideoFrame.from_ndarray(np.full(shape, 5 * n, np.uint8), "rgb24").reformat(
                format="yuvj420p"
            )
            picture.pts = n
            for packet in encoder.encode(picture):
                packet.stream = stream
                film.mux(packet)
    assert [luma.shape for luma in keyframe_lumas(path, 8, longest_side=32)] == [(24, 32)] * 4
