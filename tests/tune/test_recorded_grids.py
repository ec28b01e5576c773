"""Check how near a search over recorded grids comes to the best cell, with a fifth of the cells."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from statistics import mean

import pytest

from recorded_grids import RecordedGrid, load_recorded
from vitascope.tune.search import GridSearch

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "recorded_grids.json"
BEGINNINGS = 12


def row_of_knobs(score, *, fits):
    """Return a file's row of 40 cells."""
    knobs = [
        ["precision", ["fp16", "fp32"], False],
        ["batch", [1, 2, 4, 8, 16], True],
        ["sessions", [1, 2, 4, 8], True],
    ]
    cells = []
    for cell in itertools.product(range(2), range(5), range(4)):
        did_fit = fits(*cell)
        cells.append(
            {
                "cell": list(cell),
                "fps": score(*cell) if did_fit else 0.0,
                "failure": None if did_fit else "out of memory",
                **({"vram_share": 0.01 * (1 + cell[1] + cell[2]), "latency_ms": 5.0} if did_fit else {}),
            }
        )
    return {
        "size": "4K",
        "is_whole": True,
        "knobs": knobs,
        "limits": [["vram_share", 0.06]],
        "noise": 0.01,
        "cells": cells,
    }


def best_found(row, seed):
    grid = RecordedGrid(row, seed=seed)
    search = GridSearch(grid.knobs, grid.limits, seed=seed)
    found = search.run(grid.measure)
    assert len(found.trials) <= grid.size / 5
    return grid, 0.0 if found.best is None else grid.truth(search.values(found.best)).score


def test_a_recording_is_replayed_cell_by_cell(tmp_path):
    row = row_of_knobs(lambda p, b, s: 100.0 + 10 * b, fits=lambda p, b, s: b + s < 6)
    file = tmp_path / "grids.json"
    file.write_text(json.dumps([row, {**row, "is_whole": False}]))
    (grid,) = load_recorded(file)
    assert grid.size == 40
    assert grid.truth({"precision": "fp32", "batch": 8, "sessions": 2}).score == 130
    assert grid.measure({"precision": "fp16", "batch": 16, "sessions": 8}).failure == "out of memory"
    measured = grid.measure({"precision": "fp16", "batch": 1, "sessions": 1})
    assert measured.score != 100
    assert math.isclose(measured.score, 100, rel_tol=0.1)
    assert grid.optimum() == 140
    assert load_recorded(tmp_path / "none.json") == []


def test_cells_that_do_not_fit_are_not_chosen():
    row = row_of_knobs(
        lambda p, b, s: 60.0 * (1 + b) * (1 + 0.3 * s) / (1 + p), fits=lambda p, b, s: b + s + p < 5
    )
    shares = []
    for seed in range(BEGINNINGS):
        grid, score = best_found(row, seed)
        assert 0 < score <= grid.optimum()
        shares.append(score / grid.optimum())
    assert mean(shares) >= 0.7  # eight trials, and the best cell is next to those that do not fit


@pytest.mark.skipif(not load_recorded(RECORDED), reason="no grid was recorded")
def test_95_percent_of_the_optimum_of_what_a_gpu_answered():
    for number in range(len(load_recorded(RECORDED))):
        reached = 0
        for seed in range(BEGINNINGS):
            grid = load_recorded(RECORDED, seed=seed)[number]
            search = GridSearch(grid.knobs, grid.limits, seed=seed)
            found = search.run(grid.measure)
            assert len(found.trials) <= grid.size / 5
            chosen = None if found.best is None else grid.truth(search.values(found.best))
            reached += chosen is not None and chosen.score >= 0.95 * grid.optimum()
        assert reached >= 0.9 * BEGINNINGS, grid.name
