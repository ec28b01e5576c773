"""Writes the README's figures from the rows: ``python benchmarks/readme_figures.py [--check]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
ROWS = ROOT / "benchmarks" / "results" / "segment_cpu.json"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
NAMES = {
    "rvm": "`--model rvm`, downsample ratio 0.25, against the official RVM graph",
    "fast": "`--profile fast`, against the same selfie network used as MediaPipe's example does",
}


def table() -> str:
    """The figures as Markdown."""
    rows = {row["claim"]: row for row in json.loads(ROWS.read_text())}
    lines = ["| | Vitascope | plain loop | ratio (worst round) |", "|---|---|---|---|"]
    for claim, name in NAMES.items():
        row = rows[claim]
        lines.append(
            f"| {name} | {row['vitascope_fps']:.1f} fps | {row['plain_loop_fps']:.1f} fps "
            f"| {row['ratio']:.2f} ({row['ratio_min']:.2f}) |"
        )
    memory, startup, first = rows["memory"], rows["startup"], rows["rvm"]
    lines += [
        "",
        f"Ten times the length takes {memory['growth_mb']:+d} MB of memory "
        f"({memory['peak_mb_10_s']} MB for 10 s of 1080p with `fast`). From a cold process to the end of a one-frame "
        f"job: {startup['rvm_seconds']:.1f} s with `rvm`, "
        f"{startup['fast_seconds']:.1f} s with `fast`. Measured {first['date']} on {first['cores']} cores "
        f"({first['machine']}), ONNX Runtime {first['onnxruntime']}, commit {first['commit']}.",
    ]
    return "\n".join(lines)


def main() -> int:
    """Write the figures, or compare them with ``--check``."""
    page = README.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if "--check" in sys.argv:
        if page != wanted:
            sys.stderr.write("README.md does not show the rows; run `make docs`\n")
            return 1
        return 0
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
