"""Host memory: total, in use, and this process's share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vitascope.errors import MissingDependencyError

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A sample of the host's memory."""

    total_bytes: int
    """Memory available to this process: the machine's, or its container's limit if lower."""
    used_bytes: int
    """Memory in use by all processes, without file caches, which the system can drop at once."""
    process_bytes: int
    """Resident memory of this process."""


def host_memory() -> HostMemory:
    """Sample the host's memory: from ``/proc`` and the control group on Linux (proc(5), cgroups(7)), else from psutil.

    Raises:
        MissingDependencyError: The system has no ``/proc``, and psutil is not installed.
    """
    if not (_PROC / "meminfo").exists():
        return _by_psutil()
    lines = dict(line.split(":", 1) for line in (_PROC / "meminfo").read_text().splitlines())
    total, available = (int(lines[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    used = total - available
    limit, in_group = _control_group()
    if limit is not None and limit < total:
        total, used = limit, in_group
    resident_pages = int((_PROC / "self" / "statm").read_text().split()[1])
    return HostMemory(total, used, resident_pages * os.sysconf("SC_PAGE_SIZE"))


def _control_group() -> tuple[int | None, int]:
    """Limit and use of the container, if limited; version 2, then version 1."""
    for folder, limit, use, cache in (
        (_CGROUP, "memory.max", "memory.current", "inactive_file"),
        (_CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = (folder / limit).read_text().strip()
            in_use = int((folder / use).read_text())
            details = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if not most.isdecimal():  # "max"
            return None, in_use
        return int(most), max(in_use - int(details.get(cache, 0)), 0)
    return None, 0


def _by_psutil() -> HostMemory:
    try:
        # mypy: an extra; it has no types of its own.
        import psutil  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise MissingDependencyError(
            "the host's memory is read through psutil on this system: pip install 'vitascope[metrics]'"
        ) from error
    memory = psutil.virtual_memory()
    return HostMemory(memory.total, memory.total - memory.available, psutil.Process().memory_info().rss)
