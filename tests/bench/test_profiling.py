"""Tests of profiling tools around a run: their files and messages, also when something is missing."""

from __future__ import annotations

import json
import re
import sys
import time

import numpy as np
import pytest

from clips import write_clip
from left_threads import left_threads
from nsight_tools import COUNTERS, NCU, NSYS, install
from scripted import BrightnessNetwork, segment_with
from vitascope.bench import limited_run
from vitascope.bench.limited_run import LimitedRun, run_for
from vitascope.bench.profiling import profile_video
from vitascope.device import Device
from vitascope.errors import DeviceError, InputError, MissingDependencyError, UsageError, VitascopeError
from waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tools of these tests are scripts")


class SlowNetwork(BrightnessNetwork):
    """Takes 20 ms a call; on demand, the tenth call lasts until the end of the run."""

    waits = False

    def infer(self, images, state):
        time.sleep(0.02)
        if self.waits and len(self.calls) == 9:
            eventually(lambda: not limits())
        return super().infer(images, state)


def limits():
    return left_threads("vitascope-limit")


@pytest.fixture
def scripted(monkeypatch):
    network = SlowNetwork()
    segment_with(monkeypatch, network)
    return network


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("tuning") / "in.mp4", frame_count=60)


def run_of(clip, **options):
    return LimitedRun(video=clip, **{"seconds": 30.0, **options})


def test_a_run_ends_when_its_time_is_up(scripted, clip):
    # Queues are short, so decoded frames pass through to the end.
    short = ("processing.max_queue_size=1", "model.batch_size=1")
    scripted.waits = True
    report = run_for(run_of(clip, seconds=0.3, assignments=short))
    assert 0 < report.frame_count < 60
    assert report.pipeline.stopped
    assert not limits()


def test_a_short_film_ends_by_itself(scripted, clip):
    report = run_for(run_of(clip))
    assert report.frame_count == 60
    assert not report.pipeline.stopped
    assert not limits()


def test_the_program_takes_what_the_run_was_given(clip, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(limited_run, "run_for", lambda run, **given: seen.update(run=run, **given))
    run = LimitedRun(
        video=clip,
        seconds=2.5,
        profile="fast",
        files=(tmp_path / "a.yaml",),
        assignments=("model.batch_size=2",),
    )
    limited_run._main([*run.arguments(), "--keep-in", str(tmp_path)])
    assert seen == {"run": run, "keep_in": tmp_path, "marks_work": True}


def test_stages(scripted, clip, tmp_path):
    """Check the tool that needs no other package."""
    result = profile_video(run_of(clip), tool="stages", folder=tmp_path / "new")
    assert [path.name for path in result.files] == ["stages.json", "stages.trace.json"]
    assert "infer" in result.table
    assert len(result.findings) == 3
    assert "frames at" in result.findings[2]


def test_pytorch(scripted, clip, tmp_path):
    pytest.importorskip("torch")
    result = profile_video(run_of(clip), tool="pytorch", folder=tmp_path / "new")
    assert len(result.findings) == 3
    assert "infer" in result.findings[0]
    assert any(
        re.search("scripted computed the network; -t stages .* vitascope bench run", finding)
        for finding in result.findings
    )
    names = ["pytorch.trace.json", "kernels.json", "stages.json", "stages.trace.json"]
    assert [path.name for path in result.files] == names
    for path in result.files:
        json.loads(path.read_text())


def test_operators_of_a_network_in_pytorch(monkeypatch, clip, tmp_path):
    torch = pytest.importorskip("torch")

    class TorchNetwork(BrightnessNetwork):
        def infer(self, images, state):
            torch.rand(64, 64) @ torch.rand(64, 64)
            return super().infer(images, state)

    segment_with(monkeypatch, TorchNetwork())
    result = profile_video(run_of(clip), tool="pytorch", folder=tmp_path)
    assert "aten::mm" in result.table
    assert "the most expensive operator is aten::" in result.findings[1]


def test_memory(scripted, clip, tmp_path):
    result = profile_video(run_of(clip), tool="memory", folder=tmp_path)
    assert len(result.findings) == 3
    assert "MB of main memory" in result.findings[0]
    assert re.fullmatch(
        r"\d\.\d s are too short to tell whether memory keeps growing: .*", result.findings[2]
    )
    assert result.findings[2] in result.table
    assert [path.suffix for path in result.files] == [".html", ".json", ".png"]
    assert "peak MB" in result.table


@pytest.mark.parametrize(("tool", "name"), [("nsight-systems", "nsys"), ("nsight-compute", "ncu")])
def test_a_tool_that_is_missing(clip, tmp_path, monkeypatch, tool, name):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingDependencyError, match=f"{name} is not installed.*https://developer.nvidia.com"
    ):
        profile_video(run_of(clip), tool=tool, folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nsight_systems(clip, tmp_path, monkeypatch):
    install(tmp_path / "bin", monkeypatch, "nsys", NSYS.replace("WITH_KERNELS", "True"))
    run = run_of(clip, profile="fast", assignments=("model.batch_size=2",))
    result = profile_video(run, tool="nsight-systems", folder=tmp_path / "out")
    called = (tmp_path / "out" / "nsight-systems.nsys-rep").read_text()
    assert "--trace=cuda,nvtx" in called
    assert "--cuda-graph-trace=node" in called
    assert "--capture-range" not in called  # it would wait for a GPU's work
    assert f"-m vitascope.bench.limited_run {clip} --seconds 30 --profile fast" in called
    idle, kernel, waits = result.findings
    # 0.4 + 0.1 + 0.1 ms of work in 1 ms.
    assert "idle 40%" in idle
    assert "0.20 ms" in idle
    assert "gemm: 67%" in kernel
    assert "2 launches" in kernel
    assert "1 times, 7 ms" in waits
    assert "GPU to host: 1, 5.0 MB" in result.table


def test_nsight_systems_looks_at_a_gpu_when_the_network_is_warm(clip, tmp_path, monkeypatch):
    install(tmp_path / "bin", monkeypatch, "nsys", NSYS.replace("WITH_KERNELS", "True"))
    monkeypatch.setattr(limited_run, "select_device", lambda *_, **__: Device("cuda", "a GPU"))
    profile_video(run_of(clip), tool="nsight-systems", folder=tmp_path / "out")
    called = (tmp_path / "out" / "nsight-systems.nsys-rep").read_text()
    assert "--capture-range=cudaProfilerApi --capture-range-end=stop" in called


def test_nsight_systems_without_kernels(clip, tmp_path, monkeypatch):
    install(tmp_path / "bin", monkeypatch, "nsys", NSYS.replace("WITH_KERNELS", "False"))
    result = profile_video(run_of(clip), tool="nsight-systems", folder=tmp_path / "out")
    assert result.findings == ("no kernel ran: the work was done on the CPU",)


def test_nsight_systems_where_nothing_began_to_be_recorded(clip, tmp_path, monkeypatch):
    install(tmp_path / "bin", monkeypatch, "nsys", "")
    (tmp_path / "out").mkdir()
    for name in ("nsight-systems.nsys-rep", "nsight-systems.sqlite", "stages.json"):
        (tmp_path / "out" / name).write_text("of an earlier run")
    with pytest.raises(VitascopeError, match="nsys recorded nothing"):
        profile_video(run_of(clip), tool="nsight-systems", folder=tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_nsight_compute(clip, tmp_path, monkeypatch):
    program = install(tmp_path / "bin", monkeypatch, "ncu", NCU)
    (tmp_path / "bin" / "ncu.counters").write_text(COUNTERS)
    result = profile_video(run_of(clip), tool="nsight-compute", folder=tmp_path / "out")
    called = program.with_name("ncu.called").read_text()
    assert "--launch-count=200" in called
    assert "--profile-from-start=off" in called
    assert "launch__registers_per_thread" in called
    costliest, bound, occupancy = result.findings
    assert "gemm: 80% of the time of 4 launches" in costliest
    assert "bound by arithmetic" in bound
    assert "51 %" in occupancy
    assert "128 registers" in occupancy
    assert [path.name for path in result.files] == ["nsight-compute.ncu-rep"]
    assert "relu" in result.table
    assert np.isfinite(float(result.table.splitlines()[2].split()[2]))


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("print('==ERROR== ERR_NVGPUCTRPERM'); raise SystemExit(1)", DeviceError, "administrator"),
        ("import sys; sys.stderr.write('boom at last'); raise SystemExit(3)", VitascopeError, "boom at last"),
        ("raise SystemExit(4)", VitascopeError, "it said nothing"),
    ],
)
def test_a_tool_that_fails(clip, tmp_path, monkeypatch, script, error, message):
    install(tmp_path / "bin", monkeypatch, "ncu", script)
    with pytest.raises(error, match=message):
        profile_video(run_of(clip), tool="nsight-compute", folder=tmp_path / "out")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_impossible_times(clip, tmp_path, seconds):
    with pytest.raises(UsageError, match="seconds"):
        profile_video(run_of(clip, seconds=seconds), tool="memory", folder=tmp_path)


def test_a_film_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"missing\.mp4"):
        profile_video(run_of(tmp_path / "missing.mp4"), tool="memory", folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
