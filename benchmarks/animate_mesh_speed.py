"""The mesh animator's stage on the CPU: milliseconds a frame at 512 by 512 pixels and at 1080 lines, in pairs.

The shipped portrait does what ``examples/talk.motion`` says; no tracker, decoder or encoder runs. Each round
times one checkout and then the other in separate processes, so that other load affects both. With
``--beside`` the other is that folder's ``src``; without it, only this one is timed.

Usage: python benchmarks/animate_mesh_speed.py [--beside CHECKOUT] [--rounds 5] [--out ROWS.json]

Rows go to ``benchmarks/results/animate_mesh_speed.json``: wall time (p50, p95 of all frames) and CPU time of all
threads (the round with the least), the ratio of CPU times in pairs (median), cores and load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "animate_mesh_speed.json"
EXAMPLES = ROOT / "examples"
LINES = (512, 1080)
FRAMES = 150


def timed(lines: int) -> dict[str, Any]:
    """Draw the shipped portrait, scaled to so many lines, in a recorded motion."""
    from vitascope.animation.canonical_mesh import read_canonical_mesh
    from vitascope.animation.face import TrackedFace
    from vitascope.animation.landmarks_file import read_landmarks
    from vitascope.animation.mesh.animator import MeshAnimator
    from vitascope.animation.motion_file import MotionReader

    picture = EXAMPLES / "astronaut.jpg"
    saved = read_landmarks(picture, chosen="largest")
    if saved is None:
        raise SystemExit(f"{picture}: its landmarks are gone")
    rgb = cv2.imread(str(picture))[..., ::-1]
    scale = lines / rgb.shape[0]
    rgb = np.ascontiguousarray(cv2.resize(rgb, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC))
    face = TrackedFace(
        landmarks=saved.face.landmarks * np.float32(scale),
        blendshapes=saved.face.blendshapes,
        transform=saved.face.transform,
        picture_size=(rgb.shape[1], rgb.shape[0]),
    )
    with MotionReader(EXAMPLES / "talk.motion") as reader:
        motions = list(islice(reader, FRAMES))
    out, wall = np.empty_like(rgb), []
    with MeshAnimator(read_canonical_mesh()) as animator:
        animator.set_portrait(rgb, face=face)
        if saved.curves is not None:
            animator.use_curves(saved.curves)
        for motion in motions[:15]:
            animator.animate(motion, out=out)
        began_cpu = time.process_time()
        for motion in motions:
            began = time.perf_counter()
            animator.animate(motion, out=out)
            wall.append((time.perf_counter() - began) * 1e3)
        cpu = (time.process_time() - began_cpu) * 1e3 / len(motions)
    return {"wall_ms": wall, "cpu_ms": cpu}


def in_process(checkout: Path, lines: int) -> dict[str, Any]:
    """Draw with the sources of a checkout, in a separate process."""
    made = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--lines", str(lines)],
        env=os.environ | {"PYTHONPATH": str(checkout / "src")},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    measured: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return measured


def row_of(lines: int, beside: Path | None, rounds: int) -> dict[str, Any]:
    """Measure one size, in pairs."""
    own, other = [], []
    for _ in range(rounds):
        own.append(in_process(ROOT, lines))
        if beside is not None:
            other.append(in_process(beside, lines))
    wall = np.concatenate([one["wall_ms"] for one in own])
    row = {
        "claim": "speed of the animator's stage",
        "lines": lines,
        "wall_ms_p50": round(float(np.percentile(wall, 50)), 2),
        "wall_ms_p95": round(float(np.percentile(wall, 95)), 2),
        "cpu_ms": round(min(one["cpu_ms"] for one in own), 2),
        "frames": len(wall),
    }
    if other:
        pairs = [one["cpu_ms"] / two["cpu_ms"] for one, two in zip(own, other, strict=True)]
        row["cpu_ms_beside"] = round(min(one["cpu_ms"] for one in other), 2)
        row["cpu_ratio"] = round(float(np.median(pairs)), 3)
    return row


def main() -> None:
    """Measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, help="another checkout, timed in turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--lines", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.lines is not None:
        print(json.dumps(timed(given.lines)))
        return
    from row_stamp import commit, write_rows
    from vitascope.device import available_cores

    rows = []
    for lines in LINES:
        row = row_of(lines, given.beside, given.rounds)
        row |= {"cores": available_cores(), "machine": platform.machine(), "opencv": cv2.__version__}
        row |= {
            "load_average": round(os.getloadavg()[0], 1),
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    write_rows(given.out, rows)


if __name__ == "__main__":
    main()
