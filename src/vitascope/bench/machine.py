"""The machine and the software that a figure was measured with."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vitascope import __version__
from vitascope.device import available_cores, physical_memory_bytes, probe_gpus
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.profiling.utilisation import GpuLimits, NvmlGpu

_PACKAGES = (
    "numpy",
    "av",
    "opencv-python-headless",
    "onnxruntime",
    "onnxruntime-gpu",
    "triton",
    "torch",
    "tensorrt",
)
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_MEMORY_TOLERANCE = 0.05
"""Systems keep a little of the installed memory for themselves, not always the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU."""

    name: str
    driver: str
    memory_bytes: int | None
    """None if the driver does not report it; so below."""
    sm_clock_mhz: float | None = None
    """The highest that it may take."""
    power_watts: float | None = None
    """The limit that is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine and software that results depend on."""

    system: str
    processor: str
    cores: int
    """That the process may use."""
    memory_bytes: int | None
    gpus: tuple[GpuFacts, ...]
    versions: dict[str, str]
    """Versions of Python, Vitascope and the libraries that compute, decode and encode, as far as they are installed."""
    commit: str | None
    """Vitascope's commit, where it runs from a git checkout."""

    def label(self) -> str:
        """In a few words, for heads of tables."""
        gpus = ", ".join(gpu.name for gpu in self.gpus)
        return f"{gpus}; {self.processor}" if gpus else f"{self.processor} ({self.cores} cores)"


def this_machine() -> Machine:
    """Look at the machine that this runs on; starts no CUDA context where there is no driver."""
    found = {"python": platform.python_version(), "vitascope": __version__}
    for package in (*_PACKAGES, *_CUPY):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return Machine(
        system=platform.platform(terse=True),
        processor=_processor_name(),
        cores=available_cores(),
        memory_bytes=physical_memory_bytes(),
        gpus=tuple(_gpus()),
        versions=found,
        commit=_commit(),
    )


def differences(one: Machine, other: Machine) -> tuple[str, ...]:
    """List what makes figures of two machines incomparable, one sentence each; software is not compared."""
    found = []
    gpus, others = [gpu.name for gpu in one.gpus], [gpu.name for gpu in other.gpus]
    if gpus != others:
        found.append(f"GPU: {', '.join(gpus) or 'none'} against {', '.join(others) or 'none'}")
    if one.processor != other.processor:
        found.append(f"processor: {one.processor} against {other.processor}")
    if one.cores != other.cores:
        found.append(f"cores: {one.cores} against {other.cores}")
    if _differ_much(one.memory_bytes, other.memory_bytes):
        found.append(f"memory: {_gib(one.memory_bytes)} against {_gib(other.memory_bytes)}")
    return tuple(found)


def _differ_much(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return False
    return abs(one - other) > _MEMORY_TOLERANCE * max(one, other)


def _gib(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else f"{nbytes / 2**30:.0f} GiB"


def _processor_name() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> Iterable[GpuFacts]:
    for number, gpu in enumerate(probe_gpus()):
        limits = _limits(number)
        yield GpuFacts(
            name=gpu.name,
            driver=gpu.driver,
            memory_bytes=gpu.memory_bytes,
            sm_clock_mhz=None if limits is None else limits.sm_clock_mhz,
            power_watts=None if limits is None else limits.power_watts,
        )


def _limits(number: int) -> GpuLimits | None:
    try:
        with NvmlGpu(number) as gpu:
            return gpu.limits()
    except (MissingDependencyError, DeviceError):
        return None


def _commit() -> str | None:
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # an installed package may lie inside somebody else's repository
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
