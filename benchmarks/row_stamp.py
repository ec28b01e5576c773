"""Stamps every row with the commit and machine that it was measured on."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["commit", "gpu_stamp", "write_rows"]

RESULTS = Path(__file__).parent / "results"
"""The folder of published rows."""

_MEASURED = ("src", "benchmarks/*.py")
"""The sources that affect measurements; rows written in the meantime do not."""


def commit() -> str:
    """The commit that is checked out, with a plus where sources differ from it; empty without git or a repository."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--", *_MEASURED)
    except OSError:
        return ""
    if head.returncode:
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def gpu_stamp() -> dict[str, str]:
    """GPU, PyTorch, commit and date."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Write the rows of a benchmark.

    Args:
        path: The JSON file.
        rows: All of them.

    Raises:
        SystemExit: The rows would be published, but the sources differ from the commit, so nobody could
            repeat them. The rows are printed, and nothing is written.
    """
    text = json.dumps(rows, indent=1) + "\n"
    if path.resolve().parent == RESULTS.resolve() and (at := commit()).endswith("+"):
        print(text)
        raise SystemExit(
            f"{path}: rows that are kept are measured at a commit, and sources differ from {at.rstrip('+')}; commit "
            "first, or write them to another folder"
        )
    path.write_text(text, encoding="utf-8")


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=root)
