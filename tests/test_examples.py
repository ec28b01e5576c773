"""Check that the examples work without a GPU, with what the base install contains."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import av
import cv2
import numpy as np
import pytest
from skimage import data

from clips import write_clip
from vitascope.errors import MissingDependencyError

EXAMPLES = Path(__file__).parents[1] / "examples"


NOT_IN_THE_BASE_INSTALL = (
    "cupy", "fastapi", "mediapipe", "matplotlib", "prometheus_client", "ray", "scipy", "skimage", "tensorrt", "torch",
    "triton",
)  # fmt: skip
AS_IT_COMES = """
import runpy, sys
for name in {without}: sys.modules[name] = None
sys.argv[:] = {words!r}
sys.path.insert(0, {folder!r})
runpy.run_path({path!r}, run_name="__main__")
"""
TAKE_MINUTES = {"make_readme_picture"}
"""RVM in the best quality; it imports nothing but the base install."""
SMALL = {"make_vr180": ["--eye", "128", "--frames", "6"], "engine_conversion": ["--iterations", "5"]}
"""Arguments that let an example make little with the same code."""
NEED_MORE = {
    "make_animate_picture": "pip install 'vitascope[animate]'",
    "make_astronaut_sbs": "pip install scikit-image",
    "make_voice": "apt install espeak-ng",
}
"""What an example prints after the base install, where it cannot run."""


@pytest.fixture(scope="module")
def short_video(tmp_path_factory):
    """Cut the stereo example to twelve frames, which run the same code as four seconds."""
    path = tmp_path_factory.mktemp("examples") / "astronaut_sbs.mp4"
    with av.open(str(EXAMPLES / path.name)) as whole, av.open(str(path), "w") as short:
        stream = short.add_stream_from_template(whole.streams.video[0])
        for packet in islice(whole.demux(video=0), 12):
            packet.stream = stream
            short.mux(packet)
    return path


@pytest.mark.parametrize("name", sorted({path.stem for path in EXAMPLES.glob("*.py")} - TAKE_MINUTES))
def test_each_runs_after_the_base_install_or_says_what_to_install(tmp_path, name, short_video):
    copied = tmp_path / "examples"  # some write next to themselves
    shutil.copytree(EXAMPLES, copied, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(short_video, copied)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    path = str(copied / f"{name}.py")
    program = AS_IT_COMES.format(
        without=NOT_IN_THE_BASE_INSTALL, path=path, folder=str(copied), words=[path, *SMALL.get(name, [])]
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if ended.returncode == 0:
        assert name not in NEED_MORE or name == "make_voice"  # if eSpeak NG is installed
        assert "Traceback" not in ended.stderr
        assert (name == "gpu_optimization_demo") == (
            "left out: " in ended.stdout
        )  # only its last part needs PyTorch
        return
    assert name in NEED_MORE, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert NEED_MORE[name] in ended.stderr


def test_live(example, tmp_path, capsys):
    clip = write_clip(tmp_path / "in.mp4", frame_count=24)
    report = example("live").main(clip, f"file:{tmp_path / 'out.mp4'}")
    assert report.shown > 0
    assert report.shown + report.dropped == report.captured == 24
    assert (tmp_path / "out.mp4").is_file()
    assert "latency" in capsys.readouterr().out


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    """Load an example by name, with its neighbours importable as in ``python examples/NAME.py``."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_basic_usage(example, capsys):
    output = example("gpu_basic_usage").main(device="cpu", engine="inductor")
    assert output.shape == (1, 2, 256, 256)
    assert "inference" in capsys.readouterr().out


def test_a_model_becomes_an_engine(example, capsys):
    results = example("engine_conversion").main(device="cpu", engine="inductor", iterations=2)
    assert results["avg_latency_ms"] > 0
    assert results["throughput_fps"] > 0
    assert "Average latency: " in capsys.readouterr().out


def test_dynamic_batching(example, capsys):
    responses = example("dynamic_batching").main(device="cpu", frames=8)
    assert all(response.latency_ms > 0 and response.batch_size >= 1 for response in responses)
    assert "Batch size: 1" in capsys.readouterr().out


def test_a_video_through_the_pipeline(example, capsys):
    results, stats = example("async_video").main(device="cpu", frames=10)
    assert [result.frame_id for result in results] == list(range(10))
    assert all(result.data.shape == (128, 256) and result.data.dtype == np.uint8 for result in results)
    assert stats.fps > 0
    assert f"Bottleneck: {stats.bottleneck_stage}" in capsys.readouterr().out


def test_memory(example, capsys):
    ratio, sizes = example("memory_optimization").main(device="cpu", epochs=3)
    assert ratio == pytest.approx(2, abs=0.1)
    assert len(sizes) == 3
    assert "VRAM: " in capsys.readouterr().out


def test_memory_that_is_used_again(example, capsys):
    found = example("gpu_memory").main(device="cpu", frames=10)
    assert found.mean_levels == [number + 16.0 for number in range(10)]
    assert found.pinned_allocations <= 4
    assert found.device_allocations == 3
    assert found.peak_bytes > 0
    assert found.hit_rate == 1
    assert "threads left: 0" in capsys.readouterr().out


def test_the_demo_runs_the_whole_toolkit(example, capsys):
    demo = example("gpu_optimization_demo")
    found = demo.main(device="cpu", engine="inductor", frames=12)
    assert "in flight the same: True" in found["kernels"]
    assert "the same buffer again: True; from disk: True" in found["memory"]
    assert "in order: True" in found["pipeline"]
    assert "12 prepared, 12 brought" in found["pieces"]
    from vitascope import gpu

    text = (EXAMPLES / "gpu_optimization_demo.py").read_text(encoding="utf-8")
    left_out = {name for name in gpu.__all__ if name not in text}
    # Opened by the engines' own names, and by what a batcher returns.
    assert left_out <= {"TensorRTEngine", "InductorEngine", "OnnxEngine", "open_engine", "InferenceResponse"}
    assert "toolkit: " in capsys.readouterr().out


@pytest.mark.cuda
# torch's own code warns inside the compiler and while loading
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpu_basic_usage", {"engine": "inductor"}),
        ("engine_conversion", {"engine": "inductor", "iterations": 5}),
        ("dynamic_batching", {}),
        ("async_video", {"frames": 30}),
        ("memory_optimization", {}),
        ("gpu_memory", {}),
        ("gpu_optimization_demo", {"engine": "inductor"}),
    ],
)
def test_on_a_gpu(example, name, options):
    try:
        example(name).main(device="cuda", **options)
    except MissingDependencyError as error:
        # ONNX Runtime for GPUs excludes the one of the base install; all else must be there.
        if "CUDA execution provider" not in str(error):
            raise
        pytest.skip(f"{name}: {error}")


def test_a_folder(example, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    write_clip(tmp_path / "in" / "a.mp4", frame_count=6)
    cv2.imwrite(str(tmp_path / "in" / "photo.jpg"), data.astronaut()[..., ::-1])
    (tmp_path / "in" / "broken.mp4").write_text("text")
    written = example("folder").main(tmp_path / "in", tmp_path / "cut")
    assert written == [tmp_path / "cut" / "a.mp4", tmp_path / "cut" / "photo.png"]
    assert all(path.is_file() for path in written)
    assert "broken.mp4: " in capsys.readouterr().out


def test_stereo(example, short_video):
    left, right = example("vr180").main(short_video)
    assert 0.4 < left < 0.7
    assert abs(left - right) < 0.05


def test_a_network_of_ones_own(example, tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=6)
    assert example("own_network").main(clip, tmp_path / "mask.mp4") == 6
