"""Records grids of settings on a real GPU, with cells that run out of memory, for ``search_grids.py``.

Every cell is measured as the tuner would: a short run of ``segment`` over one reopened video, once to warm up
and once timed. The limit of GPU memory is set so that some cells do not fit: between the use of the smallest
and the largest cell without a limit. Cells that do not fit fail as they do for users, by a refused
allocation.

Cells are measured slice by slice (queues outside, precision within), so that a recording that ends early
holds whole grids of fewer knobs. It ends within the given time: only the last cell may end later, and a
hanging one is ended with a trace of all threads.

Prediction for one H200: at 1080p, the encoder on the CPU sets the pace and most cells are alike; at 4K,
decoder sessions count, a batch of 16 with 8 sessions takes about four times the memory of one frame with one,
and a third of the cells does not fit. With ``--side 1920`` the network sets the pace at 1080p, so that batch
and precision count.

Usage: python benchmarks/record_grid_cuda.py [--size 4K] [--side 1920] [--seconds 120] [--out GRIDS.json]; ``--device
cpu`` tries the script itself.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from row_stamp import commit, gpu_stamp, write_rows
from vitascope.bench.synthetic_clip import make_clip
from vitascope.config import SettingsSource
from vitascope.errors import VitascopeError, one_line
from vitascope.tune.optimizer import ClipTrials
from vitascope.tune.search import Knob, Measured

RESULTS = Path(__file__).parent / "results" / "recorded_grids.json"
SIZES = {"360p": (640, 360, 96), "1080p": (1920, 1080, 360), "4K": (3840, 2160, 200)}
"""Width, height, and frames of the video."""
OUTER = {
    "cuda": (
        Knob("processing.max_queue_size", (32, 8)),
        Knob("gpu.precision", ("fp16", "fp32"), ordered=False),
    ),
    "cpu": (Knob("processing.num_threads", (0, 1)), Knob("processing.max_queue_size", (32, 8))),
}
INNER = {
    "cuda": (Knob("model.batch_size", (1, 2, 4, 8, 16)), Knob("gpu.decoder_sessions", (1, 2, 4, 8))),
    "cpu": (Knob("model.batch_size", (1, 2, 4)), Knob("pipeline.stages.decode.threads", (0, 1))),
}
HELD = {
    "cuda": (
        "gpu.device=cuda",
        "model.name=rvm",
        "model.backend=inductor",
        "gpu.encoder=cpu",
        "output.kinds=mask",
        "output.mask_max_width=2048",
        "output.preset=ultrafast",
        "gpu.decoder_sessions=1",
        "model.batch_size=1",
    ),
    "cpu": (
        "gpu.device=cpu",
        "model.name=selfie",
        "output.kinds=mask",
        "output.preset=ultrafast",
        "model.batch_size=1",
    ),
}
"""Settings of all cells, overridden by a cell's own values."""
MEMORY_BETWEEN = 0.45
"""Share of the way from the smallest cell's memory to the largest's; cells above it do not fit."""
REPEATS = 4
"""How often the first cell is measured, to know the noise."""
GRACE_SECONDS = 30.0
"""Seconds after the given time for the current cell; then the process ends itself."""


@dataclass
class Recording:
    """The recording of one size so far, and when to stop."""

    size: str
    device: str
    ends_at: float
    side: int | None = None
    """Longest side of the network's picture; None uses the profile's."""
    limit: float | None = None
    """Share of the GPU's memory that may be in use; None without one."""
    noise: float = 0.0
    """Standard deviation of the logarithm of repeated measurements."""
    cells: dict[tuple[int, ...], Measured] = field(default_factory=dict)
    """By place: that of each outer knob, then of each inner one."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """All of them, the outer ones first."""
        return (*OUTER[self.device], *INNER[self.device])

    def places(self) -> Iterator[tuple[int, ...]]:
        """Every cell, in the order of the recording."""
        return itertools.product(*(range(len(knob.values)) for knob in self.knobs))

    def values(self, place: Sequence[int]) -> dict[str, Any]:
        """The settings of a cell."""
        return {knob.key: knob.values[n] for knob, n in zip(self.knobs, place, strict=True)}

    def whole_outer(self) -> int:
        """Count the outer knobs, from the last, that vary in the largest complete grid; -1 if there is none."""
        inner = 1
        for knob in INNER[self.device]:
            inner *= len(knob.values)
        varied, needed = 0, inner
        for knob in reversed(OUTER[self.device]):
            needed *= len(knob.values)
            if len(self.cells) < needed:
                break
            varied += 1
        return varied if len(self.cells) >= inner else -1

    def row(self) -> dict[str, Any]:
        """Return the largest complete grid so far."""
        varied = max(self.whole_outer(), 0)
        fixed = len(OUTER[self.device]) - varied
        kept = {place[fixed:]: one for place, one in self.cells.items() if not any(place[:fixed])}
        return {
            "claim": "a grid that a machine answered",
            "size": self.size if self.side is None else f"{self.size}, the network at {self.side}",
            "is_whole": self.whole_outer() >= 0,
            "fixed": [[knob.key, knob.values[0]] for knob in self.knobs[:fixed]],
            "knobs": [[knob.key, list(knob.values), knob.ordered] for knob in self.knobs[fixed:]],
            "limits": [] if self.limit is None else [["vram_share", round(self.limit, 5)]],
            "noise": round(self.noise, 4),
            "out_of_memory": sum(one.failure == "out of memory" for one in kept.values()),
            "cells": [
                {
                    "cell": list(place),
                    "fps": round(one.score, 2),
                    **{name: round(value, 5) for name, value in one.figures.items()},
                    "failure": one.failure,
                }
                for place, one in kept.items()
            ],
        }


def record(
    size: str,
    folder: Path,
    *,
    side: int | None,
    device: str,
    seconds: float,
    trial_seconds: float,
    on_cell: Any,
) -> Recording:
    """Measure one size for a number of seconds.

    Args:
        size: A name in ``SIZES``.
        folder: Folder for the video.
        side: Longest side of the network's picture.
        device: ``cuda`` or ``cpu``.
        seconds: Time for everything, the video included.
        trial_seconds: Time of one run.
        on_cell: Called with the recording after each cell.
    """
    recording = Recording(size, device, ends_at=time.monotonic() + seconds, side=side)
    held = HELD[device] if side is None else (*HELD[device], f"model.input_size={side}")
    width, height, frame_count = SIZES[size]
    film = make_clip(folder / f"{size}.mp4", width=width, height=height, frame_count=frame_count)
    print(f"{size}: film made, {recording.ends_at - time.monotonic():.0f} s left", flush=True)
    places = list(recording.places())
    free = ClipTrials(SettingsSource(assignments=held), film, seconds=trial_seconds)
    free.begin(with_quality=False)
    smallest = [free.measure(recording.values(places[0])) for _ in range(REPEATS)]
    assert all(one.failure is None and one.score > 0 for one in smallest), smallest
    recording.noise = pstdev(np.log([one.score for one in smallest]))
    print(f"{size}: {fmean(one.score for one in smallest):.1f} fps, noise {recording.noise:.3f}", flush=True)
    trials = free
    if device == "cuda":
        inner = [len(knob.values) - 1 for knob in INNER[device]]
        largest = free.measure(recording.values((*places[0][: -len(inner)], *inner)))
        low = smallest[0].figures["vram_share"]
        high = largest.figures.get("vram_share", 1.0)
        recording.limit = low + MEMORY_BETWEEN * (high - low)
        print(f"{size}: memory {low:.3f} to {high:.3f}, limit {recording.limit:.3f}", flush=True)
        source = SettingsSource(assignments=(*held, f"gpu.max_vram_usage={recording.limit}"))
        trials = ClipTrials(source, film, seconds=trial_seconds)
        trials.begin(with_quality=False)
    for place in places:
        if time.monotonic() > recording.ends_at:
            print(f"{size}: the time is over after {len(recording.cells)} of {len(places)} cells", flush=True)
            break
        values = recording.values(place)
        try:
            measured = trials.measure(values)
        except VitascopeError as error:
            measured = Measured(failure=one_line(error))
        recording.cells[place] = measured
        words = measured.failure or f"{measured.score:.1f} fps"
        print(f"{size} {values}: {words} {dict(measured.figures)}", flush=True)
        on_cell(recording)
    return recording


def stamp_of(device: str) -> dict[str, str]:
    """Machine and state."""
    if device == "cuda":
        return gpu_stamp()
    return {"commit": commit(), "date": time.strftime("%Y-%m-%d")}


def main() -> None:
    """Record each requested size, and save the complete part after each slice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", action="append", choices=list(SIZES), help="4K where none is named")
    parser.add_argument("--side", type=int, help="longest side of the network's picture")
    parser.add_argument("--seconds", type=float, default=120.0, help="for all sizes together")
    parser.add_argument("--trial-seconds", type=float, default=0.4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    sizes = options.size or ["4K"]
    faulthandler.dump_traceback_later(options.seconds + GRACE_SECONDS, exit=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    began, rows = time.monotonic(), {}
    stamp = stamp_of(options.device)

    def keep(recording: Recording) -> None:
        rows[recording.size] = {**recording.row(), **stamp}
        write_rows(options.out, list(rows.values()))

    with tempfile.TemporaryDirectory() as folder:
        for number, size in enumerate(sizes):
            left = options.seconds - (time.monotonic() - began)
            keep(
                record(
                    size,
                    Path(folder),
                    side=options.side,
                    device=options.device,
                    seconds=left / (len(sizes) - number),
                    trial_seconds=options.trial_seconds,
                    on_cell=keep,
                )
            )
    faulthandler.cancel_dump_traceback_later()
    for row in rows.values():
        figures = {name: row[name] for name in ("size", "is_whole", "limits", "noise", "out_of_memory")}
        print(json.dumps({**figures, "cells": len(row["cells"])}), flush=True)


if __name__ == "__main__":
    main()
