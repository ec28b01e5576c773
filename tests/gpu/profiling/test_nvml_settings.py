from __future__ import annotations

import sys
import types

import pytest

from vitascope.gpu.profiling import utilisation as nvml_module
from vitascope.gpu.profiling.utilisation import GpuSettings, NvmlGpu


class NVMLError(Exception):
    pass


def refuse(*_):
    raise NVMLError("Not Supported")


@pytest.fixture
def driver(monkeypatch):
    module = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda address: "handle",
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 250_000,
        nvmlDeviceGetPowerManagementDefaultLimit=lambda handle: 350_000,
        nvmlDeviceGetPersistenceMode=lambda handle: 0,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(nvml_module, "_bus_address", lambda device_id: b"0000:01:00.0")
    return module


def test_what_an_administrator_set(driver):
    with NvmlGpu() as gpu:
        assert gpu.settings() == GpuSettings(
            power_watts=250.0, power_default_watts=350.0, keeps_driver_loaded=False
        )


def test_what_a_driver_does_not_tell(driver):
    driver.nvmlDeviceGetEnforcedPowerLimit = driver.nvmlDeviceGetPersistenceMode = refuse
    with NvmlGpu() as gpu:
        found = gpu.settings()
    assert found == GpuSettings(power_watts=None, power_default_watts=350.0, keeps_driver_loaded=None)
