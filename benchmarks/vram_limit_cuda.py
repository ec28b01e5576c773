"""Measure the peak memory of jobs under a limit, as a share of it, and the cost in speed.

``gpu.max_vram_usage`` simulates a smaller card: its limit counts the memory that all processes use. The job
chooses batches, decoder sessions and engine itself. Each video is matted under the limit and without one.

Bar: the peak stays below 80 % of the limit, for an 8 GB and a 12 GB GPU.

Prediction for an H200: 1080p takes 1.5 GB and 4K 2.6 of the 8 GB, as without a limit; 8K with one decoder session 6 of
the 12 GB, and with the sessions that ``auto`` takes there no more than the limit leaves them.

``--least`` bisects between a limit that suffices and one that does not, until they are 0.2 GB apart: the need
of a video in ``segmentation/capacity.py``, by which a cluster leaves smaller GPUs out. The rows are added.

Usage: python benchmarks/vram_limit_cuda.py [--least [--size 8K]] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cupy

from row_stamp import gpu_stamp, write_rows
from segment_cuda import SIZES, make_film, run_segment

RESULTS = Path(__file__).parent / "results" / "vram_limit_cuda.json"
FILMS = {"1080p": (8, 2400), "4K": (8, 960), "8K": (12, 480)}
"""Limit in gigabytes (10^9 bytes), and frames."""
BAR = 0.8
MOST_GB, APART_GB = 10.0, 0.2
SETTINGS: dict[str, Any] = {
    "model.batch_size": None,
    "output.kinds": ["mask"],
    "output.mask_max_width": 2048,
    "output.preset": "ultrafast",
}


def suffices(film: Path, limit_gb: float, profile: str) -> bool:
    """True if the video is matted within a limit, in a separate process: a failure leaves memory behind."""
    words = [sys.executable, "-m", "vitascope", "segment", film, "-o", film.with_name("least.mp4"), "-y"]
    share = limit_gb * 1e9 / cupy.cuda.runtime.memGetInfo()[1]
    settings = {
        "model.name": "rvm",
        "gpu.device": "cuda",
        "gpu.max_vram_usage": share,
        "gpu.decoder_sessions": 1,
        "output.mask_max_width": 2048,
        "output.preset": "ultrafast",
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [*map(str, words), "--profile", profile, "-t", "mask", *sets],
        capture_output=True,
        text=True,
        check=False,
    )
    last = [line for line in done.stderr.splitlines() if line][-1:]
    print(f"{film.stem}, {profile}: {limit_gb:.2f} GB: {done.returncode} {last}", flush=True)
    return done.returncode == 0


def least(folder: Path, size: str, profile: str) -> dict[str, Any]:
    """Find the smallest limit that suffices for a size, in 10^9 bytes, for the memory of all processes."""
    film = make_film(folder, f"{size} of 120", SIZES[size], 120)
    too_little, enough = 0.0, MOST_GB
    if not suffices(film, enough, profile):
        raise SystemExit(f"{size} does not fit {MOST_GB} GB")
    while enough - too_little > APART_GB:
        middle = (too_little + enough) / 2
        if suffices(film, middle, profile):
            enough = middle
        else:
            too_little = middle
    return {
        "claim": f"least memory of {size} to mask, profile {profile}",
        "least_gb": round(enough, 2),
        "too_little_gb": round(too_little, 2),
        "frames": 120,
        **gpu_stamp(),
    }


def main() -> None:
    """Matte, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--size", choices=list(FILMS), action="append", help="of --least; all when omitted")
    options = parser.parse_args()
    if options.size and not options.least:
        parser.error("--size is of --least")
    folder = Path(tempfile.gettempdir()) / "vitascope_films"
    folder.mkdir(exist_ok=True)
    if options.least:
        kept = json.loads(options.out.read_text()) if options.out.exists() else []
        added = []
        for profile in ("fast", "balanced"):
            for size in options.size or FILMS:
                added.append(least(folder, size, profile))
                print(json.dumps(added[-1]), flush=True)
                claims = {row["claim"] for row in added}
                write_rows(options.out, [row for row in kept if row["claim"] not in claims] + added)
        return
    total = cupy.cuda.runtime.memGetInfo()[1]
    rows: list[dict[str, Any]] = []
    for size, (limit_gb, frames) in FILMS.items():
        film = make_film(folder, f"{size} of {frames}", SIZES[size], frames)
        for limited in (True, False):
            settings = dict(SETTINGS)
            if limited:
                settings["gpu.max_vram_usage"] = limit_gb * 1e9 / total
            row = run_segment(film, folder / "limit.mp4", settings)
            share = row["peak_vram_gb"] / limit_gb
            rows.append(
                {
                    "claim": f"peak memory of {size} to mask, {f'{limit_gb} GB allowed' if limited else 'no limit'}",
                    **row,
                    "limit_gb": limit_gb if limited else None,
                    "share_of_limit": round(share, 3) if limited else None,
                    "holds": share < BAR if limited else None,
                    **gpu_stamp(),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            write_rows(options.out, rows)


if __name__ == "__main__":
    main()
