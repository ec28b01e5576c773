"""What ``vitascope bench run`` measured on a GPU, as rows: its document holds every sample, rows what tables show.

Usage: python benchmarks/suite_rows.py RESULTS.json [ROWS.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from row_stamp import write_rows
from vitascope.bench.recommendations import limit_of
from vitascope.bench.results import BenchResults, Cell, load_results

ROWS = Path(__file__).parent / "results" / "suite_h200.json"


def row(results: BenchResults, cell: Cell) -> dict[str, Any]:
    """Write one cell as a row."""
    key, verdict = cell.key, limit_of(cell)
    eyes = "" if key.stereo in ("mono", "auto") else f", {key.stereo}"
    film = "" if key.clip == "synthetic" else f" ({key.clip})"
    fps, times, memory = cell.row("throughput"), cell.row("frame_time"), cell.row("peak_vram")
    assert fps is not None
    assert times is not None
    return {
        "claim": f"suite --only {results.workload['only']}: {key.resolution} {key.output}, batch {key.batch}, "
        f"{key.precision}{eyes}{film}",
        "clip": key.clip,
        "stereo": key.stereo,
        "resolution": key.resolution,
        "width": key.width,
        "height": key.height,
        "batch": key.batch,
        "precision": key.precision,
        "output": key.output,
        "fps": round(fps.p50, 1),
        "fps_p5": round(fps.p5, 1),
        "fps_p95": round(fps.p95, 1),
        "rounds": cell.rounds,
        "frames": cell.frames,
        "frame_time_ms": {"p50": round(times.p50, 2), "p95": round(times.p95, 2), "p99": round(times.p99, 2)},
        "peak_vram_mb": None if memory is None else round(memory.p50),
        "alpha_error_255": None if cell.alpha_error is None else round(cell.alpha_error * 255, 3),
        "limited_by": None if verdict is None else verdict.kind,
        "network_size": cell.network_size,
        "decoder": cell.decoder,
        "engine": cell.engine,
        "settings": dict(results.settings),
        "gpu": results.machine.gpus[0].name,
        "cores": results.machine.cores,
        "torch": results.machine.versions["torch"],
        "commit": results.machine.commit,
        "date": results.began_at[:10],
    }


def main() -> None:
    """Put the rows in the place of those of the same claim."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("rows", type=Path, nargs="?", default=ROWS)
    options = parser.parse_args()
    results = load_results(options.results)
    rows = (
        {one["claim"]: one for one in json.loads(options.rows.read_text())} if options.rows.exists() else {}
    )
    for cell in results.cells:
        if cell.status == "measured":
            new = row(results, cell)
            rows[new["claim"]] = new
            print(json.dumps(new))
    write_rows(options.rows, list(rows.values()))


if __name__ == "__main__":
    main()
