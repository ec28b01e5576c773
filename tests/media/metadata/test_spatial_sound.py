"""Check that copied ambisonic sound stays ambisonic."""

from __future__ import annotations

import struct
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest

from vitascope.media.metadata.mp4_boxes import Box, full_box, read_moov, rewrite_moov, sample_entry
from vitascope.media.metadata.spherical import read_spatial_sound, write_spatial_sound
from vitascope.media.reading.reader import open_video, probe
from vitascope.media.writing.encoder_setup import PictureSetup
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.stream_copy import CarriedStream
from vitascope.media.writing.writer import ContainerMetadata, VideoWriter

# Google's Spatial Audio RFC: version, type, order, channel ordering, normalisation, channels, channel map.
SA3D = full_box(b"SA3D", b"").to_bytes()[:8].replace(
    struct.pack(">I", 12), struct.pack(">I", 36)
) + struct.pack(">BBIBBI4I", 0, 0, 1, 0, 0, 4, 0, 1, 2, 3)


def sounding(path, layouts=("quad",), codec="aac"):
    """Write a short video with a sound track for each layout."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=24, width=64, height=32, pix_fmt="yuv420p")
        sounds = [container.add_stream(codec, rate=48000, layout=layout) for layout in layouts]
        for number in range(12):
            picture = av.VideoFrame.from_ndarray(np.full((32, 64, 3), number * 9, np.uint8), format="rgb24")
            picture.pts, picture.time_base = number, Fraction(1, 24)
            container.mux(video.encode(picture))
        for begin in range(0, 24000, 1024):
            for sound in sounds:
                count = sound.codec_context.layout.nb_channels
                noise = np.random.default_rng(begin).normal(0, 0.1, (count, 1024)).astype(np.float32)
                tone = av.AudioFrame.from_ndarray(
                    noise, format="fltp", layout=sound.codec_context.layout.name
                )
                tone.sample_rate, tone.pts, tone.time_base = 48000, begin, Fraction(1, 48000)
                container.mux(sound.encode(tone))
        for stream in (video, *sounds):
            container.mux(stream.encode(None))
    return path


def copied(source, path):
    with open_video(source) as reader:
        with VideoWriter(
            path,
            info=reader.info,
            encoding=choose_encoding(path, source_format=reader.info.format),
            copy_from=source,
        ) as writer:
            for frame in reader:
                writer.write(frame)
        return writer.report


def packets(path, track):
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(audio=track)]


@pytest.mark.parametrize("suffixes", [(".mp4", ".mov"), (".mov", ".mp4"), (".mp4", ".mp4")])
def test_it_goes_with_its_track(tmp_path, suffixes):
    source = sounding(tmp_path / f"a{suffixes[0]}", ("stereo", "quad"))
    assert read_spatial_sound(source) == [b"", b""]
    write_spatial_sound(source, [b"", SA3D])
    assert read_spatial_sound(source) == [b"", SA3D]
    out = tmp_path / f"b{suffixes[1]}"
    assert copied(source, out).notes == ()
    assert read_spatial_sound(out) == [b"", SA3D]
    for track in (0, 1):
        assert packets(out, track) == packets(source, track)
    with av.open(str(out)) as container:
        assert sum(frame.samples for frame in container.decode(audio=1)) >= 24000


@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_uncompressed_sound_does_not_cost_the_film(tmp_path, suffix):
    source = sounding(tmp_path / "a.mov", codec="pcm_s16be")
    write_spatial_sound(source, [SA3D])
    with av.open(str(source)) as container:  # FFmpeg knows this box
        assert container.streams.audio[0].codec_context.layout.name == "ambisonic 1"
    report = copied(source, tmp_path / f"b{suffix}")
    assert [stream.action for stream in report.streams] == ["copied"]
    assert read_spatial_sound(report.path) == [SA3D]
    assert packets(report.path, 0) == packets(source, 0)
    with av.open(str(report.path)) as container:
        assert container.streams.audio[0].codec_context.layout.name == "ambisonic 1"


def test_sound_that_is_encoded_anew_is_not_ambisonic(tmp_path):
    source = sounding(tmp_path / "a.mov", codec="pcm_s16le")
    write_spatial_sound(source, [SA3D])
    moved = ContainerMetadata(
        probe(source),
        PictureSetup(probe(source), choose_encoding(tmp_path / "b.mp4", source_format=probe(source).format)),
        copy_from=source,
        spherical=None,
        hdr=None,
    )
    out = sounding(tmp_path / "b.mp4")
    stream = CarriedStream(1, "audio", "pcm_s16le", "re-encoded", "aac")
    moved.patch(out, [stream])
    assert read_spatial_sound(out) == [b""]
    moved.patch(out, [replace(stream, action="copied")])
    assert read_spatial_sound(out) == [SA3D]


def test_matroska_has_no_word_for_it_and_says_so(tmp_path):
    source = sounding(tmp_path / "a.mp4")
    assert copied(source, tmp_path / "plain.mkv").notes == ()
    write_spatial_sound(source, [SA3D])
    assert copied(source, tmp_path / "b.mkv").notes == (
        "matroska cannot store the orientation of ambisonic sound; .mp4 and .mov can",
    )
    assert read_spatial_sound(tmp_path / "b.mkv") == []


def test_entries_that_end_early_have_none(tmp_path):
    source = sounding(tmp_path / "a.mp4")

    def cut(moov: Box) -> None:
        for track in moov.children:
            entry = sample_entry(track) if track.kind == b"trak" else None
            if entry is not None and entry.kind == b"mp4a":
                entry.head, entry.children, entry.tail = entry.head[:20], [], b""

    rewrite_moov(source, cut)
    assert read_moov(source) is not None
    assert read_spatial_sound(source) == [b""]
