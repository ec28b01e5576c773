"""Grids that a machine measured cell by cell (``benchmarks/record_grid_cuda.py``), to search again."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

from vitascope.tune.search import Knob, Limit, Measured


class RecordedGrid:
    """Takes the measurements as truth; measuring again adds the machine's noise."""

    def __init__(self, row: dict, *, seed: int) -> None:
        self.name = f"{row['size']} on {row.get('gpu', 'a processor')}"
        self.knobs = [Knob(key, tuple(values), ordered=ordered) for key, values, ordered in row["knobs"]]
        self.limits = [Limit(figure, most) for figure, most in row["limits"]]
        self._noise, self._noise_of = row["noise"], random.Random(seed)
        names = [limit.figure for limit in self.limits]
        self._cells = {
            tuple(one["cell"]): Measured(
                one["fps"], {name: one[name] for name in names if name in one}, one["failure"]
            )
            for one in row["cells"]
        }

    @property
    def size(self) -> int:
        return math.prod(len(knob.values) for knob in self.knobs)

    def truth(self, values: dict) -> Measured:
        return self._cells[tuple(knob.values.index(values[knob.key]) for knob in self.knobs)]

    def measure(self, values: dict) -> Measured:
        truth = self.truth(values)
        if truth.failure:
            return truth
        return Measured(truth.score * math.exp(self._noise_of.gauss(0, self._noise)), truth.figures)

    def keeps_limits(self, measured: Measured, *, slack: float = 0.0) -> bool:
        return measured.failure is None and all(
            measured.figures[limit.figure] <= limit.most * (1 + slack) for limit in self.limits
        )

    def optimum(self) -> float:
        return max((one.score for one in self._cells.values() if self.keeps_limits(one)), default=0.0)


def load_recorded(path: Path, *, seed: int = 0) -> list[RecordedGrid]:
    """Load all completely recorded grids of a file; none if there is no file."""
    if not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))
    return [RecordedGrid(row, seed=seed) for row in rows if row["is_whole"]]
