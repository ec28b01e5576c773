"""A grid of settings, what is measured in it, and what a search found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitascope.tune.surrogate import Floats

__all__ = ["Cell", "Effect", "Knob", "Limit", "Measured", "SearchResult", "Trial"]

Cell = tuple[int, ...]
"""The number of the chosen value of each knob."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting, and what it may be."""

    key: str
    values: tuple[Any, ...]
    """Plain values; when numbers, or marked ordered, neighbours are taken to act alike."""
    ordered: bool = True

    def apart(self) -> Floats:
        """How far values lie apart, 0..1, float64 [V, V]."""
        count = len(self.values)
        if not self.ordered or count < 2:
            return np.asarray(1.0 - np.eye(count))
        places = np.arange(count) / (count - 1)
        return np.asarray(np.abs(places[:, None] - places[None, :]))


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a figure of a measurement may be."""

    figure: str
    """Key of ``Measured.figures``."""
    most: float
    decided_by: tuple[str, ...] = ()
    """Keys of the knobs that alone decide the figure, without noise; none: any knob may, and measurements differ."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a cell gave."""

    score: float = 0.0
    """More is better; above 0 unless it failed."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What limits are about; zero or more."""
    failure: str | None = None
    """Why it could not be measured, in a few words."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement, and why it was made."""

    cell: Cell
    measured: Measured
    why: str


@dataclass(frozen=True, slots=True)
class Effect:
    """What one knob does at the best cell, the others being as they are there."""

    key: str
    value: Any
    scores: tuple[tuple[Any, float], ...]
    """What the model expects of each of its values."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What was found."""

    best: Cell | None
    """None when no cell that was measured keeps the limits."""
    score: float
    """The best cell's, without the noise of single measurements as far as the model can tell."""
    trials: tuple[Trial, ...]
    effects: tuple[Effect, ...]
    grid_size: int
    ended: str
    """Why it ended, in words."""
