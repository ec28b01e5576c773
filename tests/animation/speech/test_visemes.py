"""Tests of mouth shapes of speech sounds, and of the expression weights that show them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX
from vitascope.animation.speech.visemes import (
    PARAMETERS,
    ROWS_PER_SECOND,
    SEAL,
    Sound,
    Viseme,
    shapes_of,
    viseme_of_ipa,
    weights_of,
)

UPPER, LOWER = 13, 14
JAW, SPREAD, PUCKER, _, TUCK, _, _ = range(len(PARAMETERS))


@pytest.fixture(scope="module")
def lip_gap(mesh):
    """Return the gap of the lips for some weights, in centimetres."""
    basis = ExpressionBasis(mesh)

    def gap(weights):
        moved = basis.displacement(weights)
        return float(moved[UPPER, 1] - moved[LOWER, 1])

    return gap


def at(shapes, seconds):
    return shapes[round(seconds * ROWS_PER_SECOND)]


@pytest.mark.parametrize(
    ("symbol", "visemes"),
    [
        ("p", (Viseme.LIPS,)),
        ("ˈaɪ", (Viseme.OPEN, Viseme.WIDE)),
        ("tʃ", (Viseme.TONGUE, Viseme.HUSH)),
        ("uː", (Viseme.SMALL,)),
        ("mː", (Viseme.LIPS,)),
        ("|", ()),
    ],
)
def test_visemes_of_ipa(symbol, visemes):
    assert viseme_of_ipa(symbol) == visemes


def test_vowels_open_and_silence_closes(lip_gap):
    said = [Sound(Viseme.OPEN, 0.3, 0.5), Sound(Viseme.WIDE, 0.5, 0.7), Sound(Viseme.SMALL, 0.7, 0.9)]
    shapes = shapes_of(said, seconds=1.6)
    gaps = [lip_gap(weights_of(at(shapes, seconds))) for seconds in (0.05, 0.4, 0.6, 0.8, 1.5)]
    assert gaps[1] > 0.8 > gaps[2] > gaps[3] > 0.1
    assert max(gaps[0], gaps[4]) < 0.05
    assert at(shapes, 0.6)[SPREAD] > 0.3 > at(shapes, 0.8)[SPREAD]
    assert at(shapes, 0.8)[PUCKER] > 0.5


@given(
    some.lists(some.sampled_from(list(Viseme)), min_size=1, max_size=12),
    some.floats(0.03, 0.3),
)
def test_shapes_lie_within_their_range_and_lips_meet(visemes, length):
    said = [
        Sound(viseme, 0.2 + index * length, 0.2 + (index + 1) * length)
        for index, viseme in enumerate(visemes)
    ]
    shapes = shapes_of(said, seconds=0.5 + len(visemes) * length)
    assert shapes.dtype == np.float32
    assert shapes.min() >= 0 and shapes.max() <= 1
    for sound in said:
        if sound.viseme is Viseme.LIPS:
            first = int(np.ceil(sound.start_seconds * ROWS_PER_SECOND - 1e-6))
            last = int(np.floor(sound.end_seconds * ROWS_PER_SECOND + 1e-6))
            assert (shapes[first : last + 1, SEAL] > 0.99).all()
    far = [
        row
        for row in range(len(shapes))
        if not any(
            sound.viseme is Viseme.LIPS
            and sound.start_seconds - 0.06 < row / ROWS_PER_SECOND < sound.end_seconds + 0.06
            for sound in said
        )
    ]
    assert (shapes[far, SEAL] == 0).all()


def test_rounding_begins_before_its_vowel():
    said = [Sound(Viseme.TONGUE, 0.3, 0.4), Sound(Viseme.SMALL, 0.4, 0.6)]
    other = [Sound(Viseme.TONGUE, 0.3, 0.4), Sound(Viseme.WIDE, 0.4, 0.6)]
    rounded, spread = (at(shapes_of(sounds, seconds=1), 0.35) for sounds in (said, other))
    assert rounded[PUCKER] > spread[PUCKER] + 0.1
    assert spread[SPREAD] > rounded[SPREAD] + 0.05


@given(some.lists(some.floats(0, 1), min_size=6, max_size=6))
def test_sealed_lips_meet_whatever_the_rest_says(values):
    weights = weights_of(np.array([*values, 1.0], np.float32))
    assert weights[BLENDSHAPE_INDEX["mouthClose"]] > weights[BLENDSHAPE_INDEX["jawOpen"]]
    for parting in ("mouthFunnel", "mouthLowerDownLeft", "mouthUpperUpRight"):
        assert weights[BLENDSHAPE_INDEX[parting]] == 0
    assert weights.min() >= 0 and weights.max() <= 1


def test_teeth_on_the_lip():
    shapes = shapes_of([Sound(Viseme.OPEN, 0.2, 0.4), Sound(Viseme.TEETH, 0.4, 0.5)], seconds=0.8)
    assert at(shapes, 0.45)[TUCK] > 0.5 > at(shapes, 0.3)[TUCK]
    assert at(shapes, 0.45)[JAW] < 0.15
