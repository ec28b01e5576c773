"""Does ``vitascope bench compare`` catch a slowed program, and is it quiet on repeats of the same one?

Runs one video through the whole pipeline and discards the pictures. A trial is a baseline, a repeat of it
and, in some, a run in which every stage takes longer by a known share. Their rounds alternate, so that other
load slows all of them: this tests how the comparison treats noise, not how busy the machine is. Run: ``python
benchmarks/bench_compare.py [OUT.json] [--repeats 20]``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from row_stamp import commit, write_rows
from vitascope.bench.comparison import Comparison, compare
from vitascope.bench.measured_run import MeasuredRun, MeasuredSegmenter
from vitascope.bench.results import BenchResults, CellKey, Machine, now, this_machine
from vitascope.bench.suite import PipelineOptions, cell_of_runs
from vitascope.bench.synthetic_clip import make_clip
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.profiling.pipeline_profile import profiled_stages
from vitascope.gpu.profiling.utilisation import UtilisationSampler
from vitascope.segmentation import film_run

RESULTS = Path(__file__).with_name("results") / "bench_compare.json"
KIND = "mask"
BALLAST = bytes(64 << 10)
"""Hashed in under 0.2 ms, without the interpreter's lock."""


class Brake:
    """Replaces a profiler, and makes every span longer."""

    def __init__(self, share: float) -> None:
        self._share = share

    @contextmanager
    def profile(self, name: str, *, host_only: bool = False) -> Iterator[None]:
        """Run a span, then work that keeps its core busy but not the interpreter, as slower code would."""
        del name, host_only
        began = time.perf_counter()
        yield
        until = time.perf_counter() + self._share * (time.perf_counter() - began)
        while time.perf_counter() < until:
            hashlib.sha256(BALLAST)


class Bench:
    """Measures one video with one open network, repeatedly."""

    def __init__(
        self, segmenter: MeasuredSegmenter, film: Path, *, size: tuple[int, int], share: float
    ) -> None:
        self._segmenter, self._film, self._share = segmenter, film, share
        self._machine: Machine = this_machine()
        settings = segmenter.settings
        self._key = CellKey(
            clip="synthetic",
            resolution=f"{size[0]}x{size[1]}",
            width=size[0],
            height=size[1],
            batch=1,
            precision=settings.gpu.precision if segmenter.device.kind == "cuda" else "fp32",
            stereo="mono",
            output=f"{KIND}, discarded",
        )

    def plain(self) -> MeasuredRun:
        """One round."""
        return self._segmenter.measure(self._film, kind=KIND, discard=True)

    def slowed(self) -> MeasuredRun:
        """One round with every stage slowed."""
        brake = Brake(self._share)
        with patch.object(film_run, "Pipeline", lambda stages: Pipeline(profiled_stages(stages, brake))):
            return self.plain()

    def in_turns(
        self, builds: Mapping[str, Callable[[], MeasuredRun]], *, rounds: int
    ) -> dict[str, BenchResults]:
        """Run rounds of several builds, each turn in another order."""
        names = list(builds)
        runs: dict[str, list[MeasuredRun]] = {name: [] for name in names}
        with UtilisationSampler(interval_seconds=0.1) as sampler:
            for n in range(rounds):
                first = n % len(names)
                for name in names[first:] + names[:first]:
                    runs[name].append(builds[name]())
        load = sampler.summary()
        return {
            name: BenchResults(
                kind="pipeline",
                began_at=now(),
                finished=True,
                machine=self._machine,
                workload={"build": "under test"},
                cells=(cell_of_runs(self._key, self._segmenter, runs[name], load),),
            )
            for name in names
        }


def main() -> None:
    """Measure, print, and keep one row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--slowed", type=int, default=10, help="trials that have a slowed run, too")
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument(
        "--rounds", type=int, default=15, help="of each run, as many as bench run --quick measures"
    )
    parser.add_argument("--size", type=int, nargs=2, default=(640, 360))
    parser.add_argument("--frames", type=int, default=96)
    parser.add_argument("--profile", default="fast")
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    repeats: list[Comparison] = []
    slowed: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        width, height = given.size
        film = make_clip(Path(folder) / "film.mp4", width=width, height=height, frame_count=given.frames)
        options = PipelineOptions(
            video=film, discard=True, profile=given.profile, assignments=("model.batch_size=1", *given.set)
        )
        with MeasuredSegmenter(loaded=options.loaded()) as segmenter:
            bench = Bench(segmenter, film, size=(width, height), share=given.share)
            bench.plain()  # compiles and fills caches
            for n in range(given.repeats):
                builds = {"baseline": bench.plain, "repeat": bench.plain}
                if n < given.slowed:
                    builds["slowed"] = bench.slowed
                runs = bench.in_turns(builds, rounds=given.rounds)
                repeats.append(compare(runs["baseline"], runs["repeat"]))
                print(f"trial {n + 1}, repeat: {repeats[-1].verdict()}", flush=True)
                if "slowed" in runs:
                    slowed.append(compare(runs["baseline"], runs["slowed"]))
                    print(f"trial {n + 1}, slowed: {slowed[-1].verdict()}", flush=True)
    row = _row(given, repeats, slowed, runs["baseline"])
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_rows(given.out, [row])
    print(json.dumps(row, indent=1))


def _row(
    given: argparse.Namespace, repeats: list[Comparison], slowed: list[Comparison], last: BenchResults
) -> dict[str, object]:
    (cell,) = last.cells
    width, height = given.size
    return {
        "claim": "bench_compare",
        "film": f"{width}x{height}, {given.frames} frames",
        "rounds": given.rounds,
        "baseline_fps": cell.median("throughput"),
        "repeats": len(repeats),
        "false_alarms": sum(found.is_regression for found in repeats),
        "repeat_time_ratios": _ratios(repeats),
        "slowed_runs": len(slowed),
        "every_stage_slowed_by": given.share,
        "caught": sum(found.is_regression for found in slowed),
        "slowed_time_ratios": _ratios(slowed),
        "slowed_interval_lows": [round(found.overall.low, 4) for found in slowed],
        "device": cell.device,
        "processor": last.machine.label(),
        "engine": cell.engine,
        "model": cell.model,
        "versions": last.machine.versions,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _ratios(found: list[Comparison]) -> list[float]:
    return [round(one.overall.slowdown, 4) for one in found]


if __name__ == "__main__":
    main()
