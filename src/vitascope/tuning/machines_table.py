"""Several machines in one table, and what else differs between their runs."""

from __future__ import annotations

from collections.abc import Sequence

from vitascope.tuning.machine import Machine
from vitascope.tuning.report_section import Section
from vitascope.tuning.results import BenchResults

__all__ = ["machines_table"]

_ALLOWED_TO_DIFFER = ("only", "gpu.device", "gpu.device_ids")
"""Of what was asked for: which cells, and where."""


def machines_table(runs: Sequence[BenchResults]) -> Section:
    """Each machine's median speed; cells that one of them lacks have a dash, and nothing is averaged.

    Args:
        runs: Two or more.
    """
    keys = dict.fromkeys(cell.key for run in runs for cell in run.measured)
    rows = []
    for key in keys:
        rates = [None if (cell := run.cell(key)) is None else cell.median("throughput") for run in runs]
        rows.append((key.label(), *("-" if rate is None else f"{rate:.1f} fps" for rate in rates)))
    names = [f"{n}. {_short(run.machine)}" for n, run in enumerate(runs, start=1)]
    return Section(
        title="Side by side",
        heads=("cell", *names),
        rows=tuple(rows),
        sentences=tuple(_not_the_same(runs, names)),
    )


def _not_the_same(runs: Sequence[BenchResults], names: Sequence[str]) -> list[str]:
    """What besides the machine makes the speeds differ."""
    asked = [run.workload | run.settings for run in runs]
    found = []
    for name in dict.fromkeys(key for one in asked for key in one):
        values = [str(one.get(name, "not set")) for one in asked]
        if len(set(values)) > 1 and name not in _ALLOWED_TO_DIFFER:
            pairs = ", ".join(f"{which} {value}" for which, value in zip(names, values, strict=True))
            found.append(f"{name} ({pairs})")
    if not found:
        return []
    return [f"not the same was measured, so speeds say little about the machines: {'; '.join(found)}"]


def _short(machine: Machine) -> str:
    return machine.gpus[0].name if machine.gpus else machine.processor
