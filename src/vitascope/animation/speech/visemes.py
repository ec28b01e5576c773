"""Mouth shapes of speech sounds, their coarticulation, and the expression weights that show them.

Each sound has a target for each parameter of the mouth, and a dominance: how strongly it asserts the target. Parameters
follow the mean of the targets, weighted by dominances that fall off with time (Cohen and Massaro, "Modeling
coarticulation in synthetic visual speech", 1993). Lips that must meet (p, b, m) do so for the length of the sound,
whatever its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from vitascope.animation.face import BLENDSHAPE_INDEX, BLENDSHAPES, FloatArray

ROWS_PER_SECOND = 100
"""Mouth shapes per second."""

PARAMETERS = ("jaw", "spread", "pucker", "funnel", "tuck", "bare", "seal")
"""Parameters of a mouth shape, 0..1: jaw open, corners apart, lips small, lips a tube, lower lip behind the upper
teeth, teeth shown, lips shut."""
SEAL = PARAMETERS.index("seal")


class Viseme(Enum):
    """Speech sounds that look alike; the value is target and dominance of each parameter except the seal."""

    SILENCE = ((0, 1.0), (0, 0.6), (0, 0.6), (0, 0.6), (0, 1), (0, 0.8))
    LIPS = ((0.06, 0.5), (0, 0.1), (0, 0.1), (0, 0.3), (0, 1), (0, 0.5))  # p b m
    TEETH = ((0.07, 1.2), (0.05, 0.3), (0, 0.3), (0, 0.4), (1, 2), (0.05, 0.5))  # f v
    TONGUE = ((0.13, 0.9), (0.05, 0.2), (0, 0.1), (0, 0.2), (0, 0.6), (0.15, 0.4))  # t d n l th
    HISS = ((0.05, 1.5), (0.2, 0.4), (0, 0.15), (0, 0.3), (0, 0.8), (0.35, 0.8))  # s z
    HUSH = ((0.07, 1.4), (0, 0.5), (0.25, 0.6), (0.42, 1.2), (0, 0.8), (0.25, 0.6))  # sh zh ch j
    BACK = ((0.17, 0.5), (0, 0.1), (0, 0.1), (0, 0.1), (0, 0.5), (0.1, 0.2))  # k g ng x h
    ROLL = ((0.12, 0.7), (0, 0.3), (0.2, 0.4), (0.18, 0.4), (0, 0.6), (0.1, 0.3))  # r
    GLIDE = ((0.06, 1.0), (0, 0.8), (0.85, 1.4), (0.1, 0.6), (0, 0.8), (0, 0.6))  # w
    OPEN = ((0.38, 1.3), (0.1, 0.5), (0, 0.5), (0, 0.7), (0, 1), (0.15, 0.5))  # a
    MID = ((0.24, 1.0), (0.22, 0.6), (0, 0.5), (0, 0.6), (0, 1), (0.15, 0.5))  # e
    WEAK = ((0.17, 0.5), (0.05, 0.2), (0, 0.2), (0, 0.3), (0, 0.8), (0.08, 0.3))  # schwa
    WIDE = ((0.12, 1.1), (0.45, 1.0), (0, 0.8), (0, 0.7), (0, 1), (0.2, 0.6))  # i
    ROUND = ((0.22, 1.0), (0, 0.8), (0.4, 0.9), (0.3, 0.9), (0, 1), (0, 0.6))  # o
    SMALL = ((0.08, 1.1), (0, 0.9), (0.8, 1.2), (0.15, 0.8), (0, 1), (0, 0.7))  # u


_IPA = {
    Viseme.LIPS: "pbmɓɸβʙ",
    Viseme.TEETH: "fvʋɱ",
    Viseme.TONGUE: "tdnlθðʈɖɳɭɫɬɾɗ",
    Viseme.HISS: "szʂʐ",
    Viseme.HUSH: "ʃʒɕʑ",
    Viseme.BACK: "kɡgŋxhɣχʁɦħqɟcɲçʔʕ",
    Viseme.ROLL: "ɹrɻʀɽ",
    Viseme.GLIDE: "wɥʍ",
    Viseme.OPEN: "aɑæʌɐɶ",
    Viseme.MID: "eɛɜɝ",
    Viseme.WEAK: "əɚɘɨɤᵻɯ",
    Viseme.WIDE: "iɪjʎ",
    Viseme.ROUND: "oɔɒøœɵ",
    Viseme.SMALL: "uʊyʏʉ",
}
_OF_IPA = {letter: viseme for viseme, letters in _IPA.items() for letter in letters}


def viseme_of_ipa(symbol: str) -> tuple[Viseme, ...]:
    """Classify a sound by its symbol in the International Phonetic Alphabet.

    Returns:
        One class; several in sequence for diphthongs and affricates; none for stress, length and symbols that
        are not sounds.
    """
    found = [_OF_IPA[letter] for letter in symbol if letter in _OF_IPA]
    return tuple(viseme for index, viseme in enumerate(found) if index == 0 or viseme is not found[index - 1])


@dataclass(frozen=True, slots=True)
class Sound:
    """One speech sound and its time."""

    viseme: Viseme
    start_seconds: float
    end_seconds: float


# Times in seconds in which dominance halves before and after a sound. Rounding begins early (Cohen and Massaro).
_BEFORE_SECONDS = np.array([0.035, 0.045, 0.055, 0.055, 0.025, 0.035])
_AFTER_SECONDS = np.array([0.035, 0.04, 0.04, 0.04, 0.025, 0.035])
_REACH_SECONDS = 0.4
_CORE = 0.25
"""Share of a sound's length, around its middle, with full dominance."""
_SEAL_SECONDS = 0.05
"""Time for lips to meet, and to part: closing the lips takes 50 to 100 ms (Loefqvist and Gracco 1997)."""


def shapes_of(sounds: Sequence[Sound], *, seconds: float) -> FloatArray:
    """Compute the mouth shapes of a sequence of sounds.

    Args:
        sounds: In order; gaps between them are silence.
        seconds: Length of the recording.

    Returns:
        float32 [rows, 7], 0..1: ``PARAMETERS``, ``ROWS_PER_SECOND`` from time 0.
    """
    count = max(round(seconds * ROWS_PER_SECOND), 1)
    moments = np.arange(count) / ROWS_PER_SECOND
    weighted = np.zeros((count, SEAL))
    total = np.full((count, SEAL), 0.02)  # where no sound dominates, the mouth rests
    shapes = np.zeros((count, SEAL + 1), np.float32)
    for sound in (*sounds, *_silences(sounds, seconds)):
        start, end = sound.start_seconds, sound.end_seconds
        first, last = _rows(start - _REACH_SECONDS, end + _REACH_SECONDS, count)
        near = moments[first:last, None]
        middle, core = (start + end) / 2, (end - start) * _CORE
        if sound.viseme is Viseme.SILENCE:
            core = max((end - start) / 2 - 0.06, 0.0)
        ahead = np.maximum(middle - core - near, 0) / _BEFORE_SECONDS
        behind = np.maximum(near - middle - core, 0) / _AFTER_SECONDS
        target, strength = np.array(sound.viseme.value, np.float64).T
        dominance = strength * np.exp2(-(ahead + behind))
        weighted[first:last] += dominance * target
        total[first:last] += dominance
        if sound.viseme is Viseme.LIPS:
            apart = np.maximum(np.maximum(start - near, near - end), 0)[:, 0] / _SEAL_SECONDS
            seal = np.clip(1 - apart, 0, 1)
            shapes[first:last, SEAL] = np.maximum(shapes[first:last, SEAL], seal * seal * (3 - 2 * seal))
    shapes[:, :SEAL] = weighted / total
    return shapes


def _rows(start_seconds: float, end_seconds: float, count: int) -> tuple[int, int]:
    first = int(np.clip(np.ceil(start_seconds * ROWS_PER_SECOND), 0, count))
    return first, int(np.clip(np.floor(end_seconds * ROWS_PER_SECOND) + 1, first, count))


def _silences(sounds: Sequence[Sound], seconds: float) -> list[Sound]:
    """List the gaps between sounds that are longer than 0.1 s."""
    edges = [0.0, *(edge for sound in sounds for edge in (sound.start_seconds, sound.end_seconds)), seconds]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [Sound(Viseme.SILENCE, start, end) for start, end in gaps if end - start > 0.1]


def _index(*names: str) -> list[int]:
    return [BLENDSHAPE_INDEX[name] for name in names]


_JAW_OF_SPEECH = 0.7
"""Weight of the fully open jaw; an open vowel then parts the lips by a centimetre, as in calm speech."""
_PARTED_AT_REST = 0.14
"""Extra closing beyond the jaw's opening, for portraits that smile: lips touch, but do not pass through each other."""
_CLOSED_IN_PAUSES = 0.2
"""Weight of closed lips in pauses, so that a portrait's parted lips also rest together."""
_JAW, _CLOSE, _PUCKER, _FUNNEL = _index("jawOpen", "mouthClose", "mouthPucker", "mouthFunnel")
_ROLL_LOWER, _ROLL_UPPER, _SHRUG = _index("mouthRollLower", "mouthRollUpper", "mouthShrugLower")
_STRETCH = _index("mouthStretchLeft", "mouthStretchRight")
_SMILE = _index("mouthSmileLeft", "mouthSmileRight")
_PRESS = _index("mouthPressLeft", "mouthPressRight")
_UPPER_UP = _index("mouthUpperUpLeft", "mouthUpperUpRight")
_LOWER_DOWN = _index("mouthLowerDownLeft", "mouthLowerDownRight")


def weights_of(shape: FloatArray, *, pause: float = 0.0) -> FloatArray:
    """Convert a mouth shape to expression weights.

    Args:
        shape: float32 [7], 0..1: ``PARAMETERS``.
        pause: 0..1: certainty that nobody speaks.

    Returns:
        float32 [52], 0..1, in the order of ``BLENDSHAPES``. With a seal of 1, the lips meet whatever the jaw does.
    """
    jaw, spread, pucker, funnel, tuck, bare, seal = (float(value) for value in shape)
    parted = 1 - seal
    jaw *= _JAW_OF_SPEECH * (1 - 0.4 * seal)  # the jaw rises as lips meet
    weights = np.zeros(len(BLENDSHAPES), np.float32)
    weights[_JAW] = jaw
    weights[_CLOSE] = max((jaw + _PARTED_AT_REST) * seal, _CLOSED_IN_PAUSES * pause)
    weights[_SHRUG] = 0.35 * seal
    weights[_PUCKER] = pucker
    weights[_FUNNEL] = funnel * parted
    weights[_STRETCH] = 0.6 * spread
    weights[_SMILE] = 0.3 * spread
    weights[_PRESS] = 0.3 * seal
    weights[_UPPER_UP] = (0.35 * bare + 0.25 * tuck) * parted
    weights[_LOWER_DOWN] = 0.45 * bare * parted
    weights[_ROLL_LOWER] = 0.55 * tuck * parted + 0.08 * seal
    weights[_ROLL_UPPER] = 0.08 * seal
    return weights
