"""Tests of blinks, glances, nods and breath."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.animation.face import BLENDSHAPE_INDEX, BLENDSHAPES
from vitascope.animation.speech.demeanour import Demeanour

RATE = 30


def moved(*, seconds, speaks=False, seed=0, rate=RATE, pitch=lambda moment: 120.0):
    demeanour = Demeanour(seed)
    motions = []
    for index in range(round(seconds * rate)):
        moment = index / rate
        motions.append(
            demeanour.motion(
                np.zeros(len(BLENDSHAPES), np.float32),
                seconds=moment,
                loudness_db=-4.0 + 6 * np.sin(9 * moment) if speaks else -60.0,
                is_spoken=speaks and moment % 4 < 3,
                pitch_hz=pitch(moment) if speaks else 0.0,
            )
        )
    return motions


def blinks_of(motions):
    lids = np.array([motion.blendshapes[BLENDSHAPE_INDEX["eyeBlinkLeft"]] for motion in motions])
    shut = lids > 0.4
    return int((shut[1:] & ~shut[:-1]).sum())


def test_the_same_seed_the_same_life():
    one, same, other = (moved(seconds=20, speaks=True, seed=seed) for seed in (7, 7, 8))
    for left, right in zip(one, same, strict=True):
        np.testing.assert_array_equal(left.rotation, right.rotation)
        np.testing.assert_array_equal(left.blendshapes, right.blendshapes)
    assert any(
        np.abs(left.rotation - right.rotation).max() > 0.01 for left, right in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(("speaks", "low", "high"), [(False, 13, 21), (True, 20, 34)])
def test_blinks_a_minute(speaks, low, high):
    counts = [blinks_of(moved(seconds=300, speaks=speaks, seed=seed, rate=25)) / 5 for seed in range(3)]
    assert low < np.mean(counts) < high


def test_a_silent_face_lives_but_little():
    motions = moved(seconds=60)
    angles = np.array([motion.angles_degrees for motion in motions])
    assert (angles.std(axis=0) > 0.2).all() and np.abs(angles).max() < 8
    rises = np.array([motion.translation[1] for motion in motions])
    spectrum = np.abs(np.fft.rfft(rises - rises.mean()))
    breath = np.fft.rfftfreq(len(rises), 1 / RATE)
    assert spectrum[(breath > 0.25) & (breath < 0.32)].max() > 5 * np.median(spectrum)
    mouths = [motion.blendshapes[BLENDSHAPE_INDEX["jawOpen"]] for motion in motions]
    assert max(mouths) == 0


def test_nothing_jumps():
    angles = np.array([motion.angles_degrees for motion in moved(seconds=60, speaks=True)])
    assert np.abs(np.diff(angles, axis=0)).max() < 1.5  # degrees from frame to frame


def test_brows_rise_with_the_voice():
    flat = moved(seconds=3, speaks=True)
    rising = moved(seconds=3, speaks=True, pitch=lambda moment: 120.0 if moment < 2 else 190.0)
    brow = BLENDSHAPE_INDEX["browInnerUp"]
    assert (
        max(motion.blendshapes[brow] for motion in rising)
        > max(motion.blendshapes[brow] for motion in flat) + 0.1
    )
