"""Compare two runs of a benchmark cell by cell, with confidence intervals, to find slowdowns.

A run is compared with another run, or with the baseline of its class of machine; a file of baselines holds one run
per class. Machines of one class have comparable figures: the same GPUs, CPU, cores and memory
(``machine.differences``).

The quantity compared is the time per frame in each round (the inverse of ``throughput``). The interval is a
percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13) of the ratio of
geometric means over rounds, widened by sqrt(n / (n - 1)) because there are few, at a confidence that holds for all
cells together (Bonferroni). All rounds of a run share the conditions of their hour, such as other programs and heat.
Their spread does not show this, so the interval includes an allowance for it, half as large as the spread of single
rounds and common to all cells.

Other programs make rounds slower, never faster. With a dozen rounds or more only the faster half of each run is
compared; a real slowdown shows in every round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.bench.results import (
    BASELINES_SCHEMA,
    BenchResults,
    Cell,
    CellKey,
    differences,
    document_of,
    read_document,
    results_from,
)
from vitascope.errors import InputError, UsageError
from vitascope.file_lock import write_file

METHOD = "percentile bootstrap over rounds, with an allowance for drift between runs"
_RESAMPLES = 20_000
_ERROR_RATE = 0.05
"""Chance of at least one false alarm over all cells, if nothing changed and rounds are independent."""
FEWEST_ROUNDS = 3
"""Fewer rounds of a cell do not show its spread."""
_MANY_ROUNDS = 12
"""From this many rounds on the slower half is left out. In simulations of 24 rounds with one in five disturbed, this
catches 90 % of runs slowed by 10 %, where all rounds together catch none; of 160 repeats none is called slower.
"""
_SEED = 1
_DRIFT = 0.5
"""Standard deviation from run to run, as a share of that from round to round."""
_MEMORY_GROWTH = 1.1
"""GPU memory is noted from this factor of growth on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellChange:
    """The change in one cell."""

    key: CellKey | None
    """None for all cells together."""
    baseline_fps: float
    latest_fps: float
    slowdown: float
    """Time per frame, latest over baseline: 1.1 is a tenth slower."""
    low: float
    """Lower end of the interval; ``high`` is the upper."""
    high: float
    verdict: str
    """``slower``, ``faster``, ``same``; or ``unsure``: beyond the tolerance, but with too wide an interval to tell."""

    def label(self) -> str:
        """The human-readable form."""
        return "all cells together" if self.key is None else self.key.label()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of two runs."""

    changes: tuple[CellChange, ...]
    overall: CellChange
    broken: tuple[str, ...]
    """Cells that were measured before and fail now, one sentence each."""
    notes: tuple[str, ...]
    """Notes on what was not compared, and on other differences."""
    tolerance: float
    confidence: float
    """The confidence of each interval."""

    @property
    def regressed(self) -> tuple[CellChange, ...]:
        """The cells that are certainly slower."""
        changes = self.changes if len(self.changes) == 1 else (self.overall, *self.changes)
        return tuple(change for change in changes if change.verdict == "slower")

    @property
    def is_regression(self) -> bool:
        """True when something is slower, or no longer runs."""
        return bool(self.regressed or self.broken)

    @property
    def smallest_seen(self) -> float:
        """Smallest ratio of the times per frame over all cells that would have raised an alarm."""
        wide = self.overall.slowdown / self.overall.low if self.overall.low > 0 else math.inf
        return max(1 + self.tolerance, (1 + self.tolerance / 2) * wide)

    def verdict(self) -> str:
        """The verdict in one sentence."""
        if self.broken:
            return f"regression: {len(self.broken)} cells no longer run"
        if self.regressed:
            worst = max(self.regressed, key=lambda change: change.slowdown)
            return (
                f"regression: {worst.label()}: {worst.slowdown - 1:.1%} more time per frame "
                f"({worst.low - 1:+.1%} to {worst.high - 1:+.1%})"
            )
        if self.overall.verdict == "faster":
            return f"faster: {1 - self.overall.slowdown:.1%} less time per frame over all cells"
        unsure = [change for change in self.changes if change.verdict == "unsure" and change.slowdown > 1]
        if unsure:
            return (
                f"no regression is certain, but {len(unsure)} of {len(self.changes)} cells may be slower: their rounds "
                "vary too much to tell; close other programs and measure again"
            )
        return f"no regression: nothing is certainly more than {self.tolerance:.0%} slower"


def compare(baseline: BenchResults, latest: BenchResults, *, tolerance: float = 0.05) -> Comparison:
    """Compare two runs of one benchmark on one machine.

    A change counts if the estimate is beyond the tolerance, and the whole interval is beyond half of it.

    Args:
        baseline: The earlier run.
        latest: The later one.
        tolerance: Share of the time per frame by which it may vary.

    Raises:
        UsageError: The machines or the kinds of run differ, they have no cell in common, or the tolerance is out of
            range.
        InputError: A run holds no figures.
    """
    if not 0 < tolerance < 1:
        raise UsageError(f"a tolerance must lie between 0 and 1, not {tolerance:g}")
    unlike = differences(baseline.machine, latest.machine)
    if unlike:
        raise UsageError(
            f"these machines cannot be compared ({'; '.join(unlike)}); measure both on one machine"
        )
    if baseline.kind != latest.kind:
        raise UsageError(
            "one is a run of the suite, the other of bench pipeline: only the suite counts what the encoder does at "
            "the end; measure both in the same way"
        )
    for name, results in (("baseline", baseline), ("latest run", latest)):
        if not results.measured:
            raise InputError(f"the {name} has no measured cell, so there is nothing to compare")
    pairs = [
        (cell, other)
        for cell in baseline.measured
        if (other := latest.cell(cell.key)) and other.status == "measured"
    ]
    usable = [
        (one, other)
        for one, other in pairs
        if min(len(_times(one)), len(_times(other))) >= FEWEST_ROUNDS
        and (baseline.kind != "suite" or one.frames == other.frames)
    ]
    broken = tuple(
        f"{cell.key.label()}: {other.reason}"
        for cell in baseline.measured
        if (other := latest.cell(cell.key)) and other.status != "measured"
    )
    if not usable and not broken:
        why = "they measured different things"
        if pairs:
            why = f"none has {FEWEST_ROUNDS} rounds in both, over videos of one length"
        raise UsageError(f"these runs have no cell in common that can be compared: {why}")
    alpha = _ERROR_RATE / (len(usable) + 1 if len(usable) > 1 else 1)
    draws = np.random.default_rng(_SEED)
    drift = draws.standard_normal((2, _RESAMPLES))
    logs = [_log_ratios(_times(one), _times(other), draws, drift=drift) for one, other in usable]
    changes = tuple(
        _change(one.key, one, other, estimate, samples, alpha=alpha, tolerance=tolerance)
        for (one, other), (estimate, samples) in zip(usable, logs, strict=True)
    )
    return Comparison(
        changes=changes,
        overall=_overall(usable, logs, alpha=alpha, tolerance=tolerance),
        broken=broken,
        notes=tuple(_notes(baseline, latest, pairs, usable)),
        tolerance=tolerance,
        confidence=1 - alpha,
    )


def gain_of(one: Cell, other: Cell) -> tuple[float, float, float]:
    """The second cell's speed as a multiple of the first's, and the ends of its 95 % interval.

    Args:
        one: Measured, in two rounds or more.
        other: Likewise.
    """
    estimate, samples = _log_ratios(_times(other), _times(one), np.random.default_rng(_SEED))
    low, high = (float(np.exp(end)) for end in np.quantile(samples, (_ERROR_RATE / 2, 1 - _ERROR_RATE / 2)))
    return math.exp(estimate), low, high


def _times(cell: Cell) -> npt.NDArray[np.float64]:
    """Seconds per frame in each round; of many rounds only the faster half."""
    row = cell.row("throughput")
    times = np.sort([] if row is None else [1 / rate for rate in row.samples if rate > 0])
    return times[: len(times) // 2] if len(times) >= _MANY_ROUNDS else times


def _log_ratios(
    one: npt.NDArray[np.float64],
    other: npt.NDArray[np.float64],
    draws: np.random.Generator,
    *,
    drift: npt.NDArray[np.float64] | None = None,
) -> tuple[float, npt.NDArray[np.float64]]:
    """The logarithm of the ratio of geometric means, and its values for resampled rounds.

    Args:
        one: Seconds per frame, for each round.
        other: Likewise.
        draws: Random numbers.
        drift: float64 [2, resamples], standard normal, for the two runs. None if both are parts of one run.
    """

    def spread(
        times: npt.NDArray[np.float64], drifted: npt.NDArray[np.float64] | None
    ) -> npt.NDArray[np.float64]:
        logs = np.log(times)
        means = logs[draws.integers(0, len(logs), (_RESAMPLES, len(logs)))].mean(axis=1)
        # The means of a few resampled rounds vary less than those of new rounds would.
        widened: npt.NDArray[np.float64] = (means - logs.mean()) * math.sqrt(len(logs) / (len(logs) - 1))
        return widened if drifted is None else widened + _DRIFT * logs.std(ddof=1) * drifted

    drifts = (None, None) if drift is None else (drift[0], drift[1])
    estimate = float(np.log(other).mean() - np.log(one).mean())
    return estimate, estimate + spread(other, drifts[1]) - spread(one, drifts[0])


def _change(
    key: CellKey | None,
    one: Cell,
    other: Cell,
    estimate: float,
    samples: npt.NDArray[np.float64],
    *,
    alpha: float,
    tolerance: float,
) -> CellChange:
    low, high = (float(np.exp(end)) for end in np.quantile(samples, (alpha / 2, 1 - alpha / 2)))
    slowdown = math.exp(estimate)
    verdict = "same"
    if slowdown >= 1 + tolerance and low > 1 + tolerance / 2:
        verdict = "slower"
    elif slowdown <= 1 / (1 + tolerance) and high < 1 / (1 + tolerance / 2):
        verdict = "faster"
    elif not 1 / (1 + tolerance) < slowdown < 1 + tolerance:
        verdict = "unsure"
    return CellChange(
        key=key,
        baseline_fps=1 / math.exp(float(np.log(_times(one)).mean())),
        latest_fps=1 / math.exp(float(np.log(_times(other)).mean())),
        slowdown=slowdown,
        low=low,
        high=high,
        verdict=verdict,
    )


def _overall(
    pairs: Sequence[tuple[Cell, Cell]],
    logs: Sequence[tuple[float, npt.NDArray[np.float64]]],
    *,
    alpha: float,
    tolerance: float,
) -> CellChange:
    """The change of the geometric mean over cells, which may show what each cell is too noisy to show alone."""
    if not pairs:
        return CellChange(
            key=None, baseline_fps=0.0, latest_fps=0.0, slowdown=1.0, low=0.0, high=math.inf, verdict="same"
        )
    estimate = float(np.mean([one for one, _ in logs]))
    samples = np.mean([many for _, many in logs], axis=0)
    change = _change(None, *pairs[0], estimate, samples, alpha=alpha, tolerance=tolerance)
    means = [
        math.exp(float(np.mean([-np.log(_times(pair[side])).mean() for pair in pairs]))) for side in (0, 1)
    ]
    return replace(change, baseline_fps=means[0], latest_fps=means[1])


def _notes(
    baseline: BenchResults,
    latest: BenchResults,
    pairs: Sequence[tuple[Cell, Cell]],
    usable: Sequence[tuple[Cell, Cell]],
) -> list[str]:
    notes = []
    for name, results in (("the baseline", baseline), ("the latest run", latest)):
        if not results.finished:
            notes.append(f"{name} did not finish: it holds {len(results.cells)} cells")
    gone = [cell.key.label() for cell in baseline.measured if latest.cell(cell.key) is None]
    if gone:
        notes.append(f"only in the baseline, not compared: {'; '.join(gone)}")
    new = [
        cell.key.label()
        for cell in latest.measured
        if (known := baseline.cell(cell.key)) is None or known.status != "measured"
    ]
    if new:
        notes.append(f"only in the latest run, not compared: {'; '.join(new)}")
    few = [one.key.label() for one, other in pairs if (one, other) not in usable]
    if few:
        notes.append(
            f"fewer than {FEWEST_ROUNDS} rounds, or videos of another length, not compared: {'; '.join(few)}"
        )
    before, after = baseline.machine, latest.machine
    drivers = [{gpu.driver for gpu in machine.gpus} for machine in (before, after)]
    if drivers[0] != drivers[1]:
        notes.append(f"driver: {', '.join(sorted(drivers[0]))}, now {', '.join(sorted(drivers[1]))}")
    for name in sorted({*before.versions, *after.versions}):
        old, now = before.versions.get(name, "missing"), after.versions.get(name, "missing")
        if old != now:
            notes.append(f"{name}: {old}, now {now}")
    for one, other in pairs:
        notes += [
            f"{one.key.label()}: {name} was {old}, is {new_value}"
            for name, old, new_value in (
                ("engine", one.engine, other.engine),
                ("network", one.model, other.model),
                ("decoder", one.decoder, other.decoder),
            )
            if old != new_value
        ]
        memory = one.median("peak_vram"), other.median("peak_vram")
        if memory[0] and memory[1] and memory[1] > _MEMORY_GROWTH * memory[0]:
            notes.append(
                f"{one.key.label()}: {memory[1] / memory[0]:.2f} times as much GPU memory "
                f"({memory[0]:.0f} MB, now {memory[1]:.0f} MB)"
            )
    return notes


SCHEMA = BASELINES_SCHEMA
_VERSION = 1
_KEPT_ROWS = ("throughput", "peak_vram")
"""The rows that ``compare`` reads; a baseline does not need the thousands of samples in the others."""


def baseline_for(path: Path, latest: BenchResults) -> BenchResults:
    """Return the run to compare a later one with.

    Args:
        path: Results of one run, or a file of baselines.
        latest: The later run; from a file of baselines, the run of its class and workload is taken.

    Raises:
        InputError: The file cannot be read.
        UsageError: It is a file of baselines without one for this run.
    """
    document = read_document(path)
    if not _is_baselines(document):
        return results_from(document, path)
    runs = _runs(document, path)
    found = _of_class_and_workload(runs, latest)
    if found is None:
        raise UsageError(_nothing_for(latest, runs, path))
    return found


def why_no_baseline(path: Path, latest: BenchResults) -> str | None:
    """Say why a file of baselines has none for this run; None if ``baseline_for`` finds one.

    Args:
        path: Results of one run, or a file of baselines.
        latest: The later run.

    Raises:
        InputError: The file cannot be read.
    """
    document = read_document(path)
    if not _is_baselines(document):
        return None
    runs = _runs(document, path)
    return None if _of_class_and_workload(runs, latest) else _nothing_for(latest, runs, path)


def load_baselines(path: Path) -> tuple[BenchResults, ...]:
    """Load every run in a file of baselines.

    Raises:
        InputError: The file cannot be read, or is of another kind.
    """
    document = read_document(path)
    if not _is_baselines(document):
        raise InputError(f"{path} is not a file of baselines: its schema is not {SCHEMA!r}")
    return tuple(_runs(document, path))


def store_baseline(path: Path, results: BenchResults) -> bool:
    """Keep a run as the baseline of its class and workload; the file is replaced whole.

    Args:
        path: The file of baselines; created if missing.
        results: A finished run.

    Returns:
        True when it replaced an earlier one.

    Raises:
        UsageError: The run did not finish.
        InputError: The run has no figures, or the file is not a file of baselines.
        OutputError: The file cannot be written.
    """
    if not results.finished:
        raise UsageError(
            "a baseline must be a finished run, and this one is not: bench run --resume continues it"
        )
    if not results.measured:
        raise InputError("this run has no measured cell, so there is nothing to compare with later")
    earlier = load_baselines(path) if path.exists() else ()
    kept = [
        run
        for run in earlier
        if differences(run.machine, results.machine) or not _same_workload(run, results)
    ]
    runs = [document_of(run) for run in (*kept, _slim(results))]
    plain = {"schema": SCHEMA, "version": _VERSION, "runs": runs}
    write_file(path, (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())
    return len(kept) < len(earlier)


def _is_baselines(document: Any) -> bool:
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def _runs(document: dict[str, Any], path: Path) -> Sequence[BenchResults]:
    if document.get("version") != _VERSION or not isinstance(document.get("runs"), list):
        raise InputError(
            f"{path} holds baselines of version {document.get('version')!r}; this program reads version {_VERSION}"
        )
    return [results_from(run, path) for run in document["runs"]]


def _of_class_and_workload(runs: Sequence[BenchResults], latest: BenchResults) -> BenchResults | None:
    return next(
        (run for run in runs if not differences(run.machine, latest.machine) and _same_workload(run, latest)),
        None,
    )


def _nothing_for(latest: BenchResults, runs: Sequence[BenchResults], path: Path) -> str:
    how = f"vitascope bench baseline RESULTS {path} keeps a run as one"
    of_class = [run for run in runs if not differences(run.machine, latest.machine)]
    if of_class:
        others = " | ".join(_workload(run) for run in of_class)
        return (
            f"{path} has no baseline of this workload ({_workload(latest)}) for this class of machine, only of "
            f"{others}; {how}"
        )
    classes = "; ".join(dict.fromkeys(_class_name(run) for run in runs))
    return (
        f"{path} has no baseline for this class of machine ({_class_name(latest)})"
        f"{f', only for {classes}' if classes else ''}; {how}"
    )


def _same_workload(one: BenchResults, other: BenchResults) -> bool:
    return (one.kind, one.workload, one.settings) == (other.kind, other.workload, other.settings)


def _workload(run: BenchResults) -> str:
    parts = {**run.workload, **run.settings}
    return ", ".join([run.kind, *(f"{name} {value}" for name, value in parts.items())])


def _class_name(run: BenchResults) -> str:
    machine = run.machine
    gpus = ", ".join(gpu.name for gpu in machine.gpus) or "no GPU"
    return f"{gpus}; {machine.processor}, {machine.cores} cores"


def _slim(results: BenchResults) -> BenchResults:
    """The same run reduced to what a comparison needs."""
    cells = [
        replace(
            cell,
            rows=tuple(row for row in cell.rows if row.name in _KEPT_ROWS),
            damaged_count=0,
            load=None,
            verdict=None,
            operations=None,
            notes=(),
        )
        for cell in results.cells
    ]
    return replace(results, cells=tuple(cells))
