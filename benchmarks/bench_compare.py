"""Does ``vitascope bench compare`` catch a slowed program, and is it quiet on repeats of the same one?

One film, the whole pipeline, pictures discarded: a baseline, then repeats of the same, and between them runs in which
every stage takes longer by a known share. Run: ``python benchmarks/bench_compare.py [OUT.json] [--repeats 20]``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from row_stamp import commit
from vitascope.gpu.pipeline import Pipeline
from vitascope.gpu.profiling.stage_spans import profiled_stages
from vitascope.tuning import measured_run
from vitascope.tuning.comparison import compare
from vitascope.tuning.pipeline_bench import PipelineOptions, bench_pipeline
from vitascope.tuning.results import BenchResults
from vitascope.tuning.synthetic_clip import make_clip

RESULTS = Path(__file__).with_name("results") / "bench_compare.json"


class Brake:
    """Stands where a profiler stands, and makes every span longer."""

    def __init__(self, share: float) -> None:
        self._share = share

    @contextmanager
    def profile(self, name: str, *, host_only: bool = False) -> Iterator[None]:
        """A span, and a pause after it that keeps its core busy, as slower code would."""
        del name, host_only
        began = time.perf_counter()
        yield
        until = time.perf_counter() + self._share * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass


def slowed(options: PipelineOptions, share: float) -> BenchResults:
    """The same run with every stage slowed."""
    with patch.object(
        measured_run, "Pipeline", lambda stages: Pipeline(profiled_stages(stages, Brake(share)))
    ):
        return bench_pipeline(options)


def main() -> None:
    """Measure, print, and keep one row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--slowed", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080))
    parser.add_argument("--frames", type=int, default=480)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        width, height = given.size
        film = make_clip(Path(folder) / "film.mp4", width=width, height=height, frame_count=given.frames)
        options = PipelineOptions(video=film, discard=True, seconds=600, assignments=tuple(given.set))
        bench_pipeline(options)  # compiles and fills caches
        baseline = bench_pipeline(options)
        alarms, caught, quiet_changes, slow_changes = 0, 0, [], []
        for n in range(given.repeats):
            found = compare(baseline, bench_pipeline(options))
            alarms += found.is_regression
            quiet_changes.append(round(found.overall.slowdown, 4))
            print(f"repeat {n + 1}: {found.verdict()}", flush=True)
        for n in range(given.slowed):
            found = compare(baseline, slowed(options, given.share))
            caught += found.is_regression
            slow_changes.append(round(found.overall.slowdown, 4))
            print(f"slowed {n + 1}: {found.verdict()}", flush=True)
    (cell,) = baseline.cells
    row = {
        "claim": "bench_compare",
        "film": f"{width}x{height}, {given.frames} frames",
        "baseline_fps": cell.median("throughput"),
        "repeats": given.repeats,
        "false_alarms": alarms,
        "repeat_time_ratios": quiet_changes,
        "slowed_runs": given.slowed,
        "every_stage_slowed_by": given.share,
        "caught": caught,
        "slowed_time_ratios": slow_changes,
        "device": cell.device,
        "engine": cell.engine,
        "model": cell.model,
        "versions": baseline.machine.versions,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([row], indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
