"""Tests of the figures of a real GPU."""

from __future__ import annotations

import pytest

from vitascope.gpu.profiling.utilisation import NvmlGpu
from vitascope.observe.job_counts import gpu_readings
from vitascope.tune.system_checks import check_system

pytestmark = pytest.mark.cuda


def test_a_real_gpu_is_read():
    pytest.importorskip("pynvml")
    with NvmlGpu() as gpu:
        gauges = gpu_readings({0: (gpu.figures(), gpu.limits())}).gauges
    used = gauges["vitascope_gpu_memory_bytes", ("0",)]
    assert 0 < used < gauges["vitascope_gpu_memory_limit_bytes", ("0",)]
    assert 10 < gauges["vitascope_gpu_temperature_celsius", ("0",)] < 110
    assert 0 < gauges["vitascope_gpu_power_watts", ("0",)] < 2000
    assert 1e8 < gauges["vitascope_gpu_sm_clock_hertz", ("0",)] < 5e9


def test_it_is_exported():
    pytest.importorskip("pynvml")
    pytest.importorskip("prometheus_client")
    from vitascope.observe.metrics import Metrics

    with Metrics() as metrics:
        metrics.watch_gpus([0])
        assert 'vitascope_gpu_memory_bytes{gpu="0"}' in metrics.text()


def test_its_settings_are_looked_at():
    pytest.importorskip("pynvml")
    with NvmlGpu() as gpu:
        found = gpu.settings()
    assert found.power_watts is None or found.power_watts > 20
    assert any(check.name.startswith("GPU 0") for check in check_system(gpus=1))
