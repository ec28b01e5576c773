"""Tests of the way of ``make bench``: explain a small run, store it as a baseline, and compare with it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run

from vitascope.bench.comparison import compare, load_baselines
from vitascope.bench.results import ResultsFile, Row, load_results

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def results(measured, tmp_path):
    """Return a run's results, which may be changed."""
    return Path(shutil.copy(measured, tmp_path))


def with_rates(path, rates):
    """Change the rates on disk to those of a steady machine."""
    results = load_results(path)
    row = Row.of("throughput", "frames/s", rates)
    cells = tuple(
        replace(cell, rows=(row, *(other for other in cell.rows if other.name != "throughput")))
        for cell in results.measured
    )
    ResultsFile(path, replace(results, cells=cells))


def test_analyze_baseline_compare(results, tmp_path, capsys):
    baselines = tmp_path / "baseline.json"
    assert run("bench", "analyze", results) == 0
    assert (results.parent / "benchmark_report.html").read_text().startswith("<!")
    with_rates(results, [100.0, 100.5, 99.5])
    capsys.readouterr()
    assert run("bench", "baseline", results, baselines) == 0
    assert "added the baseline of " in capsys.readouterr().out
    assert run("bench", "compare", baselines, results) == 0
    assert "no regression" in capsys.readouterr().out
    with_rates(results, [89.0, 89.4, 88.6])
    assert run("bench", "compare", baselines, results) == 1
    assert "regression: all cells together: 12.4% more time" in capsys.readouterr().out
    assert run("bench", "baseline", results, baselines) == 0
    assert "replaced the baseline of " in capsys.readouterr().out
    assert run("bench", "compare", baselines, results) == 0


def test_another_class_of_machine(results, tmp_path, capsys):
    baselines = tmp_path / "baseline.json"
    assert run("bench", "baseline", results, baselines) == 0
    document = json.loads(baselines.read_text())
    document["runs"][0]["machine"]["processor"] = "Abacus 9000"
    baselines.write_text(json.dumps(document))
    capsys.readouterr()
    assert run("bench", "compare", baselines, results) == 2
    (complaint,) = capsys.readouterr().err.strip().splitlines()
    assert "no baseline for this class of machine" in complaint
    assert "only for no GPU; Abacus 9000" in complaint
    assert f"vitascope bench baseline RESULTS {baselines}" in complaint
    assert run("bench", "compare", tmp_path / "missing.json", results) == 3
    compare_if_there_is_one = ("bench", "compare", baselines, results, "--allow-no-baseline")
    assert run(*compare_if_there_is_one) == 0
    assert capsys.readouterr().out == f"nothing was compared: {complaint.removeprefix('vitascope: ')}\n"
    assert run(*compare_if_there_is_one, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"regression": None, "reason": complaint.removeprefix("vitascope: ")}
    document["runs"][0]["machine"] = json.loads(results.read_text())["machine"]
    baselines.write_text(json.dumps(document))
    with_rates(results, [0.01, 0.0101, 0.0099])
    assert run(*compare_if_there_is_one) == 1, "a regression is one all the same"
    assert run(*compare_if_there_is_one, "--tolerance", "7") == 2, "and so is any other mistake"
    assert run("bench", "compare", tmp_path / "missing.json", results, "--allow-no-baseline") == 3


def test_make_bench_does_the_same():
    text = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    (compare_line,) = [
        line for line in text.splitlines() if "bench compare" in line and line.startswith("\t")
    ]
    assert compare_line.endswith(
        "bench compare benchmarks/baseline.json results/benchmark_results.json --allow-no-baseline"
    )
    assert "bench baseline results/benchmark_results.json benchmarks/baseline.json" in text
    for kept in load_baselines(CHECKOUT / "benchmarks" / "baseline.json"):
        assert not compare(kept, kept).is_regression
