"""Measure what queues, batches prepared ahead, process chunks and cuDNN's choices gain in whole jobs.

Changes one setting at a time, with the same video, network and mask output. Rows give frames per second of
whole jobs (networks open, files closed), the median of rounds in which all variants alternate, relative to
the default settings. The masks are the same: none of these settings affects the computation, except cuDNN's,
whose algorithms add in another order.

Prediction: a queue of two frames costs some percent, because stages of varying speed wait for each other;
    queues longer than a few batches gain nothing, because the slowest stage sets the pace. The same applies
    to batches prepared ahead. Chunks matter only for processes that end at different times.

Usage: python benchmarks/pipeline_knobs.py [--device cuda] [--size 1920 1080] [--frames N] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from row_stamp import commit, gpu_stamp, write_rows
from vitascope.bench.synthetic_clip import make_clip
from vitascope.config import load_settings
from vitascope.device import available_cores
from vitascope.segmentation.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results" / "pipeline_knobs.json"
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "processing.max_queue_size=2": {"processing.max_queue_size": 2},
    "processing.max_queue_size=8": {"processing.max_queue_size": 8},
    "processing.max_queue_size=128": {"processing.max_queue_size": 128},
    "model.prefetch_factor=1": {"model.prefetch_factor": 1},
    "model.prefetch_factor=8": {"model.prefetch_factor": 8},
}
ON_A_GPU: dict[str, dict[str, Any]] = {
    # The fused network includes PyTorch's convolutions.
    "gpu.cudnn_benchmark=false": {"gpu.cudnn_benchmark": False},
}
ON_A_CPU: dict[str, dict[str, Any]] = {
    f"processing.chunk_size={size}, several processes": {
        "processing.use_multiprocessing": True,
        "processing.chunk_size": size,
    }
    for size in (25, 100, 400)
}


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--size", type=int, nargs=2, default=(1280, 720), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--frames", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=None, help="selfie on a processor, rvm on a GPU")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    base = {
        "gpu.device": options.device,
        "model.name": options.model or ("rvm" if on_gpu else "selfie"),
        "output.kinds": ["mask"],
        "output.preset": "ultrafast",
        "dataloader.persistent_workers": True,
    }
    variants = VARIANTS | (ON_A_GPU if on_gpu else ON_A_CPU)
    stamp = gpu_stamp() if on_gpu else {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as open_ones:
        width, height = options.size
        film = make_clip(Path(folder) / "film.mp4", width=width, height=height, frame_count=options.frames)
        out = Path(folder) / "mask.mp4"
        segmenters = {
            name: open_ones.enter_context(Segmenter(loaded=load_settings(flags=base | settings)))
            for name, settings in variants.items()
        }
        for turn in range(options.rounds + 1):
            for name, segmenter in segmenters.items():
                began = time.perf_counter()
                report = segmenter.write(film, [("mask", out)])
                if turn:  # the first opens networks and processes
                    speeds[name].append(report.frame_count / (time.perf_counter() - began))
    usual = median(speeds["as it is"])
    rows = [
        {
            "claim": f"pipeline knobs: {name}",
            "film": f"synthetic, {width}x{height}",
            "frames": options.frames,
            "model": base["model.name"],
            "fps": round(median(values), 1),
            "ratio": round(median(values) / usual, 3),
            "rounds": [round(value, 1) for value in values],
            "cores": available_cores(),
            **stamp,
        }
        for name, values in speeds.items()
    ]
    for row in rows:
        print(json.dumps(row), flush=True)
    write_rows(options.out, rows)


if __name__ == "__main__":
    main()
