"""Hostile and damaged files: each has its own one-line error, and what can be decoded is."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from clips import moving_disc, write_clip
from vitascope.errors import CorruptInputError, InputError
from vitascope.media.probe import probe
from vitascope.media.reader import open_video


def intact_clip(path: Path, *, audio: bool = False, flags: str = "faststart", shift: int = 0) -> Path:
    """60 frames in an MP4 whose index stands before the data, so that cutting leaves something to read.

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
        # Entries point into the container: copy what is needed while it is open.
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
    with pytest.raises(InputError, match="holds no images") as error:
        open_video(tmp_path)
    assert_one_line(error, tmp_path)


def test_unfinished_mp4(tmp_path: Path) -> None:
    """The moov box comes last; a recorder that died never wrote it."""
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
    """The sample entry of an MP4 names a codec that nobody has."""
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
    with open_video(path) as reader, pytest.raises(CorruptInputError, match="promises 60 frames") as error:
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
        pytest.raises(CorruptInputError, match=r"promises 2\.50 s and ends at") as error,
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
    with open_video(path) as reader, pytest.raises(CorruptInputError, match="last fragment lacks") as error:
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
    # Those after the damage keep their time: sound stays in step.
    assert frames[-1].pts_seconds == pytest.approx(59 / 24)


def test_damage_past_the_limit_raises(tmp_path: Path) -> None:
    path = intact_clip(tmp_path / "a.mp4")
    damage_packets(path, range(25, 60))
    with (
        open_video(path, max_corrupt_frames=5) as reader,
        pytest.raises(CorruptInputError, match=r"6 frames could not be decoded.*at most 5") as error,
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
    """Television recordings begin anywhere; the pictures before the first keyframe have nothing to refer to."""
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
