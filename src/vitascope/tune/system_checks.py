"""Check system settings that affect speed, without changing them.

Sources: Linux's cpufreq, transhuge, proc(5) and getrlimit(2); NVML's device queries for the GPU. Settings that a
    system does not have are left out.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.profiling.utilisation import GpuSettings, NvmlGpu

_GIB = 2**30
_LEAST_FREE_BYTES = 10 * _GIB
"""An hour of 8K HEVC at 20 Mbit/s is 9 GB."""
_LEAST_OPEN_FILES = 1024
_SWAPPED_BYTES = 256 << 20
"""An idle desktop may use this much swap without harm."""


@dataclass(frozen=True, slots=True)
class SystemCheck:
    """A system setting."""

    name: str
    found: str
    advice: str | None = None
    """A better value, and how to set it; None if all is well."""

    @property
    def text(self) -> str:
        """Both in one line."""
        return self.found if self.advice is None else f"{self.found}; {self.advice}"


def check_system(
    folders: dict[str, Path] | None = None, *, gpus: int = 0, root: Path = Path("/")
) -> list[SystemCheck]:
    """Check everything that this system reports.

    Args:
        folders: Folders whose disks are checked, by their content; the folder for temporary files is always included.
        gpus: Number of GPUs.
        root: Parent of ``proc`` and ``sys``.
    """
    checks = [*_governor(root), *_huge_pages(root), *_swap(root), *_limits()]
    for label, folder in {**(folders or {}), "temporary files": Path(tempfile.gettempdir())}.items():
        checks += _free_space(label, folder)
    for number in range(gpus):
        checks += _gpu(number)
    return checks


def processor_throttle_count(root: Path = Path("/")) -> int | None:
    """Times that heat throttled the CPU's cores since the system started; None if the system does not count this.

    Linux counts it for each core of Intel CPUs: Documentation/admin-guide/abi-testing (``thermal_throttle``).

    Args:
        root: Parent of ``sys``.
    """
    counts: dict[str, int] = {}
    for processor in (root / "sys/devices/system/cpu").glob("cpu[0-9]*"):
        text = _read(processor / "thermal_throttle/core_throttle_count")
        if text and text.isdecimal():
            # each thread of a core counts the throttling of the whole core
            core = _read(processor / "topology/thread_siblings_list") or processor.name
            counts[core] = max(counts.get(core, 0), int(text))
    return sum(counts.values()) if counts else None


def _governor(root: Path) -> Iterator[SystemCheck]:
    """See https://docs.kernel.org/admin-guide/pm/cpufreq.html ."""
    files = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    found = sorted({text for file in files if (text := _read(file))})
    if found:
        slow = "powersave" in found and not (root / "sys/devices/system/cpu/intel_pstate").exists()
        advice = "clocks stay low under load: sudo cpupower frequency-set -g performance" if slow else None
        yield SystemCheck("CPU governor", ", ".join(found), advice)


def _huge_pages(root: Path) -> Iterator[SystemCheck]:
    """See https://docs.kernel.org/admin-guide/mm/transhuge.html ."""
    file = "sys/kernel/mm/transparent_hugepage/enabled"
    text = _read(root / file) or ""
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen:
        advice = None
        if chosen == "never":
            advice = f"large frames need more page faults: echo madvise | sudo tee /{file}"
        yield SystemCheck("huge pages", chosen, advice)


def _swap(root: Path) -> Iterator[SystemCheck]:
    text = _read(root / "proc/meminfo")
    if text is None:
        return
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    total, free = (int(rows.get(key, "0").split()[0]) * 1024 for key in ("SwapTotal", "SwapFree"))
    if not total:
        yield SystemCheck("swap", "none")
        return
    used = total - free
    advice = "memory ran short: fewer processes, or a smaller queue" if used > _SWAPPED_BYTES else None
    yield SystemCheck("swap", f"{used / _GIB:.1f} of {total / _GIB:.1f} GiB in use", advice)


def _limits() -> Iterator[SystemCheck]:
    if sys.platform == "win32":
        return
    import resource

    def shown(limit: int, unit: Callable[[int], str]) -> str:
        return "unlimited" if limit == resource.RLIM_INFINITY else unit(limit)

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files != resource.RLIM_INFINITY and files < _LEAST_OPEN_FILES
    advice = (
        f"worker processes and folders of pictures need more: ulimit -n {_LEAST_OPEN_FILES}" if few else None
    )
    yield SystemCheck("open files", shown(files, str), advice)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    # The driver locks pages itself; the limit is reported because other tools ask about it.
    yield SystemCheck("locked memory", shown(locked, lambda size: f"{size / 2**20:.0f} MiB"))


def _free_space(label: str, folder: Path) -> Iterator[SystemCheck]:
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), None)
    if there is None:
        return
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return
    advice = "free some space: a long video needs more" if free < _LEAST_FREE_BYTES else None
    yield SystemCheck(f"free for {label}", f"{free / _GIB:.1f} GiB in {folder}", advice)


def _gpu(number: int) -> Iterator[SystemCheck]:
    try:
        with NvmlGpu(number) as gpu:
            yield from _of_gpu(number, gpu.settings())
    except (MissingDependencyError, DeviceError) as error:
        yield SystemCheck(f"GPU {number}", f"not checked: {error}")


def _of_gpu(number: int, found: GpuSettings) -> Iterator[SystemCheck]:
    if found.power_watts is not None:
        default = found.power_default_watts
        lower = default is not None and found.power_watts < default - 0.5
        advice = (
            f"less than its {default:.0f} W: sudo nvidia-smi -i {number} -pl {default:.0f}" if lower else None
        )
        yield SystemCheck(f"GPU {number}, power limit", f"{found.power_watts:.0f} W", advice)
    if found.keeps_driver_loaded is not None:
        advice = (
            None if found.keeps_driver_loaded else f"each start reloads it: sudo nvidia-smi -i {number} -pm 1"
        )
        state = "on" if found.keeps_driver_loaded else "off"
        yield SystemCheck(f"GPU {number}, persistence mode", state, advice)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
