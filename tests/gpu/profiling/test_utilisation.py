"""Tests of the load of CPU and GPU; a fake driver reports the GPU's."""

from __future__ import annotations

import gc
import sys
import time
import types

import pytest

from left_threads import left_threads
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.profiling import utilisation as nvml_module
from vitascope.gpu.profiling.utilisation import (
    GpuFigures,
    NvmlGpu,
    UtilisationSample,
    UtilisationSampler,
    pcie_bytes_per_second,
    summarise_samples,
)
from waiting import eventually


def fake_pynvml(*, silent=()):
    """Simulate nvidia-ml-py by its own names; functions named in ``silent`` report "not supported"."""
    module = types.ModuleType("pynvml")
    module.opened = 0

    class NVMLError(Exception):
        pass

    def init():
        module.opened += 1

    def shutdown():
        module.opened -= 1

    def answer(name, value):
        def ask(*_):
            if name in silent:
                raise NVMLError("Not Supported")
            return value

        return ask

    answers = {
        "nvmlDeviceGetHandleByPciBusId": "handle",
        "nvmlDeviceGetName": b"Test GPU",
        "nvmlDeviceGetEnforcedPowerLimit": 350_000,
        "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=24 << 30, used=6 << 30, free=18 << 30),
        "nvmlDeviceGetTemperatureThreshold": 90,
        "nvmlDeviceGetMaxClockInfo": 2000,
        "nvmlDeviceGetCurrPcieLinkGeneration": 4,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=75, memory=30),
        "nvmlDeviceGetDecoderUtilization": [40, 100_000],
        "nvmlDeviceGetEncoderUtilization": [20, 100_000],
        "nvmlDeviceGetPcieThroughput": 1_000_000,
        "nvmlDeviceGetPowerUsage": 200_000,
        "nvmlDeviceGetTemperature": 91,
        "nvmlDeviceGetClockInfo": 1500,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 0x20 | 0x1,
    }
    for name, value in answers.items():
        setattr(module, name, answer(name, value))
    for n, name in enumerate(
        (
            "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",
            "NVML_CLOCK_SM",
            "NVML_PCIE_UTIL_RX_BYTES",
            "NVML_PCIE_UTIL_TX_BYTES",
            "NVML_TEMPERATURE_GPU",
        )
    ):
        setattr(module, name, n)
    module.NVMLError, module.nvmlInit, module.nvmlShutdown = NVMLError, init, shutdown
    return module


@pytest.fixture
def driver(monkeypatch):
    module = fake_pynvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(nvml_module, "_bus_address", lambda device_id: b"0000:01:00.0")
    return module


def our_threads():
    return left_threads("vitascope-utilisation")


def test_the_processor_is_measured_without_a_gpu():
    with UtilisationSampler(interval_seconds=0.02, device="cpu") as sampler:
        assert our_threads() == ["vitascope-utilisation"]
        end = time.thread_time() + 0.15
        while time.thread_time() < end:
            pass
    assert our_threads() == []
    load = sampler.summary()
    assert load.process_cores * load.seconds > 0.1
    assert 0 < load.cpu_share <= 1
    assert load.sample_count >= 2
    assert load.resident_bytes_max > 10**6
    assert (load.limits, load.gpu_percent, load.memory_share, load.pcie_share) == (None,) * 4


def test_what_is_missing_for_a_gpu_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with UtilisationSampler() as sampler:
        pass
    assert "nvidia-ml-py" in sampler.note
    with pytest.raises(MissingDependencyError):
        UtilisationSampler(device="cuda")


def test_without_a_driver(monkeypatch):
    module = fake_pynvml()

    def fail():
        raise module.NVMLError("Driver Not Loaded")

    module.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(DeviceError, match="no NVIDIA driver answers"):
        NvmlGpu()


def test_every_figure_of_a_gpu(driver):
    with UtilisationSampler(interval_seconds=0.02) as sampler:
        time.sleep(0.06)
        assert driver.opened == 1
    assert driver.opened == 0
    load = sampler.summary()
    assert (load.gpu_percent, load.decoder_percent, load.encoder_percent) == (75.0, 40.0, 20.0)
    assert load.power_watts == pytest.approx(200.0)
    assert load.limits.power_watts == pytest.approx(350.0)
    assert load.limits.name == "Test GPU"
    assert load.temperature_celsius_max == 91.0
    assert load.memory_share == pytest.approx(0.25)
    # 1,000,000 KB/s over PCIe 4 x16.
    assert load.pcie_share == pytest.approx(1.024e9 / (16 * 1.969e9))
    assert load.throttled_share == 1.0
    assert load.throttling == ("thermal (driver)",)
    assert load.sm_clock_mhz == pytest.approx(1500.0)


def test_what_a_driver_does_not_tell_is_left_out(driver, monkeypatch):
    silent = ("nvmlDeviceGetPcieThroughput", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates")
    module = fake_pynvml(silent=silent)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with NvmlGpu() as gpu:
        figures = gpu.figures()
    assert figures.pcie_to_gpu_bytes_per_second is None
    assert figures.power_watts is None
    assert figures.gpu_percent is None
    assert figures.decoder_percent == 40.0


def test_a_gpu_that_is_not_there_closes_nvml(driver, monkeypatch):
    def refuse(device_id):
        raise DeviceError(f"CUDA knows no GPU {device_id}")

    monkeypatch.setattr(nvml_module, "_bus_address", refuse)
    with pytest.raises(DeviceError, match="GPU 7"):
        NvmlGpu(7)
    assert driver.opened == 0


def test_a_thread_that_fails_is_heard(driver, monkeypatch):
    calls = iter(range(100))

    def figures(self):
        if next(calls) > 1:
            raise RuntimeError("lost")
        return

    monkeypatch.setattr(NvmlGpu, "figures", figures)
    with pytest.raises(RuntimeError, match="lost"), UtilisationSampler(interval_seconds=0.02):
        eventually(lambda: our_threads() == [])
    assert our_threads() == []
    assert driver.opened == 0


def test_garbage_collection_is_timed():
    with UtilisationSampler(device="cpu") as sampler:
        gc.collect()
        gc.collect()
    load = sampler.summary()
    assert load.gc_count >= 2
    assert 0 < load.gc_seconds_max <= load.gc_seconds
    before = sampler.summary().gc_count
    gc.collect()
    assert sampler.summary().gc_count == before


def figures(**given):
    names = dict.fromkeys(GpuFigures.__dataclass_fields__)
    return GpuFigures(**{**names, "throttling": (), **given})


def test_means_count_by_the_time_between_looks():
    samples = [
        UtilisationSample(
            seconds=seconds,
            process_cores=cores,
            machine_cpu_percent=None,
            resident_bytes=None,
            gpu=figures(gpu_percent=percent, memory_used_bytes=used),
        )
        for seconds, cores, percent, used in ((0.0, 9.0, 99.0, 1), (1.0, 1.0, 10.0, 5), (4.0, 2.0, 50.0, 3))
    ]
    load = summarise_samples(samples)
    assert load.seconds == 4.0
    assert load.process_cores == pytest.approx((1 * 1 + 2 * 3) / 4)
    assert load.gpu_percent == pytest.approx((10 + 150) / 4)
    assert load.memory_used_bytes_max == 5
    assert load.power_watts is None
    with pytest.raises(ValueError, match="at least two are needed"):
        summarise_samples(samples[:1])


def test_only_the_newest_looks_are_kept():
    with UtilisationSampler(interval_seconds=0.02, device="cpu", keep_samples=3) as sampler:
        first = sampler.samples()[0]
        eventually(lambda: sampler.samples()[0].seconds > first.seconds)
    assert len(sampler.samples()) == 3


def test_links():
    assert pcie_bytes_per_second(4, 16) == pytest.approx(31.5e9, rel=0.01)
    assert pcie_bytes_per_second(99, 16) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval_seconds": 0.0}, "interval_seconds"),
        ({"interval_seconds": float("nan")}, "interval_seconds"),
        ({"keep_samples": 1}, "keep_samples"),
        ({"device": "tpu"}, "device is"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        UtilisationSampler(**options)
