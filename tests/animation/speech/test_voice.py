"""Check that a voice moves a face: mouths open with vowels, lips meet, and other sounds move little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX
from vitascope.animation.speech.hearing import SAMPLE_RATE
from vitascope.animation.speech.visemes import Sound, Viseme, shapes_of
from vitascope.animation.speech.voice import LAG_SECONDS, Voice, level_of
from vitascope.media.reading.sound import SoundReader
from voices import RATE, silence, talk, vowel

FRAME_RATE = 30
VOICE = Path(__file__).parents[3] / "examples" / "voice.ogg"
PHRASE_SECONDS = (0.55, 2.2)
"""\"My name is Pam\", in ``voice.ogg``."""


def moved(samples, *, block=1600, **options):
    """Return the motions of sound that comes in blocks."""
    voice = Voice(frame_rate=FRAME_RATE, level_db=level_of(samples), **options)
    motions = []
    for at in range(0, len(samples), block):
        voice.listen(samples[at : at + block])
        while len(motions) / FRAME_RATE < voice.known_seconds:
            motions.append(voice.motion_at(len(motions) / FRAME_RATE))
    voice.finish()
    while len(motions) < len(samples) / RATE * FRAME_RATE:
        motions.append(voice.motion_at(len(motions) / FRAME_RATE))
    return motions, voice


def weight(motions, name, start=0.0, end=1e9):
    index = BLENDSHAPE_INDEX[name]
    return np.array([m.blendshapes[index] for m in motions if start <= m.pts_seconds < end])


@pytest.fixture(scope="module")
def lip_gap(mesh):
    """Return the gap of the lips for each motion, in centimetres."""
    basis = ExpressionBasis(mesh)

    def gap(motions):
        moved_by = np.stack([basis.displacement(motion.blendshapes) for motion in motions])
        return np.maximum(moved_by[:, 13, 1] - moved_by[:, 14, 1], 0)

    return gap


@pytest.fixture(scope="module")
def voice_samples():
    with SoundReader(VOICE, sample_rate=SAMPLE_RATE) as reader:
        return np.concatenate(list(reader))


def test_vowels_open_the_mouth_and_pauses_close_it(lip_gap):
    parts = [silence(0.5), vowel("a", seconds=0.2), silence(0.6), vowel("u", seconds=0.2), silence(0.6)]
    motions, _ = moved(np.concatenate(parts))
    gaps = lip_gap(motions)

    def widest(start, end):
        return gaps[round(start * FRAME_RATE) : round(end * FRAME_RATE)].max()

    assert widest(0.5, 0.75) > 0.25 > 0.05 > widest(0.0, 0.3)
    assert widest(0.5, 0.75) > 1.5 * widest(1.3, 1.5)
    assert max(widest(0.95, 1.1), widest(1.8, 2.0)) < 0.1
    for pause in ((0.0, 0.3), (1.0, 1.15), (1.85, 2.0)):  # also for a portrait with parted lips
        assert weight(motions, "mouthClose", *pause).min() > 0.15
        assert weight(motions, "mouthPressLeft", *pause).max() < 0.02  # resting, not pressed for a p
    assert weight(motions, "mouthClose", 0.55, 0.65).max() < 0.02
    pucker = [weight(motions, "mouthPucker", start, start + 0.2).max() for start in (0.5, 1.3)]
    assert pucker[1] > pucker[0] + 0.1


def test_lips_meet_in_a_sentence(voice_samples, lip_gap):
    motions, _ = moved(voice_samples)
    gaps = lip_gap(motions)
    spoken = gaps[round(PHRASE_SECONDS[0] * FRAME_RATE) : round(8.5 * FRAME_RATE)]
    closings = int(((spoken[1:] < 0.06) & (spoken[:-1] >= 0.06)).sum())
    assert 12 <= closings <= 30  # for eighteen p, b and m, some adjacent, and pauses
    assert spoken.max() > 0.5
    assert (spoken < 0.06).mean() < 0.6


def test_sounds_that_are_known_are_shown_to_the_frame(lip_gap):
    sounds = [
        Sound(Viseme.OPEN, 0.3, 0.5), Sound(Viseme.LIPS, 0.5, 0.58), Sound(Viseme.OPEN, 0.58, 0.8),
        Sound(Viseme.LIPS, 0.8, 0.83), Sound(Viseme.WIDE, 0.83, 1.0),
    ]  # fmt: skip
    said = np.concatenate((silence(0.3), vowel("a", seconds=0.7), silence(0.4)))
    motions, _ = moved(said, shapes=shapes_of(sounds, seconds=1.6))
    gaps = lip_gap(motions)
    moments = np.arange(len(gaps)) / FRAME_RATE
    for start, end in ((0.5, 0.58), (0.8, 0.83)):
        near = (moments >= start - 0.5 / FRAME_RATE) & (moments <= end + 0.5 / FRAME_RATE)
        assert near.any() and (gaps[near] < 0.02).all()
    assert gaps[round(0.4 * FRAME_RATE)] > 0.5 and gaps[round(0.7 * FRAME_RATE)] > 0.5


@pytest.mark.parametrize("block", [160, 1000, 7777])
def test_the_same_however_the_sound_comes(voice_samples, block):
    part = voice_samples[: 3 * RATE]
    whole, _ = moved(part, block=len(part))
    motions, _ = moved(part, block=block)
    assert len(motions) == len(whole) == 90
    for one, other in zip(motions, whole, strict=True):
        np.testing.assert_allclose(one.blendshapes, other.blendshapes, atol=1e-3)
        np.testing.assert_allclose(one.rotation, other.rotation, atol=1e-3)


def test_a_mouth_is_known_soon(voice_samples):
    voice = Voice(frame_rate=FRAME_RATE)
    for at in range(0, 2 * RATE, 320):
        voice.listen(voice_samples[at : at + 320])
        heard = (at + 320) / RATE
        assert voice.known_seconds > heard - LAG_SECONDS - 0.5 / FRAME_RATE - 0.035 or heard < 0.3
    assert LAG_SECONDS < 0.1


def test_a_long_voice_does_not_grow():
    voice = Voice(frame_rate=FRAME_RATE)
    part, index = talk(seconds=5), 0
    for _ in range(8):
        voice.listen(part)
        while index / FRAME_RATE < voice.known_seconds:
            voice.motion_at(index / FRAME_RATE)
            index += 1
    assert len(voice._shapes) < 1000 and voice.row_count == pytest.approx(4000, abs=5)


@pytest.mark.parametrize("kind", ["silence", "noise", "tone", "chord"])
def test_what_is_no_speech_moves_little(kind, lip_gap):
    moments = np.arange(6 * RATE) / RATE
    chord = sum(np.sin(2 * np.pi * hertz * moments) for hertz in (220, 277, 330, 440)) * np.exp(
        -(moments % 0.5) * 4
    )
    samples = {
        "silence": 0 * moments,
        "noise": 0.02 * np.random.default_rng(1).normal(size=len(moments)),
        "tone": 0.3 * np.sin(2 * np.pi * 330 * moments),
        "chord": 0.15 * chord,
    }[kind].astype(np.float32)
    motions, voice = moved(samples)
    assert lip_gap(motions).mean() < 0.1
    assert (
        len({tuple(np.round(motion.rotation.ravel(), 6)) for motion in motions}) > 100
    )  # it moves nevertheless
    if kind == "silence":
        assert voice.audible_count == 0


@pytest.mark.parametrize("way", ["telephone", "softly", "loudly", "in noise"])
def test_speech_as_it_reaches_people(way, voice_samples, lip_gap):
    samples = voice_samples
    if way == "telephone":
        spectrum, hertz = np.fft.rfft(samples), np.fft.rfftfreq(len(samples), 1 / RATE)
        samples = np.fft.irfft(spectrum * ((hertz > 300) & (hertz < 3400)), len(samples)).astype(np.float32)
    elif way == "softly":
        samples = samples * np.float32(0.05)
    elif way == "loudly":
        samples = np.clip(samples * 4, -1, 1)
    else:
        noise = np.random.default_rng(2).normal(size=len(samples)) * np.std(samples) * 0.1
        samples = (samples + noise).astype(np.float32)
    clean, changed = (lip_gap(moved(sound)[0]) for sound in (voice_samples, samples))
    assert np.corrcoef(clean, changed)[0, 1] > 0.6
    assert 0.5 < changed.mean() / clean.mean() < 1.7
