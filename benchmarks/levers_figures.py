"""Writes the figures of docs/faster-or-better.md from the rows: ``python benchmarks/levers_figures.py [--check]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from readme_figures import between

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "faster-or-better.md"
ROWS = ROOT / "benchmarks" / "results" / "levers.json"
GPU_ROWS = ROOT / "benchmarks" / "results" / "levers_cuda.json"


def cache_table(rows: list[dict[str, Any]]) -> str:
    """Describe whole runs: the cost of filling the cache, and the second run's gain."""
    lines = [
        "| video | second run, another output | filling it | on disk |",
        "|-|-|-|-|",
        *(
            f"| {row['clip']}, {row['frames']} frames | {row['speed']:.1f} times as fast "
            f"| {row['filling']:.2f} times the plain run's time | {row['kilobytes_a_frame']} kB a frame |"
            for row in rows
            if row["claim"] == "cache"
        ),
        "",
        "Whole commands, their start included.",
    ]
    return "\n".join(lines)


def stillness(rows: list[dict[str, Any]]) -> str:
    """Describe the bounds of useful thresholds."""
    found = {row["clip"]: row for row in rows if row["claim"] == "stillness"}
    noise = found.pop("noise")["largest_tile"]
    still = max(row["middle_tile"] for row in found.values())
    least = min(row["least_largest_tile"] for row in found.values())
    return (
        f"Why 0.01: noise of two codes of 255 changes a tile by {noise:.4f} at most, a still tile of a video changes "
        f"by {still:.4f} at most (median), and the tile that moves most by {least:.3f} at least (in 95 of 100 frames)."
    )


def lever_table(rows: list[dict[str, Any]]) -> str:
    """Each lever on each clip."""
    levers = [row for row in rows if row["claim"] not in ("cache", "stillness")]
    clips = ["coffee", "juggle", "standstill", "far"]
    lines = [f"| lever | {' | '.join(clips)} | error on `far` |", "|-|" + "-|" * len(clips) + "-|"]
    for claim in dict.fromkeys(row["claim"] for row in levers):
        found = {row["clip"]: row for row in levers if row["claim"] == claim}
        cells = [
            f"{found[clip].get('cpu_speed', '–')}, {found[clip]['against_plain']['mean']:.2f}"
            for clip in clips
        ]
        truth = found["far"]
        error = f"{truth['against_truth']['mean']:.2f} ({truth['plain_against_truth']['mean']:.2f})"
        lines.append(f"| `{claim}` | {' | '.join(cells)} | {error} |")
    first = levers[0]
    lines += [
        "",
        f"Measured {first['date']} on {first['cores']} cores, {first['frames']} frames of most videos. "
        f"ONNX Runtime {first['onnxruntime']}, commit {first['commit']}.",
    ]
    return "\n".join(lines)


def on_a_gpu() -> str:
    """Describe the same on a GPU, from video to mask, in a sentence."""
    if not GPU_ROWS.exists():
        return "These have not been measured on a GPU yet."
    rows = json.loads(GPU_ROWS.read_text())
    plain, cache = (next(row for row in rows if row["claim"] == claim) for claim in ("plain", "cache"))
    found = [f"`{row['claim']}` {row['speed']:.2f}" for row in rows if row["claim"] not in ("plain", "cache")]
    height, width = plain["network_size"]
    return (
        f"Speed of the pipeline against the plain run, video to mask: {', '.join(found)}; from the cache "
        f"{cache['speed']:.1f}, which takes {cache['filling']:.2f} times the plain run's time to fill. One "
        f"{plain['gpu']}, {plain['date']}, 1080p, a person who stands, then walks, the network at {width}x{height} "
        "([rows](../benchmarks/results/levers_cuda.json))."
    )


def main() -> int:
    """Write the figures, or compare them with ``--check``."""
    rows = json.loads(ROWS.read_text())
    page = PAGE.read_text()
    wanted = between(page, "<!-- cache:begin -->", "<!-- cache:end -->", cache_table(rows))
    wanted = between(wanted, "<!-- still:begin -->", "<!-- still:end -->", stillness(rows))
    wanted = between(wanted, "<!-- levers:begin -->", "<!-- levers:end -->", lever_table(rows))
    wanted = between(wanted, "<!-- gpu-levers:begin -->", "<!-- gpu-levers:end -->", on_a_gpu())
    if "--check" in sys.argv:
        if page != wanted:
            sys.stderr.write("docs/faster-or-better.md does not show the rows; run `make docs`\n")
            return 1
        return 0
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
