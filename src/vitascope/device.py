"""The hardware of this machine: cores, memory, SIMD, GPUs. Importing this does not touch CUDA."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from vitascope.errors import DeviceError

_OLDEST_COMPUTE_CAPABILITY = (7, 5)
_KINDS: tuple[str, ...] = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Device:
    """A device for arrays and kernels."""

    kind: Literal["cpu", "cuda"]
    label: str
    """For reports, for example ``CPU (2 cores)`` or ``NVIDIA H200 (GPU 0, 140 GiB, compute capability 9.0)``."""
    index: int = 0
    """Number of the GPU; 0 on a CPU."""
    memory_bytes: int | None = None
    """Memory of the GPU; None on a CPU."""
    pci_address: str | None = None
    """The GPU's PCI address, such as ``0000:17:00.0``; None on a CPU. Unlike its number, it is the same for every
    tool."""
    note: str | None = None
    """A line about the choice for the user: for example that a GPU is not used, and how to use it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as reported by the driver."""

    name: str
    driver: str
    memory_bytes: int | None
    """None if the driver does not report it."""
    pci_address: str | None = None
    """See ``Device``."""
    free_bytes: int | None = None
    """Unused memory at the time of the query."""


def select_device(kind: Literal["auto", "cpu", "cuda"], *, index: int = 0) -> Device:
    """Choose the device for a run. CUDA is only touched if the choice may be a GPU.

    Args:
        kind: ``auto`` takes the GPU if it can be used, otherwise the CPU.
        index: Number of the GPU, from 0.

    Raises:
        DeviceError: ``cuda`` was requested but is unavailable (the message says what would help); or ``kind`` is
            unknown.
    """
    if kind not in _KINDS:  # "gpu" or "cuda:1" must not mean auto
        raise DeviceError(f"{kind!r} is no device; expected auto, cpu or cuda")
    if kind == "cpu":
        return _cpu()
    try:
        return _gpu_device(index)
    except DeviceError as error:
        if kind == "cuda":
            raise
        return _cpu(note=f"the GPU is not used: {error}" if _has_nvidia_driver() else None)


def _cpu(*, note: str | None = None) -> Device:
    cores = available_cores()
    return Device("cpu", f"CPU ({cores} core{'' if cores == 1 else 's'})", note=note)


def _gpu_device(index: int) -> Device:
    try:
        with warnings.catch_warnings():
            # CuPy warns about missing toolkits; whether it works is tested below.
            warnings.simplefilter("ignore")
            import cupy
    except ImportError as error:
        raise DeviceError("CuPy is not installed: pip install 'vitascope[cuda]'") from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"no NVIDIA GPU can be used: {_reason(error)}") from error
    if not 0 <= index < count:
        raise DeviceError(
            f"there is no GPU {index}: this machine has {count}, numbered from 0"
            if count
            else "no NVIDIA GPU was found"
        )
    properties = runtime.getDeviceProperties(index)
    major, minor = properties["major"], properties["minor"]
    name = properties["name"].decode(errors="replace")
    if (major, minor) < _OLDEST_COMPUTE_CAPABILITY:
        raise DeviceError(
            f"{name} has compute capability {major}.{minor}; the kernels need 7.5 (Turing, 2018) or newer"
        )
    memory = int(properties["totalGlobalMem"])
    return Device(
        "cuda",
        f"{name} (GPU {index}, {memory / 2**30:.0f} GiB, compute capability {major}.{minor})",
        index,
        memory,
        _pci_address(cupy.cuda.Device(index).pci_bus_id),
    )


def _pci_address(words: str) -> str | None:
    """Convert a PCI address in the driver's form, ``00000000:17:00.0``, to CUDA's, ``0000:17:00.0``.

    Returns:
        None if it is not an address: the driver writes "[N/A]" for unknown values.
    """
    found = re.fullmatch(r"([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", words.lower())
    return f"{int(found[1], 16):04x}:{found[2]}" if found else None


def _reason(error: Exception) -> str:
    text = str(error)
    if "InsufficientDriver" in text:
        return "its driver is too old for the installed CUDA libraries; update the driver"
    return text.partition(": ")[2] or text


def _has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def available_cores() -> int:
    """Cores that this process may use: those of its affinity mask if the system has one, otherwise all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_cpu_seconds() -> float | None:
    """CPU time of all processes since the machine started, or None if the system does not report it.

    Source: Linux, ``proc_stat(5)``: time in user, nice, system, irq, softirq and steal.
    """
    try:
        with Path("/proc/stat").open(encoding="ascii") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, ValueError, OSError):
        return None


def physical_memory_bytes() -> int | None:
    """Installed memory, or None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def peak_memory_bytes() -> int | None:
    """Peak resident memory of this process in bytes, or None if the system does not report it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0]) * 1024 if "VmHWM" in fields else None


@cache
def simd_features() -> tuple[str, ...]:
    """The SIMD extensions that NumPy uses on this CPU, for example ``AVX2``."""
    import numpy as np  # NumPy takes a third of the running time of a command without pictures

    config = np.show_config(mode="dicts")
    extensions = config.get("SIMD Extensions", {}) if config else {}
    return (*extensions.get("baseline", ()), *extensions.get("found", ()))


@cache
def probe_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs, as returned by the first call of ``ask_driver``."""
    return ask_driver()


def ask_driver() -> tuple[Gpu, ...]:
    """NVIDIA GPUs that the driver's tool lists now; empty without a driver. Creates no CUDA context."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    wanted = "name,driver_version,memory.total,pci.bus_id,memory.free"
    query = [tool, f"--query-gpu={wanted}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a hanging driver counts as none
        return ()
    if answer.returncode != 0:
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return tuple(_gpu(*row) for row in rows if len(row) == 5)


def _gpu(name: str, driver: str, memory_mib: str, address: str, free_mib: str) -> Gpu:
    return Gpu(name, driver, _of_mib(memory_mib), _pci_address(address), _of_mib(free_mib))


def _of_mib(words: str) -> int | None:
    # cards that share the host's memory answer "[N/A]"
    return int(words) * 2**20 if words.isdecimal() else None
