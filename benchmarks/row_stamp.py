"""What every row says of the state and machine that it was measured on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

__all__ = ["commit", "gpu_stamp"]


def commit() -> str:
    """The commit that is checked out; empty where there is no git, or no repository."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parent,
        )
    except OSError:
        return ""
    return answer.stdout.strip()


def gpu_stamp() -> dict[str, str]:
    """GPU, PyTorch, commit and date."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
