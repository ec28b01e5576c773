"""Analyses a voice a hundred times a second: spectrum, loudness and pitch.

Nothing looks further ahead than its window, so live sound and a file give the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitascope.animation.face import FloatArray
from vitascope.animation.speech.visemes import ROWS_PER_SECOND

SAMPLE_RATE = 16_000
BANDS = 26
_HOP = SAMPLE_RATE // ROWS_PER_SECOND
_WINDOW = 512
WINDOW_SECONDS = _WINDOW / SAMPLE_RATE
"""Length of the window of each row; its middle is the row's time."""
_PITCH_HZ = (70, 400)
_QUIET_DB = -70.0
"""Level in dB of full scale below which sound is silence, whatever the voice's usual level."""


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """Rows of analysed sound, ``ROWS_PER_SECOND`` of them per second."""

    bands: FloatArray
    """float32 [rows, 26]: energy of mel bands, in units of 20 dB, relative to the voice's usual level."""
    energy_db: FloatArray
    """float32 [rows], below 4 kHz, relative to full scale."""
    loudness_db: FloatArray
    """float32 [rows]: the energy relative to the voice's usual level."""
    above_noise_db: FloatArray
    """float32 [rows]: the energy relative to the noise between words."""
    pitch_hz: FloatArray
    """float32 [rows]; 0 where the sound is not voiced."""


class Hearing:
    """Analyses sound as it comes. Holds the state of one stream; used by one thread.

    Args:
        level_db: Initial value of the voice's usual level, in dB of full scale.
    """

    def __init__(self, *, level_db: float = -26.0) -> None:
        self._rest = np.zeros(_WINDOW // 2, np.float32)  # centres the first row on the first sample
        self._level_db = level_db
        self._noise_db: float | None = None

    def listen(self, samples: FloatArray) -> Heard:
        """Analyse the next samples.

        Args:
            samples: float32 [n], -1..1, one channel at ``SAMPLE_RATE``.

        Returns:
            The rows that are complete now; a row is complete half a window after its time.
        """
        sound = np.concatenate((self._rest, samples))
        count = max((len(sound) - _WINDOW) // _HOP + 1, 0)
        self._rest = sound[count * _HOP :]
        if not count:
            nothing = np.zeros(0, np.float32)
            return Heard(np.zeros((0, BANDS), np.float32), nothing, nothing, nothing, nothing)
        windows = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[: count * _HOP : _HOP]
        power = np.abs(np.fft.rfft(windows * _HANN, axis=1)) ** 2
        bands = 10 * np.log10(power @ _MEL + 1e-10)
        energy = 10 * np.log10((power[:, 2:] @ _VOICE[2:]) + 1e-10)
        levels, noises = self._track(energy)
        return Heard(
            bands=np.asarray(np.clip((bands - levels[:, None]) / 20, -4, 2), np.float32),
            energy_db=np.asarray(energy, np.float32),
            loudness_db=np.asarray(energy - levels, np.float32),
            above_noise_db=np.asarray(energy - noises, np.float32),
            pitch_hz=_pitch(windows, energy - levels),
        )

    def _track(self, energy: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Track the level of the voice, and of the noise between words."""
        levels, noises = np.empty(len(energy)), np.empty(len(energy))
        level = self._level_db
        noise = max(float(energy[0]), _QUIET_DB) if self._noise_db is None else self._noise_db
        for index, now in enumerate(energy.tolist()):
            # The noise level falls at once, and rises by 6 dB a second, as speech has pauses.
            floor = max(now, _QUIET_DB)
            noise += (floor - noise) * 0.2 if floor < noise else 0.06
            if now > level:
                level += 0.1 * (now - level)
            elif now > noise + 15:
                level -= 0.1  # while somebody speaks, 10 dB a second
            level = max(level, noise + 12, _QUIET_DB + 12)
            levels[index], noises[index] = level, noise
        self._level_db, self._noise_db = level, noise
        return levels.astype(np.float32), noises.astype(np.float32)


def _mel_filters() -> FloatArray:
    """Triangular filters from 90 Hz to 7 kHz, even on the mel scale (O'Shaughnessy 1987): float64 [257, 26]."""

    def mel(hertz: float) -> float:
        return 2595 * float(np.log10(1 + hertz / 700))

    edges = 700 * (10 ** (np.linspace(mel(90), mel(7000), BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE)[:, None]
    low, peak, high = edges[:-2], edges[1:-1], edges[2:]
    filters = np.maximum(np.minimum((bins - low) / (peak - low), (high - bins) / (high - peak)), 0)
    return np.asarray(filters / filters.sum(axis=0), np.float64)


_HANN = np.hanning(_WINDOW).astype(np.float32) * np.float32(2 / _WINDOW)
_MEL = _mel_filters()
_VOICE = (np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE) < 4000).astype(np.float64)


def _pitch(windows: FloatArray, loudness_db: FloatArray) -> FloatArray:
    """Estimate pitch by autocorrelation, whose peak is at least half of the energy in voiced sound (Boersma 1993)."""
    size = 2 * _WINDOW
    centred = windows - windows.mean(axis=1, keepdims=True)
    alike = np.fft.irfft(np.abs(np.fft.rfft(centred, size, axis=1)) ** 2, axis=1)[:, :_WINDOW]
    alike /= (1 - np.arange(_WINDOW) / _WINDOW) * np.maximum(alike[:, :1], 1e-9)
    shortest, longest = SAMPLE_RATE // _PITCH_HZ[1], SAMPLE_RATE // _PITCH_HZ[0]
    lags = alike[:, shortest : longest + 1]
    # Two periods match as well as one: prefer the shorter (Boersma's octave cost, for windows this short 0.1).
    best = (lags - 0.1 * np.log2(np.arange(shortest, longest + 1) / shortest)).argmax(axis=1)
    voiced = (lags.max(axis=1) > 0.5) & (loudness_db > -25)
    return np.where(voiced, SAMPLE_RATE / (best + shortest), 0).astype(np.float32)
