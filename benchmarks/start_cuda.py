"""Time a cold process to a finished video on a GPU: one second of 720p, as for a user who tries a clip.

Each run is a process of its own, ``vitascope segment clip.mp4 out.mp4``. The first one compiles kernels, checks the
engine and writes Python's bytecode, which an installed package has; the others find what it kept, and are the claim.
Every output's frames are counted.

Prediction for one H200: interpreter and imports 1.2 s, CuPy and CUDA 0.8 s, the rest 0.5 s. With PyTorch's network its
import (3 to 4 s), its own start of CUDA and the recording of graphs come on top.

Usage: python benchmarks/start_cuda.py --home DIR [--runs 7] [--backend auto] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

from row_stamp import gpu_stamp, write_rows

FRAMES, SIZE, RATE = 30, (1280, 720), 30
BACKENDS = ("auto", "torch")


def make_clip(path: Path) -> None:
    """One second of moving blobs."""
    rng = np.random.default_rng(0)
    noise = cv2.resize(rng.integers(0, 255, (30, 60, 3), dtype=np.uint8), (2 * SIZE[0], SIZE[1]))
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.width, stream.height = SIZE
        stream.pix_fmt, stream.time_base = "yuv420p", Fraction(1, RATE)
        for index in range(FRAMES):
            picture = np.ascontiguousarray(noise[:, 8 * index : 8 * index + SIZE[0]])
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = index
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


def seconds_of_a_run(clip: Path, out: Path, backend: str, home: Path) -> float:
    """Wall time of one process."""
    command = [sys.executable, "-m", "vitascope", "segment", str(clip), str(out), "-y", "--backend", backend]
    environment = {**os.environ, "VITASCOPE_HOME": str(home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    taken = time.perf_counter() - began
    with av.open(str(out)) as file:
        assert sum(1 for _ in file.decode(video=0)) == FRAMES
    return taken


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="only this one; repeatable")
    parser.add_argument(
        "--home", type=Path, required=True, help="a folder with models/; engines/ in it is made anew"
    )
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        clip, out = Path(folder, "clip.mp4"), Path(folder, "out.mp4")
        make_clip(clip)
        backends = options.backend or BACKENDS
        first = {backend: seconds_of_a_run(clip, out, backend, options.home) for backend in backends}
        runs: dict[str, list[float]] = {backend: [] for backend in backends}
        for _ in range(options.runs):  # in turns
            for backend in backends:
                runs[backend].append(seconds_of_a_run(clip, out, backend, options.home))
    for backend, taken in runs.items():
        rows.append(
            {
                "claim": f"one second of 720p from a cold process, --backend {backend}",
                "seconds_p50": round(statistics.median(taken), 2),
                "seconds_worst": round(max(taken), 2),
                "seconds_first_ever": round(first[backend], 2),
                "runs": options.runs,
                **gpu_stamp(),
            }
        )
    print(json.dumps(rows, indent=1))
    if options.out is not None:
        write_rows(options.out, rows)


if __name__ == "__main__":
    main()
