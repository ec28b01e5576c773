"""Tests of microphones: reading ahead, losing and finding one, and the error if there is none."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from left_threads import left_threads
from vitascope.errors import InputError, MissingDependencyError
from vitascope.media.reading.microphone import Microphone, is_microphone, open_microphone


class Given:
    """Returns some blocks, then nothing more."""

    def __init__(self, *values):
        self._blocks = [np.full(160, value, np.float32) for value in values]
        self.is_closed = False

    def read(self):
        return self._blocks.pop(0) if self._blocks else None

    def close(self):
        self.is_closed = True


def taken(source, count):
    values = []
    while len(values) < count and not source.is_over:
        values += [float(block.samples[0]) for block in source.take(timeout_seconds=1)]
    return values


def test_names():
    assert is_microphone("mic") and is_microphone("mic:hw:1")
    assert not is_microphone("mice.wav") and not is_microphone("0")


def test_blocks_come_in_order_and_end():
    capture = Given(1, 2, 3)
    with Microphone(lambda: capture, ends=True) as source:
        assert taken(source, 3) == [1, 2, 3]
        assert source.take(timeout_seconds=5) == []
        assert source.is_over
    assert capture.is_closed


def test_one_that_was_unplugged_comes_back():
    captures = [Given(1), None, Given(2)]
    told = []

    def open_one():
        capture = captures.pop(0) if captures else Given()
        if capture is None:
            raise InputError("not there")
        return capture

    with Microphone(open_one, on_lost=told.append, retry_seconds=0.01) as source:
        assert taken(source, 2) == [1, 2]
    assert told[:2] == [True, False]


def test_one_that_cannot_be_opened_is_an_error():
    def open_one():
        raise InputError("mic: no microphone can be opened")

    with pytest.raises(InputError, match="no microphone"), Microphone(open_one):
        pass
    assert not left_threads("vitascope-microphone")


class Stream:
    """Simulates PortAudio's stream: a stereo voice at 48 kHz on the left, then an unplugged cable."""

    def __init__(self, sounddevice, samples):
        self._sounddevice, self._samples, self._at = sounddevice, samples, 0
        self.is_closed = False

    def start(self):
        pass

    def read(self, count):
        part = self._samples[self._at : self._at + count]
        if len(part) < count:
            raise self._sounddevice.PortAudioError("gone")
        self._at += count
        return part, False

    def close(self):
        self.is_closed = True


@pytest.fixture
def sounddevice(monkeypatch):
    """Replace the package with the names that are used, and record the calls."""
    made = SimpleNamespace(PortAudioError=type("PortAudioError", (Exception,), {}), asked=[])
    monkeypatch.setitem(sys.modules, "sounddevice", made)
    return made


def test_any_rate_and_any_side_comes_as_one_channel(sounddevice):
    seconds = np.arange(48_000) / 48_000
    voice = 0.3 * np.sin(2 * np.pi * 440 * seconds)
    stereo = np.stack((voice, np.zeros_like(voice)), axis=1).astype(np.float32)
    stereo[100] = np.nan
    stream = Stream(sounddevice, stereo)

    def query_devices(device, kind):
        sounddevice.asked.append((device, kind))
        return {"default_samplerate": 48_000.0, "max_input_channels": 8}

    sounddevice.query_devices = query_devices
    sounddevice.InputStream = lambda **options: sounddevice.asked.append(options) or stream
    capture = open_microphone("mic:3", sample_rate=16_000)
    assert sounddevice.asked[0] == (3, "input")
    assert sounddevice.asked[1]["samplerate"] == 48_000 and sounddevice.asked[1]["channels"] == 2
    blocks = []
    while (block := capture.read()) is not None:
        blocks.append(block)
    capture.close()
    sound = np.concatenate(blocks)
    assert stream.is_closed and len(sound) == pytest.approx(16_000, abs=400)
    assert np.std(sound[2000:-500]) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)
    assert np.isfinite(sound).all()


def test_a_device_that_is_not_there(sounddevice):
    def query_devices(device, kind):
        raise ValueError(f"No {kind} device matching {device!r}")

    sounddevice.query_devices = query_devices
    with pytest.raises(
        InputError, match=r"^mic:desk: no microphone can be opened \(No input device matching 'desk'\)"
    ):
        open_microphone("mic:desk", sample_rate=16_000)


def test_without_sounddevice_or_portaudio(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitascope\[voice\]'"):
        open_microphone("mic", sample_rate=16_000)
    monkeypatch.delitem(sys.modules, "sounddevice")
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingDependencyError, match="apt install libportaudio2"):
        open_microphone("mic", sample_rate=16_000)
