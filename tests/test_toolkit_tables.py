"""Check that the tables of docs/engines.md and docs/quantization.md show the rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_tables_show_the_rows() -> None:
    answer = subprocess.run(
        [sys.executable, str(BENCHMARKS / "toolkit_tables.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
