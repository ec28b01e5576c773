"""Measure a span's cost: the profiler's share of a program that opens 1,000 spans per second.

Compares the CPU time of the same work with and without a span around it, alternating item by item. Work is a
loop of pure Python of about 1 ms, so a second has about 1,000 spans. It takes the thread's CPU time, so that
other programs do not count, and medians, because they still disturb it. One side has an empty ``with`` block
instead of the span: its apparent cost is the noise, and if that is large, other programs emptied the caches,
and nothing is written. Rows also give the time of an empty span, in a row of spans, which find everything in
the caches.

With ``--cuda`` there are two kinds of spans: those that also time the GPU, and those that do not (a place
that was timed often enough takes one more call than these). The share is that of 1,000 spans, of which as
many time the GPU as a profiler allows.

Usage: python benchmarks/profiler_overhead.py [--cuda] [--rounds 30] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from row_stamp import commit, gpu_stamp, write_rows
from vitascope.device import available_cores
from vitascope.gpu.profiling.profiler import GPU_INTERVAL_NS, Profiler

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


def empty_spans(profiler: Profiler) -> float:
    """Seconds of wall time for a span around nothing."""
    count = 5000
    began = time.perf_counter()
    for _ in range(count):
        with profiler.profile("empty", host_only=True):
            pass
    return (time.perf_counter() - began) / count


def timed_work(turns: int, around: Callable[[], AbstractContextManager[object]]) -> int:
    """Nanoseconds of CPU time, with what ``around`` puts around the work."""
    began = time.thread_time_ns()
    with around():
        work(turns)
    return time.thread_time_ns() - began


def bare_work(turns: int) -> int:
    """The same without a block around it."""
    began = time.thread_time_ns()
    work(turns)
    return time.thread_time_ns() - began


def one_round(device: str, turns: int) -> dict[str, float]:
    """Median nanoseconds of each side; in a profiler of its own, so that every span may time the GPU."""
    profiler, nothing = Profiler(device=device), nullcontext()  # type: ignore[arg-type]
    sides: dict[str, Callable[[], int]] = {
        "bare": lambda: bare_work(turns),
        "empty block": lambda: timed_work(turns, lambda: nothing),
        "span": lambda: timed_work(turns, lambda: profiler.profile("host", host_only=True)),
    }
    if device == "cuda":
        sides["span with GPU"] = lambda: timed_work(turns, lambda: profiler.profile("gpu"))
    spent: dict[str, list[int]] = {side: [] for side in sides}
    names = list(sides)
    for item in range(SPANS):
        for n in range(len(names)):
            # In another order each time, because a span changes the caches for what follows.
            side = names[(item + n) % len(names)]
            spent[side].append(sides[side]())
    counts = {name: row.count for name, row in profiler.by_name().items()}
    if set(counts.values()) != {SPANS}:
        raise SystemExit(f"{SPANS} spans of each kind were opened, {counts} were counted")
    if device == "cuda" and len(profiler.gpu_seconds()) != 1:
        raise SystemExit("spans did not time the GPU")
    return {side: median(times) for side, times in spent.items()}


def measure(device: str, rounds: int) -> dict[str, Any]:
    """One row."""
    turns = calibrated()
    seen = [one_round(device, turns) for _ in range(rounds)]
    noise = [100 * (one["empty block"] / one["bare"] - 1) for one in seen]
    if (most := max(map(abs, noise))) > 5 * MOST_NOISE_PERCENT or abs(median(noise)) > MOST_NOISE_PERCENT:
        raise SystemExit(
            f"this machine is too busy: an empty block seems to cost {median(noise):.2f} % (at most {most:.2f} %)"
        )
    profiler = Profiler(device=device)  # type: ignore[arg-type]
    alone = sorted(empty_spans(profiler) * 1e6 for _ in range(rounds))

    def cost_us(side: str) -> list[float]:
        return sorted((one[side] - one["bare"]) * 1e-3 for one in seen)

    row = {
        "claim": f"profiler overhead, {device}",
        "spans_per_second": SPANS,
        "rounds": rounds,
        "noise_percent_p50": round(median(noise), 3),
        "empty_span_us": spread(alone),
        "span_us": spread(cost_us("span")),
    }
    shares = [cost * SPANS / 1e4 for cost in cost_us("span")]
    if device == "cuda":
        with_gpu = round(1e9 / GPU_INTERVAL_NS)
        row |= {"span_with_gpu_us": spread(cost_us("span with GPU")), "with_gpu_per_second": with_gpu}
        shares = sorted(
            (
                (one["span with GPU"] - one["bare"]) * with_gpu
                + (one["span"] - one["bare"]) * (SPANS - with_gpu)
            )
            / 1e7
            for one in seen
        )
    return row | {"share_percent": spread(shares)}


def spread(ordered: Sequence[float]) -> dict[str, float]:
    """Median, and the bounds of the middle three fifths."""
    at = {"p20": len(ordered) // 5, "p50": len(ordered) // 2, "p80": len(ordered) * 4 // 5}
    return {name: round(ordered[place], 3) for name, place in at.items()}


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
    write_rows(options.out, rows)
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
