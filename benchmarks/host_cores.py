"""Measure what the cores did during a benchmark, and what a virtual machine's host withheld."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def core_shares() -> Iterator[dict[str, float]]:
    """Fill in, when it ends, how many cores were busy, and how many had work and were withheld.

    ``cores_busy_here`` are those of the whole machine, ``cores_withheld_by_host`` is ``steal`` of ``/proc/stat``, and
    ``cores_withheld_by_limit`` sums the threads that a container's limit held back (``cpu.stat``).
    """
    shares: dict[str, float] = {}
    began, before = time.perf_counter(), _core_seconds()
    yield shares
    wall = time.perf_counter() - began
    for name, seconds in _core_seconds().items():
        shares[name] = round((seconds - before[name]) / wall, 2)


def _core_seconds() -> dict[str, float]:
    """Seconds of all cores since the machine started."""
    told = [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in Path("/proc/stat").read_text().split()[1:9]]
    user, nice, system, _, _, interrupt, soft_interrupt, steal = told
    limit = Path("/sys/fs/cgroup/cpu.stat")
    throttled = re.search(r"throttled_usec (\d+)", limit.read_text() if limit.exists() else "")
    return {
        "cores_busy_here": user + nice + system + interrupt + soft_interrupt,
        "cores_withheld_by_host": steal,
        "cores_withheld_by_limit": int(throttled[1]) / 1e6 if throttled else 0.0,
    }
