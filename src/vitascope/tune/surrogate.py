"""What a grid of settings is likely to give where nobody has measured yet: a Gaussian process over its cells.

Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2 and 5. The covariance is a sum over
the knobs (each acts by itself) and a product over them (they act on one another), each a Matérn 5/2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["Surrogate", "expected_gain", "normal_cdf"]

Floats = npt.NDArray[np.float64]

_LENGTHS = (0.2, 0.5, 1.2, 3.0)
_SHARES_ALONE = (0.3, 0.6, 0.9)
_NOISES = (1e-3, 1e-2, 6e-2)
_JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the covariance falls off."""

    lengths: tuple[float, ...]
    """For each knob, the length over which results stay alike; its whole range is 1."""
    share_alone: float = 0.6
    """Share of the variance that knobs explain by themselves, 0..1."""
    noise: float = 1e-2
    """Variance of a measurement that does not come back, as a share of all."""


@dataclass(slots=True)
class _Fit:
    inverse: Floats
    weights: Floats
    mean: float
    scale: float


def _matern(distance: Floats) -> Floats:
    scaled = math.sqrt(5.0) * distance
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))


class Surrogate:
    """Predicts one figure of every cell from those that were measured.

    Args:
        cells: intp [N, K]: the number of each cell's value in each of K knobs.
        apart: For each knob float64 [V, V]: how far its V values lie apart, 0..1.
    """

    def __init__(self, cells: npt.NDArray[np.intp], apart: Sequence[Floats]) -> None:
        self._cells = cells
        self._apart = tuple(apart)
        self._shape = _Shape((1.2,) * len(self._apart))
        self._known: list[int] = []
        self._fit: _Fit | None = None

    def learn(self, rows: Sequence[int], values: Sequence[float], *, reshape: bool) -> None:
        """Take what was measured.

        Args:
            rows: Cells; one may come several times.
            values: Their figures.
            reshape: Look for the shape that makes the figures most likely; without it the last one stays.
        """
        self._known = list(rows)
        figures = np.asarray(values, np.float64)
        mean = float(figures.mean())
        scale = float(figures.std()) or 1.0
        standard = (figures - mean) / scale
        if reshape and len(rows) >= 4:
            self._shape = self._most_likely(standard)
        covariance = self._covariance(self._shape, self._known)
        covariance[np.diag_indices_from(covariance)] += self._shape.noise + _JITTER
        inverse: Floats = np.asarray(np.linalg.inv(covariance), np.float64)
        self._fit = _Fit(inverse, np.asarray(inverse @ standard, np.float64), mean, scale)

    def predict(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of every cell's figure, float64 [N] each."""
        fit = self._fit
        assert fit is not None  # it has learnt
        across = self._covariance(self._shape, None)
        mean = across @ fit.weights
        explained = across @ fit.inverse
        explained *= across
        variance = 1 - explained.sum(axis=1)
        return mean * fit.scale + fit.mean, np.sqrt(np.maximum(variance, 1e-12)) * fit.scale

    def _covariance(self, shape: _Shape, rows: Sequence[int] | None) -> Floats:
        """Between ``rows`` (all cells when None) and what is known."""
        left = self._cells if rows is None else self._cells[list(rows)]
        right = self._cells[self._known]
        alone: Floats = np.zeros((len(left), len(right)))
        together: Floats = np.ones((len(left), len(right)))
        near: Floats = np.empty((len(left), len(right)))
        # In place from here on: new memory costs more than the sums.
        for knob, (length, apart) in enumerate(zip(shape.lengths, self._apart, strict=True)):
            # Values are few, cells are many: the costly function is called for values only.
            values = _matern(apart / length)[:, right[:, knob]]
            np.take(values, left[:, knob], axis=0, out=near, mode="clip")
            alone += near
            together *= near
        alone *= shape.share_alone
        alone /= len(self._apart)
        together *= 1 - shape.share_alone
        alone += together
        return alone

    def _most_likely(self, standard: Floats) -> _Shape:
        """One sweep of coordinate ascent on the marginal likelihood, from the shape before."""
        best, best_score = self._shape, self._likelihood(self._shape, standard)

        def offer(candidate: _Shape) -> None:
            nonlocal best, best_score
            score = self._likelihood(candidate, standard)
            if score > best_score:
                best, best_score = candidate, score

        for share in _SHARES_ALONE:
            offer(replace(best, share_alone=share))
        for noise in _NOISES:
            offer(replace(best, noise=noise))
        for knob in range(len(self._apart)):
            for length in _LENGTHS:
                offer(replace(best, lengths=(*best.lengths[:knob], length, *best.lengths[knob + 1 :])))
        return best

    def _likelihood(self, shape: _Shape, standard: Floats) -> float:
        covariance = self._covariance(shape, self._known)
        covariance[np.diag_indices_from(covariance)] += shape.noise + _JITTER
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return -math.inf
        half = np.linalg.solve(lower, standard)
        return float(-0.5 * half @ half - np.log(np.diag(lower)).sum())


_erf = np.vectorize(math.erf, otypes=[np.float64])


def normal_cdf(x: Floats) -> Floats:
    """Share of a standard normal distribution below ``x``."""
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2.0))))


def expected_gain(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Expected improvement over ``best`` (Mockus 1974; Jones, Schonlau and Welch 1998, equation 15)."""
    ahead = mean - best
    z = ahead / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.asarray(ahead * normal_cdf(z) + deviation * density)
