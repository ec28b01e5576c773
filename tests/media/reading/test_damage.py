"""Tests of hostile and damaged files: each has a one-line error, and everything decodable is decoded."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from clips import moving_disc, write_clip
from vitascope.errors import CorruptInputError, InputError
from vitascope.media.reading.reader import open_video, probe
from vitascope.segmentation.notes import notes_on_reading


def intact_clip(path: Path, *, audio: bool = False, flags: str = "faststart", shift: int = 0) -> Path:
    """Write 60 frames of MP4 with the index first, so that a truncated file is still readable.

    ``shift`` moves that many frames before time zero, which makes the muxer write an edit list.
    """
    remuxed = path.with_name(f"front_{path.name}")
    source = write_clip(
        path, width=160, height=96, frame_count=60, codec_options={"g": "20"}, audio="aac" if audio else None
    )  # fmt: skip
    with av.open(str(source)) as reading, av.open(str(remuxed), "w", options={"movflags": flags}) as writing:
        streams = {s.index: writing.add_stream_from_template(s) for s in reading.streams}
        for packet in reading.demux():
            if packet.dts is not None and packet.pts is not None:
                ticks = round(shift / 24 / packet.time_base)
                packet.pts, packet.dts = packet.pts - ticks, packet.dts - ticks
                packet.stream = streams[packet.stream.index]
                writing.mux(packet)
    return remuxed


def damage_packets(path: Path, packets: range) -> None:
    """Overwrite the middle of some packets with noise."""
    noise = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        # Entries are part of the container, so copy the values before it closes.
        spans = [(entry.pos, entry.size) for entry in container.streams.video[0].index_entries]
    for position, size in spans[packets.start : packets.stop]:
        length = max(size - 5, 0)
        data[position + 5 : position + 5 + length] = noise[:length]
    path.write_bytes(data)


def assert_one_line(error: pytest.ExceptionInfo[Exception], path: Path) -> str:
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "nothing.mp4"
    with pytest.raises(InputError, match="no such file") as error:
        open_video(path)
    assert_one_line(error, path)
    assert error.value.__cause__ is not None


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.mp4"
    path.touch()
    with pytest.raises(InputError, match="the file is empty") as error:
        open_video(path)
    assert_one_line(error, path)


def test_text_renamed(tmp_path: Path) -> None:
    path = tmp_path / "text.mp4"
    path.write_text("Dear diary, it is Ōsaka.\n" * 40, encoding="utf-8")
    with pytest.raises(InputError, match="it is text, not a video") as error:
        open_video(path)
    assert_one_line(error, path)


def test_noise(tmp_path: Path) -> None:
    path = tmp_path / "noise.mkv"
    path.write_bytes(np.random.default_rng(0).integers(128, 256, 5000, dtype=np.uint8).tobytes())
    with pytest.raises(InputError, match="not a media file") as error:
        open_video(path)
    assert_one_line(error, path)


def test_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no images") as error:
        open_video(tmp_path)
    assert_one_line(error, tmp_path)


def test_unfinished_mp4(tmp_path: Path) -> None:
    """Check a file without its moov box, which comes last: its recorder crashed."""
    whole = write_clip(tmp_path / "whole.mp4").read_bytes()
    path = tmp_path / "unfinished.mp4"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"truncated or not finished.*moov") as error:
        open_video(path)
    assert_one_line(error, path)


def test_audio_only(tmp_path: Path) -> None:
    path = tmp_path / "song.m4a"
    with av.open(str(path), "w", format="mp4") as container:
        tone = container.add_stream("aac", rate=48000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate, silence.pts = 48000, 0
        container.mux(tone.encode(silence))
        container.mux(tone.encode(None))
    with pytest.raises(InputError, match="no video stream: audio") as error:
        open_video(path)
    assert_one_line(error, path)


def test_cover_art_is_not_a_video(tmp_path: Path) -> None:
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        tone = container.add_stream("aac", rate=48000)
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate, silence.pts = 48000, 0
        container.mux(tone.encode(silence))
        container.mux(tone.encode(None))
        picture = av.VideoFrame.from_ndarray(moving_disc(64, 64)(0), format="rgb24").reformat(
            format="yuvj420p"
        )
        picture.pts, picture.time_base = 0, Fraction(1)
        container.mux(cover.encode(picture))
        container.mux(cover.encode(None))
    with pytest.raises(InputError, match="cover picture is not a video") as error:
        open_video(path)
    assert_one_line(error, path)


def test_unknown_codec(tmp_path: Path) -> None:
    """Check an MP4 whose sample entry names an unknown codec."""
    clip = write_clip(tmp_path / "a.mp4")
    path = tmp_path / "unknown.mp4"
    path.write_bytes(clip.read_bytes().replace(b"avc1\0\0\0\0\0\0\0\1", b"zzzz\0\0\0\0\0\0\0\1"))
    with pytest.raises(InputError, match="codec") as error:
        open_video(path)
    assert_one_line(error, path)


@pytest.mark.parametrize("last_whole_packet", [5, 24, 58])
def test_mp4_cut_in_its_data_gives_what_decodes_then_raises(tmp_path: Path, last_whole_packet: int) -> None:
    whole = intact_clip(tmp_path / "whole.mp4", audio=True)
    with av.open(str(whole)) as container:
        cut_packet = container.streams.video[0].index_entries[last_whole_packet + 1]
        cut = cut_packet.pos + cut_packet.size // 2
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[:cut])
    frames = []
    with open_video(path) as reader, pytest.raises(CorruptInputError, match="should have 60 frames") as error:
        for frame in reader:
            frames.append(frame)
    assert len(frames) == last_whole_packet + 1
    assert f"ends after {last_whole_packet + 1}" in assert_one_line(error, path)
    with open_video(whole) as reader:
        intact = {frame.pts: frame for frame in reader}
    assert all(np.array_equal(frame.planes[0], intact[frame.pts].planes[0]) for frame in frames)


def test_mkv_cut_raises_at_its_end(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.mkv", frame_count=60, codec_options={"g": "10"})
    path = tmp_path / "cut.mkv"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 6 // 10])
    with (
        open_video(path) as reader,
        pytest.raises(CorruptInputError, match=r"should end at 2\.50 s, and ends at") as error,
    ):
        list(reader)
    assert_one_line(error, path)
    assert reader.decoded_count > 5


def test_fragmented_mp4_cut_in_a_fragment(tmp_path: Path) -> None:
    whole = intact_clip(tmp_path / "whole.mp4", flags="frag_keyframe+empty_moov")
    with open_video(whole) as reader:
        assert len(list(reader)) == 60
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 7 // 10])
    with open_video(path) as reader, pytest.raises(CorruptInputError, match="last box is short of") as error:
        list(reader)
    assert_one_line(error, path)
    assert reader.decoded_count > 5


def test_pictures_that_an_edit_list_leaves_out_are_not_missing(tmp_path: Path) -> None:
    path = intact_clip(tmp_path / "a.mp4", shift=10)
    with open_video(path) as reader:
        frames = list(reader)
    assert len(frames) == reader.info.frame_count_estimate == 50
    assert frames[0].pts == 0


def test_cut_file_is_fine_before_the_cut(tmp_path: Path) -> None:
    whole = intact_clip(tmp_path / "whole.mp4")
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 8 // 10])
    with open_video(path, end_seconds=0.5) as reader:
        assert len(list(reader)) == 12


def test_cut_file_is_noticed_after_a_seek(tmp_path: Path) -> None:
    whole = intact_clip(tmp_path / "whole.mp4")
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 7 // 10])
    with (
        open_video(path, start_seconds=0.9) as reader,
        pytest.raises(CorruptInputError, match="lie beyond the end of the file"),
    ):
        list(reader)
    assert reader.decoded_count > 0


@pytest.mark.parametrize("threads", [1, 4])
def test_damaged_packets_are_skipped_and_counted(tmp_path: Path, threads: int) -> None:
    path = intact_clip(tmp_path / "a.mp4")
    damage_packets(path, range(30, 33))
    with open_video(path, threads=threads) as reader:
        frames = list(reader)
    assert 1 <= reader.corrupt_count <= 25
    assert 35 <= len(frames) < 60
    assert [frame.index for frame in frames] == list(range(len(frames)))
    # Frames after the damage keep their times, in step with the sound.
    assert frames[-1].pts_seconds == pytest.approx(59 / 24)


@pytest.mark.parametrize(("codec", "pixel_format"), [("prores_ks", "yuv422p10le"), ("mjpeg", "yuvj420p")])
@pytest.mark.parametrize("threads", [1, 16])
def test_a_damaged_picture_near_the_end_costs_itself(
    tmp_path: Path, threads: int, codec: str, pixel_format: str
) -> None:
    path = write_clip(tmp_path / "a.mov", frame_count=24, codec=codec, pixel_format=pixel_format)
    with av.open(str(path)) as container:
        entry = container.streams.video[0].index_entries[18]
        begin, end = entry.pos, entry.pos + entry.size
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    with open_video(path, threads=threads) as reader:
        assert len(list(reader)) == 23
    assert reader.corrupt_count == 1


def test_a_time_that_is_far_off_loses_no_picture_without_a_word(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.flv", width=64, height=48, frame_count=24, codec_options={"g": "6"})
    with av.open(str(path)) as container:
        positions = [packet.pos for packet in container.demux(video=0) if packet.size]
    for position in positions[1:]:
        data = bytearray(path.read_bytes())
        data[position + 7] ^= 1  # the byte of the tag's time that counts 4.6 hours
        hurt = tmp_path / "hurt.flv"
        hurt.write_bytes(data)
        frames, missing = read(hurt)
        assert frames + missing == 24


def test_each_part_that_is_played_counts_its_own_damage(tmp_path: Path) -> None:
    path = intact_clip(tmp_path / "in.mp4")
    damage_packets(path, range(10, 12))
    with open_video(path, max_corrupt_frames=25) as reader:
        shown, lost = len(list(reader)), reader.corrupt_count
        assert 1 <= lost <= 25
        for _ in range(3):
            reader.play(None, None)
            assert reader.corrupt_count == 0
            assert (len(list(reader)), reader.corrupt_count) == (shown, lost)


def test_damage_past_the_limit_raises(tmp_path: Path) -> None:
    path = intact_clip(tmp_path / "a.mp4")
    damage_packets(path, range(25, 60))
    with (
        open_video(path, max_corrupt_frames=5) as reader,
        pytest.raises(
            CorruptInputError, match=r"could not be decoded \(.*max_corrupt_frames allows 5\), \d+ could"
        ) as error,
    ):
        list(reader)
    assert_one_line(error, path)
    assert reader.decoded_count >= 15


def test_no_damage_is_tolerated_at_limit_zero(tmp_path: Path) -> None:
    path = intact_clip(tmp_path / "a.mp4")
    with open_video(path, max_corrupt_frames=0) as reader:
        assert len(list(reader)) == 60
    damage_packets(path, range(30, 31))
    with open_video(path, max_corrupt_frames=0) as reader, pytest.raises(CorruptInputError):
        list(reader)


def test_nothing_decodable(tmp_path: Path) -> None:
    path = intact_clip(tmp_path / "a.mp4")
    damage_packets(path, range(60))
    for opening in (open_video, probe):
        with pytest.raises(CorruptInputError) as error:
            opening(path)
        assert_one_line(error, path)


def test_recording_that_starts_inside_a_gop_is_not_damage(tmp_path: Path) -> None:
    """Check that this is no damage: pictures before the first keyframe of a TV recording have no reference."""
    clip = write_clip(tmp_path / "a.ts", frame_count=90, codec_options={"g": "40", "bf": "0"})
    path = tmp_path / "late.ts"
    with av.open(str(clip)) as container:
        positions = [p.pos for p in container.demux(video=0) if p.size and p.pos is not None]
    path.write_bytes(clip.read_bytes()[positions[3] // 188 * 188 :])
    with open_video(path, max_corrupt_frames=0) as reader:
        frames = list(reader)
    assert len(frames) >= 50
    assert frames[0].keyframe


def test_nothing_reaches_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = intact_clip(tmp_path / "a.mp4")
    damage_packets(path, range(30, 33))
    capfd.readouterr()
    with open_video(path) as reader:
        list(reader)
    assert capfd.readouterr() == ("", "")


# --- frames that vanish without an error -------------------------------------------------------------------------


def long_clip(path: Path, **options: object) -> Path:
    """Write 300 frames with a keyframe every 50, and sound."""
    keys = {"g": "50", "keyint_min": "50", "sc_threshold": "0"}
    return write_clip(path, width=160, height=96, frame_count=300, codec_options=keys, audio="aac", **options)  # type: ignore[arg-type]


def blank(path: Path, begin: float, end: float) -> Path:
    """Replace a part of a file with zeros, as a bad disk or a broken download does."""
    data = bytearray(path.read_bytes())
    first, last = int(len(data) * begin), int(len(data) * end)
    data[first:last] = bytes(last - first)
    path.write_bytes(data)
    return path


def read(path: Path, **options: object) -> tuple[int, int]:
    with open_video(path, max_corrupt_frames=1000, **options) as reader:  # type: ignore[arg-type]
        return len(list(reader)), reader.corrupt_count


@pytest.mark.parametrize("suffix", [".mkv", ".ts", ".flv"])
def test_a_part_that_cannot_be_read_is_counted(tmp_path: Path, suffix: str) -> None:
    path = blank(long_clip(tmp_path / f"blank{suffix}"), 0.3, 0.6)
    frames, missing = read(path)
    assert 60 <= frames <= 260
    assert frames + missing == pytest.approx(300, abs=5)
    with open_video(path, max_corrupt_frames=10) as reader, pytest.raises(CorruptInputError) as error:
        list(reader)
    assert "max_corrupt_frames allows 10" in assert_one_line(error, path)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize(
    ("which", "part", "sessions"),
    [(0, (0, 1), 1), (3, (0, 1), 1), (3, (0, 0.2), 1), (3, (0.7, 1), 1), (3, (0, 1), 3), (3, (0, 0.2), 3)],
)
def test_a_damaged_keyframe_costs_all_that_refer_to_it(
    tmp_path: Path, suffix: str, which: int, part: tuple[float, float], sessions: int
) -> None:
    path = long_clip(tmp_path / f"key{suffix}")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        keys = [(p.pos, p.size) for p in container.demux(stream) if p.size and p.is_keyframe]
    data = bytearray(path.read_bytes())
    position, size = keys[which]
    head = 5 if suffix == ".mp4" else 9  # Matroska's position is that of the block, which has a header
    first, end = (position + head + int((size - head) * share) for share in part)
    data[first:end] = bytes(end - first)
    path.write_bytes(data)
    frames, missing = read(path, decoder_sessions=sessions)
    assert frames <= (260 if which == 0 else 250)
    assert frames + missing == 300
    with pytest.raises(CorruptInputError), open_video(path, max_corrupt_frames=10) as reader:
        list(reader)


@pytest.mark.parametrize("suffix", [".flv", ".ts", ".mkv"])
def test_a_cut_file_says_so(tmp_path: Path, suffix: str) -> None:
    path = long_clip(tmp_path / f"cut{suffix}")
    with open_video(path) as reader:
        assert len(list(reader)) == 300
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with open_video(path) as reader, pytest.raises(CorruptInputError, match="truncated") as error:
        list(reader)
    assert_one_line(error, path)
    assert 150 < reader.decoded_count < 250


def test_half_a_gif_says_so(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    path = tmp_path / "half.gif"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("gif", rate=12)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "rgb8"
        for _ in range(24):
            picture = av.VideoFrame.from_ndarray(noise.integers(0, 256, (64, 96, 3), np.uint8), "rgb24")
            container.mux(stream.encode(picture.reformat(format="rgb8")))
        container.mux(stream.encode(None))
    assert read(path) == (24, 0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with open_video(path) as reader, pytest.raises(CorruptInputError, match="its trailer is missing"):
        list(reader)
    assert 10 <= reader.decoded_count <= 14


@pytest.mark.parametrize("session", [1, 3])
def test_damage_counts_the_same_however_many_decode(tmp_path: Path, session: int) -> None:
    path = intact_clip(tmp_path / "a.mp4")
    damage_packets(path, range(20, 21))
    frames, missing = read(path, decoder_sessions=session)
    assert frames + missing == 60
    assert missing >= 15


@pytest.mark.parametrize(
    ("suffix", "codec", "options"),
    [
        (".mp4", "libx264", {"bf": "3", "x264-params": "open-gop=1:b-pyramid=normal"}),
        (".mkv", "libx264", {"bf": "3", "x264-params": "open-gop=1"}),
        (".ts", "libx264", {"x264-params": "intra-refresh=1:keyint=30"}),
        (".avi", "libx264", {"bf": "0"}),
        (".flv", "libx264", {"bf": "2"}),
        (".mp4", "libx265", {"x265-params": "log-level=none:open-gop=1:bframes=4"}),
        (".mkv", "libvpx-vp9", {"deadline": "realtime", "auto-alt-ref": "1", "lag-in-frames": "12"}),
        (".webm", "libvpx", {"deadline": "realtime", "auto-alt-ref": "1", "lag-in-frames": "12"}),
        (".mkv", "libsvtav1", {"preset": "12"}),
        (".mp4", "mpeg4", {"bf": "2"}),
        (".ts", "mpeg2video", {"bf": "2"}),
        (".ts", "libx264", {"flags": "+ildct+ilme", "x264-params": "tff=1"}),
    ],
)
def test_whole_files_lack_nothing(tmp_path: Path, suffix: str, codec: str, options: dict[str, str]) -> None:
    keys = {} if "x264-params" in options else {"g": "30"}
    path = write_clip(
        tmp_path / f"whole{suffix}", width=160, height=96, frame_count=90, codec=codec,
        codec_options={**keys, **options},
    )  # fmt: skip
    assert read(path) == (90, 0)
    with open_video(path, start_seconds=1.7) as reader:
        list(reader)
        assert reader.corrupt_count == 0


@pytest.mark.parametrize("suffix", [".mkv", ".ts", ".flv"])
def test_a_pause_is_no_damage(tmp_path: Path, suffix: str) -> None:
    """Check a screen recording without frames while nothing moves; the sound continues."""
    times = [*range(100), *range(700, 800)]
    path = write_clip(tmp_path / f"pause{suffix}", frame_count=200, pts=times, audio="aac")
    assert read(path) == (200, 0)


def test_a_matroska_film_that_begins_late_is_whole(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "late.mkv", frame_count=48, pts=list(range(14_400, 14_448)))
    assert read(path) == (48, 0)
    info = probe(path)
    assert info.duration_seconds == pytest.approx(2)
    assert info.frame_count_estimate == 48


def set_in_box(path: Path, kind: bytes, offset: int, value: int) -> None:
    """Overwrite four bytes of the first box of a kind, at an offset after its version and flags."""
    data = bytearray(path.read_bytes())
    begin = data.index(kind) + 8 + offset
    data[begin : begin + 4] = value.to_bytes(4, "big")
    path.write_bytes(data)


@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize(("table", "offset"), [(b"ctts", 8 * 12), (b"stts", 8)])
def test_frames_whose_times_lie_behind_the_film_are_missing(
    tmp_path: Path, table: bytes, offset: int, sessions: int
) -> None:
    """Check frames that FFmpeg drops: a damaged table of times puts them behind the end of the edit list."""
    path = intact_clip(tmp_path / "in.mp4")
    set_in_box(path, table, offset, 10_000_000)
    with open_video(path, decoder_sessions=sessions) as reader:
        shown = len(list(reader))
    assert shown < 60
    assert shown + reader.corrupt_count == 60


def test_frames_of_an_mp4_without_its_time_scale_are_missing(tmp_path: Path) -> None:
    path = intact_clip(tmp_path / "in.mp4")
    path.write_bytes(path.read_bytes().replace(b"mdhd", b"ldhd", 1))
    with open_video(path) as reader:
        shown = len(list(reader))
    assert shown < 60
    assert shown + reader.corrupt_count == 60


@pytest.mark.parametrize("box", [(b"elst", 4, 1250), (b"mvhd", 8, 2000)])
def test_an_edit_list_may_leave_frames_out(tmp_path: Path, box: tuple[bytes, int, int]) -> None:
    path = intact_clip(tmp_path / "in.mp4")
    set_in_box(path, *box)  # half of 2500 ms, or a movie clock at half the length
    with open_video(path) as reader:
        assert len(list(reader)) == 30
    assert reader.corrupt_count == 0
    assert reader.hidden_count == 30
    (note,) = notes_on_reading(reader)
    assert note == "30 frames are left out by the video's edit list, as by a player"


@pytest.mark.parametrize("sessions", [1, 2])
@pytest.mark.parametrize(
    ("box", "offset", "value"),
    [(b"stsz", 8 + 4 * 13, 0x40000011), (b"mdhd", 8, 0x80003000), (b"stsz", 4, 20), (b"stsc", 8, 3)],
)
def test_samples_that_the_table_promises_are_missing(
    tmp_path: Path, box: bytes, offset: int, value: int, sessions: int
) -> None:
    """Check impossible sizes, where FFmpeg's index ends, and a wrong track clock, for which edits cover nothing."""
    path = intact_clip(tmp_path / "in.mp4")
    set_in_box(path, box, offset, value)
    try:
        shown, missing = read(path, decoder_sessions=sessions)
    except CorruptInputError as error:
        assert "truncated" in str(error)
        return
    assert shown < 60
    assert shown + missing >= 60


def test_a_copy_that_begins_with_an_open_gop_is_whole(tmp_path: Path) -> None:
    """Check that leading pictures without references do not count: the muxer's edit list leaves them out."""
    path = write_clip(
        tmp_path / "in.mp4", frame_count=60,
        codec_options={"g": "12", "bf": "3", "x264-params": "open-gop=1:b-pyramid=normal"},
    )  # fmt: skip
    with av.open(str(path)) as reading:
        keys = [n for n, packet in enumerate(reading.demux(video=0)) if packet.size and packet.is_keyframe]
    copy = tmp_path / "copy.mp4"
    with av.open(str(path)) as reading, av.open(str(copy), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(reading.demux(video=0)):
            if packet.size and number >= keys[1]:
                packet.stream = stream
                writing.mux(packet)
    shown, missing = read(copy)
    assert shown == 48
    assert missing == 0


def test_no_bit_of_a_header_of_h264_in_matroska_loses_a_picture_without_a_word(tmp_path: Path) -> None:
    """Check all bits; without decoding times, FFmpeg derives them from the header's reordering depth."""
    path = write_clip(tmp_path / "in.mkv", width=64, height=48, frame_count=24, codec_options={"g": "6"})
    content = path.read_bytes()
    with av.open(str(path)) as container:
        header = container.streams.video[0].codec_context.extradata
    assert header is not None
    begin = content.index(header) + 8  # after the configuration's header: the set's length, then the set
    runs_back = 0
    for place in range(begin + 4, begin + int.from_bytes(content[begin - 2 : begin], "big")):
        for bit in range(8):
            hurt = bytearray(content)
            hurt[place] ^= 1 << bit
            path.write_bytes(hurt)
            try:
                shown, missing = read(path, threads=1)
            except (CorruptInputError, InputError):
                continue
            assert shown == 24 or missing > 0, (place - begin, bit)
            runs_back += 0 < shown < 24
    assert runs_back > 0


def test_an_error_of_the_decoder_counts_where_nothing_else_does(tmp_path: Path) -> None:
    """Check a damaged picture of Flash video that also has a wrong time, so nothing waits for it."""
    path = write_clip(tmp_path / "in.flv", frame_count=24, codec_options={"g": "6", "bf": "2"})
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    (tag, size) = packets[1]
    content = bytearray(path.read_bytes())
    content[tag + 13 : tag + 16] = bytes(3)  # its delay until it is shown
    content[tag + 16 : tag + 16 + size] = bytes(size)
    path.write_bytes(content)
    shown, missing = read(path)
    assert shown < 24
    assert missing > 0


def test_a_damaged_keyframe_that_is_not_called_one_counts(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "in.flv", frame_count=24, codec_options={"g": "6"})
    with av.open(str(path)) as container:
        tag, size = next((packet.pos, packet.size) for packet in container.demux(video=0))
    content = bytearray(path.read_bytes())
    assert content[tag + 11] == 0x17
    content[tag + 11] = 0x27
    content[tag + size // 2 : tag + size // 2 + 200] = bytes(200)
    path.write_bytes(content)
    shown, missing = read(path)
    assert shown < 24
    assert missing > 0


@pytest.mark.parametrize("suffix", [".avi", ".mp4", ".mkv"])
@pytest.mark.parametrize("which", [0, 12, 13])
def test_a_picture_of_mpeg4_that_shows_nothing_is_missing(tmp_path: Path, suffix: str, which: int) -> None:
    """Check that it counts: the decoder takes it for one dropped on purpose, but those are much shorter."""
    path = write_clip(tmp_path / f"in{suffix}", codec="mpeg4", frame_count=24, codec_options={"g": "12"})
    with av.open(str(path)) as container:
        pictures = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    place = content.index(pictures[which]) + pictures[which].index(b"\0\0\1\xb6") + 4
    content[place : place + 8] = bytes(8)
    path.write_bytes(content)
    shown, missing = read(path)
    assert shown + missing == 24


def test_pictures_of_mpeg4_that_were_dropped_on_purpose_are_not_missing(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "in.avi", codec="mpeg4", frame_count=24)
    dropped = tmp_path / "dropped.avi"
    with av.open(str(path)) as reading, av.open(str(dropped), "w") as writing:
        stream = writing.add_stream_from_template(reading.streams.video[0])
        for number, packet in enumerate(reading.demux(video=0)):
            if packet.size:
                copy = packet if number % 5 != 4 else av.Packet(_not_coded(bytes(packet)))
                copy.pts = copy.dts = packet.dts
                copy.time_base, copy.stream = packet.time_base, stream
                writing.mux(copy)
    shown, missing = read(dropped)
    assert shown < 24
    assert missing == 0


def _not_coded(picture: bytes) -> bytes:
    """Make an empty predicted picture of MPEG-4 (ISO/IEC 14496-2, 6.2.5): its time in 5 bits, then a 0 for coded."""
    head = int.from_bytes(picture[4:8], "big")
    # Keep type (2 bits), whole seconds (0), marker, time (5 bits) and marker; then "not coded", and stuffing.
    return picture[:4] + (head >> 22 << 22 | 0x1FFFFF).to_bytes(4, "big")


@pytest.mark.parametrize("suffix", [".ts", ".m2ts", ".mkv", ".flv", ".avi"])
def test_a_film_whose_frames_come_ever_more_slowly_is_whole(tmp_path: Path, suffix: str) -> None:
    times = [n * n // 3 + 2 * n for n in range(60)]
    path = write_clip(tmp_path / f"slow{suffix}", frame_count=60, pts=times, time_base=Fraction(1, 250))
    assert read(path) == (60, 0)
