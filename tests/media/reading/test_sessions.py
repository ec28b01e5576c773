"""Check that several decoder sessions on a video return the frames of one session, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_films import GOP, STRUCTURES, has_leading_pictures, read_all, write_structure

from clips import copied, write_clip
from left_threads import left_threads
from vitascope.errors import CorruptInputError, InputError, UsageError
from vitascope.gpu.pipeline.queues import BoundedQueue, QueueLimits
from vitascope.media.reading import sessions as _parallel_source
from vitascope.media.reading.container import OpenedVideo
from vitascope.media.reading.reader import open_video
from vitascope.media.reading.sessions import SegmentDecoder


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("films")
    return {name: write_structure(folder, name) for name in STRUCTURES}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> object:
    yield
    assert left_threads("decode-") == []


def test_the_films_are_open_and_closed_as_their_names_say(films: dict[str, Path]) -> None:
    assert {name for name, path in films.items() if has_leading_pictures(path)} == {
        name for name in films if "open" in name
    }


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("sessions", [2, 3, 9])
@pytest.mark.parametrize("buffer_bytes", [1, 300_000, None])
def test_the_film_is_that_of_one_session(
    films: dict[str, Path], name: str, sessions: int, buffer_bytes: int | None
) -> None:
    expected, _ = read_all(films[name])
    frames, reader = read_all(films[name], decoder_sessions=sessions, session_buffer_bytes=buffer_bytes)
    assert frames == expected
    assert len(frames) == 100
    assert reader.corrupt_count == 0
    assert reader.decoder.endswith(f"; {min(sessions, 100 // GOP)} sessions")


@pytest.mark.parametrize("name", ["h264-open.mp4", "hevc-open.mkv", "vp9.webm"])
@pytest.mark.parametrize(
    ("start", "end"), [(0.0, 1.0), (0.9, None), (GOP / 24, 2.5), (3.99, None), (1.7, 1.75)]
)
def test_trims_are_those_of_one_session(
    films: dict[str, Path], name: str, start: float, end: float | None
) -> None:
    expected, single = read_all(films[name], start_seconds=start, end_seconds=end)
    frames, reader = read_all(films[name], start_seconds=start, end_seconds=end, decoder_sessions=3)
    assert frames == expected
    assert (reader.first_pts, reader.origin_pts) == (single.first_pts, single.origin_pts)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_structure_reads_the_same(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    keyint = data.draw(st.integers(3, 25), "keyint")
    bframes = data.draw(st.integers(0, 4), "bframes")
    parameters = (
        f"keyint={keyint}:min-keyint={data.draw(st.integers(1, 3), 'min')}:scenecut=0:bframes={bframes}:"
        f"open-gop={data.draw(st.integers(0, 1), 'open')}:ref={data.draw(st.integers(1, 4), 'ref')}"
    )
    codec = data.draw(st.sampled_from(["libx264", "libx265"]), "codec")
    suffix = data.draw(st.sampled_from(["mp4", "mkv"]), "suffix")
    steps = data.draw(st.lists(st.integers(1, 7), min_size=40, max_size=40), "pts steps")
    quiet = ":log-level=none" if codec == "libx265" else ""
    path = write_clip(
        tmp_path_factory.mktemp("any") / f"a.{suffix}",
        codec=codec,
        pts=[sum(steps[:n]) for n in range(40)],
        time_base=Fraction(1, 100),
        frame_rate=Fraction(25),
        codec_options={codec.replace("lib", "") + "-params": parameters + quiet},
    )
    expected, _ = read_all(path)
    frames, reader = read_all(path, decoder_sessions=data.draw(st.integers(2, 5), "sessions"))
    assert frames == expected, reader.decoder
    assert len(frames) == 40


def test_a_film_of_keyframes_alone_is_cut_into_segments_of_many(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", frame_count=60, codec_options={"g": "1"})
    expected, _ = read_all(path)
    frames, reader = read_all(path, decoder_sessions=50)
    assert frames == expected
    assert reader.decoder == "libavcodec (h264); 5 sessions"


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("a.ts", {}, "mpegts has no index of its keyframes"),
        ("a.mp4", {"codec_options": {"g": "250"}}, "it has a single group of pictures"),
        ("a.avi", {"codec": "mpeg4"}, "mpeg4 may have packets that show no picture"),
    ],
)
def test_what_cannot_be_cut_gets_one_session_and_a_reason(
    tmp_path: Path, name: str, options: dict[str, object], why: str
) -> None:
    path = write_clip(tmp_path / name, frame_count=30, **options)
    expected, _ = read_all(path)
    frames, reader = read_all(path, decoder_sessions=4)
    assert frames == expected
    assert reader.decoder.endswith(f"; one session: {why}")


def test_a_fragmented_mp4_gets_one_session(tmp_path: Path) -> None:
    source = write_structure(tmp_path, "h264-closed.mp4")
    path = copied(source, tmp_path / "fragmented.mp4", movflags="frag_keyframe+empty_moov")
    frames, reader = read_all(path, decoder_sessions=2)
    assert len(frames) == 100
    assert reader.decoder.endswith("one session: a fragmented MP4 has no index of the whole video")


def damage(path: Path, packets: range) -> None:
    """Fill packets with zeros after their first bytes."""
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        spans = [(entry.pos, entry.size) for entry in container.streams.video[0].index_entries]
    for position, size in spans[packets.start : packets.stop]:
        data[position + 5 : position + size] = bytes(size - 5)
    path.write_bytes(data)


def test_damage_is_counted_and_the_rest_keeps_its_time(tmp_path: Path) -> None:
    path = write_structure(tmp_path, "h264-closed.mp4")
    expected, _ = read_all(path)
    damage(path, range(45, 48))
    frames, reader = read_all(path, decoder_sessions=3)
    assert 1 <= reader.corrupt_count <= 20
    assert len(frames) + reader.corrupt_count == 100
    whole = {pts: samples for _, pts, *_, samples in expected}
    assert [f for f in frames if f[1] < 40 * 512] == expected[:40]
    last = frames[-1]
    assert (last[1], last[-1]) == (expected[-1][1], whole[expected[-1][1]])


def test_damage_past_the_limit_raises(tmp_path: Path) -> None:
    path = write_structure(tmp_path, "h264-closed.mp4")
    damage(path, range(20, 60))
    with (
        open_video(path, max_corrupt_frames=5, decoder_sessions=3) as reader,
        pytest.raises(CorruptInputError, match="6 frames could not be decoded"),
    ):
        list(reader)
    assert reader.decoded_count == 20


def test_a_truncated_film_is_noticed(tmp_path: Path) -> None:
    whole = write_structure(tmp_path, "h264-closed.mp4")
    path = copied(whole, tmp_path / "front.mp4", kept=0.6, movflags="faststart")
    with (
        open_video(path, decoder_sessions=3) as reader,
        pytest.raises(CorruptInputError, match="should have 100 frames, and ends after"),
    ):
        list(reader)
    assert 30 <= reader.decoded_count <= 70


def test_keyframes_that_are_none_are_decoded_from_further_back(tmp_path: Path) -> None:
    """Check false keyframes, which refer to earlier pictures: the seam must not show."""
    source = write_clip(tmp_path / "long.mp4", frame_count=100, codec_options={"g": "250", "bf": "0"})
    path = tmp_path / "lying.mp4"
    with av.open(str(source)) as reading, av.open(str(path), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(p for p in reading.demux(video=0) if p.size):
            packet.stream = stream
            packet.is_keyframe = number % GOP == 0
            writing.mux(packet)
    expected, _ = read_all(path)
    frames, reader = read_all(path, decoder_sessions=3)
    assert len(frames) == 100
    assert frames == expected
    assert reader.decoder == "libavcodec (h264); 3 sessions"


@pytest.mark.parametrize("taken", [0, 1, 30])
def test_closing_early_ends_the_threads(films: dict[str, Path], taken: int) -> None:
    for _ in range(10):
        with open_video(films["h264-open.mp4"], decoder_sessions=4, session_buffer_bytes=50_000) as reader:
            for _, _frame in zip(range(taken), reader, strict=False):
                pass
        with pytest.raises(ValueError, match="is closed"):
            next(reader)


def test_an_error_in_a_session_reaches_the_reader_with_file_and_frame(
    films: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = films["h264-closed.mp4"]
    decode = OpenedVideo.decode
    calls = iter(range(10**6))

    def failing(self: OpenedVideo, packet: object) -> object:
        if next(calls) > 50:
            raise RuntimeError("out of luck")
        return decode(self, packet)

    with open_video(path, decoder_sessions=2) as reader:
        monkeypatch.setattr(OpenedVideo, "decode", failing)
        with pytest.raises(RuntimeError, match="out of luck") as error:
            list(open_video(path, decoder_sessions=2))
    assert any("h264-closed.mp4" in note for note in error.value.__notes__)
    assert reader.decoded_count == 0


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[BoundedQueue[object]]:
    """Return the queues between sessions and reader, as they are created."""
    made: list[BoundedQueue[object]] = []

    def make(name: str, *, limits: QueueLimits) -> BoundedQueue[object]:
        made.append(BoundedQueue(name, limits=limits))
        return made[-1]

    monkeypatch.setattr(_parallel_source, "_Lane", make)
    return made


def test_each_session_keeps_to_its_share_of_the_buffer(
    films: dict[str, Path], lanes: list[BoundedQueue[object]]
) -> None:
    with open_video(films["h264-open.mp4"], decoder_sessions=2, session_buffer_bytes=300_000) as reader:
        next(reader)
        give_up_at = time.monotonic() + 20
        while any(lane.report().put_wait_seconds == 0 for lane in lanes):  # both sessions wait for room
            assert time.monotonic() < give_up_at
            time.sleep(0.001)
        count = 1 + sum(1 for _ in reader)
    assert count == 100
    reports = [lane.report() for lane in lanes]
    assert [report.name for report in reports] == ["decode-0 > reader", "decode-1 > reader"]
    two_pictures = 2 * 176 * 144 * 3 // 2
    assert all(two_pictures <= report.nbytes_max <= 150_000 for report in reports)
    assert [report.occupancy for report in reports] == [0, 0]


def test_a_picture_larger_than_the_share_passes_alone(
    films: dict[str, Path], lanes: list[BoundedQueue[object]]
) -> None:
    frames, _ = read_all(films["vp9.webm"], decoder_sessions=3, session_buffer_bytes=1)
    assert len(frames) == 100
    assert {lane.report().occupancy_max for lane in lanes} == {1}


def test_what_came_before_an_error_is_read_first(
    films: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = SegmentDecoder.decode

    def failing(self: SegmentDecoder, number: int) -> Iterator[object]:
        for place, item in enumerate(decode(self, number)):
            if (number, place) == (3, 7):
                raise RuntimeError("out of luck")
            yield item

    monkeypatch.setattr(SegmentDecoder, "decode", failing)
    with open_video(films["h264-closed.mp4"], decoder_sessions=2) as reader:
        with pytest.raises(RuntimeError, match="out of luck"):
            list(reader)
        assert reader.decoded_count == 3 * GOP + 7


def test_a_session_that_ends_without_a_word_does_not_leave_its_reader_waiting(
    films: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentDecoder, "decode", lambda self, number: iter(()))
    with pytest.raises(AssertionError, match="decode-0 > reader: no segment's end"):
        list(open_video(films["h264-closed.mp4"], decoder_sessions=2))


@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize("kind", [av.error.MemoryError, av.error.BlockingIOError])
def test_no_memory_left_is_said_and_not_taken_for_damage(
    films: dict[str, Path], monkeypatch: pytest.MonkeyPatch, sessions: int, kind: type[av.FFmpegError]
) -> None:
    def starved(_packet: object) -> None:
        raise kind(12, "Cannot allocate memory, or no thread", "decoder")

    stream = SimpleNamespace(decode=starved)
    decode = OpenedVideo.decode
    monkeypatch.setattr(
        OpenedVideo, "decode", lambda self, packet: decode(_with_stream(self, stream), packet)
    )
    with pytest.raises(InputError, match="no memory of the host is left"):
        open_video(films["hevc-closed.mp4"], decoder_sessions=sessions)


def _with_stream(video: OpenedVideo, stream: object) -> SimpleNamespace:
    return SimpleNamespace(stream=stream, path=video.path, _decoding=video._decoding, _patient=None)


def test_a_file_that_vanishes_is_an_input_error(tmp_path: Path) -> None:
    path = write_structure(tmp_path, "h264-closed.mp4")
    with open_video(path) as first:
        pass
    path.unlink()
    with pytest.raises(InputError, match="no such file"):
        open_video(path, decoder_sessions=2)
    assert first.decoded_count == 0


@pytest.mark.parametrize("options", [{"decoder_sessions": 0}, {"session_buffer_bytes": 0}])
def test_counts_below_one_are_refused(films: dict[str, Path], options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be 1 or more"):
        open_video(films["vp9.webm"], **options)
