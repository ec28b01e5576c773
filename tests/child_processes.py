"""Other processes as the system sees them: their parents, and whether they still run."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["children_of", "is_running"]


def children_of(pid: int) -> list[int]:
    """Return the children of a process that it has not waited for (Linux); none if it does not exist."""
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    """Return False for a finished process, even if its parent has not waited for it yet (Linux).

    A child of this process must be waited for; otherwise it remains.
    """
    try:
        os.kill(pid, 0)
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state != "Z" or int(parent) == os.getpid()
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it just ended, or this is not Linux
        return not Path("/proc/self/stat").exists()
