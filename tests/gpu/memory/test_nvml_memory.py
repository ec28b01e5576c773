"""Tests of NVML's figures for a GPU's memory, and of those that old drivers and containers lack."""

from __future__ import annotations

import sys
import types

import pytest

from vitascope.errors import DeviceError
from vitascope.gpu.profiling import utilisation as nvml_module
from vitascope.gpu.profiling.utilisation import GpuMemory, NvmlGpu

GIB = 1 << 30


@pytest.fixture
def driver(monkeypatch):
    """Simulate nvidia-ml-py by its own names; the driver refuses the calls in ``driver.silent``."""
    module = types.ModuleType("pynvml")
    module.silent = set()

    class NVMLError(Exception):
        pass

    def refuse(name: str) -> None:
        if name in module.silent:
            raise NVMLError("Not Supported")

    def memory(_handle, version=None):
        refuse("v1" if version is None else "v2")
        return types.SimpleNamespace(total=24 * GIB, free=18 * GIB, used=5 * GIB, reserved=GIB)

    def processes(kind: str, found):
        def ask(_handle):
            refuse(kind)
            return [types.SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in found]

        return ask

    module.NVMLError, module.nvmlMemory_v2 = NVMLError, 2
    module.nvmlInit = module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetHandleByPciBusId = lambda address: address
    module.nvmlDeviceGetMemoryInfo = memory
    module.nvmlDeviceGetComputeRunningProcesses = processes("compute", [(7, 3 * GIB), (8, None)])
    module.nvmlDeviceGetGraphicsRunningProcesses = processes("graphics", [(9, GIB)])
    module.nvmlDeviceGetUtilizationRates = lambda _: (
        refuse("rates") or types.SimpleNamespace(gpu=75, memory=1)
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(nvml_module, "_bus_address", lambda _: b"0000:01:00.0")
    return module


def test_everything_is_told(driver) -> None:
    with NvmlGpu() as gpu:
        assert gpu.memory() == GpuMemory(
            total_bytes=24 * GIB,
            used_bytes=6 * GIB,
            reserved_bytes=GIB,
            process_bytes={7: 3 * GIB, 9: GIB},  # Windows does not report the size for some
        )
        assert gpu.gpu_percent() == 75


def test_what_is_refused_is_missing(driver) -> None:
    driver.silent |= {"v2", "compute", "graphics", "rates"}
    with NvmlGpu() as gpu:
        memory = gpu.memory()
        assert (memory.used_bytes, memory.reserved_bytes, memory.process_bytes) == (6 * GIB, None, {})
        assert gpu.gpu_percent() is None


def test_a_driver_that_is_lost_is_an_error(driver) -> None:
    with NvmlGpu() as gpu:
        driver.silent.add("v1")
        with pytest.raises(DeviceError, match="Not Supported"):
            gpu.memory()
