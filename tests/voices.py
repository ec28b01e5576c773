"""Synthetic voices: vowels from a buzz through resonators (Klatt 1980), and silence."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

RATE = 16_000
VOWELS = {
    "a": (750, 1250, 2500),
    "i": (280, 2300, 3000),
    "u": (310, 800, 2300),
    "e": (480, 1900, 2550),
    "o": (450, 850, 2400),
}
Samples = npt.NDArray[np.float32]


def vowel(name: str, *, seconds: float = 0.3, pitch_hz: float = 120.0) -> Samples:
    """Make a vowel with soft ends; its pitch glides a little, as people's does."""
    count = round(seconds * RATE)
    glide = np.linspace(1.04, 0.96, count) if count else np.ones(0)
    phase = np.cumsum(pitch_hz * glide / RATE)
    sound = np.diff(np.floor(phase), prepend=0.0)
    sound = np.convolve(sound, np.exp(-np.arange(200) / 12))[
        :count
    ]  # the glottis falls off by 12 dB an octave
    for formant, width in zip(VOWELS[name], (80, 100, 140), strict=True):
        radius, angle = np.exp(-np.pi * width / RATE), 2 * np.pi * formant / RATE
        ring = np.arange(1200)
        response = radius**ring * np.sin((ring + 1) * angle) / np.sin(angle)
        sound = np.convolve(sound, response * (1 - 2 * radius * np.cos(angle) + radius**2))[:count]
    edge = np.minimum(np.minimum(np.arange(count), np.arange(count)[::-1]) / (0.02 * RATE), 1)
    return np.asarray(0.3 * sound / np.abs(sound).max() * edge, np.float32)


def silence(seconds: float) -> Samples:
    """Make silence."""
    return np.zeros(round(seconds * RATE), np.float32)


def talk(*, seconds: float = 4.0) -> Samples:
    """Make vowels and pauses, for this long."""
    parts, count, turn = [silence(0.3)], 0, 0
    while count < seconds * RATE:
        name = "aiueo"[turn % 5]
        parts += [
            vowel(name, seconds=0.16, pitch_hz=110 + 10 * (turn % 4)),
            silence(0.06 if turn % 6 else 0.5),
        ]
        count = sum(map(len, parts))
        turn += 1
    return np.concatenate(parts)[: round(seconds * RATE)]


def write_sound(
    path: Path,
    channels: Sequence[Samples],
    *,
    rate: int = RATE,
    codec: str = "pcm_s16le",
) -> Path:
    """Write a sound file of one or two channels; the samples must have this rate."""
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(channels)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        planes = np.ascontiguousarray(np.stack(channels), np.float32)
        for begin in range(0, planes.shape[1], 1024):
            part = np.ascontiguousarray(planes[:, begin : begin + 1024])
            frame = av.AudioFrame.from_ndarray(part, format="fltp", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, begin, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
