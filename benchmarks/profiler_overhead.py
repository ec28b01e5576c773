"""What a span costs: the profiler's share of a program that opens 1,000 spans a second.

Two measurements that must agree: the time of an empty span, and the processor time of the same work with and without a
span around it, the two sides in turn, item by item. Work is a loop of pure Python of about 1 ms, so a second has about
1,000 spans. Processor time of the thread, because other programs must not count; medians, because they disturb all the
same. A third side has an empty ``with`` block in the span's place: what that seems to cost is the noise, and where it
is large, other programs emptied the caches, and nothing is written. With ``--cuda`` spans time the GPU, too.

Usage: python benchmarks/profiler_overhead.py [--cuda] [--rounds 30] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from row_stamp import commit, gpu_stamp
from vitascope.device import available_cores
from vitascope.gpu.profiling.profiler import Profiler

RESULTS = Path(__file__).parent / "results" / "profiler_overhead.json"
SPANS = 1000
MOST_NOISE_PERCENT = 0.2


def calibrated() -> int:
    """Turns of the loop that take a millisecond."""
    turns = 1000
    while True:
        began = time.thread_time()
        work(turns)
        if (spent := time.thread_time() - began) > 0.02:
            return int(turns * 1e-3 / spent)
        turns *= 2


def work(turns: int) -> int:
    """Pure Python, without memory to speak of."""
    total = 0
    for n in range(turns):
        total += n & 3
    return total


def empty_span(profiler: Profiler) -> float:
    """Seconds of wall time for a span around nothing."""
    count = 5000
    began = time.perf_counter()
    for _ in range(count):
        with profiler.profile("empty"):
            pass
    return (time.perf_counter() - began) / count


def measure(device: str, rounds: int) -> dict[str, Any]:
    """One row."""
    turns = calibrated()
    profiler = Profiler(device=device)  # type: ignore[arg-type]

    nothing = nullcontext()

    def plain() -> int:
        began = time.thread_time_ns()
        work(turns)
        return time.thread_time_ns() - began

    def empty() -> int:
        began = time.thread_time_ns()
        with nothing:
            work(turns)
        return time.thread_time_ns() - began

    def profiled() -> int:
        began = time.thread_time_ns()
        with profiler.profile("work"):
            work(turns)
        return time.thread_time_ns() - began

    sides = (plain, empty, profiled)
    shares, costs, noise = [], [], []
    for _ in range(rounds):
        spent: tuple[list[int], ...] = ([], [], [])
        for item in range(SPANS):
            for n in range(len(sides)):
                # In another order each time: what follows a span finds caches as the span left them.
                place = (item + n) % len(sides)
                spent[place].append(sides[place]())
        alone, within_nothing, within_span = map(median, spent)
        noise.append(100 * (within_nothing / alone - 1))
        shares.append(100 * (within_span / alone - 1))
        costs.append(empty_span(profiler) * 1e6)
    counted = profiler.by_name()["work"].count
    if counted != SPANS * rounds:
        raise SystemExit(f"{counted} spans were counted, {SPANS * rounds} were opened")
    if (most := max(map(abs, noise))) > 5 * MOST_NOISE_PERCENT or abs(median(noise)) > MOST_NOISE_PERCENT:
        raise SystemExit(
            f"this machine is too busy: an empty block seems to cost {median(noise):.2f} % (at most {most:.2f} %)"
        )
    shares.sort()
    costs.sort()
    return {
        "claim": f"profiler overhead, {device}",
        "spans_per_second": SPANS,
        "rounds": rounds,
        "noise_percent_p50": round(median(noise), 3),
        "span_us_p20": round(costs[rounds // 5], 2),
        "span_us_p50": round(median(costs), 2),
        "span_us_p80": round(costs[rounds * 4 // 5], 2),
        "share_by_span_percent": round(median(costs) * SPANS / 1e4, 3),
        "share_measured_percent_p20": round(shares[rounds // 5], 3),
        "share_measured_percent_p50": round(median(shares), 3),
        "share_measured_percent_p80": round(shares[rounds * 4 // 5], 3),
    }


def main() -> None:
    """Measure, print, and write the row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    stamp: dict[str, Any] = {"cores": available_cores(), "machine": platform.machine()}
    stamp |= {"python": platform.python_version()}
    if options.cuda:
        import cupy

        cupy.zeros(1).sum()
        stamp |= gpu_stamp()
    else:
        stamp |= {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
    row = {**measure("cuda" if options.cuda else "cpu", options.rounds), **stamp}
    kept = json.loads(options.out.read_text()) if options.out.exists() else []
    rows = [other for other in kept if other["claim"] != row["claim"]] + [row]
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
