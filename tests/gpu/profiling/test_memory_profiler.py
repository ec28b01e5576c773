"""Tests of memory over time: temporary peaks, and growth that does not stop."""

from __future__ import annotations

import gc
import json
import re
import time

import numpy as np
import pytest

from left_threads import left_threads
from vitascope.errors import DeviceError, OutputError, UsageError
from vitascope.gpu import MemoryProfiler
from vitascope.gpu.memory.vram_monitor import VRAMStats
from vitascope.gpu.profiling import memory as memory_module
from waiting import eventually


def resident(monkeypatch, sizes):
    """Make the system report these sizes, one for each request, then the last one."""
    rest = iter(sizes)
    last = [0]

    def tell():
        last[0] = next(rest, last[0])
        return last[0]

    monkeypatch.setattr(memory_module, "resident_bytes", tell)


def our_threads():
    return left_threads("vitascope-memory")


def test_a_peak_between_beginning_and_end_is_seen():
    gc.collect()  # free what earlier tests left now, not during the measurement
    with MemoryProfiler(device="cpu", interval_seconds=0.005) as memory:
        assert our_threads() == ["vitascope-memory"]
        before = memory.timeline()[0].resident_bytes
        block = np.ones(64 << 20, np.uint8)
        eventually(lambda: memory.timeline()[-1].resident_bytes >= before + (60 << 20))
        del block
        eventually(lambda: memory.timeline()[-1].resident_bytes < memory.peak().resident_bytes - (50 << 20))
    assert our_threads() == []
    samples = memory.timeline()
    peak = memory.peak().resident_bytes
    assert peak >= samples[0].resident_bytes + (60 << 20)
    assert samples[-1].resident_bytes < peak - (50 << 20)
    assert [sample.seconds for sample in samples] == sorted(sample.seconds for sample in samples)
    assert memory.peak().gpu_used_bytes is None
    assert "main memory" in memory.summary()


def test_growth_by_step(monkeypatch):
    resident(monkeypatch, (10**8 + n * 10**6 for n in range(1000)))
    with MemoryProfiler(device="cpu", interval_seconds=3600) as memory:
        for _ in range(40):
            memory.step()
    (leak,) = memory.leaks()
    assert leak.what == "host"
    assert leak.bytes_per_step == pytest.approx(1e6)
    assert leak.bytes_per_second is None
    assert "1000.0 kB a step" in memory.summary()


def test_growth_over_time(monkeypatch):
    resident(monkeypatch, (10**8 + n * 10**6 for n in range(1000)))
    with MemoryProfiler(device="cpu", interval_seconds=0.005) as memory:
        time.sleep(0.3)
        eventually(lambda: len(memory.timeline()) >= 40)
    (leak,) = memory.leaks()
    assert leak.bytes_per_step is None
    assert leak.bytes_per_second > 0
    assert "MB/s" in leak.sentence()


def test_a_block_that_was_too_short_says_nothing_of_growth(monkeypatch):
    resident(monkeypatch, (10**8 + n * 10**6 for n in range(1000)))
    with MemoryProfiler(device="cpu", interval_seconds=0.005, least_seconds=10) as memory:
        time.sleep(0.3)
        assert memory.leaks() == []
        assert re.search(r"\d\.\d s are too short to tell whether memory keeps growing", memory.too_short())
        for _ in range(40):  # growth by step does not depend on time
            memory.step()
    assert memory.too_short() is None
    assert "MB a step" in memory.summary() or "kB a step" in memory.summary()


def test_what_stays_is_no_leak(monkeypatch):
    resident(monkeypatch, [10**8] * 5 + [2 * 10**8] * 1000)
    with MemoryProfiler(device="cpu", interval_seconds=3600) as memory:
        for _ in range(40):
            memory.step()
    assert memory.leaks() == []


class Monitor:
    """Simulates a GPU on which tensors accumulate, as seen by ``VRAMMonitor``."""

    def __init__(self):
        self.looks = 0
        self.closed = False

    def get_stats(self):
        assert not self.closed
        self.looks += 1
        lent = 10**9 + self.looks * 5 * 10**6
        return VRAMStats(
            taken_seconds=time.perf_counter(),
            total_bytes=24 * 10**9,
            allocated_bytes=lent + 10**9,
            process_bytes=None,
            reserved_bytes=lent + 10**8,
            in_tensors_bytes=lent,
            driver_bytes=None,
            gpu_percent=None,
        )

    def close(self):
        self.closed = True


def test_a_gpus_memory(monkeypatch, tmp_path):
    monitor = Monitor()
    monkeypatch.setattr(memory_module, "_open_monitor", lambda device, device_id: monitor)
    resident(monkeypatch, [10**8])
    with MemoryProfiler(interval_seconds=3600) as memory:
        for _ in range(30):
            memory.step()
    assert monitor.closed
    (leak,) = memory.leaks()
    assert (leak.what, leak.bytes_per_step) == ("gpu", pytest.approx(5e6))
    peak = memory.peak()
    assert peak.gpu_used_bytes > peak.gpu_reserved_bytes > peak.gpu_allocated_bytes > 10**9
    text = memory.summary()
    assert "GPU, in use here" in text
    assert "GPU memory held by this process keeps growing: 5000.0 kB a step" in text
    memory.export_json(tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["timeline"][0]["gpu"]["in_tensors_bytes"] > 10**9


def test_lines_of_python_that_grow():
    kept = []
    with MemoryProfiler(device="cpu", trace_python=True) as memory:
        for _ in range(200):
            kept.append(bytes(10_000))
    top = memory.allocations(top=1)[0]
    assert __file__ in top.place
    assert top.size_bytes >= 2_000_000
    assert "grown in Python" in memory.summary()
    assert len(kept) == 200


def test_exports(tmp_path):
    with MemoryProfiler(device="cpu", interval_seconds=0.005) as memory:
        memory.mark("loaded <model>")
        eventually(lambda: len(memory.timeline()) >= 3)
    memory.export_json(tmp_path / "m.json")
    memory.export_png(tmp_path / "m.png")
    memory.export_html(tmp_path / "m.html")
    document = json.loads((tmp_path / "m.json").read_text())
    assert (document["schema"], document["version"]) == ("vitascope.memory", 1)
    assert document["marks"][0]["name"] == "loaded <model>"
    assert len(document["timeline"]) >= 3
    assert (tmp_path / "m.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "m.html").read_text()
    assert "<svg" in page
    assert "loaded &lt;model&gt;" in page
    with pytest.raises(OutputError):
        memory.export_json(tmp_path / "m.json" / "x")


def test_a_thread_that_fails_is_heard(monkeypatch):
    calls = iter(range(100))

    def fail():
        if next(calls) > 1:
            raise OSError("lost")
        return 1

    monkeypatch.setattr(memory_module, "resident_bytes", fail)
    with pytest.raises(OSError, match="lost"), MemoryProfiler(device="cpu", interval_seconds=0.005):
        eventually(lambda: our_threads() == [])
    assert our_threads() == []


def test_a_second_block_needs_another_one():
    memory = MemoryProfiler(device="cpu")
    with memory:
        memory.step()
    with pytest.raises(UsageError, match="a MemoryProfiler measures one block; create another one"), memory:
        pass
    assert memory.leaks() == []


def test_bad_arguments():
    with pytest.raises(ValueError, match="interval_seconds"):
        MemoryProfiler(interval_seconds=0)
    with pytest.raises(ValueError, match="keep_samples"):
        MemoryProfiler(keep_samples=0)
    with pytest.raises(ValueError, match="device is"):
        MemoryProfiler(device="tpu")
    with pytest.raises(DeviceError):
        MemoryProfiler(device="cuda")
