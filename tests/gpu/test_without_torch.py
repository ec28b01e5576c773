"""Check that without PyTorch and CuPy every class of the toolkit imports, and CPU functions work."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
for absent in ("torch", "cupy", "triton", "tensorrt", "pynvml", "onnxscript"):
    sys.modules[absent] = None  # importing it is an ImportError
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper
from vitascope import gpu
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu import *

folder = Path(sys.argv[1])
frame = np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3)
assert all(getattr(gpu, name) for name in gpu.__all__)

x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3, 8, 8]) for n in "xy")
half = helper.make_tensor("half", TensorProto.FLOAT, [1], [0.5])
graph = helper.make_graph([helper.make_node("Mul", ["x", "half"], ["y"])], "halves", [x], [y], [half])
opset = [helper.make_opsetid("", 17)]
network = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
sizes = {"x": {"min": (1, 3, 8, 8), "opt": (4, 3, 8, 8), "max": (16, 3, 8, 8)}}

with CUDAKernelProcessor() as processor:
    picture = processor.fused_preprocess(frame, target_size=(8, 8))
with OnnxEngine() as engine, open_engine(network, input_shapes=sizes) as best:
    engine.build_engine_from_onnx(network, sizes, folder / "halves.onnx")
    engine.load_engine(folder / "halves.onnx")
    np.testing.assert_allclose(engine.infer(picture), picture / 2)
    np.testing.assert_allclose(best.infer(picture), picture / 2)
    assert engine.benchmark(num_iterations=2, warmup=1)["avg_latency_ms"] > 0
    with AsyncPipeline(engine, {"batch_size": 4}, postprocess="mask") as pipeline:
        for n in range(8):
            pipeline.submit_frame(frame, n)
        pipeline.finish()
        assert [result.frame_id for result in pipeline.results()] == list(range(8))
        assert pipeline.get_stats().bottleneck_stage
        assert BottleneckDetector().analyze(pipeline.report()).text()
assert isinstance(ModelQuantizer.quantize_fp16(network), bytes)
assert ModelQuantizer.compare(network, network, picture, iterations=1).mean_error == 0
for batcher in (DynamicBatcher, PriorityBatcher, StreamBatcher):
    with batcher(BatchConfig(timeout_ms=0), np.negative) as batches:
        assert batches.submit(InferenceRequest(picture[0], "frame")).batch_size == 1
assert AdaptiveBatchSizer().adjust_batch_size() >= 1
assert BatchSizeOptimizer(np.negative, picture[0], max_batch_size=2, rounds=1).search().batch_size <= 2
with PinnedMemoryPool(0.01) as pinned, MemoryPool(0.01) as pool:
    assert np.array_equal(pinned.download(pinned.upload(frame)).wait(), frame)
    assert pool.get_tensor((2, 3)) is pool.get_tensor((2, 3))
with CacheManager(disk_cache_gb=0.01, folder=folder / "cache") as cache:
    cache.put("frame", frame)
    assert np.array_equal(cache.get("frame"), frame)
with VRAMMonitor() as monitor, MemoryProfiler() as memory:
    memory.step()
    assert monitor.get_stats().total_vram_gb > 0
profiler = Profiler()
with profiler.profile("span"):
    pass
for export in ("json", "chrome_trace", "png", "html"):
    getattr(profiler, f"export_{export}")(folder / export)
with PreprocessingPipeline(num_threads=2, target_size=(8, 8)) as threads:
    assert np.array_equal(threads.preprocess_batch([frame, frame])[1], picture)
assert [batch.shape for batch in PrefetchDataLoader([frame, frame])] == [frame.shape] * 2
reuse = TemporalOptimizer(model=lambda picture: picture.sum())
assert reuse.process(frame) == reuse.process(frame) and reuse.reused == 1

missing = (InductorEngine, CUDAProfiler, TensorRTEngine)
for wanted in (*missing, lambda: OnnxEngine(device="cuda"), lambda: CUDAKernelProcessor(device="cuda")):
    try:
        wanted()
    except (MissingDependencyError, DeviceError) as error:
        assert "pip install" in str(error), error
    else:
        raise AssertionError(wanted)
print("all of it")
"""


def test_the_toolkit_without_torch_and_cupy(tmp_path):
    """Run in a separate process, as both are loaded in this one."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all of it\n"
