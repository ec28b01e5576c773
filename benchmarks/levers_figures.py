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


def cache_table(rows: list[dict[str, Any]]) -> str:
    """Whole runs: what filling costs, and what the second gains."""
    lines = [
        "| film | second run, another output | filling it | on disk |",
        "|-|-|-|-|",
        *(
            f"| {row['clip']}, {row['frames']} frames | {row['speed']:.1f} times as fast "
            f"| {row['filling']:.2f} times the plain run's time | {row['kilobytes_a_frame']} kB a frame |"
            for row in rows
            if row["claim"] == "cache"
        ),
    ]
    return "\n".join(lines)


def lever_table(rows: list[dict[str, Any]]) -> str:
    """Each lever on each clip."""
    levers = [row for row in rows if row["claim"] != "cache"]
    lines = ["| lever | clip | speed | seen | off | wrong | error |", "|-|-|-|-|-|-|-|"]
    for claim in dict.fromkeys(row["claim"] for row in levers):
        for row in levers:
            if row["claim"] != claim:
                continue
            error = ""
            if "against_truth" in row:
                error = f"{row['against_truth']['mean']:.2f} ({row['plain_against_truth']['mean']:.2f})"
            against = row["against_plain"]
            lines.append(
                f"| `{claim}` | {row['clip']} | {row.get('cpu_speed', '')} | {row['network_share']:.0%} "
                f"| {against['mean']:.2f} | {against['wrong_percent']:.2f} % | {error} |"
            )
    first = levers[0]
    lines += [
        "",
        f"Measured {first['date']} on {first['cores']} cores that had other work, too: *seen* is exact, *speed* is "
        f"not. ONNX Runtime {first['onnxruntime']}, commit {first['commit']}.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Write the figures, or compare them with ``--check``."""
    rows = json.loads(ROWS.read_text())
    page = PAGE.read_text()
    wanted = between(page, "<!-- cache:begin -->", "<!-- cache:end -->", cache_table(rows))
    wanted = between(wanted, "<!-- levers:begin -->", "<!-- levers:end -->", lever_table(rows))
    if "--check" in sys.argv:
        if page != wanted:
            sys.stderr.write("docs/faster-or-better.md does not show the rows; run `make docs`\n")
            return 1
        return 0
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
