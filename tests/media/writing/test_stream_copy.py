"""Tests of copying sound beside the picture, from real files into real files."""

from __future__ import annotations

import struct
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from rewritten_films import packets, rewrite, video_times, write_subtitled
from written_films import make_info

from clips import copied, write_clip
from vitascope.errors import InputError
from vitascope.frames import Frame
from vitascope.media.metadata.mp4_boxes import Box, rewrite_moov
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.stream_copy import StreamCopier
from vitascope.media.writing.writer import VideoWriter


@pytest.mark.parametrize(
    ("source", "audio", "target"),
    [
        ("in.mp4", "aac", "out.mp4"),
        ("in.mp4", "aac", "out.mov"),
        ("in.mp4", "aac", "out.mkv"),
        ("in.mkv", "libopus", "out.webm"),
        ("in.mkv", "flac", "out.mkv"),
        ("in.mov", "pcm_s16le", "out.mov"),
        ("in.mkv", "ac3", "out.mp4"),
        ("in.ts", "aac", "out.mkv"),
    ],
)
def test_sound_packets_are_identical(tmp_path: Path, source: str, audio: str, target: str) -> None:
    clip = write_clip(tmp_path / source, audio=audio, frame_count=48)
    writer = rewrite(clip, tmp_path / target)
    before, after = packets(clip), packets(tmp_path / target)
    if source.endswith(".ts"):  # ADTS headers are removed, the payload stays
        assert len(before) == len(after)
        assert all(a[1].endswith(b[1]) for a, b in zip(before, after, strict=True))
    else:
        assert [data for _, data in before] == [data for _, data in after]
    (entry,) = writer.report.streams
    assert (entry.kind, entry.action, entry.reason) == ("audio", "copied", "")


@pytest.mark.parametrize(
    ("source", "audio", "target", "tolerance"),
    [
        ("in.mp4", "aac", "out.mp4", Fraction(0)),
        ("in.mp4", "aac", "out.mkv", Fraction(1, 1000)),
        ("in.mkv", "libopus", "out.webm", Fraction(1, 1000)),
        ("in.mkv", "libopus", "out.mp4", Fraction(1, 1000)),
        ("in.ts", "aac", "out.mp4", Fraction(1, 10000)),
    ],
)
def test_sound_stays_in_sync(
    tmp_path: Path, source: str, audio: str, target: str, tolerance: Fraction
) -> None:
    clip = write_clip(tmp_path / source, audio=audio, frame_count=30)
    rewrite(clip, tmp_path / target)
    pictures = [a - b for a, b in zip(video_times(clip), video_times(tmp_path / target), strict=True)]
    sounds = [a[0] - b[0] for a, b in zip(packets(clip), packets(tmp_path / target), strict=True)]
    assert max(pictures) - min(pictures) <= 2 * tolerance
    assert abs(
        np.mean([float(d) for d in sounds]) - np.mean([float(d) for d in pictures])
    ) <= tolerance + 1e-3 * (target != "out.mp4" or source != "in.mp4")
    if not source.endswith(".ts"):
        assert all(abs(shift) <= tolerance for shift in pictures)


def test_a_start_offset_is_kept(tmp_path: Path) -> None:
    clip = write_clip(
        tmp_path / "in.mp4", audio="aac", pts=[150 + n for n in range(24)], time_base=Fraction(1, 100)
    )
    rewrite(clip, tmp_path / "out.mp4")
    assert video_times(tmp_path / "out.mp4") == video_times(clip)
    assert packets(tmp_path / "out.mp4") == packets(clip)


def test_a_broadcast_clock_starts_at_zero(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.ts", pts=range(240, 264))
    before = video_times(clip)
    assert before[0] >= 10
    rewrite(clip, tmp_path / "out.mp4")
    assert video_times(tmp_path / "out.mp4") == [moment - before[0] for moment in before]


def moved(source: Path, target: Path, *, hours: int | Fraction, picture_seconds: Fraction) -> Path:
    """Copy a clip to a clock that began hours ago, with its picture later than its sound."""
    with av.open(str(source)) as container, av.open(str(target), "w") as out:
        streams = {s.index: out.add_stream_from_template(s) for s in container.streams}
        for packet in [p for p in container.demux() if p.size]:
            late = hours * 3600 + (picture_seconds if packet.stream.type == "video" else 0)
            packet.pts += round(late / packet.time_base)
            packet.dts += round(late / packet.time_base)
            packet.stream = streams[packet.stream_index]
            out.mux(packet)
    return target


@pytest.mark.parametrize("target", ["out.mp4", "out.mov", "out.mkv", "out.webm"])
def test_sound_that_an_edit_list_cuts_off_is_not_played(tmp_path: Path, target: str) -> None:
    """Check a clip trimmed by a phone: it still has all packets, the first quarter of a second before time zero."""
    whole = write_clip(tmp_path / "whole.mp4", audio="aac", codec_options={"g": "6"})
    clip = moved(whole, tmp_path / "in.mp4", hours=Fraction(-1, 4 * 3600), picture_seconds=Fraction(0))
    assert packets(clip)[0][0] < Fraction(-1, 5)
    rewrite(clip, tmp_path / target)
    with av.open(str(tmp_path / target)) as container:
        first = next(frame for frame in container.decode(audio=0))
        # At most the decoder's priming; MP4 and MOV hide that with an edit list.
        assert first.pts * first.time_base >= (0 if target in ("out.mp4", "out.mov") else Fraction(-1, 40))
    assert video_times(tmp_path / target)[0] == 0


def edited(path: Path, edits: list[tuple[float, float | None]]) -> Path:
    """Set the edits of an MP4's tracks: the seconds that each lasts, and its start, or None for a pause."""

    def edit(moov: Box) -> None:
        (movie_scale,) = struct.unpack_from(">I", moov.child(b"mvhd").head, 12)
        for track in (box for box in moov.children if box.kind == b"trak"):
            (scale,) = struct.unpack_from(">I", track.child(b"mdia", b"mdhd").head, 12)
            # The encoder's own delay, which the muxer's only edit hid.
            (delay,) = struct.unpack_from(">i", track.child(b"edts").head, 8 + 8 + 4)
            rows = b"".join(
                struct.pack(
                    ">IiI",
                    round(lasts * movie_scale),
                    -1 if begin is None else round(begin * scale) + delay,
                    0x10000,
                )
                for lasts, begin in edits
            )
            table = struct.pack(">II", 0, len(edits)) + rows
            track.child(b"edts").head = Box(b"elst", table).to_bytes()

    rewrite_moov(path, edit)
    return path


def played(path: Path) -> tuple[float, float]:
    """Return when sound begins, and how many seconds of it play, in a player that plays all packets."""
    with av.open(str(path)) as container:
        frames = list(container.decode(audio=0))
        return float(frames[0].pts * frames[0].time_base), sum(frame.samples for frame in frames) / 48000


@pytest.mark.parametrize(
    ("edits", "begin"),
    [([(1.0, 0.5), (1.0, 2.5)], 0), ([(1.0, 2.4), (1.0, 0.4)], 0), ([(1.0, None), (2.0, 1.1)], 1)],
    ids=["stretches", "backwards", "pause"],
)
@pytest.mark.parametrize("sound", ["aac", "libopus"])
@pytest.mark.parametrize("target", ["out.mp4", "out.mov", "out.mkv", "out.webm"])
def test_sound_between_the_stretches_of_an_edit_list_is_not_played(
    tmp_path: Path, target: str, sound: str, edits: list[tuple[float, float | None]], begin: int
) -> None:
    clip = write_clip(tmp_path / "in.mp4", audio=sound, frame_count=96, codec_options={"g": "6"})
    heard_begin, heard_seconds = played(edited(clip, edits))
    assert heard_begin == begin
    assert heard_seconds == pytest.approx(2, abs=0.03)
    rewrite(clip, tmp_path / target)
    made_begin, made_seconds = played(tmp_path / target)
    # At most one more packet of 21 ms, which primes the decoder.
    assert made_begin == pytest.approx(heard_begin, abs=0.035)
    assert made_seconds == pytest.approx(heard_seconds, abs=0.035)


@pytest.mark.parametrize("source", ["late.mkv", "late.mp4"])
@pytest.mark.parametrize("target", ["out.mp4", "out.mkv"])
def test_a_clock_that_began_hours_ago_starts_where_a_player_does(
    tmp_path: Path, source: str, target: str
) -> None:
    """Check that sound and picture keep their offset; an MP4's edit list would hold 30 hours of nothing."""
    clip = write_clip(tmp_path / "in.mp4", audio="aac", frame_count=48)
    late = moved(clip, tmp_path / source, hours=30, picture_seconds=Fraction(1, 2))
    rewrite(late, tmp_path / target)
    sound, picture = packets(late)[0][0], video_times(late)[0]
    assert min(sound, picture) > 100_000
    made_sound, made_picture = packets(tmp_path / target)[0][0], video_times(tmp_path / target)[0]
    assert abs(min(made_sound, made_picture)) <= Fraction(1, 500)
    assert abs((made_picture - made_sound) - (picture - sound)) <= Fraction(1, 500)
    assert len(video_times(tmp_path / target)) == 48


def test_pictures_of_another_kind_keep_the_pause_of_an_mp4_that_they_go_with(tmp_path: Path) -> None:
    """Check pictures drawn at the times of a driver, as by ``animate``."""
    late = write_clip(
        tmp_path / "late.mp4", audio="aac", pts=[500 + 4 * n for n in range(24)], time_base=Fraction(1, 100)
    )
    rewrite(late, tmp_path / "out.mp4", pictures_from="images")
    assert video_times(tmp_path / "out.mp4") == video_times(late)
    assert packets(tmp_path / "out.mp4") == packets(late)


def test_a_matroska_film_that_begins_late_has_no_empty_beginning_in_mp4(tmp_path: Path) -> None:
    clip = write_clip(
        tmp_path / "in.mkv", pts=[2000 + 40 * n for n in range(24)], time_base=Fraction(1, 1000)
    )
    rewrite(clip, tmp_path / "out.mp4")
    assert video_times(tmp_path / "out.mp4") == [moment - 2 for moment in video_times(clip)]


@pytest.mark.parametrize("target", ["out.mp4", "out.mkv", "out.webm"])
def test_a_stretch_begins_at_zero_with_its_sound(tmp_path: Path, target: str) -> None:
    clip = write_clip(tmp_path / "in.mkv", audio="libopus", frame_count=96)
    rewrite(clip, tmp_path / target, start_seconds=1.5, end_seconds=3.0)
    times = video_times(tmp_path / target)
    assert times[0] == 0
    assert len(times) == 36
    before = [entry for entry in packets(clip) if Fraction(3, 2) <= entry[0] < 3]
    sound = packets(tmp_path / target)
    assert [data for _, data in sound] == [data for _, data in before]
    for (moment, _), (source_moment, _) in zip(sound, before, strict=True):
        assert abs(source_moment - moment - Fraction(3, 2)) <= Fraction(1, 1000)


def interleaved(source: Path, target: Path) -> Path:
    """Order the packets of a clip by time, as recorders do."""
    with av.open(str(source)) as container, av.open(str(target), "w") as out:
        streams = [out.add_stream_from_template(stream) for stream in container.streams]
        found = [packet for packet in container.demux() if packet.dts is not None]
        for packet in sorted(found, key=lambda packet: packet.dts * packet.time_base):
            late = round(1 / packet.time_base)  # the sound's priming is before zero
            packet.dts, packet.pts = packet.dts + late, packet.pts + late
            packet.stream = streams[packet.stream_index]
            out.mux(packet)
    return target


@pytest.mark.parametrize(
    ("source", "gop", "is_interleaved"),
    [
        ("in.mp4", 24, True),
        ("in.mkv", 24, True),
        ("in.mkv", 720, True),
        ("in.mkv", 24, False),
        ("in.ts", 24, True),
    ],
)
def test_seeking_finds_a_late_stretch(tmp_path: Path, source: str, gop: int, is_interleaved: bool) -> None:
    clip = write_clip(
        tmp_path / ("all.mp4" if is_interleaved else source), audio="aac", frame_count=720,
        codec_options={"g": str(gop), "preset": "ultrafast"},
    )  # fmt: skip
    if is_interleaved:
        clip = interleaved(clip, tmp_path / source)
    write_anew(clip, tmp_path / "out.mp4", start_seconds=28.0)
    begin = video_times(clip)[0] + 28
    before = [entry for entry in packets(clip) if entry[0] >= begin]
    sound = packets(tmp_path / "out.mp4")
    assert 85 < len(sound) <= len(before) <= len(sound) + 1  # MP4 may hide sound after the last frame
    for (moment, data), (source_moment, source_data) in zip(sound, before, strict=False):
        assert source_data.endswith(data)
        assert abs(source_moment - begin - moment) < Fraction(1, 500)


def test_sound_longer_than_the_picture_is_kept_whole(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mkv", audio="flac", pts=[0, 1, 2, 90], frame_rate=Fraction(24))
    with av.open(str(clip)) as container:
        assert container.duration > 3_000_000
    target = tmp_path / "out.mkv"
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        info = make_info(path=clip, time_base=stream.time_base)
    planes = (np.zeros((64, 96), np.uint8), np.zeros((32, 48), np.uint8), np.zeros((32, 48), np.uint8))
    with VideoWriter(
        target, info=info, encoding=choose_encoding(target, source_format=info.format), copy_from=clip
    ) as writer:
        writer.write(Frame(planes, info.format, info.color, 0, 0, info.time_base))
    assert packets(target) == packets(clip)


def test_an_interrupted_film_has_sound_as_long_as_its_picture(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4", audio="aac", frame_count=72)
    target = tmp_path / "out.mp4"
    with av.open(str(clip)) as container:
        time_base = container.streams.video[0].time_base
    info = make_info(path=clip, time_base=time_base)
    planes = (np.zeros((64, 96), np.uint8), np.zeros((32, 48), np.uint8), np.zeros((32, 48), np.uint8))
    writer = VideoWriter(
        target, info=info, encoding=choose_encoding(target, source_format=info.format), copy_from=clip
    )
    for n in range(24):
        writer.write(Frame(planes, info.format, info.color, n, round(n / (24 * time_base)), time_base))
    kept = writer.keep_partial()
    assert kept == tmp_path / "out.mp4.part"
    sound = packets(kept)
    assert Fraction(9, 10) < sound[-1][0] <= 1
    assert not target.exists()


def test_sound_that_the_container_cannot_hold_is_reencoded_and_reported(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4", audio="aac", frame_count=48)
    writer = rewrite(clip, tmp_path / "out.webm")
    (entry,) = writer.report.streams
    assert (entry.action, entry.codec, entry.target_codec) == ("re-encoded", "aac", "libopus")
    assert "webm cannot hold aac" in entry.reason
    with av.open(str(clip)) as container:
        before = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    with av.open(str(tmp_path / "out.webm")) as container:
        frames = list(container.decode(audio=0))
    after = np.concatenate([frame.to_ndarray()[0] for frame in frames])
    assert abs(len(after) - len(before)) <= 2048
    middle = slice(20_000, 60_000)
    lags = range(-1200, 1201, 1)
    probe = before[middle][:8000]
    scores = [float(np.dot(probe, after[20_000 + lag : 28_000 + lag])) for lag in lags]
    period = 48_000 / 440
    lag = lags[int(np.argmax(scores))]
    assert abs(lag % period) < 4 or abs(lag % period - period) < 4
    assert abs(float(frames[0].pts * frames[0].time_base)) < 0.03


def test_two_sound_tracks_and_their_languages(tmp_path: Path) -> None:
    clip = write_subtitled(tmp_path / "in.mkv", "srt")
    rewrite(clip, tmp_path / "out.mkv")
    for index, language in enumerate(("deu", "fra")):
        assert packets(clip, "audio", index) == packets(tmp_path / "out.mkv", "audio", index)
        with av.open(str(tmp_path / "out.mkv")) as container:
            assert container.streams.audio[index].language == language


def test_mov_keeps_languages_by_the_names_that_it_knows(tmp_path: Path) -> None:
    """Check German: FFmpeg's muxer drops deu, and knows ger."""
    rewrite(write_subtitled(tmp_path / "in.mkv", "srt"), tmp_path / "out.mov")
    with av.open(str(tmp_path / "out.mov")) as container:
        assert [stream.language for stream in container.streams.audio] == ["ger", "fra"]


@pytest.mark.parametrize(
    ("name", "in_mov"), [("swe", "sve"), ("hrv", "hr "), ("fao", "fo "), ("nob", "nor"), ("jpn", "jpn")]
)
def test_languages_go_into_mov_and_come_back(tmp_path: Path, name: str, in_mov: str) -> None:
    clip = copied(
        write_clip(tmp_path / "in.mp4", frame_count=4),
        tmp_path / "named.mp4",
        prepare=lambda stream: stream.metadata.update(language=name),
    )
    languages = []
    for source, target in ((clip, tmp_path / "a.mov"), (tmp_path / "a.mov", tmp_path / "b.mp4")):
        rewrite(source, target)
        with av.open(str(target)) as container:
            languages.append(container.streams.video[0].language)
    assert languages == [in_mov, "nor" if name == "nob" else name]


def test_pictures_have_no_sound_and_say_so(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4", audio="aac", frame_count=2)
    writer = rewrite(clip, tmp_path / "frames")
    assert any("sound" in note for note in writer.report.notes)


def test_a_missing_source_is_an_input_error(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    info = make_info(path=clip)
    target = tmp_path / "out.mp4"
    with pytest.raises(InputError, match=r"gone\.mp4"):
        VideoWriter(
            target,
            info=info,
            encoding=choose_encoding(target, source_format=info.format),
            copy_from=tmp_path / "gone.mp4",
        )
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in.mp4"]


def test_sound_is_not_read_ahead_of_the_picture(tmp_path: Path) -> None:
    """Check interleaving, which bounds memory: each packet of sound is near the picture of its time."""
    clip = write_clip(tmp_path / "in.mkv", audio="libopus", frame_count=480)
    rewrite(clip, tmp_path / "out.mkv")
    with av.open(str(tmp_path / "out.mkv")) as container:
        latest = {0: Fraction(0), 1: Fraction(0)}
        for packet in container.demux():
            if packet.size and packet.pts is not None:
                latest[packet.stream_index] = packet.pts * packet.time_base
                assert abs(latest[0] - latest[1]) < Fraction(1, 2)


def test_sound_that_ends_early_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitascope.media.writing import stream_copy

    clip = write_clip(tmp_path / "in.mp4", audio="aac", frame_count=48)
    real = stream_copy.av.open

    class Breaking:
        def __init__(self, container: Any) -> None:
            self._container = container

        def __getattr__(self, name: str) -> Any:
            return getattr(self._container, name)

        def demux(self, *streams: Any) -> Any:
            for count, packet in enumerate(self._container.demux(*streams)):
                if count == 20:
                    raise av.InvalidDataError(1094995529, "broken")
                yield packet

    def open_breaking(name: Any, mode: str = "r", **options: Any) -> Any:
        container = real(name, mode, **options)
        return Breaking(container) if str(name).startswith("file:") and mode == "r" else container

    monkeypatch.setattr(stream_copy.av, "open", open_breaking)
    writer = rewrite(clip, tmp_path / "b.mp4")
    assert any("sound ends early" in note for note in writer.report.notes)
    assert len(packets(tmp_path / "b.mp4")) == 20
    assert len(video_times(tmp_path / "b.mp4")) == 48


@pytest.mark.parametrize("source", ["in.mkv", "in.avi"])
def test_pcm_that_does_not_name_its_channels_goes_into_mov(tmp_path: Path, source: str) -> None:
    clip = write_clip(tmp_path / source, audio="pcm_s16le", frame_count=24)
    with av.open(str(clip)) as container:
        assert container.streams.audio[0].layout.name == "2 channels"
    rewrite(clip, tmp_path / "out.mov")
    assert b"".join(data for _, data in packets(clip)) == b"".join(
        data for _, data in packets(tmp_path / "out.mov")
    )
    with av.open(str(tmp_path / "out.mov")) as container:
        assert container.streams.audio[0].layout.name == "stereo"


@pytest.mark.parametrize(
    ("source", "codec"), [("in.mkv", "pcm_s16le"), ("in.mov", "pcm_s24le"), ("in.avi", "pcm_s16le")]
)
def test_uncompressed_sound_becomes_aac_in_mp4_where_old_players_do_not_know_it(
    tmp_path: Path, source: str, codec: str
) -> None:
    clip = write_clip(tmp_path / source, audio=codec, frame_count=24)
    writer = rewrite(clip, tmp_path / "out.mp4")
    (entry,) = writer.report.streams
    assert (entry.action, entry.target_codec) == ("re-encoded", "aac")
    assert entry.in_words() == (
        f"audio ({codec}) re-encoded to aac: players from before 2020 may not play PCM in MP4; MOV keeps it"
    )
    assert not writer.report.notes
    with av.open(str(tmp_path / "out.mp4")) as container:
        (sound,) = container.streams.audio
        assert (sound.codec_context.name, sound.layout.name) == ("aac", "stereo")
        heard = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
    assert np.abs(heard).max() > 0.05
    assert len(heard) / sound.codec_context.sample_rate == pytest.approx(1.0, abs=0.1)


def with_vorbis(path: Path) -> Path:
    """Write one frame with a tone, by FFmpeg's own encoder, as PyAV has no libvorbis."""
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=24)
        picture.width, picture.height, picture.pix_fmt = 96, 64, "yuv420p"
        sound = container.add_stream(
            "vorbis", rate=48_000, layout="stereo", options={"strict": "experimental"}
        )
        frame = av.VideoFrame.from_ndarray(np.zeros((96, 96), np.uint8), format="yuv420p")
        tone = np.sin(2 * np.pi * 440 * np.arange(24_000) / 48_000).astype(np.float32) / 2
        samples = av.AudioFrame.from_ndarray(np.stack([tone, tone]), format="fltp", layout="stereo")
        samples.sample_rate = 48_000
        container.mux([*picture.encode(frame), *picture.encode(None)])
        container.mux([*sound.encode(samples), *sound.encode(None)])
    return path


@pytest.mark.parametrize(("target", "codec"), [("out.mp4", "aac"), ("out.mkv", None), ("out.webm", None)])
def test_vorbis_becomes_aac_in_mp4_which_players_know_without_it(
    tmp_path: Path, target: str, codec: str | None
) -> None:
    clip = with_vorbis(tmp_path / "in.mkv")
    (entry,) = rewrite(clip, tmp_path / target).report.streams
    assert (entry.action, entry.target_codec) == ("re-encoded" if codec else "copied", codec or "vorbis")
    if codec:
        assert entry.in_words().endswith("few players play Vorbis in MP4; MKV and WebM keep it")
        with av.open(str(tmp_path / target)) as container:
            heard = np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])
        assert np.abs(heard).max() > 0.05


def with_pcm(path: Path, *, layout: str, rate: int) -> Path:
    """Write one frame with uncompressed sound that is loud in every channel."""
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=24)
        picture.width, picture.height, picture.pix_fmt = 96, 64, "yuv420p"
        sound = container.add_stream("pcm_s16le", rate=rate, layout=layout)
        frame = av.VideoFrame.from_ndarray(np.zeros((96, 96), np.uint8), format="yuv420p")
        count = sound.codec_context.layout.nb_channels
        times = np.arange(rate // 4) / rate
        tone = (8000 * np.sin(2 * np.pi * 60 * times)).astype(np.int16).repeat(count)[None]
        samples = av.AudioFrame.from_ndarray(tone, format="s16", layout=layout)
        samples.sample_rate = rate
        container.mux([*picture.encode(frame), *picture.encode(None)])
        container.mux([*sound.encode(samples), *sound.encode(None)])
    return path


@pytest.mark.parametrize(
    ("source", "layout", "rate"),
    [
        ("in.mov", "4.0", 48_000),
        ("in.mov", "stereo", 192_000),
        ("in.mov", "stereo", 4_000),
        ("in.mkv", "5.1", 48_000),  # Matroska does not name the channels of PCM
    ],
)
def test_uncompressed_sound_that_aac_does_not_take_as_it_is_is_copied_into_mp4(
    tmp_path: Path, source: str, layout: str, rate: int
) -> None:
    clip = with_pcm(tmp_path / source, layout=layout, rate=rate)
    writer = rewrite(clip, tmp_path / "out.mp4")
    assert [entry.action for entry in writer.report.streams] == ["copied"]
    assert any("PCM in MP4" in note for note in writer.report.notes)
    copied, own = (b"".join(data for _, data in packets(path)) for path in (tmp_path / "out.mp4", clip))
    assert copied == own
    assert not rewrite(clip, tmp_path / "out.mov").report.notes
    with av.open(str(tmp_path / "out.mp4")) as container, av.open(str(clip)) as original:
        sound, before = (one.streams.audio[0].codec_context for one in (container, original))
        assert (sound.layout.nb_channels, sound.sample_rate) == (before.layout.nb_channels, rate)


@pytest.mark.parametrize("layout", ["5.1", "5.1(side)", "7.1"])
def test_uncompressed_sound_around_becomes_aac_with_all_its_channels(tmp_path: Path, layout: str) -> None:
    clip = with_pcm(tmp_path / "in.mov", layout=layout, rate=48_000)
    with av.open(str(clip)) as container:
        assert container.streams.audio[0].layout.name == layout
    writer = rewrite(clip, tmp_path / "out.mp4")
    assert [entry.target_codec for entry in writer.report.streams] == ["aac"]
    count = int(layout[0]) + 1
    with av.open(str(tmp_path / "out.mp4")) as container:
        # Interleaved, as PyAV 18.1 reads past the eighth plane of planar frames.
        resampler = av.AudioResampler("flt", layout.removesuffix("(side)"), 48_000)
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
        heard = np.concatenate([frame.to_ndarray().reshape(-1, count) for frame in frames])
    assert np.abs(heard).max(axis=0).min() > 0.1


@pytest.mark.parametrize(
    ("layout", "loss"), [("4.0", "; its 4 channels become 2"), ("stereo", ""), ("5.1", "")]
)
def test_channels_that_are_lost_are_told(tmp_path: Path, layout: str, loss: str) -> None:
    clip = with_pcm(tmp_path / "in.mov", layout=layout, rate=48_000)
    (entry,) = rewrite(clip, tmp_path / "out.webm").report.streams
    told = "audio (pcm_s16le) re-encoded to libopus: webm cannot hold pcm_s16le"
    assert entry.in_words() == told + loss


def write_anew(source: Path, target: Path, *, start_seconds: float | None = None) -> VideoWriter:
    """Rewrite a video as a run does: the reader's clock continues where the file's jumps."""
    with open_video(source, start_seconds=start_seconds) as reader:
        encoding = choose_encoding(target, source_format=reader.info.format, speed="fast")
        with VideoWriter(
            target, info=reader.info, encoding=encoding, copy_from=source, start_seconds=start_seconds
        ) as writer:
            for frame in reader:
                writer.write(frame)
    return writer


def test_sound_that_lies_far_from_its_picture_in_the_file_keeps_its_time(tmp_path: Path) -> None:
    """Check a file like those of some muxers, which write twenty seconds of pictures before the first sound."""
    clip = write_clip(tmp_path / "in.mkv", audio="aac", frame_count=720)
    with av.open(str(clip)) as container:
        assert sum(packet.stream_index for packet in islice(container.demux(), 400)) < 5
    write_anew(clip, tmp_path / "out.mkv")
    assert packets(tmp_path / "out.mkv") == packets(clip)


@pytest.mark.parametrize("frame_count", [20, 96])
@pytest.mark.parametrize("target", ["out.mp4", "out.mkv", "out.webm"])
def test_sound_of_joined_recordings_goes_on_beside_the_picture(
    tmp_path: Path, target: str, frame_count: int
) -> None:
    """Check two joined transport streams whose clocks both start again."""
    part = write_clip(tmp_path / "part.ts", audio="aac", frame_count=frame_count)
    joined = tmp_path / "in.ts"
    joined.write_bytes(part.read_bytes() * 2)
    write_anew(part, tmp_path / f"part-{target}")
    write_anew(joined, tmp_path / target)
    assert len(video_times(tmp_path / target)) == 2 * frame_count
    alone, both = packets(tmp_path / f"part-{target}"), packets(tmp_path / target)
    assert abs(len(both) - 2 * len(alone)) <= 5  # sound of a part may be longer than its picture
    # In the second recording, sound has the same offset to its picture.
    second = video_times(tmp_path / target)[frame_count] - video_times(tmp_path / target)[0]
    late = [moment - second for moment, _ in both if moment > second + Fraction(1, 2)]
    assert all(min(abs(moment - other) for other, _ in alone) < Fraction(3, 100) for moment in late[:100])
    steps = np.diff([float(moment) for moment, _ in both])
    assert steps.min() > 0
    assert steps.max() < 0.06


def transport_packets(path: Path, stream: int) -> list[tuple[bool, bytearray]]:
    """Return the 188 bytes of each packet, and whether it is of a stream."""
    content = path.read_bytes()
    with av.open(str(path)) as container:
        identifier = container.streams[stream].id
    parts = [bytearray(content[at : at + 188]) for at in range(0, len(content), 188)]
    return [((part[1] & 0x1F) << 8 | part[2] == identifier, part) for part in parts]


@pytest.mark.parametrize("codec", ["aac", "mp2"])
@pytest.mark.parametrize("target", ["out.mp4", "out.mkv", "out.webm"])
def test_damaged_sound_is_left_out_and_counted(tmp_path: Path, codec: str, target: str) -> None:
    clip = write_clip(tmp_path / "in.ts", audio=codec, frame_count=96)
    random = np.random.default_rng(3)
    parts = transport_packets(clip, 1)
    for is_sound, part in parts:
        if is_sound and random.random() < 0.25:
            part[12:] = random.bytes(176)  # including headers with times
    clip.write_bytes(b"".join(part for _, part in parts))
    writer = rewrite(clip, tmp_path / target)
    assert len(video_times(tmp_path / target)) == 96
    sound = [moment for moment, _ in packets(tmp_path / target)]
    assert len(sound) > 20
    assert max(sound) < 5
    if codec == "aac" or target == "out.webm":
        assert any("damaged packets of its audio track 1" in note for note in writer.report.notes)


@pytest.mark.parametrize("target", ["out.mp4", "out.mkv", "out.webm"])
def test_sound_that_is_announced_and_does_not_come_is_dropped(tmp_path: Path, target: str) -> None:
    clip = write_clip(tmp_path / "in.ts", audio="aac", frame_count=48)
    parts = transport_packets(clip, 1)
    clip.write_bytes(b"".join(part for is_sound, part in parts if not is_sound))
    writer = rewrite(clip, tmp_path / target)
    assert len(video_times(tmp_path / target)) == 48
    (entry,) = writer.report.streams
    assert entry.action == "dropped"
    assert "announced" in entry.reason


def test_sound_that_changes_on_the_way_is_encoded_all_along(tmp_path: Path) -> None:
    stereo = write_clip(tmp_path / "a.ts", audio="aac", frame_count=72)
    mono = tmp_path / "b.ts"
    with av.open(str(stereo)) as source, av.open(str(mono), "w") as container:
        video = container.add_stream_from_template(source.streams.video[0])
        sound = container.add_stream("aac", rate=44100, layout="mono")
        for frame in source.decode(audio=0):
            frame.pts = None
            container.mux(sound.encode(frame))
        source.seek(0)
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = video
                container.mux(packet)
    joined = tmp_path / "in.ts"
    joined.write_bytes(stereo.read_bytes() + mono.read_bytes())
    write_anew(joined, tmp_path / "out.webm")
    with av.open(str(tmp_path / "out.webm")) as container:
        loud = [np.abs(f.to_ndarray()).mean() > 0.1 for f in container.decode(audio=0) if f.time > 3.5]
    assert len(loud) > 80
    assert np.mean(loud) > 0.8


def test_a_second_picture_is_named_as_left_out(tmp_path):
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("ffv1", rate=5) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for stream in streams:
            for n in range(2):
                frame = av.VideoFrame(32, 32, "yuv420p")
                for plane in frame.planes:
                    plane.update(bytes(plane.buffer_size))
                frame.pts = n
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    with av.open(str(tmp_path / "out.mkv"), "w") as out:
        copier = StreamCopier(path, out, muxer="matroska")
        copier.close()
    assert copier.notes == ["two.mkv: its second picture (track 1) was left out"]


@pytest.mark.parametrize("target", ["out.mov", "out.mp4", "out.mkv"])
@pytest.mark.parametrize(("start", "shown"), [(None, "01:02:03:20"), (0.5, "01:02:04:08")])
def test_a_time_code_is_that_of_the_first_picture(
    tmp_path: Path, target: str, start: float | None, shown: str
) -> None:
    clip = copied(
        write_clip(tmp_path / "whole.mov", frame_count=48),
        tmp_path / "in.mov",
        prepare=lambda stream: stream.metadata.update({"timecode": "01:02:03:20"}),
    )
    writer = rewrite(clip, tmp_path / target, start_seconds=start)
    with av.open(str(tmp_path / target)) as container:
        tags = {name.lower(): value for name, value in container.streams.video[0].metadata.items()}
    assert tags["timecode"] == shown
    assert not writer.report.notes


def test_what_is_no_time_code_is_not_moved_but_left_out(tmp_path: Path) -> None:
    clip = copied(
        write_clip(tmp_path / "whole.mov", frame_count=48),
        tmp_path / "in.mkv",
        prepare=lambda stream: stream.metadata.update({"timecode": "evening"}),
    )
    rewrite(clip, tmp_path / "out.mkv", start_seconds=0.5)
    with av.open(str(tmp_path / "out.mkv")) as container:
        assert "TIMECODE" not in container.streams.video[0].metadata
