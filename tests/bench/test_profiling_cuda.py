"""Tests of profiling tools around a real run on a GPU."""

from __future__ import annotations

import json
import shutil

import pytest

from clips import write_clip
from vitascope.bench.limited_run import LimitedRun
from vitascope.bench.profiling import profile_video
from vitascope.errors import DeviceError

pytestmark = [pytest.mark.cuda, pytest.mark.whole_gpu]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    clip = write_clip(tmp_path_factory.mktemp("tuning") / "in.mp4", width=640, height=360, frame_count=96)
    return LimitedRun(video=clip, seconds=10.0, profile="fast", assignments=("gpu.device=cuda",))


def test_pytorch_sees_our_kernels(run, tmp_path):
    pytest.importorskip("torch")
    result = profile_video(run, tool="pytorch", folder=tmp_path)
    assert len(result.findings) == 3
    assert "the most expensive kernel is " in result.findings[1]
    assert "the GPU was idle " in result.findings[2]
    kernels = json.loads((tmp_path / "kernels.json").read_text())["kernels"]
    assert any("composite" in row["name"] for row in kernels)
    stages = json.loads((tmp_path / "stages.json").read_text())
    assert {"preprocess", "network", "composite"} <= {
        row["path"][-1] for row in stages["summary"] if row["gpu"]
    }
    print(*result.findings, result.table, sep="\n")


def test_memory_of_the_gpu(run, tmp_path):
    result = profile_video(run, tool="memory", folder=tmp_path)
    assert "of the GPU's" in result.findings[1]
    print(*result.findings, result.table, sep="\n")


@pytest.mark.parametrize(("tool", "name"), [("nsight-systems", "nsys"), ("nsight-compute", "ncu")])
def test_nsight(run, tmp_path, tool, name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    try:
        result = profile_video(run, tool=tool, folder=tmp_path)
    except DeviceError as error:
        pytest.skip(str(error))
    assert len(result.findings) == 3
    assert "the most expensive kernel is " in " ".join(result.findings)
    print(*result.findings, result.table, sep="\n")
