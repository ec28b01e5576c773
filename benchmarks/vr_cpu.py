"""Time packed alpha of a VR180 video on the CPU: the whole command, on some cores of this machine.

The cores are physical if the machine has enough. The video has 2048x1024 pixels, such as the synthetic one::

    python examples/make_vr180.py film_LR_180.mp4 --eye 1024 --frames 300 --rate 30

Usage: python benchmarks/vr_cpu.py FILM_LR_180.mp4 [--cores 2] [--rounds 1] [--flags "--profile fast"] [--keep FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import onnxruntime as ort

from row_stamp import commit, write_rows
from segment_cpu import run_vitascope

_TOPOLOGY = Path("/sys/devices/system/cpu")


def separate_cores(count: int) -> set[int]:
    """Processors of so many cores, none the other's thread as far as the system tells; fewer where there are fewer."""
    allowed = sorted(os.sched_getaffinity(0))

    def siblings(processor: int) -> str:
        path = _TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list"
        return path.read_text().strip() if path.exists() else str(processor)

    first_of = {siblings(processor): processor for processor in reversed(allowed)}
    return set(sorted(first_of.values())[:count])


def processor_name() -> str:
    """The model's name, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def main() -> None:
    """Print a row; save it on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("film", type=Path)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--flags", default="", help='of the command: "--profile fast"')
    parser.add_argument("--keep", type=Path, help="JSON file that the rows are written to")
    options = parser.parse_args()
    cores = separate_cores(options.cores)
    os.sched_setaffinity(0, cores)  # the command inherits it
    rows: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            report = run_vitascope(
                options.film,
                Path(folder) / "film_FISHEYE190_alpha.mp4",
                "--type",
                "packed-alpha",
                *options.flags.split(),
            )
        pipeline = report["pipeline"]
        rows.append(
            {
                "claim": "vr cpu",
                "film": options.film.stem,
                "frames": report["frame_count"],
                "flags": options.flags,
                "cores": len(cores),
                "processor": processor_name(),
                "wall_seconds": round(report["process_seconds"], 1),
                "cpu_seconds": round(report["process_cpu_seconds"], 1),
                "profile": report["profile"],
                "model": report["model"],
                "stages_busy_seconds": {
                    stage["name"]: round(stage["busy_seconds"], 1) for stage in pipeline["stages"]
                },
                "onnxruntime": ort.__version__,
                "commit": commit(),
                "date": time.strftime("%Y-%m-%d"),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if options.keep is not None:
        write_rows(options.keep, rows)


if __name__ == "__main__":
    main()
