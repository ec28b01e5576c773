"""Baselines that runs are compared with: one file with a run for each class of machine.

A class is what makes figures comparable, as ``machine.differences`` says: GPUs, CPU, cores and memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitascope.bench.machine import differences
from vitascope.bench.results import (
    BASELINES_SCHEMA,
    BenchResults,
    document_of,
    read_document,
    results_from,
)
from vitascope.errors import InputError, UsageError
from vitascope.gpu.profiling.document import write_file

__all__ = ["SCHEMA", "baseline_for", "load_baselines", "store_baseline", "why_no_baseline"]

SCHEMA = BASELINES_SCHEMA
_VERSION = 1
_KEPT_ROWS = ("throughput", "peak_vram")
"""What ``comparison.compare`` reads; the thousands of samples of the others are of no use in a baseline."""


def baseline_for(path: Path, latest: BenchResults) -> BenchResults:
    """The run that a later one is compared with.

    Args:
        path: Results of one run, or a file of baselines.
        latest: The later run; of baselines that of its class and its workload is taken.

    Raises:
        InputError: The file cannot be read.
        UsageError: It is a file of baselines, and has none for this run.
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
    """Why a file of baselines has none for a run; None if ``baseline_for`` finds one.

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
    """Every run of a file of baselines.

    Raises:
        InputError: The file cannot be read, or is something else.
    """
    document = read_document(path)
    if not _is_baselines(document):
        raise InputError(f"{path} is no file of baselines: its schema is not {SCHEMA!r}")
    return tuple(_runs(document, path))


def store_baseline(path: Path, results: BenchResults) -> bool:
    """Keep a run as the baseline of its class and its workload; the file appears whole.

    Args:
        path: The file of baselines; made where it is missing.
        results: A finished run.

    Returns:
        True when it took the place of an earlier one.

    Raises:
        UsageError: The run did not finish.
        InputError: The run holds no figures, or the file is no file of baselines.
        OutputError: The file cannot be written.
    """
    if not results.finished:
        raise UsageError(
            "a baseline is a whole run, and this one did not finish: bench run --resume goes on with it"
        )
    if not results.measured:
        raise InputError("this run holds no measured cell: there is nothing to compare with later")
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
    """The same run with what a comparison needs."""
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
