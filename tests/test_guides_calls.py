"""Check that calls on the page "From the guides to Vitascope" work as typed.

The guides' own calls run without a GPU; calls on the page fit their signatures; settings, flags and command
lines are accepted.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from test_guides import PAGE, ROWS, parses
from vitascope import gpu
from vitascope.cli.app import app
from vitascope.config import load_settings
from vitascope.gpu.toolkit.async_pipeline import AsyncPipeline
from vitascope.observe import logger as logger_module
from write_reference import COMMANDS

ROOT = Path(__file__).parents[1]
TEXT = PAGE.read_text(encoding="utf-8")
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", TEXT)))
ANSWERS = sorted({span for row in ROWS for span in row.spans})
"""The right sides, which are ours."""
SOURCES = "".join(
    path.read_text(encoding="utf-8") for path in (ROOT / "src" / "vitascope" / "gpu").rglob("*.py")
)
OF_OTHERS = {"--gpus", "--no-binary", "--set", "--assign"}


def network(torch: Any) -> Any:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3, stride=4, padding=1)).eval()


GUIDES_CALLS = {
    "kernels": """
processor = CUDAKernelProcessor(device_id=0)
preprocessed = processor.fused_preprocess(frame, target_size=(512, 512))
later = processor.fused_preprocess(frame, target_size=(512, 512), async_exec=True)
assert preprocessed.shape == (1, 3, 512, 512)
assert abs(later.wait() - preprocessed).max() == 0
""",
    "engine": """
engine = OnnxEngine(fp16_mode=False)
path = folder / "model.onnx"
engine.build_engine_from_pytorch(
    model=model,
    input_shapes={"input": {"min": (1, 3, 64, 64), "opt": (4, 3, 64, 64), "max": (16, 3, 64, 64)}},
    output_path=path,
)
engine.load_engine(str(path))
output = engine.infer(batch)
assert output.shape == (4, 2, 16, 16)
results = engine.benchmark(num_iterations=3)
assert results['avg_latency_ms'] > 0 and results['throughput_fps'] > 0
engine.close()
""",
    "memory": """
monitor = VRAMMonitor(device_id=0)
stats = monitor.get_stats()
assert 0 < stats.allocated_vram_gb <= stats.total_vram_gb
monitor.close()
pool = PinnedMemoryPool(max_size_gb=4.0)
pool.close()
batch_sizer = AdaptiveBatchSizer(initial_batch_size=4, target_utilization=0.85)
assert batch_sizer.adjust_batch_size() >= 1
pool = MemoryPool()
tensor = pool.get_tensor((2, 3), torch.float32)
assert tuple(tensor.shape) == (2, 3)
pool.clear()
""",
    "quantiser": """
model_fp16 = ModelQuantizer.quantize_fp16(model)
assert ModelQuantizer.measure_model_size(model) == 2 * ModelQuantizer.measure_model_size(model_fp16)
""",
    "batcher": """
config = BatchConfig(min_batch_size=1, max_batch_size=8, timeout_ms=50)
batcher = DynamicBatcher(config, inference_fn)
batcher.start()
response = batcher.submit(InferenceRequest(data=batch[0], request_id="frame_001", timestamp=time.perf_counter()))
assert response.latency_ms > 0 and response.batch_size == 1
batcher.stop()
""",
    "pipeline": """
config = {"decode_threads": 2, "preprocess_streams": 2, "batch_size": 4, "postprocess_threads": 2, "queue_size": 100}
pipeline = AsyncPipeline(model, config, device_id=0)
pipeline.start()
for frame_id in range(4):
    pipeline.submit_frame(frame, frame_id)
pipeline.stop()
result = pipeline.get_result()
assert result.frame_id == 0 and result.metadata['total_latency'] > 0 and result.data is not None
stats = pipeline.get_stats()
assert stats.fps > 0 and stats.bottleneck_stage
""",
    "profiler": """
profiler = Profiler()
with profiler.profile('inference'):
    model(torch.zeros(1, 3, 16, 16))
profiler.print_summary()
""",
    "preparing": """
pipeline = PreprocessingPipeline(num_threads=32)
assert len(pipeline.preprocess_batch([frame, frame])) == 2
pipeline.close()
assert len(list(PrefetchDataLoader([batch, batch], device))) == 2
optimizer = TemporalOptimizer(skip_threshold=0.01)
""",
    "batch size": """
assert find_optimal_batch_size(model, (3, 16, 16), max_memory_percent=0.9, max_batch_size=2) in (1, 2)
""",
    "cache": """
cache = CacheManager(disk_cache_gb=10.0, enable_disk_cache=True, folder=folder)
cache.put("mask", batch, to_disk=True)
assert (cache.get("mask", use_disk=True) == batch).all()
cache.close()
""",
    "logger": """
logger = get_logger()
with logger.timer("model_inference"):
    pass
assert "model_inference" in str(logger.get_stats())
""",
}
"""Copied from the guides, with smaller sizes and the test's folders."""


@pytest.mark.parametrize("name", GUIDES_CALLS)
# torch's own code warns while saving
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_guides_own_calls_run(name, tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    import time

    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    names = {
        **{one: getattr(gpu, one) for one in gpu.__all__},
        "AsyncPipeline": AsyncPipeline,
        "get_logger": logger_module.get_logger,
        "batch": np.random.default_rng(0).random((4, 3, 64, 64), np.float32),
        "device": "cpu",
        "folder": tmp_path,
        "frame": np.full((72, 128, 3), 90, np.uint8),
        "inference_fn": lambda batch: batch,
        "model": network(torch),
        "time": time,
        "torch": torch,
    }
    exec(compile(GUIDES_CALLS[name], name, "exec"), names)


def shown_calls() -> list[str]:
    """Return calls of the toolkit's classes and functions, with arguments, on the right sides."""
    named = re.compile(r"(?:vitascope\.gpu\.)?([A-Z]\w+|find_optimal_batch_size)\(.+\)")
    return [span for span in ANSWERS if (match := named.match(span)) and match[1] in gpu.__all__]


def test_there_are_calls_to_look_at():
    assert len(shown_calls()) >= 3


@pytest.mark.parametrize("call", shown_calls())
def test_a_call_that_is_shown_fits_what_it_calls(call):
    tree = ast.parse(call.replace("…", "None"), mode="eval")
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        if isinstance(node.func, ast.Name) and node.func.id in gpu.__all__:
            target = getattr(gpu, node.func.id)
            inspect.signature(target).bind(
                *(None for _ in node.args), **{one.arg: None for one in node.keywords if one.arg}
            )
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            assert hasattr(getattr(gpu, node.func.value.func.id), node.func.attr)


@pytest.mark.parametrize("row", [row for row in ROWS if row.names], ids=lambda row: f"line-{row.line}")
def test_methods_that_are_shown_are_those_of_the_rows_classes(row):
    """Check ``process(frames, fn)`` beside a class, which must be its method, with as many arguments."""
    classes = [
        value for name in row.names if isinstance(value := getattr(gpu, name.rpartition(".")[2], None), type)
    ]
    for span in re.findall(r"`([a-z_]+\([^`…]*\))`", row.use):
        call = ast.parse(span, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        methods = [getattr(one, call.func.id) for one in classes if hasattr(one, call.func.id)]
        if call.func.id in gpu.__all__:
            continue  # checked above
        if not methods:  # on the result of another call
            assert f"def {call.func.id}(" in SOURCES, span
            continue
        inspect.signature(methods[0]).bind(
            None, *(None for _ in call.args), **{one.arg: None for one in call.keywords if one.arg}
        )


def assignments() -> list[str]:
    return sorted(set(re.findall(r"--set ([a-z_.0-9]+=[^\s`]+)", TEXT)))


@pytest.mark.parametrize("assignment", assignments())
def test_a_setting_that_is_shown_is_taken(assignment):
    loaded = load_settings(assignments=[assignment])
    assert loaded.origin(assignment.partition("=")[0]).explicit


@pytest.fixture(scope="module")
def flags():
    """Return all flags of all commands."""
    found = set(OF_OTHERS)
    for command in COMMANDS:
        if command:
            arguments = app[command[0]]
            for word in command[1:]:
                arguments = arguments[word]
            if arguments.default_command is not None:
                for argument in arguments.assemble_argument_collection():
                    found |= set(argument.names)
    return found


def test_a_flag_that_is_shown_exists(flags):
    shown = {word.partition("=")[0] for span in ANSWERS for word in span.split() if word.startswith("--")}
    ours = {
        word
        for word in shown
        if not any(word in span for span in ANSWERS if span.startswith(("pip ", "python ", "ray ", "make ")))
    }
    assert ours - flags == set()


LINES = {span for span in SPANS if span.startswith("vitascope ")}
LINES |= set(re.findall(r"^(vitascope .+)$", TEXT, re.MULTILINE))


@pytest.mark.parametrize("command", sorted(LINES))
def test_every_command_line_of_the_page_is_taken(command):
    assert parses(command.partition("  #")[0])


def test_programs_and_targets_that_are_shown_are_there():
    for span in ANSWERS:
        words = shlex.split(span) if "'" in span or span.startswith(("python ", "make ")) else []
        if words[:1] == ["python"] and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), span
        if words[:1] == ["make"]:
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), span
