"""Sound, subtitles, chapters and tags, from real files into real files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.subtitles.subtitle import SubtitleSet

from clips import write_clip
from vitascope.errors import CorruptInputError, InputError
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, VideoInfo
from vitascope.media.encoding import choose_encoding
from vitascope.media.stream_copy import StreamCopier
from vitascope.media.writer import VideoWriter

ASS_HEADER = (
    b"[Script Info]\r\nScriptType: v4.00+\r\n\r\n[V4+ Styles]\r\nFormat: Name, Fontname, Fontsize, PrimaryColour, "
    b"SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, "
    b"BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding\r\n"
    b"Style: Default,Arial,16,&Hffffff,&Hffffff,&H0,&H0,0,0,0,0,100,100,0,0,1,1,0,2,10,10,10,1\r\n\r\n[Events]\r\n"
    b"Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\r\n"
)


def rewrite(source: Path, target: Path, *, tags: dict[str, str] | None = None, **options: Any) -> VideoWriter:
    """Read a clip, write it anew with everything beside the picture."""
    start, end = options.get("start_seconds"), options.get("end_seconds")
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        time_base, rate = stream.time_base, stream.average_rate
        context = stream.codec_context
        info = VideoInfo(
            path=source,
            width=context.width,
            height=context.height,
            format=PIXEL_FORMATS["yuv420p"],
            source_format="yuv420p",
            color=ColorSpec(),
            codec="h264",
            container=container.format.name,
            time_base=time_base,
            average_frame_rate=rate,
            frame_count_estimate=None,
            duration_seconds=None,
            metadata=dict(container.metadata) if tags is None else tags,
        )
        encoding = choose_encoding(target, source_format=info.format, speed="fast")
        with VideoWriter(target, info=info, encoding=encoding, copy_from=source, **options) as writer:
            index = 0
            for picture in container.decode(stream):
                moment = picture.pts * time_base
                if (start is not None and moment < start) or (end is not None and moment >= end):
                    continue
                planes = tuple(
                    np.frombuffer(plane, np.uint8).reshape(plane.height, -1)[:, : plane.width]
                    for plane in picture.planes
                )
                writer.write(
                    Frame(
                        planes, info.format, info.color, index, picture.pts, time_base, picture.duration or 0
                    )
                )
                index += 1
    return writer


def packets(path: Path, kind: str = "audio", index: int = 0) -> list[tuple[Fraction, bytes]]:
    with av.open(str(path)) as container:
        stream = [stream for stream in container.streams if stream.type == kind][index]
        return [
            (packet.pts * packet.time_base, bytes(packet))
            for packet in container.demux(stream)
            if packet.size
        ]


def video_times(path: Path) -> list[Fraction]:
    with av.open(str(path)) as container:
        return [frame.pts * frame.time_base for frame in container.decode(video=0)]


def write_subtitled(path: Path, codec: str, *, attachment: bool = False) -> Path:
    """A two-second film with two lines of text, two sound tracks, tags and chapters."""
    with av.open(str(path), "w") as container:
        container.metadata.update({"title": "Käse", "artist": "Nobody"})
        container.set_chapters(
            [
                {
                    "id": 1,
                    "start": 0,
                    "end": 1000,
                    "time_base": Fraction(1, 1000),
                    "metadata": {"title": "One"},
                },
                {
                    "id": 2,
                    "start": 1000,
                    "end": 2000,
                    "time_base": Fraction(1, 1000),
                    "metadata": {"title": "Two"},
                },
            ]
        )
        video = container.add_stream("libx264", rate=24, width=32, height=32, pix_fmt="yuv420p")
        sounds = [
            container.add_stream("aac" if path.suffix == ".mp4" else "libopus", rate=48000) for _ in range(2)
        ]
        for sound, language in zip(sounds, ("deu", "fra"), strict=True):
            sound.metadata["language"] = language
        text = container.add_stream(codec)
        text.codec_context.subtitle_header = ASS_HEADER
        text.time_base = text.codec_context.time_base = Fraction(1, 1000)
        text.metadata["language"] = "swe"
        if attachment:
            container.add_attachment("font.ttf", "application/x-truetype-font", b"\0\1\0\0 not really")
        for n in range(48):
            picture = av.VideoFrame(32, 32, "yuv420p")
            for plane in picture.planes:
                np.frombuffer(plane, np.uint8)[:] = 100 + n
            picture.pts, picture.time_base = n, Fraction(1, 24)
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
        for pitch, sound in enumerate(sounds):
            for start in range(0, 96000, 960):
                wave = np.sin((440 + 110 * pitch) * 2 * np.pi * (start + np.arange(960)) / 48000).astype(
                    np.float32
                )
                samples = av.AudioFrame.from_ndarray(np.stack([wave, wave]), format="fltp", layout="stereo")
                samples.sample_rate, samples.pts, samples.time_base = 48000, start, Fraction(1, 48000)
                container.mux(sound.encode(samples))
            container.mux(sound.encode(None))
        for n, line in enumerate(
            (b"0,0,Default,,0,0,0,,Hello {\\i1}World{\\i0}", "1,0,Default,,0,0,0,,Grüße".encode())
        ):
            packet = text.codec_context.encode_subtitle(SubtitleSet.create(line, 0, 800, n * 1000))
            packet.stream, packet.time_base = text, Fraction(1, 1000)
            packet.pts = packet.dts = n * 1000 + 100
            packet.duration = 800
            container.mux(packet)
    return path


def shown_text(path: Path) -> list[tuple[Fraction, bytes]]:
    lines = [(moment, data) for moment, data in packets(path, "subtitle")]
    return [(moment, data) for moment, data in lines if data != b"\0\0"]


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
    if source.endswith(".ts"):  # ADTS headers go, the payload stays
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


def test_seeking_finds_a_late_stretch(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4", audio="aac", frame_count=240)
    rewrite(clip, tmp_path / "out.mp4", start_seconds=8.0)
    sound = packets(tmp_path / "out.mp4")
    assert sound[-1][1] == packets(clip)[-1][1]
    assert 0 <= sound[0][0] < Fraction(3, 100)


def test_sound_longer_than_the_picture_is_kept_whole(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mkv", audio="flac", pts=[0, 1, 2, 90], frame_rate=Fraction(24))
    with av.open(str(clip)) as container:
        assert container.duration > 3_000_000
    target = tmp_path / "out.mkv"
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        info = VideoInfo(
            path=clip,
            width=96,
            height=64,
            format=PIXEL_FORMATS["yuv420p"],
            source_format="yuv420p",
            color=ColorSpec(),
            codec="h264",
            container="matroska,webm",
            time_base=stream.time_base,
            average_frame_rate=Fraction(24),
            frame_count_estimate=None,
            duration_seconds=None,
        )
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
    info = VideoInfo(
        path=clip,
        width=96,
        height=64,
        format=PIXEL_FORMATS["yuv420p"],
        source_format="yuv420p",
        color=ColorSpec(),
        codec="h264",
        container="mp4",
        time_base=time_base,
        average_frame_rate=Fraction(24),
        frame_count_estimate=None,
        duration_seconds=None,
    )
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


@pytest.mark.parametrize(
    ("source", "codec", "target", "first"),
    [
        ("in.mkv", "srt", "out.mkv", b"Hello <i>World</i>"),
        ("in.mkv", "ass", "out.mkv", b"0,0,Default,,0,0,0,,Hello {\\i1}World{\\i0}"),
        ("in.mkv", "srt", "out.mp4", b"\0\x0bHello World"),
        ("in.mkv", "ass", "out.mp4", b"\0\x0bHello World"),
        ("in.mkv", "srt", "out.webm", b"Hello <i>World</i>"),
        ("in.mp4", "mov_text", "out.mp4", b"\0\x0bHello World"),
        ("in.mp4", "mov_text", "out.mkv", b"Hello <i>World</i>"),
    ],
)
def test_subtitles(tmp_path: Path, source: str, codec: str, target: str, first: bytes) -> None:
    clip = write_subtitled(tmp_path / source, codec)
    writer = rewrite(clip, tmp_path / target)
    text = shown_text(tmp_path / target)
    assert [moment for moment, _ in text] == [Fraction(1, 10), Fraction(11, 10)]
    assert text[0][1].startswith(first)
    assert "Grüße".encode() in text[1][1]
    entry = writer.report.streams[-1]
    same = (source[-3:], codec) == (target[-3:], codec) and target != "out.webm"
    assert entry.action == ("copied" if same else "re-encoded")
    with av.open(str(tmp_path / target)) as container:
        assert container.streams.subtitles[0].language == "swe"


def test_a_subtitle_on_screen_at_the_start_is_shortened(tmp_path: Path) -> None:
    clip = write_subtitled(tmp_path / "in.mkv", "srt")
    rewrite(clip, tmp_path / "out.mkv", start_seconds=0.5)
    with av.open(str(tmp_path / "out.mkv")) as container:
        lines = [(p.pts, p.duration) for p in container.demux(subtitles=0) if p.size]
    assert lines == [(0, 400), (600, 800)]


@pytest.mark.parametrize("target", ["out.mp4", "out.mkv", "out.mov"])
def test_chapters_and_tags(tmp_path: Path, target: str) -> None:
    clip = write_subtitled(tmp_path / "in.mkv", "srt")
    rewrite(clip, tmp_path / target)
    with av.open(str(tmp_path / target)) as container:
        chapters = [
            (c["metadata"]["title"], c["start"] * c["time_base"], c["end"] * c["time_base"])
            for c in container.chapters()
        ]
        tags = {name.lower(): value for name, value in container.metadata.items()}
    assert chapters == [("One", 0, 1), ("Two", 1, 2)]
    assert tags["title"] == "Käse"
    assert tags["artist"] == "Nobody"


def test_chapters_move_with_the_stretch(tmp_path: Path) -> None:
    clip = write_subtitled(tmp_path / "in.mkv", "srt")
    rewrite(clip, tmp_path / "out.mkv", start_seconds=0.5, end_seconds=1.5)
    with av.open(str(tmp_path / "out.mkv")) as container:
        spans = [(c["start"] * c["time_base"], c["end"] * c["time_base"]) for c in container.chapters()]
    assert spans == [(0, Fraction(1, 2)), (Fraction(1, 2), 1)]


def test_unusual_tags_survive_in_mp4(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4")
    tags = {"title": "T", "com.example.camera": "X9", "major_brand": "isom", "encoder": "old"}
    rewrite(clip, tmp_path / "out.mp4", tags=tags)
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.metadata["title"] == "T"
        assert container.metadata["com.example.camera"] == "X9"
        assert container.metadata["encoder"] != "old"


def test_fonts_go_along_in_matroska(tmp_path: Path) -> None:
    clip = write_subtitled(tmp_path / "in.mkv", "ass", attachment=True)
    writer = rewrite(clip, tmp_path / "out.mkv")
    with av.open(str(tmp_path / "out.mkv")) as container:
        (font,) = (stream for stream in container.streams if stream.type == "attachment")
        assert font.data == b"\0\1\0\0 not really"
    assert writer.report.streams[-1].kind == "attachment"


def test_pictures_have_no_sound_and_say_so(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4", audio="aac", frame_count=2)
    writer = rewrite(clip, tmp_path / "frames")
    assert any("sound" in note for note in writer.report.notes)


def test_a_missing_source_is_an_input_error(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    info = VideoInfo(
        path=clip,
        width=96,
        height=64,
        format=PIXEL_FORMATS["yuv420p"],
        source_format="yuv420p",
        color=ColorSpec(),
        codec="h264",
        container="mp4",
        time_base=Fraction(1, 24),
        average_frame_rate=Fraction(24),
        frame_count_estimate=None,
        duration_seconds=None,
    )
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
    """Interleaving, and with it bounded memory: a packet of sound lies close to the picture of its time."""
    clip = write_clip(tmp_path / "in.mkv", audio="libopus", frame_count=480)
    rewrite(clip, tmp_path / "out.mkv")
    with av.open(str(tmp_path / "out.mkv")) as container:
        latest = {0: Fraction(0), 1: Fraction(0)}
        for packet in container.demux():
            if packet.size and packet.pts is not None:
                latest[packet.stream_index] = packet.pts * packet.time_base
                assert abs(latest[0] - latest[1]) < Fraction(1, 2)


def test_damaged_sound_is_an_error_or_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitascope.media import stream_copy

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
    with pytest.raises(CorruptInputError, match="sound ends early"):
        rewrite(clip, tmp_path / "a.mp4")
    assert not (tmp_path / "a.mp4").exists()
    writer = rewrite(clip, tmp_path / "b.mp4", keep_partial=True)
    assert any("sound ends early" in note for note in writer.report.notes)
    assert len(packets(tmp_path / "b.mp4")) == 20


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
        copier = StreamCopier(path, out, muxer="matroska", target=tmp_path / "out.mkv")
        copier.close()
    assert copier.notes == ["two.mkv: its second picture (track 1) was left out"]
