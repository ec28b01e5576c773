"""Single pictures of sixteen threads: ``StillSegmenter`` with RVM on a GPU, one picture a call against sixteen.

The pictures are in the host's memory, and each thread prepares its own and refines its matte on the CPU, so
the gain from sharing calls depends on the number of cores and the size of the pictures: the network takes
four calls of some 0.5 ms for a picture alone (three of them warm its memory up), the CPU 6 ms at 640x360 and
48 ms at 1080p on one slow core. Masks are compared first.

Usage: python benchmarks/stills_cuda.py [OUT.json]
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from row_stamp import gpu_stamp, write_rows
from vitascope.device import available_cores
from vitascope.segmentation.stills import StillSegmenter

THREADS = 16
SIZES = {"640x360": (360, 640), "1920x1080": (1080, 1920)}


def measure(count: int) -> list[dict[str, Any]]:
    """Rows of ``StillSegmenter``: sixteen threads, with and without sharing calls."""
    found = []
    for name, size in SIZES.items():
        random = np.random.default_rng(0)
        shown = [random.integers(0, 256, (*size, 3), np.uint8) for _ in range(THREADS)]
        masks: dict[int, Any] = {}
        for most in (1, THREADS):
            settings = {
                "model.name": "rvm",
                "gpu.device": "cuda",
                "batching.dynamic.max_batch_size": most,
                "batching.dynamic.timeout_ms": 5.0,
            }
            with StillSegmenter(settings=settings) as segmenter, ThreadPoolExecutor(THREADS) as pool:
                for _ in range(10):  # every bucket gets its graph
                    masks[most] = list(pool.map(segmenter.mask, shown))
                before = segmenter.stats()
                began = time.perf_counter()
                list(pool.map(segmenter.mask, shown * count))
                seconds = time.perf_counter() - began
                after = segmenter.stats()
            calls = after.batches - before.batches
            row = {
                "claim": f"stills {name}, at most {most} a call",
                "threads": THREADS,
                "pictures_per_s": round(THREADS * count / seconds, 1),
                "mean_batch_size": round((after.completed - before.completed) / calls, 2),
                "batcher_p50_ms": round(after.latency.p50_seconds * 1e3, 3),
                "batcher_p95_ms": round(after.latency.p95_seconds * 1e3, 3),
            }
            found.append(row)
            print(json.dumps(row), flush=True)
        worst = max(
            int(np.abs(one.astype(int) - other.astype(int)).max())
            for one, other in zip(masks[1], masks[THREADS], strict=True)
        )
        if worst > 2:
            raise SystemExit(f"stills {name}: sharing a call changes a mask by {worst} of 255")
    return found


def main(out: Path | None) -> None:
    """Measure, print, write."""
    stamp = {**gpu_stamp(), "cores": available_cores()}
    rows = [row | stamp for row in measure(20)]
    if out is not None:
        write_rows(out, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
