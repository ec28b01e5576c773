"""Tests of the file with a run for each class of machine and workload."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from measured_cells import H200, LAPTOP, cell_of, key_of, results_of
from vitascope.bench.comparison import baseline_for, compare, load_baselines, store_baseline
from vitascope.bench.results import Cell, ResultsFile
from vitascope.errors import InputError, UsageError

RATES = (100.0, 101.0, 99.5, 100.4, 100.2)


def run_on(machine, *, factor=1.0, **fields):
    failed = Cell(key=key_of(batch=32), status="failed", reason="out of memory")
    return results_of(cell_of(key_of(), [rate * factor for rate in RATES]), failed, machine=machine, **fields)


def test_each_class_is_held_against_its_own(tmp_path):
    path = tmp_path / "baseline.json"
    assert store_baseline(path, run_on(H200)) is False
    assert store_baseline(path, run_on(LAPTOP, factor=0.1)) is False
    slower = run_on(LAPTOP, factor=0.085)
    found = compare(baseline_for(path, slower), slower)
    assert found.is_regression
    assert found.overall.slowdown == pytest.approx(1 / 0.85)
    same = run_on(H200)
    assert not compare(baseline_for(path, same), same).is_regression


def test_what_a_comparison_needs_is_kept_and_nothing_else(tmp_path):
    path, run = tmp_path / "baseline.json", run_on(H200)
    store_baseline(path, run)
    (kept,) = load_baselines(path)
    assert (kept.machine, kept.workload, kept.settings) == (run.machine, run.workload, run.settings)
    assert [cell.key for cell in kept.cells] == [cell.key for cell in run.cells]
    assert kept.cells[0].row("throughput") == run.cells[0].row("throughput")
    assert {row.name for row in kept.cells[0].rows} == {"throughput", "peak_vram"}
    assert kept.cells[1].reason == "out of memory"


def test_a_later_run_of_the_same_takes_the_place_of_an_earlier_one(tmp_path):
    path = tmp_path / "baseline.json"
    store_baseline(path, run_on(H200))
    store_baseline(path, run_on(LAPTOP))
    newer = replace(H200, versions={"python": "3.13.0"}, commit="def5678")
    assert store_baseline(path, run_on(newer, factor=1.2)) is True
    assert len(load_baselines(path)) == 2
    assert baseline_for(path, run_on(H200)).machine.commit == "def5678"


def test_workloads_have_baselines_of_their_own(tmp_path):
    path = tmp_path / "baseline.json"
    quick = run_on(H200, workload={"suite": "quick"})
    store_baseline(path, run_on(H200))
    with pytest.raises(
        UsageError, match=r"no baseline of this workload \(suite, suite quick\).*only of suite, suite full"
    ):
        baseline_for(path, quick)
    assert store_baseline(path, quick) is False
    assert baseline_for(path, quick).workload == {"suite": "quick"}
    with pytest.raises(UsageError, match="profile fast"):
        baseline_for(path, run_on(H200, settings={"profile": "fast"}))


def test_a_class_without_a_baseline_is_said_with_what_adds_it(tmp_path):
    path = tmp_path / "baseline.json"
    store_baseline(path, run_on(H200))
    with pytest.raises(UsageError) as caught:
        baseline_for(path, run_on(LAPTOP))
    said = str(caught.value)
    assert "(no GPU; Ryzen, 8 cores)" in said
    assert "only for NVIDIA H200; Xeon, 16 cores" in said
    assert f"vitascope bench baseline RESULTS {path}" in said


def test_a_file_without_any_baseline(tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text('{"schema": "vitascope.baselines", "version": 1, "runs": []}')
    with pytest.raises(UsageError, match=r"\(no GPU; Ryzen, 8 cores\); vitascope bench baseline"):
        baseline_for(path, run_on(LAPTOP))


def test_results_of_one_run_are_a_baseline_too(tmp_path):
    path = tmp_path / "results.json"
    ResultsFile(path, run_on(H200))
    assert baseline_for(path, run_on(LAPTOP)).machine == H200, "compare says that they cannot be compared"
    with pytest.raises(InputError, match="not a file of baselines"):
        store_baseline(path, run_on(H200))


def test_what_makes_no_baseline(tmp_path):
    path = tmp_path / "baseline.json"
    with pytest.raises(UsageError, match="--resume"):
        store_baseline(path, run_on(H200, finished=False))
    with pytest.raises(InputError, match="no measured cell"):
        store_baseline(path, results_of(run_on(H200).cells[1]))
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "version 2"),
        ({"runs": {}}, "version 1"),
        ({"runs": [{"schema": "vitascope.bench", "version": 99}]}, "version 99"),
        ({"runs": [3]}, "no benchmark results"),
    ],
)
def test_damaged_files(tmp_path, change, complaint):
    path = tmp_path / "baseline.json"
    store_baseline(path, run_on(H200))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=complaint):
        baseline_for(path, run_on(H200))
