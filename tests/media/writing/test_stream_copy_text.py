"""Tests of copying subtitles, their fonts, chapters and tags, from real files into real files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import pytest
from av.stream import Disposition
from rewritten_films import packets, rewrite, write_subtitled

from clips import write_clip


def shown_text(path: Path) -> list[tuple[Fraction, bytes]]:
    lines = [(moment, data) for moment, data in packets(path, "subtitle")]
    return [(moment, data) for moment, data in lines if data != b"\0\0"]


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


@pytest.mark.parametrize("target", ["out.mp4", "out.mov", "out.mkv", "out.webm"])
@pytest.mark.parametrize("is_default", [False, True])
@pytest.mark.parametrize("source", ["in.mkv", "in.mp4"])
def test_subtitles_are_shown_unasked_only_where_they_were(
    tmp_path: Path, source: str, target: str, is_default: bool
) -> None:
    clip = write_subtitled(tmp_path / "asked.mkv", "srt")
    with av.open(str(clip)) as container:
        assert not container.streams.subtitles[0].disposition
    if is_default:  # Matroska's FlagDefault (0x88) of the last track
        content = clip.read_bytes()
        at = content.rindex(b"\x88\x81\x00", 0, content.index(b"Hello"))
        clip.write_bytes(content[: at + 2] + b"\x01" + content[at + 3 :])
    if source == "in.mp4":
        rewrite(clip, tmp_path / source)
        clip = tmp_path / source
    rewrite(clip, tmp_path / target)
    for path in (clip, tmp_path / target):
        with av.open(str(path)) as container:
            assert bool(container.streams.subtitles[0].disposition & Disposition.default) is is_default
            assert container.streams.video[0].disposition & Disposition.default or path.suffix != ".mp4"
    assert len(shown_text(tmp_path / target)) == 2


@pytest.mark.parametrize("target", ["out.mp4", "out.webm"])
def test_ass_without_a_header_is_encoded_anew(tmp_path: Path, target: str) -> None:
    clip = write_subtitled(tmp_path / "in.mkv", "ass")
    content = clip.read_bytes()
    header = content.index(b"[Script Info]")
    size = content[header - 2 : header]  # after Matroska's CodecPrivate (0x63A2), which a Void replaces
    assert content[header - 4 : header - 2] == b"\x63\xa2"
    void = b"\xec" + (int.from_bytes(size, "big") & 0x3FFF | 1 << 21).to_bytes(3, "big")
    clip.write_bytes(content[: header - 4] + void + content[header:])
    writer = rewrite(clip, tmp_path / target)
    assert writer.report.streams[-1].action == "re-encoded"
    text = shown_text(tmp_path / target)
    assert [moment for moment, _ in text] == [Fraction(1, 10), Fraction(11, 10)]
    assert "Grüße".encode() in text[1][1]


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


@pytest.mark.parametrize("target", ["out.mp4", "out.mkv", "out.mov"])
def test_text_and_chapters_that_precede_picture_and_sound(tmp_path: Path, target: str) -> None:
    clip = write_subtitled(tmp_path / "in.mkv", "srt", begin_seconds=3)
    rewrite(clip, tmp_path / target)
    with av.open(str(tmp_path / target)) as container:
        chapters = [
            (c["metadata"]["title"], c["start"] * c["time_base"], c["end"] * c["time_base"])
            for c in container.chapters()
        ]
        lines = [
            (p.pts * p.time_base, p.duration * p.time_base)
            for p in container.demux(subtitles=0)
            if p.size > 2
        ]
    (line,) = shown_text(tmp_path / target)
    assert "Grüße".encode() in line[1]
    # Sound begins 6.5 ms before the three seconds, with its decoder's priming.
    assert chapters == [("Two", 0, pytest.approx(2, abs=0.01))]
    assert lines == [(0, pytest.approx(1.9, abs=0.01))]


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
