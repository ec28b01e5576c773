"""Whether results that have the right shape also make sense: a file may be damaged, or written by somebody else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitascope.tuning.results import BenchResults, Row

__all__ = ["what_is_lacking", "what_is_wrong"]

_POSITIVE = ("throughput", "frame_time")
_ALWAYS, _TO_EXPLAIN = ("throughput",), ("throughput", "frame_time", "latency")
"""Rows of measured cells: of every one, and of those of a run; baselines keep what comparisons need."""


def what_is_wrong(results: BenchResults) -> str | None:
    """The first thing that cannot be, with its place; None where there is nothing.

    Args:
        results: Of one machine, as read.
    """
    for number, one in enumerate(results.ceilings):
        if fault := _fault(one.rows, positive=[row.name for row in one.rows]):
            return f"ceilings.{number}.{fault}"
    for number, cell in enumerate(results.cells):
        if fault := _fault(cell.rows, positive=_POSITIVE):
            return f"cells.{number}.{fault}"
    return _lacking(results, _ALWAYS)


def what_is_lacking(results: BenchResults) -> str | None:
    """The first row that a report needs, and that is not there; None where all are.

    Args:
        results: Of one machine, as read.
    """
    return _lacking(results, _TO_EXPLAIN)


def _lacking(results: BenchResults, names: Iterable[str]) -> str | None:
    for number, cell in enumerate(results.cells):
        lacking = next((name for name in names if cell.row(name) is None), None)
        if cell.status == "measured" and lacking is not None:
            return f"cells.{number}.rows: it was measured, and has no {lacking!r}"
    return None


def _fault(rows: Iterable[Row], *, positive: Iterable[str]) -> str | None:
    for number, row in enumerate(rows):
        values = (row.p5, row.p50, row.p95, row.p99, *row.samples)
        least = min((value for value in values if math.isfinite(value)), default=0.0)
        if not row.samples or row.n != len(row.samples):
            return f"rows.{number}: {row.name!r} has {len(row.samples)} samples, and says that it has {row.n}"
        if not all(map(math.isfinite, values)) or least < 0 or (row.name in positive and least == 0):
            return f"rows.{number}: {row.name!r} holds a figure that cannot be measured"
    return None
