"""Tests of memory figures, and of history, limits, leaks and peaks derived from them."""

from __future__ import annotations

import sys
import threading
import time
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_cupy import fake_cupy
from vitascope.device import Device
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.memory import host_memory as host_memory_module
from vitascope.gpu.memory import vram_monitor
from vitascope.gpu.memory.growth import leak_slope
from vitascope.gpu.memory.host_memory import HostMemory, host_memory
from vitascope.gpu.memory.vram_monitor import VRAMMonitor


@pytest.fixture
def memory(monkeypatch):
    """Simulate the host's memory: ``memory.used``, of 1000 MB."""
    told = types.SimpleNamespace(used=100e6, process=50e6, looks=0)

    def look() -> HostMemory:
        told.looks += 1
        return HostMemory(10**9, int(told.used), int(told.process))

    monkeypatch.setattr(vram_monitor, "host_memory", look)
    return told


@pytest.fixture
def monitor(memory):
    made = VRAMMonitor(device="cpu", interval_s=0.001)
    yield made
    made.close()


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


# --- figures -------------------------------------------------------------------------------------------------------


def test_the_hosts_memory() -> None:
    stats = VRAMMonitor(device="cpu").get_stats()
    assert 0 < stats.allocated_vram_gb < stats.total_vram_gb
    assert stats.free_vram_gb == pytest.approx(stats.total_vram_gb - stats.allocated_vram_gb)
    assert 0.01 < stats.process_vram_gb < stats.total_vram_gb
    assert 0 < stats.utilization < 1
    assert stats.gpu_percent is None


def test_what_this_process_takes_is_seen() -> None:
    before = host_memory().process_bytes
    block = np.ones(64 << 20, np.uint8)
    assert host_memory().process_bytes - before > 60 << 20
    del block


@pytest.mark.parametrize(
    ("files", "total", "used"),
    [
        (
            {"memory.max": "2000\n", "memory.current": "900", "memory.stat": "anon 1\ninactive_file 300"},
            2000,
            600,
        ),
        ({"memory.max": "max", "memory.current": "900", "memory.stat": "inactive_file 0"}, 8000, 5000),
        (
            {
                "memory/memory.limit_in_bytes": "2000",
                "memory/memory.usage_in_bytes": "900",
                "memory/memory.stat": "total_inactive_file 100",
            },
            2000,
            800,
        ),
        (
            {
                "memory/memory.limit_in_bytes": str(2**63 - 4096),
                "memory/memory.usage_in_bytes": "9",
                "memory/memory.stat": "",
            },
            8000,
            5000,
        ),
        ({}, 8000, 5000),
    ],
)
def test_a_containers_limit_counts(tmp_path, monkeypatch, files, total, used) -> None:
    proc, group = tmp_path / "proc", tmp_path / "group"
    (proc / "self").mkdir(parents=True)
    (group / "memory").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: 3000 kB\n")
    (proc / "self" / "statm").write_text("100 10 5 1 0 1 0")
    for name, text in files.items():
        (group / name).write_text(text.replace("2000", str(2000 * 1024)).replace("900", str(900 * 1024))
            .replace("300", str(300 * 1024)).replace("_file 100", f"_file {100 * 1024}"))  # fmt: skip
    monkeypatch.setattr(host_memory_module, "_PROC", proc)
    monkeypatch.setattr(host_memory_module, "_CGROUP", group)
    memory = host_memory()
    assert (memory.total_bytes // 1024, memory.used_bytes // 1024) == (total, used)


def test_a_system_without_proc_needs_psutil(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(host_memory_module, "_PROC", tmp_path)
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingDependencyError, match="psutil"):
        VRAMMonitor(device="cpu")
    memory = types.SimpleNamespace(total=10, available=4)
    process = types.SimpleNamespace(memory_info=lambda: types.SimpleNamespace(rss=3))
    fake = types.SimpleNamespace(virtual_memory=lambda: memory, Process=lambda: process)
    monkeypatch.setitem(sys.modules, "psutil", fake)
    assert host_memory() == HostMemory(10, 6, 3)


class FakeNvml:
    """Replaces ``NvmlGpu``."""

    def __init__(self, device_id: int) -> None:
        import os

        from vitascope.gpu.profiling.utilisation import GpuMemory

        self.closed = False
        self.answer = GpuMemory(
            total_bytes=80 * 10**9,
            used_bytes=20 * 10**9,
            reserved_bytes=10**9,
            process_bytes={os.getpid(): 7 * 10**9, 1: 12 * 10**9},
        )

    def memory(self):
        return self.answer

    def gpu_percent(self) -> float:
        return 55.0

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def gpu(monkeypatch):
    """Simulate a device with 3 of 80 GiB free, 5 MB held by CuPy, and 2 MB of these lent."""
    cupy = fake_cupy()
    pool = types.SimpleNamespace(total_bytes=lambda: 5_000_000, used_bytes=lambda: 2_000_000)
    cupy.get_default_memory_pool = lambda: pool
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return Device("cuda", "fake", 0)


def test_nvml_and_the_allocators(gpu, monkeypatch) -> None:
    from vitascope.gpu.profiling import utilisation

    monkeypatch.setattr(utilisation, "NvmlGpu", FakeNvml)
    monitor = VRAMMonitor(device=gpu)
    stats = monitor.get_stats()
    assert (stats.total_vram_gb, stats.allocated_vram_gb, stats.free_vram_gb) == (80, 20, 60)
    assert (stats.process_vram_gb, stats.reserved_vram_gb, stats.driver_bytes) == (7, 0.005, 10**9)
    assert (stats.in_tensors_bytes, stats.gpu_percent, stats.utilization) == (2_000_000, 55, 0.25)
    assert stats.processes[1] == 12 * 10**9
    assert monitor.note is None
    monitor.close()
    assert monitor._figures._nvml.closed


def test_without_nvml_the_runtime_tells_and_a_note_says_what_is_missing(gpu, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monitor = VRAMMonitor(device=gpu)
    stats = monitor.get_stats()
    assert stats.total_bytes == 80 * 2**30
    assert stats.allocated_bytes == 77 * 2**30
    assert (stats.process_bytes, stats.gpu_percent) == (None, None)
    assert "nvidia-ml-py" in monitor.note


def test_a_gpu_that_does_not_answer_is_an_error(gpu, monkeypatch) -> None:
    cupy = sys.modules["cupy"]
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def lost() -> None:
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorDevicesUnavailable")

    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lost)
    with pytest.raises(DeviceError, match="cudaErrorDevicesUnavailable"):
        VRAMMonitor(device=gpu)


def test_a_gpu_that_is_missing_is_an_error() -> None:
    with pytest.raises(DeviceError):
        VRAMMonitor(77, device="cuda")


# --- history and thread --------------------------------------------------------------------------------------------


def test_history_is_bounded_and_in_order(memory) -> None:
    monitor = VRAMMonitor(device="cpu", history_length=5)
    for used in range(10):
        memory.used = used * 1e6
        monitor.get_stats()
    assert [stats.allocated_bytes for stats in monitor.history()] == [used * 10**6 for used in range(5, 10)]
    assert monitor.peak().allocated_bytes == 9_000_000
    assert VRAMMonitor(device="cpu").peak() is None


def test_a_thread_looks_and_is_joined(monitor, memory) -> None:
    before = memory.looks
    with monitor:
        monitor.start()  # the second call does nothing
        assert len(threads_named("vitascope-vram-monitor")) == 1
        while memory.looks < before + 5:
            time.sleep(0.001)
    assert not threads_named("vitascope-vram")
    assert len(monitor.history()) >= 5
    with monitor:  # it can start again
        pass


@pytest.mark.parametrize("bad", [{"interval_s": 0}, {"interval_s": float("nan")}, {"history_length": 0}])
def test_what_makes_no_sense_is_refused(bad) -> None:
    with pytest.raises(ValueError, match=r"^(interval_s|history_length) is .*, expected a"):
        VRAMMonitor(device="cpu", **bad)


def test_a_block_has_an_interval_and_a_leak_a_figure(monitor) -> None:
    with pytest.raises(ValueError, match="interval_s is 0"):
        monitor.measure(interval_s=0)
    with pytest.raises(ValueError, match="expected one of allocated, process"):
        monitor.leak(of="tensors")
    with monitor.measure() as block:
        pass
    with pytest.raises(ValueError, match="of is 'vram', expected one of allocated, process"):
        block.growth_bytes("vram")


# --- limits --------------------------------------------------------------------------------------------------------


def test_a_limit_calls_once_each_time_that_it_is_passed(monitor, memory) -> None:
    seen: list[float] = []
    limit = monitor.on_usage_above(0.5, lambda stats: seen.append(stats.allocated_bytes / 1e6))
    for used in (400, 500, 600, 490, 505, 470, 510, 700):  # 490 is not low enough to count again, but 470 is
        memory.used = used * 1e6
        monitor.get_stats()
    assert seen == [500, 510]
    assert limit.passed_count == 2
    monitor.remove(limit)
    memory.used = 0
    monitor.get_stats()
    memory.used = 900e6
    monitor.get_stats()
    assert len(seen) == 2


@pytest.mark.parametrize("share", [0, -1, 1.1, float("nan")])
def test_shares_are_checked(monitor, share) -> None:
    with pytest.raises(ValueError, match="share of memory"):
        monitor.on_usage_above(share, print)


def test_what_a_callback_raises_in_the_thread_is_raised_where_it_is_joined(monitor, memory) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("full")

    monitor.on_usage_above(0.05, fail)
    monitor.start()
    while monitor._watch.failure is None:
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="full"):
        monitor.stop()
    monitor.stop()  # raised once


def test_a_callback_may_ask_the_monitor(monitor, memory) -> None:
    seen: list[int] = []
    monitor.on_usage_above(0.05, lambda _: seen.append(len(monitor.history())))
    monitor.get_stats()
    assert seen == [1]


def test_an_error_of_the_block_is_not_hidden_by_one_of_the_thread(monitor, memory) -> None:
    monitor.on_usage_above(0.05, lambda _: 1 / 0)
    with pytest.raises(KeyError), monitor:
        while monitor._watch.failure is None:
            time.sleep(0.001)
        raise KeyError


# --- leaks ---------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.floats(0, 1000), st.floats(0, 1e9)), min_size=3, max_size=50, unique_by=lambda p: p[0]
    )
)
@settings(deadline=None)
def test_the_slope_is_that_of_scipy(points) -> None:
    from scipy import stats as scipy_stats  # slow to load: a second in each process that collects tests

    seconds, sizes = zip(*points, strict=True)
    if max(seconds) - min(seconds) < 1e-3:
        return
    ours, theirs = leak_slope(seconds, sizes), scipy_stats.linregress(seconds, sizes)
    scale = (max(sizes) + 1) / (max(seconds) - min(seconds))
    assert ours.bytes_per_second == pytest.approx(theirs.slope, rel=1e-6, abs=1e-6 * scale)
    assert ours.error_bytes_per_second == pytest.approx(theirs.stderr, rel=1e-4, abs=1e-6 * scale)
    if theirs.stderr > 1e-4 * scale:
        exact = scipy_stats.t.cdf(theirs.slope / theirs.stderr, len(points) - 2)
        assert ours.confidence == pytest.approx(exact, abs=0.01)


def test_a_leak_is_told_from_noise() -> None:
    dice = np.random.default_rng(0)
    seconds = np.arange(200) / 2
    noise = dice.normal(0, 1e6, 200)
    leaking = leak_slope(seconds.tolist(), (1e9 + 50_000 * seconds + noise).tolist())
    assert leaking.is_leak
    assert leaking.bytes_per_second == pytest.approx(50_000, rel=0.2)
    assert not leak_slope(seconds.tolist(), (1e9 + noise).tolist()).is_leak
    assert not leak_slope(seconds.tolist(), (1e9 - 50_000 * seconds + noise).tolist()).is_leak


@pytest.mark.parametrize(
    ("seconds", "sizes"), [([], []), ([1], [2]), ([1, 2], [5, 9]), ([1, 1, 1], [1, 2, 3])]
)
def test_too_little_says_nothing(seconds, sizes) -> None:
    slope = leak_slope(seconds, sizes)
    assert (slope.bytes_per_second, slope.confidence, slope.is_leak) == (0, 0.5, False)


def test_a_perfect_line_is_sure() -> None:
    assert leak_slope([0, 1, 2, 3], [0, 1e6, 2e6, 3e6]).confidence == 1
    assert leak_slope([0, 1, 2, 3], [5, 5, 5, 5]).confidence == 0.5


def test_the_leak_of_the_history_after_the_warm_up(monitor, memory, monkeypatch) -> None:
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(vram_monitor.time, "perf_counter", lambda: clock.now)
    for second in range(100):
        clock.now = float(second)
        memory.used = 300e6 + min(second, 20) * 10e6
        memory.process = 50e6 + second * 2e6
        monitor.get_stats()
    assert monitor.leak().is_leak  # due to the warm-up
    assert not monitor.leak(last_s=70).is_leak
    assert monitor.leak(last_s=70, of="process").bytes_per_second == pytest.approx(2e6)
    assert monitor.leak(of="process").count == 100


# --- blocks --------------------------------------------------------------------------------------------------------


def test_the_peak_of_a_block_is_found(monitor, memory) -> None:
    with monitor.measure(interval_s=0.001) as block:
        memory.used, memory.process = 800e6, 300e6
        count = block.count
        while block.count < count + 2:
            time.sleep(0.001)
        memory.used, memory.process = 120e6, 60e6
    assert (block.peak_bytes(), block.peak_bytes("process")) == (800_000_000, 300_000_000)
    assert (block.growth_bytes(), block.growth_bytes("process")) == (20_000_000, 10_000_000)
    assert block.seconds > 0
    assert not threads_named("vitascope-vram")


def test_real_memory_in_a_block() -> None:
    monitor = VRAMMonitor(device="cpu")
    with monitor.measure(interval_s=0.001) as block:
        filled = np.ones(96 << 20, np.uint8)
        count = block.count
        while block.count < count + 2:
            time.sleep(0.001)
        del filled
    assert block.peak_bytes("process") - block.before.process_bytes > 90 << 20


def test_a_block_that_raises_ends_its_thread(monitor) -> None:
    with pytest.raises(KeyError), monitor.measure():
        raise KeyError
    assert not threads_named("vitascope-vram")
