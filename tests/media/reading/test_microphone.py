"""Microphones: read ahead, lost and found, and an error where there is none."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from vitascope.errors import InputError
from vitascope.media.reading import microphone
from vitascope.media.reading.microphone import Microphone, is_microphone, open_microphone


class Given:
    """Gives some blocks, then nothing more."""

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
    assert not any(thread.name == "vitascope-microphone" for thread in threading.enumerate())


def test_a_device_that_is_not_there(monkeypatch):
    with pytest.raises(
        InputError, match=r"^mic:nowhere-at-all: (no microphone can be opened|this build of PyAV)"
    ) as raised:
        open_microphone("mic:nowhere-at-all", sample_rate=16_000)
    assert "\n" not in str(raised.value)
    monkeypatch.setattr(microphone, "_FORMATS", {})
    monkeypatch.setattr(microphone.av, "formats_available", frozenset())
    with pytest.raises(InputError, match="this build of PyAV cannot read microphones"):
        open_microphone("mic", sample_rate=16_000)


def test_what_ffmpeg_reads_comes_as_one_channel(tmp_path, monkeypatch):
    """A sound file stands in for the device: the same demuxing, resampling and bringing together."""
    from voices import talk, write_sound

    voice = talk(seconds=1)
    path = write_sound(tmp_path / "stereo.wav", [voice, voice])
    monkeypatch.setattr(microphone, "_FORMATS", {microphone.sys.platform: "wav"})
    capture = open_microphone(f"mic:{path}", sample_rate=16_000)
    blocks = []
    while (block := capture.read()) is not None:
        blocks.append(block)
    capture.close()
    sound = np.concatenate(blocks)
    assert np.corrcoef(sound[: len(voice)], voice[: len(sound)])[0, 1] > 0.99
