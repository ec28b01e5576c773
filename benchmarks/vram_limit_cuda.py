"""Peak memory of jobs that are given little: as a share of the limit, and what that costs in speed.

``gpu.max_vram_usage`` stands for a smaller card: its limit counts what all processes have in use. Batches, decoder
sessions and engine are those that the job chooses by itself. Each film is matted under the limit and without one.

Bar: the peak stays below 80 % of the limit, on cards that an 8 GB or a 12 GB GPU stands for.

Prediction for an H200: 1080p takes 1.5 GB and 4K 2.6 of the 8 GB, as without a limit; 8K with one decoder session 6 of
the 12 GB, and with the sessions that ``auto`` takes there no more than the limit leaves them.

Usage: python benchmarks/vram_limit_cuda.py [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
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


def main() -> None:
    """Matte, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "vitascope_films"
    folder.mkdir(exist_ok=True)
    total = cupy.cuda.runtime.memGetInfo()[1]
    rows: list[dict[str, Any]] = []
    for size, (limit_gb, frames) in FILMS.items():
        film = make_film(folder, f"{size} of {frames}", SIZES[size], frames)
        for limited in (True, False):
            settings: dict[str, Any] = {
                "model.batch_size": None,
                "output.kinds": ["mask"],
                "output.mask_max_width": 2048,
                "output.preset": "ultrafast",
            }
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
