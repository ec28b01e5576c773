"""The machine a run computes on: cores, memory, SIMD paths, GPUs. Importing this touches no CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from vitascope.errors import UsageError

__all__ = [
    "Device",
    "Gpu",
    "available_cores",
    "peak_memory_bytes",
    "physical_memory_bytes",
    "probe_gpus",
    "select_device",
    "simd_features",
]


@dataclass(frozen=True, slots=True)
class Device:
    """Where arrays live and kernels run."""

    kind: Literal["cpu"]
    label: str
    """For reports, for example ``CPU (2 cores)``."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver names it."""

    name: str
    driver: str
    memory_bytes: int | None
    """None where the driver does not tell."""


def select_device(kind: Literal["auto", "cpu", "cuda"]) -> Device:
    """Choose the device for a run.

    Raises:
        UsageError: ``cuda`` was asked for; this version's stages compute on the CPU.
    """
    if kind == "cuda":
        raise UsageError("gpu.device=cuda: this version computes on the CPU only; use --device auto or cpu")
    cores = available_cores()
    return Device("cpu", f"CPU ({cores} core{'' if cores == 1 else 's'})")


def available_cores() -> int:
    """Cores that this process may run on: its affinity mask where the system has one, else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_memory_bytes() -> int | None:
    """Installed memory, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def peak_memory_bytes() -> int | None:
    """The largest resident size this process has had, or None where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0]) * 1024 if "VmHWM" in fields else None


@cache
def simd_features() -> tuple[str, ...]:
    """The SIMD paths that NumPy found on this processor and dispatches to, for example ``AVX2``."""
    config = np.show_config(mode="dicts")
    extensions = config.get("SIMD Extensions", {}) if config else {}
    return (*extensions.get("baseline", ()), *extensions.get("found", ()))


@cache
def probe_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs that the driver's own tool lists; empty without a driver. Starts no CUDA context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a driver that hangs is as good as none
        return ()
    if answer.returncode != 0:
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return tuple(_gpu(*row) for row in rows if len(row) == 3)


def _gpu(name: str, driver: str, memory_mib: str) -> Gpu:
    # Cards that share the host's memory answer "[N/A]".
    return Gpu(name, driver, int(memory_mib) * 2**20 if memory_mib.isdecimal() else None)
