"""Check that the output of several encoders on one video plays like that of one."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_films import decode, encode, make_frame, make_info

from left_threads import left_threads
from vitascope.errors import OutputError, UsageError
from vitascope.media.reading.reader import open_video
from vitascope.media.writing import encoder_setup, parallel_encoder
from vitascope.media.writing import encoding as encoding_module
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.parallel_encoder import chunk_length, encoders_for, threads_of_each
from vitascope.media.writing.writer import VideoWriter

FRAMES = 70


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert left_threads("encode-") == []


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_encoder, "_MIN_CHUNK_FRAMES", 7)
    monkeypatch.setattr(parallel_encoder, "_MAX_CHUNK_FRAMES", 7)


def packets_of(path: Path) -> list[tuple[int | None, int | None, bool]]:
    with av.open(str(path)) as container:
        return [(p.pts, p.dts, p.is_keyframe) for p in container.demux(video=0) if p.size]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov"])
@pytest.mark.parametrize("encoders", [2, 5])
def test_the_film_is_whole_and_in_order(tmp_path: Path, suffix: str, encoders: int) -> None:
    info = make_info()
    path = tmp_path / f"a.{suffix}"
    encoding = choose_encoding(
        path, source_format=info.format, preset="veryfast", crf=10, parallel_encoders=encoders
    )
    assert encoding.parallel_encoders == encoders
    encode(path, info, encoding=encoding, pts=range(FRAMES))
    packets = packets_of(path)
    assert len(packets) == FRAMES
    times = [dts for _, dts, _ in packets if dts is not None]
    assert all(later > earlier for earlier, later in itertools.pairwise(times))
    assert all(dts is None or (pts is not None and dts <= pts) for pts, dts, _ in packets)
    assert [number for number, packet in enumerate(packets) if packet[2]] == list(range(0, FRAMES, 7))
    pictures = decode(path)
    assert len(pictures) == FRAMES
    assert [round(p.pts * p.time_base * 24) for p in pictures] == list(range(FRAMES))
    for index, picture in enumerate(pictures):
        luma = np.frombuffer(picture.planes[0], np.uint8).reshape(picture.height, -1)[:, : picture.width]
        np.testing.assert_allclose(luma.mean(), make_frame(info, index).planes[0].mean(), atol=1.0)


@pytest.mark.usefixtures("small_chunks")
def test_each_chunk_decodes_alone(tmp_path: Path) -> None:
    """Check that several decoder sessions find independent chunks, and return the same pictures as one session."""
    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset="medium", parallel_encoders=3)
    encode(path, info, encoding=encoding, pts=range(FRAMES))
    with open_video(path) as one, open_video(path, decoder_sessions=4) as several:
        assert several.decoder == "libavcodec (h264); 4 sessions"
        for a, b in zip(one, several, strict=True):
            assert (a.pts, a.duration) == (b.pts, b.duration)
            assert all(np.array_equal(p, q) for p, q in zip(a.planes, b.planes, strict=True))


def pictures_in(path: Path) -> tuple[list[int], bool]:
    """Return the times of a file's pictures, from the first, and whether FFmpeg shows all of them.

    FFmpeg's MP4 reader ends the edit list at the second keyframe after one whose sample lasts until the end.
    With reordered frames, that length belongs to an earlier frame: after a pause it may be too long.
    """
    with av.open(str(path), options={"ignore_editlist": "1"}) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    with av.open(str(path), options={"ignore_editlist": "1"}) as container:
        times = [frame.pts for frame in container.decode(video=0)]
    end = max(packet.pts + packet.duration for packet in packets)
    lasting = [n for n, one in enumerate(packets) if one.is_keyframe and one.pts + one.duration >= end]
    is_shown = not lasting or not any(packet.is_keyframe for packet in packets[lasting[0] + 1 :])
    return [time - times[0] for time in times], is_shown


@settings(max_examples=15, deadline=None)
@given(
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    chunk=st.integers(1, 9),
    preset=st.sampled_from(["ultrafast", "veryfast", "medium"]),
    encoders=st.integers(2, 4),
    tick=st.sampled_from([Fraction(1, 25), Fraction(1, 90000)]),
)
def test_variable_frame_rate_keeps_every_time(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[int],
    chunk: int,
    preset: str,
    encoders: int,
    tick: Fraction,
) -> None:
    path = tmp_path_factory.mktemp("vfr") / "a.mp4"
    info = make_info(time_base=tick, rate=Fraction(25))
    encoding = choose_encoding(
        path, source_format=info.format, preset=preset, parallel_encoders=encoders, threads=encoders
    )
    pts = [sum(steps[:n]) for n in range(len(steps))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_encoder, "_MIN_CHUNK_FRAMES", chunk)
        patch.setattr(parallel_encoder, "_MAX_CHUNK_FRAMES", chunk)
        encode(path, info, encoding=encoding, pts=pts)
    with av.open(str(path)) as container:
        ticks_each = tick / container.streams.video[0].time_base
    held, is_shown = pictures_in(path)
    assert held == [when * ticks_each for when in pts]
    if is_shown:
        assert [round(p.pts * p.time_base / tick) for p in decode(path)] == pts
    if chunk < min(3, len(pts)):
        return  # so short chunks have no reordering, and need no decoding ahead
    alone = path.with_name("alone.mp4")
    encode(alone, info, encoding=replace(encoding, parallel_encoders=1), pts=pts)
    assert [dts for _, dts, _ in packets_of(path)] == [dts for _, dts, _ in packets_of(alone)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("preset", ["ultrafast", "medium"])
def test_an_encoder_is_opened_once_and_looks_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    """Check that this also holds for an encoder that moves on by several chunks."""
    info = make_info()
    made = []
    create = av.CodecContext.create

    def counting(*arguments: Any) -> Any:
        made.append(arguments)
        return create(*arguments)

    fake = SimpleNamespace(CodecContext=SimpleNamespace(create=counting))
    monkeypatch.setattr(encoder_setup, "av", fake)
    sizes, errors = [], []
    for encoders in (1, 3):
        path = tmp_path / f"{encoders}.mp4"
        encoding = choose_encoding(
            path, source_format=info.format, preset=preset, crf=18, parallel_encoders=encoders
        )
        if encoders == 1:  # keyframes as frequent as with chunks
            encoding = replace(encoding, parameters=dict(encoding.parameters) | {"keyint": "7"})
        encode(path, info, encoding=encoding, pts=range(FRAMES))
        sizes.append(path.stat().st_size)
        errors.append(mean_luma_errors(path))
    assert 1 <= len(made) <= 3
    assert sizes[1] < 1.6 * sizes[0]  # of a few kilobytes
    assert errors[1].mean() < 1.1 * errors[0].mean() + 0.1
    assert errors[1].max() < 1.5 * errors[0].max() + 0.5


@pytest.mark.usefixtures("small_chunks")
def test_chunks_go_round_so_that_a_film_is_encoded_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the order, as an encoder's rate control continues from chunk to chunk."""
    hand_out = parallel_encoder.ParallelEncoder._hand_out
    seen: dict[int, str] = {}

    def noting(self: Any, packets: Any, inside: Any) -> None:
        seen.update({pts: threading.current_thread().name for _, pts in inside.values()})
        hand_out(self, packets, inside)

    monkeypatch.setattr(parallel_encoder.ParallelEncoder, "_hand_out", noting)
    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset="veryfast", parallel_encoders=3)
    encode(path, info, encoding=encoding, pts=range(FRAMES))
    assert seen == {pts: f"encode-{pts // 7 % 3}" for pts in range(FRAMES)}


@pytest.mark.usefixtures("small_chunks")
def test_no_encoder_looks_further_than_a_chunk(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset="medium", parallel_encoders=2)
    encode(path, info, encoding=encoding, pts=range(20))
    # x264 writes its options into the stream, once for each encoder.
    assert re.findall(rb"rc_lookahead=\d+", path.read_bytes()) == [b"rc_lookahead=7"] * 2


def mean_luma_errors(path: Path) -> npt.NDArray[np.float64]:
    """Return the mean luma error of each frame of a video made by ``make_frame``."""
    errors = []
    for index, picture in enumerate(decode(path)):
        luma = picture.to_ndarray()[: picture.height]
        expected = make_frame(make_info(), index).planes[0]
        errors.append(np.abs(luma.astype(np.int16) - expected).mean())
    return np.array(errors)


@pytest.mark.parametrize("pending_bytes", [1, 40_000])
def test_little_memory_is_slow_but_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pending_bytes: int
) -> None:
    monkeypatch.setattr(
        parallel_encoder.ParallelEncoder.__init__, "__kwdefaults__", {"pending_bytes": pending_bytes}
    )
    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset="ultrafast", parallel_encoders=3)
    encode(path, info, encoding=encoding, pts=range(FRAMES))
    assert [number for number, packet in enumerate(packets_of(path)) if packet[2]] == list(
        range(0, FRAMES, 15)
    )
    assert len(decode(path)) == FRAMES


@pytest.mark.usefixtures("small_chunks")
def test_colour_and_parameter_sets_are_those_of_one_encoder(tmp_path: Path) -> None:
    info = make_info()
    found = []
    for encoders in (1, 3):
        path = tmp_path / f"{encoders}.mp4"
        encoding = choose_encoding(
            path, source_format=info.format, preset="veryfast", parallel_encoders=encoders
        )
        encode(path, info, encoding=encoding, pts=range(20))
        with av.open(str(path)) as container:
            context = container.streams.video[0].codec_context
            found.append((context.extradata, context.colorspace, context.color_range, context.profile))
    assert found[0] == found[1]


NO_MEMORY = av.error.MemoryError(12, "Cannot allocate memory", "encoder")


@pytest.mark.usefixtures("small_chunks")
def test_an_encoder_that_cannot_be_opened_ends_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> Any:
        raise NO_MEMORY

    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset="ultrafast", parallel_encoders=2)
    monkeypatch.setattr(encoder_setup, "av", SimpleNamespace(CodecContext=SimpleNamespace(create=failing)))
    with pytest.raises(OutputError, match=r"a\.mp4: cannot .*Cannot allocate memory"):
        encode(path, info, encoding=encoding, pts=range(FRAMES))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("preset", ["ultrafast", "medium"])
@pytest.mark.parametrize("calls", [1, 20, FRAMES])
def test_an_encoder_that_fails_ends_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, calls: int
) -> None:
    """Also check a failure while the last pictures are fetched."""
    hand_out = parallel_encoder.ParallelEncoder._hand_out
    counted = iter(range(1, 1000))

    def failing(self: Any, packets: Any, inside: Any) -> None:
        if next(counted) >= calls:
            raise NO_MEMORY
        hand_out(self, packets, inside)

    monkeypatch.setattr(parallel_encoder.ParallelEncoder, "_hand_out", failing)
    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset=preset, parallel_encoders=2)
    with pytest.raises(OutputError, match=r"a\.mp4: cannot .*Cannot allocate memory"):
        encode(path, info, encoding=encoding, pts=range(FRAMES))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_chunks")
def test_pictures_that_an_encoder_loses_end_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_out = parallel_encoder.ParallelEncoder._hand_out
    monkeypatch.setattr(
        parallel_encoder.ParallelEncoder,
        "_hand_out",
        lambda self, packets, inside: hand_out(self, packets[: -len(packets) // 2], inside),
    )
    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset="medium", parallel_encoders=2)
    with pytest.raises(OutputError, match=r"gave nothing for \d+ pictures"):
        encode(path, info, encoding=encoding, pts=range(FRAMES))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("written", [0, 1, 40])
def test_stopping_early_ends_the_threads_and_leaves_nothing(tmp_path: Path, written: int) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, parallel_encoders=3)
    with (
        pytest.raises(RuntimeError, match="enough"),
        VideoWriter(path, info=info, encoding=encoding) as writer,
    ):
        for index in range(written):
            writer.write(make_frame(info, index))
        raise RuntimeError("enough")
    assert list(tmp_path.iterdir()) == []


def test_wishes_that_cannot_be(tmp_path: Path) -> None:
    fmt = make_info().format
    with pytest.raises(UsageError, match="must be 1 or more"):
        choose_encoding(tmp_path / "a.mp4", source_format=fmt, parallel_encoders=0)
    for name, codec in (("a.webm", "auto"), ("a.mp4", "h265")):
        with pytest.raises(UsageError, match="cannot be written by several encoders"):
            choose_encoding(tmp_path / name, codec=codec, source_format=fmt, parallel_encoders=2)


UHD, UHD2 = 3840 * 2160 * 3 // 2, 7680 * 4320 * 3 // 2
GIB = 1 << 30


@pytest.mark.parametrize(
    ("picture_bytes", "threads", "lookahead", "memory_gib", "encoders"),
    [
        (1920 * 1080 * 3 // 2, 16, 0, 128, 4),
        (1920 * 1080 * 3 // 2, 16, 40, 8, 4),
        (1920 * 1080 * 3 // 2, 2, 0, 8, 1),
        (1920 * 1080 * 3 // 2, 7, 0, 8, 1),
        (UHD, 16, 0, 128, 8),
        (UHD, 16, 40, 32, 4),  # each looks ahead by 40 frames
        (UHD, 16, 0, None, 4),
        (UHD, 2, 0, 128, 1),
        (UHD, 4, 0, 16, 2),
        (UHD2, 16, 0, 128, 8),
        (UHD2, 16, 0, 32, 4),
        (UHD2, 16, 0, 16, 2),
        (UHD2, 16, 0, 4, 1),
        (UHD2, 64, 60, 128, 6),
    ],
)
def test_encoders_follow_from_cores_size_and_memory(
    picture_bytes: int, threads: int, lookahead: int, memory_gib: int | None, encoders: int
) -> None:
    memory = None if memory_gib is None else memory_gib * GIB
    assert encoders == encoders_for(
        picture_bytes, threads=threads, lookahead_frames=lookahead, memory_bytes=memory
    )


@pytest.mark.parametrize(
    ("picture_bytes", "cores", "encoders", "threads"),
    [
        (1920 * 1080 * 3 // 2, 16, 4, 4),
        (UHD, 16, 8, 4),
        (UHD, 16, 4, 8),  # as memory allows
        (UHD2, 64, 6, 21),
        (UHD, 4, 2, 4),
        (1920 * 1080 * 3 // 2, 2, 8, 1),  # requested explicitly
    ],
)
def test_threads_of_large_pictures_are_twice_the_cores(
    picture_bytes: int, cores: int, encoders: int, threads: int
) -> None:
    assert threads == threads_of_each(encoders, cores=cores, picture_bytes=picture_bytes)


@given(
    picture_bytes=st.integers(1, 60_000_000),
    encoders=st.integers(2, 64),
    pending_bytes=st.integers(1, 16 * GIB),
    frame_count=st.none() | st.integers(0, 100_000),
)
def test_chunks_leave_work_for_every_encoder(
    picture_bytes: int, encoders: int, pending_bytes: int, frame_count: int | None
) -> None:
    length = chunk_length(
        picture_bytes, encoders=encoders, pending_bytes=pending_bytes, frame_count=frame_count
    )
    assert 15 <= length <= 60
    assert length == 15 or length * encoders * picture_bytes / 2 <= pending_bytes
    if frame_count and length > 15:  # the last round lacks less than one frame for each chunk and encoder
        chunks = -(-frame_count // length)
        rounds = -(-chunks // encoders)
        assert rounds * encoders * length - frame_count < rounds * encoders


@pytest.mark.parametrize(
    ("frame_count", "encoders", "length"),
    [(120, 4, 30), (240, 4, 60), (480, 8, 30), (60, 8, 15), (None, 8, 43)],
)
def test_short_films_are_shared_by_all_encoders(frame_count: int | None, encoders: int, length: int) -> None:
    assert length == chunk_length(UHD, encoders=encoders, pending_bytes=2 * GIB, frame_count=frame_count)


def test_a_film_of_known_length_is_cut_for_its_encoders(tmp_path: Path) -> None:
    info = make_info(frame_count_estimate=FRAMES)
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, source_format=info.format, preset="ultrafast", parallel_encoders=2)
    encode(path, info, encoding=encoding, pts=range(FRAMES))
    assert [number for number, packet in enumerate(packets_of(path)) if packet[2]] == [0, 35]


def test_auto_asks_for_cores_size_and_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = make_info().format
    monkeypatch.setattr(encoding_module, "physical_memory_bytes", lambda: 32 * GIB)

    def count(**wishes: Any) -> int:
        path = tmp_path / wishes.pop("name", "a.mp4")
        chosen = choose_encoding(path, source_format=fmt, parallel_encoders="auto", threads=16, **wishes)
        one = choose_encoding(path, source_format=fmt, threads=16, **wishes)
        assert replace(chosen, parallel_encoders=1) == one
        return chosen.parallel_encoders

    assert count() == count(size=(1920, 1080)) == 4
    assert count(size=(3840, 2160)) == 8
    assert count(size=(3840, 2160), preset="medium") == 4
    assert count(size=(7680, 4320)) == 4
    assert count(name="a.webm", size=(3840, 2160)) == 1
