"""``vitascope optimize`` on a GPU against the profile ``balanced``: what it finds, what that gives, in how many runs.

Only what does not change the matte is turned, in FP16 on one engine, so that no kernel is compiled anew for each trial.
The tuned settings and those of ``balanced`` are measured three times in turns at the end, by the tuner itself; before
that, masks of both are compared frame by frame.

Prediction: ``balanced`` lets a GPU take 16 frames at a time, which the tuner cannot better at 1080p by more than some
percent, the processor's encoder being what everything waits for; at 4K sessions of the decoder may help.

Usage: python benchmarks/optimizer_cuda.py [--trials N] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from row_stamp import gpu_stamp
from vitascope.segmentation.segmenter import Segmenter
from vitascope.tuning.optimizer import Tuned, Tuner
from vitascope.tuning.settings_source import SettingsSource
from vitascope.tuning.synthetic_clip import make_clip

RESULTS = Path(__file__).parent / "results" / "optimizer.json"
SIZES = {"1080p": (1920, 1080, 480), "4K": (3840, 2160, 240)}
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
LARGEST_MEAN_DIFFERENCE = 1.0
"""Codes of 255: batches of other sizes take other algorithms in FP16."""


def mattes(film: Path, values: dict[str, Any]) -> list[np.ndarray]:
    """The first 24, float32 [H, W], 0..255."""
    with Segmenter(loaded=SOURCE.load(values)) as segmenter, closing(segmenter.stream(film)) as steps:
        return [one.alpha.astype(np.float32) for one in islice(steps, 24)]


def row_of(size: str, film: Path, tuned: Tuned, seconds: float) -> dict[str, Any]:
    """Check that the matte stayed, then one row."""
    pairs = zip(mattes(film, {}), mattes(film, dict(tuned.values)), strict=True)
    difference = float(np.mean([np.abs(one - other).mean() for one, other in pairs]))
    assert difference < LARGEST_MEAN_DIFFERENCE, difference
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
        **gpu_stamp(),
    }


def main() -> None:
    """Tune at each size, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=14)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size, (width, height, frames) in SIZES.items():
            film = make_clip(Path(folder) / f"{size}.mp4", width=width, height=height, frame_count=frames)
            began = time.perf_counter()
            tuned = Tuner(
                SOURCE,
                film,
                subject=size,
                seconds=1.0,
                most_trials=options.trials,
                keep_quality=True,
                told=lambda search, trial: print(
                    search.values(trial.cell), trial.measured, trial.why, flush=True
                ),
            ).tune()
            rows.append(row_of(size, film, tuned, time.perf_counter() - began))
            print(json.dumps(rows[-1]), flush=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
