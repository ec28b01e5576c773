"""Tests of aligning a text with its sound."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from vitascope.animation.speech import transcript
from vitascope.animation.speech.transcript import align, read_transcript
from vitascope.animation.speech.visemes import Viseme
from vitascope.errors import InputError, MissingDependencyError, UsageError
from vitascope.media.reading.sound import SoundReader
from voices import RATE, silence

VOICE = Path(__file__).parents[3] / "examples" / "voice.ogg"
SAID = (
    "Hello! My name is Pam. I am but a picture, and before you spoke, nobody had moved me. Maybe I bring people "
    "happiness."
)


@pytest.fixture(scope="module")
def voice():
    with SoundReader(VOICE, sample_rate=RATE) as reader:
        return np.concatenate(list(reader))


@pytest.fixture
def pocketsphinx():
    return pytest.importorskip("pocketsphinx", reason="PocketSphinx is not installed")


def test_every_p_b_and_m_finds_its_place(pocketsphinx, voice):
    found = align(voice, SAID)
    assert not found.guessed
    lips = [sound for sound in found.sounds if sound.viseme is Viseme.LIPS]
    assert len(lips) == 18
    assert all(
        before.end_seconds <= after.start_seconds + 1e-6
        for before, after in zip(found.sounds, found.sounds[1:], strict=False)
    )
    assert found.sounds[0].start_seconds >= 0 and found.sounds[-1].end_seconds <= len(voice) / RATE
    # With shut lips, little is audible above 1 kHz.
    spectrum = [np.abs(np.fft.rfft(voice[at : at + 320])) for at in range(0, len(voice) - 320, 160)]
    high = np.array([row[20:].sum() for row in spectrum])
    shut = np.concatenate(
        [np.arange(round(s.start_seconds * 100) + 2, round(s.end_seconds * 100) - 2) for s in lips]
    )
    assert np.median(high[shut]) < 0.35 * np.median(high[high > 0.05 * high.max()])


def test_words_that_nobody_knows_are_spelled(pocketsphinx, voice):
    found = align(voice, SAID.replace("Pam", "Pamm"))
    assert found.guessed == ["pamm"]
    assert sum(sound.viseme is Viseme.LIPS for sound in found.sounds) >= 18


def test_other_words_than_were_said(pocketsphinx):
    with pytest.raises(InputError, match="these words were not found"):
        align(
            silence(0.2),
            "a sentence that is far longer than the fifth of a second in which it should be said",
        )


@pytest.mark.parametrize("level", [0.0, 5e-5])
def test_nobody_says_a_text_in_silence(pocketsphinx, level):
    """Check long silence, in which words used to be placed somewhere."""
    noise = np.random.default_rng(1).uniform(-level, level, 4 * RATE).astype(np.float32)
    with pytest.raises(InputError, match="not found: the sound is silent"):
        align(noise, "Hello there.")


def test_sound_that_is_too_long(pocketsphinx, monkeypatch, voice):
    monkeypatch.setattr(transcript, "MOST_SECONDS", 3.0)
    with pytest.raises(InputError, match="shorten it with --start and --end"):
        align(voice, SAID)


def test_without_pocketsphinx(monkeypatch):
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'vitascope\[voice\]'"):
        align(silence(1), "hello")


def test_a_text_or_its_file(tmp_path):
    path = tmp_path / "speech.txt"
    path.write_text("Größe, it’s me.", encoding="utf-8-sig")
    assert read_transcript(str(path)) == "Größe, it’s me."
    assert read_transcript("Hello there!") == "Hello there!"
    with pytest.raises(UsageError, match="no words"):
        read_transcript(" ... !")
    with pytest.raises(InputError, match=r"nowhere\.txt: cannot be read"):
        read_transcript(str(tmp_path / "nowhere.txt"))
    path.write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(InputError, match="not a UTF-8 text file"):
        read_transcript(str(path))


def test_words_are_taken_without_marks_and_accents():
    said = transcript._words("It’s “Größe” — 42, 'n'est-ce pas'?")
    assert said == ["it's", "grosse", "42", "n'est", "ce", "pas"]
    assert transcript._spelled("pamm") == "P AE M M"
    assert transcript._spelled("42") == "F AO R T UW"
