"""Converts a voice to motion: analyses the sound, infers mouth shapes, and adds the head's motion."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from vitascope.animation.face import FaceMotion, FloatArray
from vitascope.animation.speech.demeanour import Demeanour
from vitascope.animation.speech.hearing import BANDS, SAMPLE_RATE, WINDOW_SECONDS, Hearing
from vitascope.animation.speech.visemes import PARAMETERS, ROWS_PER_SECOND, SEAL, weights_of

ROWS_BEFORE = 10
ROWS_AHEAD = 8
LAG_SECONDS = ROWS_AHEAD / ROWS_PER_SECOND + WINDOW_SECONDS / 2
"""Delay after which the mouth shape of a moment is known."""
_FILE = Path(__file__).parents[2] / "models" / "data" / "lips.npz"
# Likelihoods of shut lips, from the network: above the first the lips begin to close; at the second they are
# shut.
_PARTED, _SHUT = 0.3, 0.55


class LipNetwork:
    """Infers mouth shapes from sound in any language by a small network; stores rows that later ones need.

    Three layers see nineteen rows of mel bands, from 100 ms before a moment to 80 ms after it.
    ``benchmarks/fit_lips.py`` trained it on mouth shapes (``visemes.shapes_of``) of synthetic speakers of many
    languages, whose sounds are known to the millisecond, and on music and noise, for which the mouth is still.
    """

    def __init__(self) -> None:
        self._layers = _layers()
        self._rows = np.full((ROWS_BEFORE, BANDS), -4.0, np.float32)

    def shapes(self, bands: FloatArray) -> FloatArray:
        """Process the next rows.

        Args:
            bands: float32 [rows, 26], of ``Heard``.

        Returns:
            float32 [rows, 7]: ``PARAMETERS`` of the rows that are now known, with a delay of ``ROWS_AHEAD`` rows.
        """
        rows = np.concatenate((self._rows, bands))
        span = ROWS_BEFORE + 1 + ROWS_AHEAD
        count = max(len(rows) - span + 1, 0)
        self._rows = rows[count:]
        if not count:
            return np.zeros((0, len(PARAMETERS)), np.float32)
        seen = np.lib.stride_tricks.sliding_window_view(rows, span, axis=0)[:count]  # [rows, bands, span]
        values = np.ascontiguousarray(seen.transpose(0, 2, 1)).reshape(count, -1)
        *hidden, (weights, bias) = self._layers
        for layer, offset in hidden:
            values = np.maximum(values @ layer + offset, 0)
        shapes = np.asarray(1 / (1 + np.exp(-(values @ weights + bias))), np.float32)
        shut = np.clip((shapes[:, SEAL] - _PARTED) / (_SHUT - _PARTED), 0, 1)
        shapes[:, SEAL] = shut * shut * (3 - 2 * shut)
        return shapes


@cache
def _layers() -> tuple[tuple[FloatArray, FloatArray], ...]:
    """Read the weights [inputs, outputs] and biases of each layer."""
    with np.load(_FILE, allow_pickle=False) as file:
        return tuple(
            (file[f"weights{number}"].astype(np.float32), file[f"bias{number}"].astype(np.float32))
            for number in range(3)
        )


_HEARD_DB, _SURE_DB = 4.0, 10.0
"""Levels above the noise between words: below the first nobody speaks, above the second somebody does."""
_SILENT_DB = -55.0
"""Level relative to full scale below which a recording is inaudible at an ordinary volume."""
_SPOKEN_DB = -28.0
"""Minimum level of speech, relative to the voice's usual level."""
_REACH_ROWS = 12
"""Rows before and after sound in which the mouth is active: p, t and k are silent in the middle."""
_JAW_OF_LOUDNESS = 1 / 45
"""Growth of the jaw's opening per decibel: shouting opens it wider."""


class Voice:
    """Moves a face by a voice. Holds the state of one stream; used by one thread.

    Call ``listen`` with new sound, then ``motion_at`` for moments up to ``known_seconds``, in order.

    Args:
        frame_rate: Moments per second that will be requested.
        seed: Seed of blinks, glances and posture.
        level_db: The voice's usual level in dB of full scale, if known; see ``level_of``.
        shapes: float32 [rows, 7]: known mouth shapes, from a transcript; inferred from the sound when omitted.
    """

    def __init__(
        self, *, frame_rate: float, seed: int = 0, level_db: float = -26.0, shapes: FloatArray | None = None
    ) -> None:
        self._half_frame = 0.5 / frame_rate
        self._hearing = Hearing(level_db=level_db)
        self._network = LipNetwork() if shapes is None else None
        self._known = shapes
        self._demeanour = Demeanour(seed)
        self._shapes = np.zeros((0, len(PARAMETERS)), np.float32)
        self._heard = np.zeros((0, 3), np.float32)
        self._first_row = 0
        self.row_count = 0
        """Number of rows so far, ``ROWS_PER_SECOND``."""
        self.audible_count = 0
        """Number of rows with any sound."""
        self.opened_count = 0
        """Number of rows in which the mouth opens."""

    def listen(self, samples: FloatArray) -> None:
        """Process the next samples, float32 [n], -1..1, at ``SAMPLE_RATE``."""
        heard = self._hearing.listen(samples)
        count = len(heard.loudness_db)
        columns = np.stack((heard.loudness_db, heard.above_noise_db, heard.pitch_hz), axis=1)
        self._heard = np.concatenate((self._heard, columns.astype(np.float32)))
        if self._network is not None:
            shapes = self._network.shapes(heard.bands)
        else:
            assert self._known is not None  # shapes are known without a network
            shapes, self._known = self._known[:count], self._known[count:]
        self._shapes = np.concatenate((self._shapes, shapes))
        self.row_count += count
        self.audible_count += int((heard.energy_db > _SILENT_DB).sum())
        self.opened_count += int((shapes[:, 0] > 0.08).sum())

    def finish(self) -> None:
        """Append silence at the end, so that every moment becomes known."""
        self.listen(np.zeros(round(2 * LAG_SECONDS * SAMPLE_RATE), np.float32))

    @property
    def known_seconds(self) -> float:
        """Time up to which motion can be requested."""
        rows = min(self._first_row + len(self._shapes), self.row_count - ROWS_AHEAD)
        return max(rows - 1, 0) / ROWS_PER_SECOND - self._half_frame

    def motion_at(self, seconds: float) -> FaceMotion:
        """Compute the face at a moment later than the previous one, in seconds from the first sample."""
        row = seconds * ROWS_PER_SECOND - self._first_row
        middle = int(np.clip(round(row), 0, max(len(self._shapes) - 1, 0)))
        reach = max(round(self._half_frame * ROWS_PER_SECOND), 1)
        low, high = max(middle - reach, 0), middle + reach + 1
        shape = self._shapes[low:high].mean(axis=0)
        # Keep closures between two pictures: the shortest ones last three rows.
        beside = max(reach - 1, 1)
        shape[SEAL] = self._shapes[max(middle - beside, 0) : middle + beside + 1, SEAL].max()
        wide = self._heard[max(middle - _REACH_ROWS, 0) : middle + ROWS_AHEAD + 1]
        loudness = float(self._heard[max(middle - 4, 0) : middle + 5, 0].mean())
        said = np.clip((wide[:, 1].max() - _HEARD_DB) / (_SURE_DB - _HEARD_DB), 0, 1)
        loudest = float(wide[:, 0].max())
        said *= np.clip((loudest - _SPOKEN_DB) / 6, 0, 1)
        shape *= said
        shape[0] *= np.clip(1 + (loudest - 2) * _JAW_OF_LOUDNESS, 0.55, 1.3)
        pitches = self._heard[max(middle - 3, 0) : middle + 4, 2]
        voiced = pitches[pitches > 0]
        motion = self._demeanour.motion(
            weights_of(np.clip(shape, 0, 1), pause=max(1 - 2 * float(said), 0.0)),
            seconds=seconds,
            loudness_db=loudness,
            is_spoken=bool(said > 0.5 and shape[:SEAL].max() > 0.05),
            pitch_hz=float(np.median(voiced)) if len(voiced) else 0.0,
        )
        self._forget(middle)
        return motion

    def _forget(self, middle: int) -> None:
        """Release rows that no later moment needs."""
        gone = middle - 3 * _REACH_ROWS
        if gone > 100:
            self._shapes, self._heard = self._shapes[gone:], self._heard[gone:]
            self._first_row += gone


def level_of(samples: FloatArray) -> float:
    """Measure the usual level of a voice, in dB of full scale: a tenth of its 20 ms blocks are louder.

    Args:
        samples: float32 [n] at ``SAMPLE_RATE``, a few seconds.
    """
    size = SAMPLE_RATE // 50
    count = len(samples) // size
    if not count:
        return -26.0
    energy = 10 * np.log10((samples[: count * size].reshape(count, size) ** 2).mean(axis=1) + 1e-10)
    return float(np.clip(np.percentile(energy, 90), -50.0, -6.0))
