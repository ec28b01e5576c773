"""Check that a decoder that hangs is abandoned, and that nothing else changes through its thread."""

from __future__ import annotations

import threading

import pytest

from clips import write_clip
from vitascope.errors import CorruptInputError
from vitascope.media.reading import container
from vitascope.media.reading.container import DecoderHangsError, PatientDecoder
from vitascope.media.reading.reader import open_video
from waiting import eventually


class Stream:
    """Returns its packet, raises it if it is an error, and waits for it if it is an event."""

    def decode(self, packet):
        if isinstance(packet, BaseException):
            raise packet
        if isinstance(packet, threading.Event):
            packet.wait()
        return [packet]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "patient-decoder"]


def test_answers_and_errors_come_in_order():
    before = set(threads())
    decoder = PatientDecoder(Stream())
    assert [decoder.decode(n) for n in (1, 2)] == [[1], [2]]
    with pytest.raises(KeyError, match="lost"):
        decoder.decode(KeyError("lost"))
    assert decoder.decode(None) == [None]
    assert decoder.end()
    assert set(threads()) <= before


def test_one_that_is_forgotten_ends():
    decoder = PatientDecoder(Stream())
    thread = decoder._thread
    del decoder
    thread.join(10)
    assert not thread.is_alive()


def test_what_hangs_is_left_behind(monkeypatch):
    monkeypatch.setattr(container, "_PATIENCE_SECONDS", 1)
    monkeypatch.setattr(container, "_LAST_SECONDS", 0.05)
    for_ever = threading.Event()
    decoder = PatientDecoder(Stream())
    with pytest.raises(DecoderHangsError):
        decoder.decode(for_ever)
    assert not decoder.end()
    for_ever.set()
    eventually(decoder.end)  # this waits a twentieth of a second


@pytest.fixture
def clip(tmp_path):
    options = {"x265-params": "log-level=none:keyint=6"}
    return write_clip(tmp_path / "in.mp4", codec="libx265", frame_count=12, codec_options=options)


@pytest.mark.parametrize("which", [0, 5])
def test_a_video_whose_decoder_hangs_is_damaged(clip, monkeypatch, which):
    decode, count = PatientDecoder.decode, iter(range(100))

    def hanging(self, packet):
        if next(count) == which:
            raise DecoderHangsError
        return decode(self, packet)

    monkeypatch.setattr(PatientDecoder, "decode", hanging)
    with pytest.raises(CorruptInputError, match=r"its decoder hangs.*threads=1"), open_video(clip) as reader:
        list(reader)


def test_its_thread_ends_with_the_reader(clip):
    before = set(threads())  # threads of other tests, which may end meanwhile
    with open_video(clip) as reader:
        next(reader)
        assert len(set(threads()) - before) == 1
        reader.play(None, None)
        assert len(list(reader)) == 12
    assert set(threads()) <= before
    with open_video(clip, threads=1) as reader:
        assert set(threads()) <= before
        assert len(list(reader)) == 12
