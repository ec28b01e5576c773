"""Tests of analysing a voice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from vitascope.animation.speech.hearing import BANDS, Hearing
from vitascope.animation.speech.visemes import ROWS_PER_SECOND
from voices import RATE, silence, talk, vowel


@given(some.lists(some.integers(0, 700), min_size=1, max_size=20))
def test_the_same_however_it_is_cut(cuts):
    samples = talk(seconds=0.7)
    whole = Hearing().listen(samples)
    hearing, at, parts = Hearing(), 0, []
    for count in [*cuts, len(samples)]:
        parts.append(hearing.listen(samples[at : at + count]))
        at += count
    for name in ("bands", "loudness_db", "above_noise_db", "pitch_hz"):
        together = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_allclose(together, getattr(whole, name), atol=1e-4)


@pytest.mark.parametrize("pitch_hz", [90.0, 130.0, 220.0, 330.0])
def test_pitch(pitch_hz):
    heard = Hearing().listen(
        np.concatenate((silence(0.3), vowel("a", seconds=0.5, pitch_hz=pitch_hz), silence(0.2)))
    )
    within = heard.pitch_hz[round(0.4 * ROWS_PER_SECOND) : round(0.7 * ROWS_PER_SECOND)]
    assert np.median(within) == pytest.approx(pitch_hz, rel=0.03)
    assert not heard.pitch_hz[: round(0.25 * ROWS_PER_SECOND)].any()


def test_rows_stand_where_their_sound_is():
    samples = silence(1.0)
    samples[RATE // 2] = 0.9  # a click
    heard = Hearing().listen(samples)
    assert heard.bands.shape[1] == BANDS
    loud = np.flatnonzero(heard.loudness_db > heard.loudness_db.max() - 3)
    assert loud.mean() == pytest.approx(0.5 * ROWS_PER_SECOND, abs=1)


@pytest.mark.parametrize("gain", [0.06, 0.2, 1.0, 3.0])
def test_loud_and_soft_speech_become_alike(gain):
    heard = Hearing().listen(talk(seconds=8) * np.float32(gain))
    late = heard.loudness_db[4 * ROWS_PER_SECOND :]
    assert np.percentile(late, 90) == pytest.approx(0, abs=6)


def test_steady_noise_is_no_voice():
    noise = 0.02 * np.random.default_rng(3).normal(size=10 * RATE).astype(np.float32)
    heard = Hearing().listen(noise)
    assert np.percentile(heard.above_noise_db[2 * ROWS_PER_SECOND :], 99) < 8
