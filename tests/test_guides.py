"""Check that the page "From the guides to Vitascope" is complete and true.

The lists below are from the five guides that the product was ordered with. Every entry must be in the left
column of a table on the page, so that it has an answer.
"""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from shown_lines import refusal
from vitascope.config.settings import section_keys, setting_fields

PAGE = Path(__file__).parents[1] / "docs" / "guides.md"

GPU_MODULE = """
pip install -r requirements_gpu.txt
pip install tensorrt --extra-index-url https://pypi.nvidia.com
from src.gpu import
cuda_kernels.py; tensorrt_engine.py; memory_manager.py; batch_processor.py; async_pipeline.py; profiler.py
configs/gpu_config.yaml; docs/gpu_optimization_guide.md; examples/gpu_optimization_demo.py
CUDAKernelProcessor(device_id=0); fused_preprocess(frame, target_size=(512, 512), async_exec=True)
TensorRTEngine(fp16_mode=True); load_engine('model_fp16.trt'); infer(
build_engine_from_pytorch(; input_shapes=; output_path=; min, opt and max
benchmark(num_iterations=100); results['avg_latency_ms']; results['throughput_fps']
AsyncPipeline(model, config, device_id=0); submit_frame(frame, frame_id); get_result(); start()
result.data; result.frame_id; result.metadata['total_latency']; get_stats(); stats.fps; stats.bottleneck_stage
decode_threads; preprocess_streams; batch_size; postprocess_threads; encode threads; queue_size; timeout_ms
profiler.profile('inference'); print_summary(); JSON; Chrome trace; plots
DynamicBatcher(config, inference_fn); BatchConfig(min_batch_size=1, max_batch_size=8, timeout_ms=50); submit(request)
InferenceRequest(data=; request_id=; timestamp=; response.latency_ms; response.batch_size
VRAMMonitor(device_id=0); stats.allocated_vram_gb; stats.total_vram_gb
ModelQuantizer.quantize_fp16(model); ModelQuantizer.measure_model_size(model)
AdaptiveBatchSizer(initial_batch_size=4, target_utilization=0.85); max_batch_size=4; adjust_batch_size()
PinnedMemoryPool(max_size_gb=4.0); BatchSizeOptimizer; torch.cuda.empty_cache()
custom CUDA kernels; fused preprocessing; batch normalization; mask post-processing
dynamic batch sizes 1-16; persistent engine caching; PyTorch → ONNX → TensorRT
stream-based batching; priority batching; auto-tuning; adaptive batching
basic, CUDA and memory profiling; bottleneck detection
VR mode (low latency); < 50ms; 60-90 FPS; batch 1-2; throughput mode (offline processing); 150-200 FPS; batch 8-16; INT8
2-10x faster; 2-3x faster transfers; 4x reduction; 90%+ GPU, 70%+ CPU; DeepLabV3+; 45, 22, 50, 85 and 45 ms
RTX 3090; CUDA 12.0+; PyTorch 2.0+; TensorRT 8.6+; CuPy 12.0+; 32GB; Ubuntu 20.04+
out of memory; low GPU utilization; high latency; smaller queues; shorter timeout; pinned memory; more CUDA streams
always use FP16; cache TensorRT engines; batch operations; profile regularly; monitor VRAM; tune batch size
"""

PROFILING_METHODOLOGY = """
./scripts/profile_gpu.sh -t pytorch; ./scripts/profile_gpu.sh -t pytorch -d 30; ./scripts/profile_gpu.sh -t nsight
ncu --set full python your_script.py; nvidia-smi dmon -s u
./scripts/run_tests.sh -t performance; ./scripts/run_tests.sh -t performance > results_$(date +%Y%m%d).log
python scripts/compare_results.py baseline.log results_latest.log
PyTorch Profiler; NVIDIA Nsight Systems; NVIDIA Nsight Compute; custom memory profiler; TensorBoard; Grafana
Frames Per Second (FPS); Throughput (Frames/Second); Per-Frame Latency; End-to-End Latency; P50; P95; P99
GPU Memory Usage; Memory Bandwidth Utilization; GPU Utilization; Kernel Efficiency; > 85%
1080p @ 60 FPS (batch=4); 4K @ 30 FPS (batch=2); VR Stereo @ 60 FPS (batch=4 per eye)
P50 < 16.67ms; P95 < 20ms; P99 < 25ms; < 80%; < 19200 MB; ~2ms; ~1ms; ~10ms
Decode; Preprocessing; Host→Device Transfer; Model Inference; Device→Host Transfer; Postprocessing; Encode
allocated, reserved and peak memory; memory leak detection; peak memory
occupancy; warp efficiency; cache hit rates; register pressure; memory coalescing; shared memory
GPU idle time; kernel launch overhead; unnecessary synchronization; memory transfer patterns
Conv2d; BatchNorm; ReLU; MaxPool2d; Sigmoid; top GPU operations
baseline profiling; bottleneck identification; optimization cycle; optimization history; profiling results template
performance regression testing; nightly; YOLOv8n-seg; 640×640; warmup; repetition; isolation; documentation
torch.compile(model, mode="max-autotune"); torch_tensorrt.compile(; torch_tensorrt.Input; enabled_precisions
gradient checkpointing; overlapped execution; memory pooling; dynamic batching; GC pauses; synchronization points
optimize data loading; use multiprocessing; poor latency; CPU profiling; high memory usage; clear cache regularly
measure first; one change at a time; validate correctness; version control; consistency
"""

OPTIMISATION_TECHNIQUES = """
mixed precision training (FP16); torch.cuda.amp.autocast; autocast(); GradScaler
record_shapes; profile_memory; with_stack
scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
kernel fusion; torch.backends.cudnn.benchmark = True; torch.jit.set_fusion_strategy([('STATIC', 3)])
find_optimal_batch_size(model, input_shape, max_memory_percent=0.9); batch size optimization
python scripts/optimize.py --auto-optimize; python scripts/optimize.py --detect-bottlenecks
CUDA graphs; torch.cuda.CUDAGraph(); torch.cuda.graph(graph); graph.replay()
asynchronous data transfer; pin_memory=True; non_blocking=True; DataLoader; torch.cuda.stream(
TensorRT optimization; multi-threading; ThreadPoolExecutor; PreprocessingPipeline(num_threads=32)
preprocess_batch(frames)
SIMD vectorization; normalize_batch(images); export CFLAGS="-mavx2 -mfma"; pip install --no-binary :all: numpy
memory-mapped files; np.memmap; process pool; multiprocessing.Pool; process_chunk(chunk)
torch.utils.checkpoint.checkpoint(; CheckpointedModel; in-place operations; x.relu_(); x.add_(y)
MemoryPool; get_tensor(shape, dtype); clear()
disk caching; src.utils.cache_manager; CacheManager(disk_cache_gb=10.0, enable_disk_cache=True); cache.get(; cache.put(
use_disk=True; to_disk=True; dynamic memory management; adaptive_batch_process(frames)
prefetching; PrefetchDataLoader(dataloader, device); pipeline parallelism; PipelineProcessor
preprocess_queue; inference_queue; postprocess_queue; batch processing; batch_processor(frames, batch_size=8); padding
queue management; queue_size = target_fps * latency_tolerance_seconds
early exit; early_exit_inference(model, input, confidence_threshold=0.95)
spatial pyramid processing; multi_scale_inference(model, image)
temporal coherence; TemporalOptimizer(skip_threshold=0.01); region of interest (ROI)
roi_inference(model, image, roi_detector)
torch.profiler.profile(; ProfilerActivity; prof.key_averages().table(; prof.export_chrome_trace("trace.json")
nsys profile -o profile.qdrep python cli.py input.mp4 -o output.mp4; nsight-sys profile.qdrep
get_logger(); logger.timer("model_inference"); logger.get_stats(); src.utils.logger
1080p 16-32 150+ FPS; 4K 8-16 100+ FPS; 6K 4-8 60-80 FPS; 8K 2-4 30-50 FPS; dos and don'ts; memory fragmentation
"""

TUNING_GUIDE = """
python scripts/optimize.py --auto-optimize --save-config configs/my_optimized.yaml
python cli.py input.mp4 -c configs/my_optimized.yaml -o output.mp4; python cli.py input.mp4 -o output.mp4
python cli.py input.mp4 --profile fast -o output.mp4; python cli.py input.mp4 --profile balanced -o output.mp4
python cli.py input.mp4 --profile quality -o output.mp4; 120+ FPS target; 90 FPS target; 60 FPS minimum
python benchmarks/benchmark_suite.py --output-dir ./results; python benchmarks/benchmark_suite.py --precision-only
python benchmarks/benchmark_suite.py --batch-only; python benchmarks/benchmark_suite.py --resolution-only
python benchmarks/performance_analyzer.py results/benchmark_results.json
python cli.py --interactive; stats; hardware; config; nvidia-smi -l 1; watch -n 1 nvidia-smi; htop
precision mode; input resolution; workers; CPU threads; queue size; caching; pin memory; persistent workers
low GPU utilization (<50%); high GPU memory usage (>95%); high CPU usage (>90%); high latency (>50ms); OOM errors
1080p (1920x1080); 4K (3840x2160); 6K (5760x3240); 8K (7680x4320); 8K at 90 FPS; multi-GPU setup
CUDA streams; torch.cuda.Stream(); JIT compilation; torch.jit.script(model); TorchScript; operator fusion
torch.backends.cuda.matmul.allow_tf32 = True
FPS below target; comprehensive benchmark; 90+ FPS; GPU utilization >80%; latency <50ms; real VR content
24h test for memory leaks; thermal throttling; optimal configuration documented; Threadripper 3990X
"""

ANIMATOR_GUIDE = """
python main.py --image portrait.jpg; python main.py --image portrait.jpg --batch-size 1
--fp16; --gpu-id 0; --gpu-id 1; --enable-metrics; press 'R'; nvidia-smi dmon -i 0 -s pcemt
python scripts/benchmark.py --image portrait.jpg --auto-tune
python scripts/benchmark.py --image portrait.jpg --duration 60
pip install nvidia-tensorrt; convert model to TensorRT; recommended settings for the RTX 3080
Capture; Tracking; Animation; Output; MediaPipe; Spout; NDI; expected performance; 1440p; VRAM usage
finding the optimal batch size; RTX 4090; RTX 3090; RTX 3080; RTX 3070; RTX 3060; RTX 2080 Ti; RTX 2070; RTX 2060
FP32 vs FP16 vs INT8; OOM: smaller batch; load balancing; model quantization; calibration dataset
FPS 60+; latency <20ms; GPU utilization 80-95%; GPU memory 90%; temperature below 80°C
async capture; async output; frame skipping; performance profiling; dropped frames; FPS 60-70
latest drivers; NVIDIA Control Panel; Prefer Maximum Performance; Low Latency Mode: Ultra; Vertical Sync: Off
Windows Game Mode; High Performance power plan; Hardware-Accelerated GPU Scheduling
sudo nvidia-smi -pm 1; sudo nvidia-smi -pl 350; ForceCompositionPipeline = Off; nvidia-settings --assign
custom CUDA kernels; face region cropping; affine transformations; color space conversions; pipeline parallelization
RTX 4080; RTX 3060 Ti; RTX 2070 Super; background processes; unstable FPS; low and high GPU utilization
"""

YAML_KEYS = """
gpu.precision gpu.max_vram_usage gpu.memory_fraction gpu.cudnn_benchmark gpu.cudnn_deterministic gpu.allow_tf32
model.batch_size model.input_size model.num_workers model.prefetch_factor
processing.num_threads processing.use_multiprocessing processing.max_queue_size processing.chunk_size
processing.enable_caching processing.cache_size_gb
performance.target_fps performance.max_latency_ms performance.auto_tune
performance.frame_skip_enabled performance.frame_skip_threshold performance.prefetch_frames
performance.gpu_memory_fraction performance.clear_cache_interval
performance.use_async_capture performance.use_async_output
tensorrt.precision.fp16 tensorrt.precision.int8 batching.dynamic.max_batch_size batching.dynamic.timeout_ms
pipeline.stages.decode.threads pipeline.stages.preprocess.cuda_streams pipeline.stages.inference.batch_size
pipeline.stages.postprocess.threads dataloader.pin_memory dataloader.persistent_workers
animation.gpu_id animation.batch_size animation.inference_precision animation.use_half_precision
animation.enable_tensorrt tracking.max_num_faces tracking.refine_landmarks tracking.smoothing_window
debug.profile_performance
"""

TERMS = [
    term.strip()
    for guide in (
        GPU_MODULE,
        PROFILING_METHODOLOGY,
        OPTIMISATION_TECHNIQUES,
        TUNING_GUIDE,
        ANIMATOR_GUIDE,
    )
    for line in guide.split("\n")
    for term in line.split(";")
    if term.strip()
]
NOT_OURS = {"Outside Vitascope", "Not needed"}
"""Sections about the system, training, or a tool that its makers abandoned."""
PREFIXES = {key.partition(".")[0] for key in setting_fields()}


class Row(NamedTuple):
    line: int
    section: str
    theirs: str
    where: str
    use: str

    @property
    def spans(self) -> list[str]:
        """Return the code spans in the two columns with answers."""
        return re.findall(r"`([^`]+)`", f"{self.where} {self.use}")

    @property
    def commands(self) -> list[str]:
        return [span for span in self.spans if span.startswith("vitascope ")]

    @property
    def names(self) -> list[str]:
        """Return importable names, such as ``vitascope.gpu.pipeline.pipeline.Pipeline``."""
        return [span for span in self.spans if re.fullmatch(r"vitascope(\.\w+)+", span)]


def table_rows() -> list[Row]:
    rows = []
    section = ""
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if not line.startswith("|") or line.startswith(("|-", "| In the guides")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 3, f"guides.md:{number}: {len(cells)} cells"
        rows.append(Row(number, section, *cells))
    return rows


ROWS = table_rows()


def exists(name: str) -> bool:
    """Return True if a dotted name can be imported."""
    module, parts = "vitascope", name.split(".")[1:]
    value: object = import_module(module)
    for part in parts:
        if hasattr(value, part):
            value = getattr(value, part)
            module = f"{module}.{part}"
            continue
        try:
            module = f"{module}.{part}"
            value = import_module(module)
        except ModuleNotFoundError:
            return False
    return True


def parses(command: str) -> bool:
    """Return True if the current command line accepts it."""
    return refusal(*shlex.split(command)[1:]) is None


def test_the_list_is_long_enough_to_mean_something() -> None:
    assert len(TERMS) > 350
    assert len(set(YAML_KEYS.split())) == 45


def test_everything_in_the_guides_has_an_answer() -> None:
    answered = [row.theirs.replace("`", "").lower() for row in ROWS]
    on_no_left_side = [term for term in TERMS if not any(term.lower() in theirs for theirs in answered)]
    assert on_no_left_side == []


def test_every_key_has_a_row_and_is_a_setting() -> None:
    for key in YAML_KEYS.split():
        rows = [row for row in ROWS if f"`{key}`" in row.theirs]
        assert [row.section for row in rows] == ["Settings"], key
        assert key in setting_fields()


def test_every_key_that_is_named_exists() -> None:
    spans = re.findall(r"`([a-z_]+(?:\.[a-z0-9_]+)+)(?:=[^`]*)?`", PAGE.read_text(encoding="utf-8"))
    keys = {span for span in spans if span.partition(".")[0] in PREFIXES}
    results_of_a_run = {"pipeline.bottleneck"}
    unknown = keys - set(setting_fields()) - section_keys() - results_of_a_run
    unknown = {key for key in unknown if not key.endswith((".py", ".yaml"))}
    assert not unknown


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"line-{row.line}")
def test_a_row_is_true_today(row: Row) -> None:
    assert row.theirs
    assert row.where
    assert row.use
    assert [name for name in row.names if not exists(name)] == []
    assert [command for command in row.commands if not parses(command)] == []


def test_what_is_not_ours_stands_apart() -> None:
    assert {row.section for row in ROWS} >= NOT_OURS
    assert not [row.line for row in ROWS if row.section in NOT_OURS and row.commands]
