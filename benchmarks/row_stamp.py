"""What every row says of the state and machine that it was measured on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

__all__ = ["commit", "gpu_stamp"]

_MEASURED = ("src", "benchmarks/*.py")
"""What decides what is measured; rows that were written meanwhile do not."""


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


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    return subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=root)
