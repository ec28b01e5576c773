"""Measure how near the search for settings gets, and in how few trials, on fully known grids.

Grids are made up after the ways of real runs (``tests/tuning_grids.py``): the slowest of decoder, network and
encoder sets the pace, cells run out of memory, limits on memory, latency and matte interact with what is turned, and
measurements are noisy. What the search chose is judged by its true speed against the fastest cell that keeps the
limits, found by looking at all of them. Latency is noisy, so a choice may pass a limit by 5 %. Beside it the best of as
many cells drawn by chance, measured with the same noise. One row for searches that may measure a fifth of the cells,
one for what ``vitascope optimize`` allows when nothing is said.

If ``results/recorded_grids.json`` exists (``record_grid_cuda.py`` writes it), the search also runs on a GPU's
real measurements, with the noise measured there, from many starting points.

No pictures, no GPU: the same figures on every machine.

Usage: python benchmarks/search_grids.py [--grids 60] [--recorded GRIDS.json] [OUT.json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from row_stamp import commit, write_rows
from vitascope.tune.optimizer import MOST_TRIALS
from vitascope.tune.search import GridSearch, Knob, Limit, Measured

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the grids that the tests search, too
from recorded_grids import load_recorded
from tuning_grids import MadeUpGrid

RESULTS = Path(__file__).parent / "results" / "search_grids.json"
RECORDED = RESULTS.with_name("recorded_grids.json")
BEGINNINGS = 40
"""Searches of a recorded grid, each with other first cells and other noise."""
NEAR = 0.95
"""Share of the optimum that counts as reached."""
LIMIT_SLACK = 0.05
ALLOWED = {"a fifth of the cells": None, f"{MOST_TRIALS} trials": MOST_TRIALS}
NOTHING = Measured(failure="nothing was found")


class Grid(Protocol):
    """A grid of which every cell is known."""

    knobs: list[Knob]
    limits: list[Limit]

    def truth(self, values: dict[str, Any]) -> Measured:
        """A cell without noise."""

    def measure(self, values: dict[str, Any]) -> Measured:
        """A cell as a run would measure it."""

    def keeps_limits(self, measured: Measured, *, slack: float = 0.0) -> bool:
        """True if it ran within the limits."""

    def optimum(self) -> float:
        """Score of the fastest cell within the limits; 0 without one."""


@dataclass(frozen=True, slots=True)
class Searched:
    """One grid: its content, and the result of its search."""

    cells: int
    out_of_memory: int
    beyond_limits: int
    trials: int
    of_optimum: float
    """True speed of the choice as a share of the fastest cell within the limits; 0 where it breaks one or is none."""
    of_optimum_by_chance: float
    """The same of the best among as many cells drawn by chance."""

    @property
    def trial_share(self) -> float:
        """Measurements for each cell of the grid."""
        return self.trials / self.cells


def every_cell(grid: Grid) -> Iterator[dict[str, Any]]:
    """The settings of all cells."""
    keys = [knob.key for knob in grid.knobs]
    for values in itertools.product(*(knob.values for knob in grid.knobs)):
        yield dict(zip(keys, values, strict=True))


def share_of_optimum(grid: Grid, chosen: Measured, optimum: float) -> float:
    """Score a choice by its true figures."""
    return chosen.score / optimum if grid.keeps_limits(chosen, slack=LIMIT_SLACK) else 0.0


def best_by_chance(grid: Grid, trials: int, seed: int) -> Measured:
    """The truth of the cell that measured best among cells drawn by chance."""
    drawn = random.Random(seed).sample(list(every_cell(grid)), trials)
    measured = [(grid.measure(values), values) for values in drawn]
    kept = [(one.score, number) for number, (one, _) in enumerate(measured) if grid.keeps_limits(one)]
    return grid.truth(measured[max(kept)[1]][1]) if kept else NOTHING


def searched(grid: Grid, seed: int, most_trials: int | None) -> Searched | None:
    """Search one grid, in a fifth of its cells when no number is given; None where no cell keeps the limits."""
    truths = [grid.truth(values) for values in every_cell(grid)]
    optimum = grid.optimum()
    if optimum == 0:
        return None
    search = GridSearch(grid.knobs, grid.limits, seed=seed, most_trials=most_trials)
    found = search.run(grid.measure)
    chosen = NOTHING if found.best is None else grid.truth(search.values(found.best))
    trials = len(found.trials)
    return Searched(
        cells=len(truths),
        out_of_memory=sum(one.failure is not None for one in truths),
        beyond_limits=sum(one.failure is None and not grid.keeps_limits(one) for one in truths),
        trials=trials,
        of_optimum=share_of_optimum(grid, chosen, optimum),
        of_optimum_by_chance=share_of_optimum(grid, best_by_chance(grid, trials, seed), optimum),
    )


def row(grids: list[Searched], tried: int, claim: str) -> dict[str, Any]:
    """What is kept of all of them."""
    shares = [one.trial_share for one in grids]
    p5, p50, p95 = np.percentile([one.of_optimum for one in grids], (5, 50, 95))
    return {
        "claim": claim,
        "grids": len(grids),
        "grids_without_a_cell_within_limits": tried - len(grids),
        "cells_least": min(one.cells for one in grids),
        "cells_most": max(one.cells for one in grids),
        "grids_with_cells_out_of_memory": sum(one.out_of_memory > 0 for one in grids),
        "out_of_memory_share_mean": round(
            sum(one.out_of_memory / one.cells for one in grids) / len(grids), 3
        ),
        "beyond_limits_share_mean": round(
            sum(one.beyond_limits / one.cells for one in grids) / len(grids), 3
        ),
        "near": NEAR,
        "reached": sum(one.of_optimum >= NEAR for one in grids),
        "reached_by_chance": sum(one.of_optimum_by_chance >= NEAR for one in grids),
        "of_optimum_worst": round(min(one.of_optimum for one in grids), 3),
        "of_optimum_p5": round(float(p5), 3),
        "of_optimum_p50": round(float(p50), 3),
        "of_optimum_p95": round(float(p95), 3),
        "trials_median": median(one.trials for one in grids),
        "trials_most": max(one.trials for one in grids),
        "trial_share_mean": round(sum(shares) / len(shares), 3),
        "trial_share_most": round(max(shares), 3),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def recorded_rows(file: Path) -> list[dict[str, Any]]:
    """A row for each recorded grid: searches that may measure a fifth of its cells."""
    rows = []
    for number, name in enumerate(one.name for one in load_recorded(file)):
        found = []
        for seed in range(BEGINNINGS):
            one = searched(load_recorded(file, seed=seed)[number], seed, None)
            if one is not None:
                found.append(one)
        if not found:
            print(f"{name}: no cell keeps the limits")
            continue
        rows.append(row(found, BEGINNINGS, f"search over a recorded grid, {name}, a fifth of the cells"))
        print(f"{name}: {rows[-1]['reached']} of {len(found)} searches reached {NEAR:.0%}", flush=True)
    return rows


def main() -> None:
    """Search all grids, print, and keep the rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--grids", type=int, default=60)
    parser.add_argument("--recorded", type=Path, default=RECORDED, help="what record_grid_cuda.py wrote")
    given = parser.parse_args()
    rows = []
    for allowed, most_trials in ALLOWED.items():
        grids = []
        for seed in range(given.grids):
            one = searched(MadeUpGrid(seed), seed, most_trials)
            if one is None:
                print(f"{allowed}, grid {seed}: no cell keeps the limits")
                continue
            grids.append(one)
            print(
                f"{allowed}, grid {seed}: {one.of_optimum:.1%} of the optimum (by chance "
                f"{one.of_optimum_by_chance:.1%}) with {one.trials} of {one.cells} cells ({one.trial_share:.1%}); "
                f"{one.out_of_memory} out of memory, {one.beyond_limits} beyond limits",
                flush=True,
            )
        rows.append(row(grids, given.grids, f"search over made-up grids, {allowed}"))
    rows += recorded_rows(given.recorded)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_rows(given.out, rows)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
