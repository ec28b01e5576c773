"""Tests of kernel and operator tables: a real run on the CPU, and a GPU's events as PyTorch reports them."""

from __future__ import annotations

import json
import subprocess
import sys
import types

import pytest

pytest.importorskip("torch")

import torch

from vitascope.errors import DeviceError, MissingDependencyError, OutputError
from vitascope.gpu import CUDAProfiler

CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


@pytest.fixture(scope="module")
def recorded():
    matrix = torch.rand(64, 64)
    with CUDAProfiler(device="cpu") as profiler:
        for _ in range(7):
            torch.relu(matrix @ matrix)
    return profiler


def test_operators_on_the_processor(recorded):
    rows = {row.name: row for row in recorded.operators()}
    assert rows["aten::matmul"].count == rows["aten::relu"].count == 7
    assert rows["aten::mm"].cpu_seconds > 0
    assert rows["aten::mm"].gpu_seconds == 0
    times = [row.cpu_seconds for row in recorded.operators()]
    assert times == sorted(times, reverse=True)
    assert not recorded.on_gpu
    assert recorded.kernels() == []
    assert "aten::mm" in recorded.summary()


OTHER_THREADS = """
import threading, torch
from vitascope.gpu import CUDAProfiler

matrix = torch.rand(64, 64)
go, done = threading.Event(), threading.Event()

def work():
    go.wait()
    matrix @ matrix
    done.set()

early = threading.Thread(target=work)
early.start()
with CUDAProfiler(device="cpu") as profiler:
    go.set()
    done.wait()
    late = threading.Thread(target=work)
    late.start()
    late.join()
early.join()
print({row.name: row.count for row in profiler.operators()}["aten::mm"])
"""


def test_operators_of_other_threads():
    """Check threads that exist before recording begins, as a pipeline's may.

    This runs in a separate process: it records every thread, and other tests' libraries leave some.
    """
    answer = subprocess.run(
        [sys.executable, "-c", OTHER_THREADS], capture_output=True, text=True, timeout=120, check=True
    )
    assert answer.stdout.split() == ["2"]


def test_exports(recorded, tmp_path, capsys):
    recorded.export_json(tmp_path / "k.json")
    document = json.loads((tmp_path / "k.json").read_text())
    assert document["schema"] == "vitascope.kernels"
    assert {row["name"] for row in document["operators"]} >= {"aten::mm"}
    recorded.export_chrome_trace(tmp_path / "new" / "trace.json")
    events = json.loads((tmp_path / "new" / "trace.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    with pytest.raises(OutputError):
        recorded.export_chrome_trace(tmp_path / "k.json" / "trace.json")
    recorded.print_summary(top=3)
    assert capsys.readouterr().out.startswith("operators on the CPU")


def event(name, start, end, device=CUDA, **more):
    time_range = types.SimpleNamespace(start=start, end=end)
    return types.SimpleNamespace(name=name, time_range=time_range, device_type=device, **more)


@pytest.fixture
def on_gpu(recorded):
    """Simulate a recording of one millisecond: two overlapping kernels, a gap, a copy, and two waits of the host."""
    profiler = CUDAProfiler(device="cpu")
    profiler.on_gpu = True
    events = [
        event("gemm", 0.0, 300.0),
        event("relu", 200.0, 400.0),
        event("gemm", 600.0, 700.0),
        event("Memcpy DtoH (Device -> Pinned)", 700.0, 750.0),
        event("Memset (Device)", 760.0, 770.0),
        event("range of the user", 0.0, 1000.0, is_user_annotation=True),
        event("cudaStreamSynchronize", 0.0, 30.0, CPU),
        event("cudaDeviceSynchronize", 800.0, 820.0, CPU),
        event("aten::mm", 0.0, 20.0, CPU),
    ]
    profiler._profile = types.SimpleNamespace(events=lambda: events)
    profiler._wall_seconds, profiler._ended = 1e-3, True
    return profiler


def test_kernels_of_a_gpu(on_gpu):
    gemm, relu = on_gpu.kernels()
    assert (gemm.name, gemm.count) == ("gemm", 2)
    assert gemm.total_seconds == pytest.approx(400e-6)
    assert gemm.max_seconds == pytest.approx(300e-6)
    assert gemm.share == pytest.approx(2 / 3)
    assert relu.mean_seconds == pytest.approx(200e-6)
    (copy,) = on_gpu.copies()
    assert (copy.kind, copy.count) == ("DtoH (Device -> Pinned)", 1)


def test_the_gpus_timeline(on_gpu):
    timeline = on_gpu.timeline()
    assert timeline.busy_seconds == pytest.approx(560e-6)
    assert timeline.idle_share == pytest.approx(0.44)
    assert timeline.longest_gaps_seconds == pytest.approx((200e-6, 10e-6))
    assert timeline.sync_count == 2
    assert timeline.sync_seconds == pytest.approx(50e-6)
    assert timeline.launch_count == 5


def test_nothing_is_told_before_the_end():
    profiler = CUDAProfiler(device="cpu")
    with pytest.raises(RuntimeError, match="before"):
        profiler.operators()


def test_without_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[torch\]"):
        CUDAProfiler()


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not CUDAProfiler().on_gpu
    with pytest.raises(DeviceError, match="device='cpu'"):
        CUDAProfiler(device="cuda")
    with pytest.raises(ValueError, match="device is"):
        CUDAProfiler(device="gpu")
