"""Tests of comparing runs: regressions are reported, repeats are not, and incomparable runs are named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from measured_cells import H200, LAPTOP, cell_of, key_of, noisy_run, results_of
from vitascope.bench.comparison import compare
from vitascope.bench.results import Cell
from vitascope.errors import InputError, UsageError

STEADY = (100.0, 101.0, 99.5, 100.4, 100.2)


def test_twenty_repeats_of_the_same_are_quiet():
    draws = np.random.default_rng(7)
    baseline = noisy_run(draws)
    found = [compare(baseline, noisy_run(draws)) for _ in range(20)]
    assert [one.verdict() for one in found if one.is_regression] == []
    assert all(one.overall.verdict == "same" for one in found)


@pytest.mark.parametrize("slowdown", [1.10, 1.25])
def test_twenty_slowed_runs_are_caught(slowdown):
    draws = np.random.default_rng(8)
    baseline = noisy_run(draws)
    found = [compare(baseline, noisy_run(draws, slowdown=slowdown)) for _ in range(20)]
    assert all(one.is_regression for one in found)
    assert all(one.overall.low < slowdown * 1.05 and one.overall.high > slowdown / 1.05 for one in found)


def test_one_slow_cell_among_many_is_named():
    draws = np.random.default_rng(9)
    baseline, latest = noisy_run(draws, drift=0), noisy_run(draws, drift=0)
    slow = latest.cells[2]
    rates = [rate / 1.2 for rate in slow.row("throughput").samples]
    latest = replace(latest, cells=(*latest.cells[:2], cell_of(slow.key, rates), *latest.cells[3:]))
    found = compare(baseline, latest)
    assert [change.key for change in found.regressed] == [slow.key]
    assert slow.key.label() in found.verdict()


def test_more_noise_means_wider_intervals_and_no_alarm():
    draws = np.random.default_rng(10)
    loud = compare(noisy_run(draws, noise=0.3, rounds=5), noisy_run(draws, noise=0.3, rounds=5))
    calm = compare(noisy_run(draws), noisy_run(draws))
    widths = [one.overall.high - one.overall.low for one in (loud, calm)]
    assert widths[0] > 3 * widths[1]
    assert not loud.is_regression


def test_what_other_programs_disturb_hides_no_regression_and_makes_none():
    draws = np.random.default_rng(11)

    def disturbed(slowdown=1.0):
        run = noisy_run(draws, rounds=24, noise=0.02, drift=0.005, slowdown=slowdown)
        cells = []
        for cell in run.cells:
            rates = np.array(cell.row("throughput").samples)
            share = draws.uniform(1.2, 1.8, len(rates))
            rates /= np.where(draws.random(len(rates)) < 0.25, share, 1.0)
            cells.append(cell_of(cell.key, rates))
        return replace(run, cells=tuple(cells))

    baseline = disturbed()
    assert not any(compare(baseline, disturbed()).is_regression for _ in range(6))
    assert all(compare(baseline, disturbed(1.12)).is_regression for _ in range(6))


def test_an_unsteady_machine_is_no_regression_and_no_proof():
    key = key_of()
    loud = [100.0, 60.0, 140.0, 80.0, 120.0]
    found = compare(results_of(cell_of(key, loud)), results_of(cell_of(key, [rate * 0.7 for rate in loud])))
    assert not found.is_regression
    assert found.changes[0].verdict == "unsure"
    assert "1 of 1 cells may be slower" in found.verdict()


def test_faster_is_said():
    key = key_of()
    found = compare(
        results_of(cell_of(key, STEADY)), results_of(cell_of(key, [rate * 1.3 for rate in STEADY]))
    )
    assert not found.is_regression
    assert found.verdict().startswith("faster: 23.")


def test_a_cell_that_runs_no_more_is_a_regression():
    one, other = cell_of(key_of(batch=1), STEADY), cell_of(key_of(batch=8), STEADY)
    gone = Cell(key=other.key, status="failed", reason="out of memory")
    found = compare(results_of(one, other), results_of(one, gone))
    assert found.is_regression
    assert found.broken == (f"{other.key.label()}: out of memory",)
    assert compare(results_of(other), results_of(gone, one)).is_regression


def test_what_is_not_compared_is_said():
    one, other = cell_of(key_of(batch=1), STEADY), cell_of(key_of(batch=8), STEADY)
    short = cell_of(key_of(batch=16), STEADY[:2])
    newer = replace(
        H200,
        gpus=(replace(H200.gpus[0], driver="590.2"),),
        versions={**H200.versions, "torch": "2.11"},
    )
    latest = results_of(
        replace(one, engine="tensorrt"), short, machine=newer, finished=False, began_at="2026-11-22"
    )
    notes = " | ".join(compare(results_of(one, other, short), latest).notes)
    for said in (
        "latest run did not finish",
        f"only in the baseline, not compared: {other.key.label()}",
        "fewer than 3 rounds, or videos of another length, not compared",
        "driver: 580.1, now 590.2",
        "torch: missing, now 2.11",
        "engine was inductor, is tensorrt",
    ):
        assert said in notes


def test_growing_memory_is_a_note_and_no_regression():
    key = key_of()
    found = compare(results_of(cell_of(key, STEADY)), results_of(cell_of(key, STEADY, vram_mb=5000.0)))
    assert not found.is_regression
    assert "1.25 times as much GPU memory" in " ".join(found.notes)


def test_a_suite_and_a_run_over_one_film_are_not_compared():
    run = results_of(cell_of(key_of(), [100.0, 101, 102]))
    with pytest.raises(UsageError, match="one is a run of the suite, the other of bench pipeline"):
        compare(run, replace(run, kind="pipeline"))


def test_other_machines_are_refused_and_named():
    run = cell_of(key_of(), STEADY)
    with pytest.raises(
        UsageError, match=r"GPU: NVIDIA H200 against none; processor: Xeon against Ryzen; cores"
    ):
        compare(results_of(run), results_of(run, machine=LAPTOP))


def test_nothing_to_compare():
    run = cell_of(key_of(), STEADY)
    failed = Cell(key=key_of(), status="failed", reason="no")
    with pytest.raises(InputError, match="baseline has no measured cell"):
        compare(results_of(failed), results_of(run))
    with pytest.raises(UsageError, match="measured different things"):
        compare(results_of(run), results_of(cell_of(key_of(batch=32), STEADY)))
    with pytest.raises(UsageError, match="none has 3 rounds"):
        compare(results_of(cell_of(key_of(), STEADY[:1])), results_of(run))


@pytest.mark.parametrize("tolerance", [0.0, -0.1, 1.0, float("nan")])
def test_impossible_tolerances(tolerance):
    run = results_of(cell_of(key_of(), STEADY))
    with pytest.raises(UsageError, match="tolerance"):
        compare(run, run, tolerance=tolerance)


def test_films_of_another_length_are_not_compared():
    one = cell_of(key_of(), STEADY)
    with pytest.raises(UsageError, match="videos of one length"):
        compare(results_of(one), results_of(replace(one, frames=one.frames // 2)))


def test_what_would_not_be_seen_is_said():
    calm, loud = (
        compare(results_of(cell_of(key_of(), rates)), results_of(cell_of(key_of(), rates)))
        for rates in (STEADY, [100.0, 60.0, 140.0, 80.0, 120.0])
    )
    assert calm.smallest_seen == pytest.approx(1.05, abs=0.01)
    assert loud.smallest_seen > 1.5
