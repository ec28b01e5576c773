"""Compare ``vitascope optimize`` on a GPU with the profile ``balanced``: choice, gain and number of runs.

Tunes only settings that do not change the matte, in FP16 on one engine, so that trials compile no new
kernels. At the end, the tuner measures the tuned settings and those of ``balanced`` three times, alternating;
before that, masks of both are compared frame by frame.

Prediction: ``balanced`` lets a GPU take 16 frames at a time, and at 1080p the tuner can gain only some
    percent, because everything waits for the CPU's encoder; at 4K, more decoder sessions may help.

It ends within the given time: each size has an equal part of the remaining time, video and comparison
included, and a hanging run is ended with a trace of all threads. Prints every trial and saves every row as it
comes.

Usage: python benchmarks/optimizer_cuda.py [--size 1080p|4K]... [--seconds 120] [--trials N] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import sys
import tempfile
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from row_stamp import commit, gpu_stamp, write_rows
from vitascope.bench.synthetic_clip import make_clip
from vitascope.config import SettingsSource
from vitascope.errors import VitascopeError
from vitascope.segmentation.segmenter import Segmenter
from vitascope.tune.optimizer import Tuned, Tuner

RESULTS = Path(__file__).parent / "results" / "optimizer.json"
SIZES = {"360p": (640, 360, 96), "1080p": (1920, 1080, 480), "4K": (3840, 2160, 240)}
"""Width, height, frames."""
USUAL = ("1080p", "4K")
GRACE_SECONDS = 30.0
"""Seconds after the given time for the current run; then the process ends itself."""
SOURCE = SettingsSource(
    assignments=(
        "gpu.device=cuda",
        "model.name=rvm",
        "gpu.precision=fp16",
        "model.backend=inductor",
        "gpu.encoder=cpu",
        "output.kinds=mask",
        "output.mask_max_width=2048",
        "output.preset=ultrafast",
    )
)
ON_A_PROCESSOR = SettingsSource(
    profile="fast", assignments=("gpu.device=cpu", "output.kinds=mask", "output.preset=ultrafast")
)
"""Settings to try the script itself."""
LARGEST_MEAN_DIFFERENCE = 1.0
"""Codes of 255: batches of other sizes take other algorithms in FP16."""


def mattes(source: SettingsSource, film: Path, values: dict[str, Any]) -> list[np.ndarray]:
    """The first 24, float32 [H, W], 0..255."""
    with Segmenter(loaded=source.load(values)) as segmenter, closing(segmenter.stream(film)) as steps:
        return [one.alpha.astype(np.float32) for one in islice(steps, 24)]


def row_of(source: SettingsSource, size: str, film: Path, tuned: Tuned, seconds: float) -> dict[str, Any]:
    """Check that the matte did not change, then make one row."""
    difference = 0.0
    if tuned.values:
        pairs = zip(mattes(source, film, {}), mattes(source, film, dict(tuned.values)), strict=True)
        difference = float(np.mean([np.abs(one - other).mean() for one, other in pairs]))
    assert difference < LARGEST_MEAN_DIFFERENCE, difference
    on_gpu = tuned.shown.device.kind == "cuda"
    stamp = gpu_stamp() if on_gpu else {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
    return {
        "claim": "optimizer",
        "size": size,
        "balanced_fps": round(tuned.before.score, 1),
        "tuned_fps": round(tuned.after.score, 1),
        "gain": round(tuned.gain, 3),
        "change": dict(tuned.values),
        "matte_difference_255": round(difference, 3),
        "trials": len(tuned.search.trials),
        "combinations": tuned.search.grid_size,
        "search_seconds": round(seconds, 1),
        "ended": tuned.search.ended,
        "cells": [
            {"cell": list(one.cell), "fps": round(one.measured.score, 1), "failure": one.measured.failure}
            for one in tuned.search.trials
        ],
        **stamp,
    }


def main() -> None:
    """Tune at each size, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--size", action="append", choices=list(SIZES), help="1080p and 4K where none is named"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="for all sizes together")
    parser.add_argument("--trials", type=int, default=14)
    parser.add_argument("--trial-seconds", type=float, default=0.5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.seconds + GRACE_SECONDS, exit=True)
    source = SOURCE if options.device == "cuda" else ON_A_PROCESSOR
    sizes, began = options.size or list(USUAL), time.monotonic()
    rows: list[dict[str, Any]] = []
    failures = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        small = make_clip(Path(folder) / "small.mp4", width=640, height=360, frame_count=24)
        mattes(source, small, {})  # compiles what all runs need, so that it counts for no size
        print(f"{options.seconds - (time.monotonic() - began):.0f} s left once kernels are built", flush=True)
        for number, size in enumerate(sizes):
            share = (options.seconds - (time.monotonic() - began)) / (len(sizes) - number)
            ends = time.monotonic() + share
            width, height, frames = SIZES[size]
            film = make_clip(Path(folder) / f"{size}.mp4", width=width, height=height, frame_count=frames)
            print(f"{size}: film made, {ends - time.monotonic():.0f} s left for it", flush=True)
            started = time.perf_counter()
            try:
                tuned = Tuner(
                    source,
                    film,
                    subject=size,
                    seconds=options.trial_seconds,
                    most_trials=options.trials,
                    most_seconds=max(ends - time.monotonic(), 1.0),
                    keep_quality=True,
                    on_trial=lambda search, trial: print(
                        search.values(trial.cell), trial.measured, trial.why, flush=True
                    ),
                    on_plan=lambda line: print(line, flush=True),
                ).tune()
                rows.append(row_of(source, size, film, tuned, time.perf_counter() - started))
            except (VitascopeError, AssertionError) as error:
                failures.append(f"{size}: {type(error).__name__}: {error}")
                print(failures[-1], flush=True)
                continue
            print(json.dumps(rows[-1]), flush=True)
            write_rows(options.out, rows)
    faulthandler.cancel_dump_traceback_later()
    if failures:
        sys.exit("; ".join(failures))


if __name__ == "__main__":
    main()
