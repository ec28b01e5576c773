"""Check that the figures of docs/faster-or-better.md are those of the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = json.loads((ROOT / "benchmarks" / "results" / "levers.json").read_text())


def test_the_page_shows_the_rows() -> None:
    command = [sys.executable, "levers_figures.py", "--check"]
    answer = subprocess.run(command, cwd=ROOT / "benchmarks", capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_the_cache_gains_what_it_must() -> None:
    """Check that a second run with another output is at least twice as fast, with the same pictures."""
    rows = [row for row in ROWS if row["claim"] == "cache"]
    assert any("balanced" in row["clip"] for row in rows)
    assert all(row["pixels_that_differ"] == 0 for row in rows)
    assert all(row["speed"] >= 2 for row in rows if "balanced" in row["clip"])


def test_every_lever_has_a_row() -> None:
    claims = {row["claim"].split("=")[0] for row in ROWS}
    assert claims == {"cache", "stillness", "skip_static", "region", "early_exit", "scales"}
    assert {row["claim"] for row in ROWS} >= {"region=crop", "region=zoom"}
