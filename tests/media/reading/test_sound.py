"""Tests of reading any file's sound as one channel at one rate."""

from __future__ import annotations

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.errors import CorruptInputError, InputError
from vitascope.media.reading.sound import OneChannel, SoundReader, is_sound_file
from voices import RATE, silence, talk, vowel, write_sound


def heard(path, **part):
    with SoundReader(path, sample_rate=RATE, **part) as reader:
        blocks = list(reader)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def alike(one, other):
    count = min(len(one), len(other))
    return float(np.corrcoef(one[:count], other[:count])[0, 1])


@pytest.mark.parametrize(
    ("suffix", "codec", "rate"),
    [
        ("wav", "pcm_s16le", 8000),
        ("flac", "flac", 44100),
        ("mp3", "libmp3lame", 44100),
        ("ogg", "libopus", 48000),
        ("m4a", "aac", 48000),
    ],
)
def test_any_file_comes_at_one_rate(tmp_path, suffix, codec, rate):
    samples = np.sin(2 * np.pi * 300 * np.arange(2 * rate) / rate).astype(np.float32) * 0.4
    path = write_sound(tmp_path / f"tone.{suffix}", [samples], codec=codec, rate=rate)
    sound = heard(path)
    assert len(sound) / RATE == pytest.approx(2, abs=0.06)
    spectrum = np.abs(np.fft.rfft(sound[RATE // 2 : RATE // 2 + RATE]))
    assert spectrum.argmax() == pytest.approx(300, abs=1)
    assert np.std(sound[4000:-4000]) == pytest.approx(0.4 / np.sqrt(2), rel=0.1)


def test_a_stretch_is_the_same_samples(tmp_path):
    path = write_sound(tmp_path / "talk.flac", [talk()], codec="flac")
    whole = heard(path)
    part = heard(path, start_seconds=1.0, end_seconds=2.5)
    np.testing.assert_array_equal(part, whole[RATE : round(2.5 * RATE)])
    with SoundReader(path, sample_rate=RATE, start_seconds=1.0, end_seconds=2.5) as reader:
        assert reader.duration_seconds == pytest.approx(1.5)


@pytest.mark.parametrize("sides", ["left", "right", "both", "opposite"])
def test_a_voice_on_any_side_comes_out_whole(sides):
    voice, quiet = talk(), 0.001 * np.random.default_rng(0).normal(size=4 * RATE).astype(np.float32)
    channels = {
        "left": (voice, quiet),
        "right": (quiet, voice),
        "both": (voice, voice),
        "opposite": (voice, -voice),
    }[sides]
    one = OneChannel()
    blocks = [
        one(np.stack(part)) for part in zip(*(np.array_split(side, 100) for side in channels), strict=True)
    ]
    sound = np.concatenate(blocks)
    assert abs(alike(sound[RATE:], voice[RATE:])) > 0.99
    assert np.std(sound[RATE:]) > 0.9 * np.std(voice[RATE:])


def test_silence_in_stereo_stays_silence():
    assert not OneChannel()(np.zeros((2, 800), np.float32)).any()


def test_six_channels(tmp_path):
    voice = talk(seconds=2)
    path = write_sound(
        tmp_path / "film.flac",
        [silence(2), silence(2), voice, silence(2), silence(2), silence(2)],
        codec="flac",
    )
    assert alike(heard(path), voice) > 0.99


def test_a_gap_is_silence(tmp_path):
    path = tmp_path / "gap.mka"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="mono")
        for begin in (0, 3 * RATE):
            pcm = (vowel("a", seconds=1.0) * 32767).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = RATE, begin
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    sound = heard(path)
    assert len(sound) == pytest.approx(4 * RATE, abs=RATE // 50)
    assert not sound[round(1.1 * RATE) : round(2.9 * RATE)].any()
    assert np.std(sound[round(3.1 * RATE) :]) > 0.02


@pytest.mark.parametrize(
    ("suffix", "codec"), [("wav", "pcm_s16le"), ("aiff", "pcm_s16be"), ("flac", "flac"), ("m4a", "aac")]
)
def test_sound_that_was_cut_off_is_noticed(tmp_path, suffix, codec):
    whole = write_sound(tmp_path / f"whole.{suffix}", [talk()], codec=codec)
    content = whole.read_bytes()
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(content[: len(content) // 2])
    for path, start, end, missing in (
        (whole, None, None, 0.0),
        (cut, None, None, 2.0),
        (cut, 1.0, None, 2.0),
        (cut, None, 3.0, 1.0),
        (cut, None, 1.0, 0.0),
    ):
        if suffix == "m4a" and path == cut:  # its table is at the end, so nothing is readable
            continue
        with SoundReader(path, sample_rate=RATE, start_seconds=start, end_seconds=end) as reader:
            assert reader.missing_seconds == 0.0
            for _ in reader:
                pass
            assert reader.missing_seconds == pytest.approx(missing, abs=0.5)


def write_paused_sound(path):
    """Write two seconds of sound, a pause of 88 seconds, and two seconds; the index is at the beginning."""
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("aac", rate=RATE, layout="mono")
        for begin in (0, 90 * RATE):
            for at in range(0, 2 * RATE, 1024):
                frame = av.AudioFrame.from_ndarray(
                    talk()[None, at : at + 1024].astype(np.float32), format="fltp", layout="mono"
                )
                frame.sample_rate, frame.pts = RATE, begin + at
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def test_a_jump_in_time_is_no_missing_sound(tmp_path):
    """Check that a damaged time or a paused recording, which lengthens a file, does not count as missing sound."""
    path = write_paused_sound(tmp_path / "a.m4a")
    with SoundReader(path, sample_rate=RATE) as reader:
        assert reader.duration_seconds == pytest.approx(92, abs=1)
        assert sum(map(len, reader)) / RATE == pytest.approx(4, abs=0.3)
        assert reader.missing_seconds == 0.0


def test_sound_that_was_cut_off_behind_a_jump_in_time_is_noticed(tmp_path):
    content = write_paused_sound(tmp_path / "whole.m4a").read_bytes()
    begin = content.index(b"mdat")
    cut = tmp_path / "cut.m4a"
    cut.write_bytes(content[: begin + (len(content) - begin) * 6 // 11])
    with SoundReader(cut, sample_rate=RATE) as reader:
        seconds = sum(map(len, reader)) / RATE
        assert 2.1 < seconds < 2.6
        assert reader.missing_seconds == pytest.approx(4 - seconds, abs=0.2)


def test_a_voice_on_one_of_eight_channels_is_heard(tmp_path):
    path = tmp_path / "a.wav"
    samples = np.zeros((2 * RATE, 8), np.int16)
    samples[:, 2] = talk()[: 2 * RATE] * 20_000
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=RATE, layout="7.1")
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="7.1")
        frame.sample_rate = RATE
        container.mux([*stream.encode(frame), *stream.encode(None)])
    sound = heard(path)
    assert len(sound) == pytest.approx(2 * RATE, abs=RATE // 50)
    assert np.std(sound) > 0.02


@pytest.mark.parametrize("size", [0, 0x7FFFF000, 0xFFFFFFFF])
def test_a_wav_file_that_came_through_a_pipe_promises_nothing(tmp_path, size):
    path = write_sound(tmp_path / "a.wav", [talk(seconds=1)])
    content = bytearray(path.read_bytes())
    at = content.index(b"data") + 4
    content[at : at + 4] = size.to_bytes(4, "little")
    path.write_bytes(content)
    with SoundReader(path, sample_rate=RATE) as reader:
        assert sum(map(len, reader)) / RATE == pytest.approx(1.0, abs=0.1)
        assert reader.missing_seconds == 0.0


def test_what_is_a_sound_file(tmp_path):
    assert is_sound_file(write_sound(tmp_path / "a.wav", [talk(seconds=1)]))
    assert not is_sound_file(write_clip(tmp_path / "b.mp4", audio="aac"))
    assert not is_sound_file(tmp_path)
    with pytest.raises(InputError, match="empty"):
        (tmp_path / "c.wav").write_bytes(b"")
        is_sound_file(tmp_path / "c.wav")


def test_a_video_without_sound_says_so(tmp_path):
    path = write_clip(tmp_path / "mute.mp4")
    with pytest.raises(InputError, match=r"mute\.mp4: it has no sound"):
        SoundReader(path, sample_rate=RATE)


def test_a_file_that_is_cut_off_gives_what_there_is(tmp_path):
    path = write_sound(tmp_path / "talk.flac", [talk()], codec="flac")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert 0.5 * RATE < len(heard(path)) < 3.5 * RATE


def test_sound_that_cannot_be_decoded_is_an_error(tmp_path):
    path = write_sound(tmp_path / "talk.m4a", [talk()], codec="aac")
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(audio=0) if packet.size]
    data = path.read_bytes()
    for packet in packets:
        data = data.replace(packet, b"\xff" * len(packet))
    path.write_bytes(data)
    with pytest.raises(CorruptInputError, match="none of it could be decoded"):
        heard(path)
