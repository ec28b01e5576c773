"""Tests of a voice in real time: the mouth's delay, dropped pictures, and a lost microphone."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import pytest

from vitascope.animation.face import BLENDSHAPE_INDEX
from vitascope.animation.live.sources import PacedSound, VoiceSource, open_voice
from vitascope.animation.speech.voice import LAG_SECONDS
from vitascope.errors import InputError
from vitascope.media.reading.microphone import SoundBlock
from vitascope.media.reading.sound import SoundReader
from voices import RATE, silence, talk, write_sound

BLOCK = 320
FRAME_RATE = 30


class Scripted:
    """A microphone with its own clock, which ``take`` advances by one block."""

    def __init__(self, samples, *, gone=(), stall=1):
        self.now = 100.0
        self._parts = deque(np.array_split(samples, len(samples) // BLOCK))
        self._gone = gone
        self._stall = stall
        self._was_lost = True
        self.heard = 0.0
        self.is_closed = False

    def __enter__(self):
        return self

    def close(self):
        self.is_closed = True

    @property
    def is_over(self):
        return not self._parts

    @property
    def is_lost(self):
        return any(start <= self.now - 100 < end for start, end in self._gone)

    def take(self, *, timeout_seconds=None):
        if not self._parts:
            return []
        taken = []
        for _ in range(self._stall):
            self.now += BLOCK / RATE
            if not self._parts:
                break
            part = self._parts.popleft()
            if self.is_lost:
                self._was_lost = True
                continue
            taken.append(SoundBlock(part, self.now, self._was_lost))
            self._was_lost = False
        return taken


def shown(microphone):
    source = VoiceSource(microphone, frame_rate=FRAME_RATE, clock=lambda: microphone.now)
    with source:
        pictures = []
        while not source.is_over:
            if (picture := source.take(timeout_seconds=0.05)) is not None:
                motion = source.update(None, pts_seconds=picture.captured_seconds)
                pictures.append((microphone.now, picture, motion))
    assert microphone.is_closed
    return pictures


def test_a_mouth_is_less_than_150_ms_behind():
    pictures = shown(Scripted(talk(seconds=4)))
    delays = [now - picture.captured_seconds for now, picture, _ in pictures[5:]]
    assert np.percentile(delays, 95) < 0.150
    assert np.median(delays) > LAG_SECONDS
    numbers = [picture.index for _, picture, _ in pictures]
    assert numbers[:-1] == list(range(len(numbers) - 1)) and len(numbers) == pytest.approx(119, abs=3)
    jaws = [motion.blendshapes[BLENDSHAPE_INDEX["jawOpen"]] for _, _, motion in pictures]
    assert max(jaws) > 0.08
    moments = [motion.pts_seconds for _, _, motion in pictures]
    assert moments == sorted(moments)


def test_what_comes_in_bursts_falls_out_and_does_not_add_up():
    pictures = shown(Scripted(talk(seconds=4), stall=20))  # nothing for 0.4 seconds, then everything at once
    numbers = [picture.index for _, picture, _ in pictures]
    assert len(numbers) < 20 and numbers == sorted(numbers)
    delays = [now - picture.captured_seconds for now, picture, _ in pictures]
    assert max(delays[1:]) < 0.6
    assert delays[-2] < delays[1] + 0.05


def test_a_microphone_that_is_gone_leaves_a_face_that_lives():
    pictures = shown(Scripted(talk(seconds=6), gone=[(2.0, 4.0)]))
    away = [motion for now, _, motion in pictures if 102.5 < now < 103.9]
    back = [motion for now, _, motion in pictures if now > 104.5]
    assert len(away) > 20 and len(back) > 20
    assert max(motion.blendshapes[BLENDSHAPE_INDEX["jawOpen"]] for motion in away) < 0.02
    assert max(motion.blendshapes[BLENDSHAPE_INDEX["jawOpen"]] for motion in back) > 0.05
    delays = [now - picture.captured_seconds for now, picture, _ in pictures if now > 104.5]
    assert np.percentile(delays, 95) < 0.150


def test_a_file_comes_at_its_own_pace(tmp_path):
    path = write_sound(tmp_path / "talk.wav", [talk(seconds=1)])
    waits = []
    with SoundReader(path, sample_rate=RATE) as reader:
        paced = PacedSound(reader, clock=lambda: sum(waits), wait=waits.append)
        blocks = []
        while (block := paced.read()) is not None:
            blocks.append(block)
    assert sum(map(len, blocks)) == RATE
    assert sum(waits) == pytest.approx(1.0, abs=0.001)
    assert max(waits) < 0.02


def test_a_voice_is_opened_and_ends(tmp_path):
    path = write_sound(tmp_path / "talk.wav", [talk(seconds=0.6)])
    with open_voice(str(path), frame_rate=FRAME_RATE) as source:
        began, count = time.monotonic(), 0
        while not source.is_over and time.monotonic() - began < 20:
            count += source.take(timeout_seconds=0.2) is not None
        assert source.is_over and count > 3
        assert not source.set_neutral() and not source.find_neutral()


def test_nothing_to_hear_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot open it: no such file"):
        open_voice(str(tmp_path / "none.wav"), frame_rate=FRAME_RATE)
    path = write_sound(tmp_path / "short.wav", [silence(0.1)])
    with open_voice(str(path), frame_rate=FRAME_RATE, start_seconds=5) as source:
        while not source.is_over:
            assert source.take(timeout_seconds=0.2) is None
