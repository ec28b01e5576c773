"""``vitascope bench baseline``."""

from __future__ import annotations

from pathlib import Path

from vitascope.observe.terminal import Page

__all__ = ["baseline"]


def baseline(results: Path, baselines: Path, /) -> None:
    """Keep a run as what later ones are compared with, on this class of machine.

    A class is what makes figures comparable: GPUs, processor, cores and memory. The file has a run for each class and
    workload; compare takes the one that fits.

    Args:
        results: What bench run or bench pipeline wrote.
        baselines: The file, for example benchmarks/baseline.json; made where it is missing.
    """
    from vitascope.bench.baselines import load_baselines, store_baseline
    from vitascope.bench.results import load_results

    run = load_results(results)
    replaced = store_baseline(baselines, run)
    page = Page()
    page.print(
        f"{baselines}: {'replaced' if replaced else 'added'} the baseline of {run.machine.label()}, "
        f"{len(run.measured)} cells; it has {len(load_baselines(baselines))} in all"
    )
