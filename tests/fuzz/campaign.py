"""Thousands of damaged files, and how each was handled: ``make fuzz N=100000``.

Usage: python -m fuzz.campaign [N] [--seed SEED] [--processes P] [--cores C] [--minutes M] [--keep FOLDER]
                               [--out ../benchmarks/results/fuzz.json]

Every try follows from its number and the seed, so a bad one can be tried again: ``--only NUMBER``. Ctrl-C, or the end
of so many minutes, ends it with the row of what was tried until then, which is that of a campaign of so many.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from fuzz.forking import ForkServer
from fuzz.judging import what_is_bad
from fuzz.mutation import mutated
from fuzz.victims import FRAMES, make_victims

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from row_stamp import commit, write_rows

__all__ = ["Try", "tries"]

_SHARES = {"video": 12, "picture": 3, "settings": 3, "motion": 3, "network": 2}
_DAMAGE = {
    "video": "binary",
    "picture": "picture",
    "settings": "text",
    "motion": "motion",
    "network": "network",
}
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Try:
    """One damaged file and its end."""

    number: int
    victim: str
    damage: tuple[str, ...]
    bad: str | None
    said: str
    seconds: float


def tries(
    numbers: range | list[int],
    *,
    seed: int,
    folder: Path,
    victims: dict[str, list[Path]],
    server: ForkServer,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Iterator[Try]:
    """Try so many, one after another.

    Args:
        numbers: Which tries.
        seed: With a number it says all about a try.
        folder: Where tries work; what was handled badly stays there.
        victims: Whole files, of ``make_victims``; they are only read.
        server: What runs a try.
        timeout_seconds: Longer is a hang.
    """
    clip = victims["video"][0]
    kinds = [kind for kind, share in _SHARES.items() for _ in range(share)]
    for number in numbers:
        rng = random.Random(f"{seed}/{number}")
        kind = rng.choice(kinds)
        whole = rng.choice(victims[kind])
        data, damage = mutated(rng, whole.read_bytes(), _DAMAGE[kind])
        room = folder / f"{number}"
        (room / "out").mkdir(parents=True)
        hurt = room / whole.name
        hurt.write_bytes(data)
        out = room / "out" / "made.mkv"
        command = ["segment", str(clip), "-o", str(out), "--profile", "fast", "--device", "cpu", "--json"]
        what: dict[str, Any]
        if kind == "video":
            command[1] = str(
                hurt
            )  # what a network makes of it is not the question: one of a convolution will do
            what = {"command": [*command, "--model", str(victims["network"][0]), "--kind", "matte"]}
        elif kind == "settings":
            what = {"command": [*command, "--config", str(hurt)]}
        elif kind == "network":
            what = {"command": [*command, "--model", str(hurt), "--kind", "matte"]}
        elif kind == "picture":
            what, out = {"portrait": str(hurt)}, None  # type: ignore[assignment]
        else:
            what, out = {"motion": str(hurt)}, None  # type: ignore[assignment]
        ended = server.run(what, folder=room, timeout_seconds=timeout_seconds)
        frames = FRAMES if kind == "video" else None
        bad = what_is_bad(ended, hurt=hurt, whole=whole, out=out, whole_frames=frames)
        yield Try(number, whole.name, tuple(damage), bad, ended.stderr.strip()[-600:], ended.seconds)
        if bad is None:
            shutil.rmtree(room)


def _share(numbers: list[int], seed: int, folder: str, end: float) -> list[Try]:
    done: list[Try] = []
    if time.monotonic() < end:
        own = Path(folder) / f"from {numbers[0]}"
        victims = make_victims(own / "whole")
        with ForkServer() as server:
            for one in tries(numbers, seed=seed, folder=own, victims=victims, server=server):
                done.append(one)
                if time.monotonic() >= end:
                    break
    return done


def _pool(processes: int, cores_each: int | None) -> ProcessPoolExecutor:
    if cores_each is None:
        return ProcessPoolExecutor(processes)
    there = sorted(os.sched_getaffinity(0))
    cores: multiprocessing.SimpleQueue[set[int]] = multiprocessing.SimpleQueue()
    for number in range(processes):
        cores.put({there[(number * cores_each + n) % len(there)] for n in range(cores_each)})
    return ProcessPoolExecutor(processes, initializer=_stay_on, initargs=(cores,))


def _stay_on(cores: multiprocessing.SimpleQueue[set[int]]) -> None:
    """Keep a process of the pool, and the tries that it forks, on cores of its own."""
    os.sched_setaffinity(0, cores.get())


def main() -> None:
    """Run a campaign, print what is bad, and write the row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("n", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--cores",
        type=int,
        help="cores that each process may use: bounds of memory are for two, and frames in flight grow with them",
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--only", type=int, action="append")
    parser.add_argument("--keep", type=Path, help="where bad files are kept")
    parser.add_argument("--out", type=Path, help="write the row here")
    options = parser.parse_args()
    began = time.monotonic()
    end = began + 60 * options.minutes
    numbers = options.only or list(range(options.n))
    size = max(min(50, len(numbers) // options.processes), 1)
    parts = [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]
    done: list[Try] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        pool = _pool(options.processes, options.cores)
        try:
            for share in pool.map(_share, parts, repeat(options.seed), repeat(str(folder)), repeat(end)):
                done += share
                for one in share:
                    if one.bad is not None:
                        print(json.dumps(asdict(one)), flush=True)
                if share:
                    print(
                        f"{len(done)} tried, {sum(one.bad is not None for one in done)} bad", file=sys.stderr
                    )
        except KeyboardInterrupt:
            if not done:
                raise
        finally:
            pool.shutdown(cancel_futures=True)
    bad = Counter(one.bad.split(" [")[0] for one in done if one.bad is not None)
    slowest = max(done, key=lambda one: one.seconds)
    row = {
        "claim": "fuzz",
        "tried": len(done),
        "badly_handled": sum(bad.values()),
        "kinds": dict(bad),
        "slowest_seconds": round(slowest.seconds, 1),
        "slowest": f"{slowest.victim}: {', '.join(slowest.damage)}",
        "seed": options.seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "cores": options.cores or os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(row, indent=1))
    if options.out is not None:
        write_rows(options.out, [row])
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
