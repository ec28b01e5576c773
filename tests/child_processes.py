"""Other processes as the system sees them: whose children they are, and whether they still run."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["children_of", "is_running"]


def children_of(pid: int) -> list[int]:
    """The processes that one started and that it has not seen end (Linux); none of a process that is gone."""
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    """False of a process that has ended, also where another has not asked for its exit code yet (Linux).

    A child of this process has to be asked: one that nobody asked is left over.
    """
    try:
        os.kill(pid, 0)
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return state != "Z" or int(parent) == os.getpid()
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it ended meanwhile, or this is no Linux
        return not Path("/proc/self/stat").exists()
