"""The whole toolkit of ``vitascope.gpu`` in one run: measure, preprocess, convert, quantise, batch, pipeline, verdict.

Every part prints what it found; nothing needs a GPU with ``--device cpu``. The guide that goes with it is
docs/gpu_optimization_guide.md.

Its network is a PyTorch module where PyTorch is installed, else the same in ONNX; the last part needs PyTorch, and
says so where it is missing.

Usage: python examples/gpu_optimization_demo.py [--device cpu] [--engine inductor|tensorrt|onnx] [--frames 48]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from small_network import ENGINES, HAS_TORCH, INSTALLED, SUFFIXES, build, make_model
from vitascope.errors import MissingDependencyError
from vitascope.gpu import (
    AdaptiveBatchSizer,
    AsyncPipeline,
    BatchConfig,
    BatchSizeOptimizer,
    BottleneckDetector,
    CacheManager,
    CUDAKernelProcessor,
    CUDAProfiler,
    DynamicBatcher,
    Group,
    InferenceRequest,
    Map,
    MemoryPool,
    MemoryProfiler,
    ModelQuantizer,
    OnnxEngine,
    PinnedMemoryPool,
    Pipeline,
    PrefetchDataLoader,
    PreprocessingPipeline,
    PriorityBatcher,
    Profiler,
    Sink,
    Source,
    StreamBatcher,
    TemporalOptimizer,
    VRAMMonitor,
    find_optimal_batch_size,
)
from vitascope.gpu.pipeline import Batched

DeviceWord = Literal["auto", "cuda", "cpu"]
SIZE = (128, 128)
SIDE = {"min": (1, 3, *SIZE), "opt": (4, 3, *SIZE), "max": (8, 3, *SIZE)}


@contextmanager
def opened_network(device: DeviceWord) -> Iterator[Any]:
    """The network as batchers and pipeline take it: the module, or an engine."""
    model = make_model()
    if HAS_TORCH:
        yield model
        return
    with OnnxEngine(device=device) as engine:
        engine.build_engine_from_onnx(model)
        yield engine


def make_frames(count: int) -> list[np.ndarray]:
    """A bright square that crosses a dark room, and rests at every other frame."""
    frames = []
    for n in range(count):
        frame = np.full((180, 320, 3), 20, np.uint8)
        x = 6 * (n // 2)
        frame[60:120, x : x + 60] = 220
        frames.append(frame)
    return frames


def kernels(device: DeviceWord, frames: list[np.ndarray]) -> str:
    """Fused preprocessing, normalisation, masks and colour, one after another and in flight."""
    with CUDAKernelProcessor(device_id=0, device=device) as processor:
        batch = processor.fused_preprocess_batch(frames[:8], SIZE)
        pending = [processor.fused_preprocess(frame, SIZE, async_exec=True) for frame in frames[:8]]
        same = all(np.allclose(result.wait()[0], row) for result, row in zip(pending, batch, strict=True))
        normal = processor.batch_normalize(np.stack(frames[:4]), mean=(0.5,) * 3, std=(0.5,) * 3)
        scores = np.stack([1 - batch[:, 0], batch[:, 0]], axis=1)
        mask = processor.postprocess_mask(scores, smoothing_sigma=1.0)
        nv12 = np.full((270, 320), 128, np.uint8)
        rgb = processor.nv12_to_rgb(nv12)
    return (
        f"{batch.shape} prepared, in flight the same: {same}; normalised to {normal.min():.1f}..{normal.max():.1f}; "
        f"{(mask == 1).mean():.1%} of the pixels are the square; NV12 grey is {rgb[0, 0].tolist()}"
    )


def memory(device: DeviceWord, frames: list[np.ndarray]) -> str:
    """How much there is, page-locked and device buffers that are lent again, arrays on disk."""
    with VRAMMonitor(device_id=0, device=device) as monitor, PinnedMemoryPool(0.1, device=device) as pinned:
        with monitor.measure() as block:
            for frame in frames[:8]:
                pinned.download(pinned.upload(frame)).wait()
        stats = monitor.get_stats()
        pool = MemoryPool(max_size_gb=0.1, device=device)
        first = pool.get_tensor((4, 3, *SIZE), "float32")
        again = pool.get_tensor((4, 3, *SIZE), "float32") is first
        pool.clear()
        with tempfile.TemporaryDirectory() as folder:
            cache = CacheManager(disk_cache_gb=0.01, folder=Path(folder))
            cache.put("frame_0", frames[0])
            found = cache.get("frame_0")
            cache.close()
    return (
        f"{stats.allocated_vram_gb:.2f} of {stats.total_vram_gb:.2f} GB in use; the block grew by "
        f"{block.growth_bytes()} bytes; the same buffer again: {again}; from disk: {np.array_equal(found, frames[0])}"
    )


def engines(device: DeviceWord, engine: str, frames: list[np.ndarray]) -> str:
    """A module becomes an engine in a file, is loaded from there, asked, and timed."""
    del frames
    with tempfile.TemporaryDirectory() as folder, ENGINES[engine](fp16_mode=True, device=device) as network:
        path = Path(folder) / f"model{SUFFIXES[engine]}"
        build(network, make_model(), SIDE, path)
        network.load_engine(path)
        output = network.infer(np.zeros((2, 3, *SIZE), np.float32))
        results = network.benchmark(num_iterations=5, warmup=1, batch_size=2)
        speed = f"{results['avg_latency_ms']:.2f} ms, {results['throughput_fps']:.0f} FPS"
        return f"{network.name}: {output.shape}, {speed}"


def quantization(device: DeviceWord, frames: list[np.ndarray]) -> str:
    """Half the weights, and what that changes."""
    del device, frames
    model = make_model()
    half = ModelQuantizer.quantize_fp16(model)
    ratio = ModelQuantizer.measure_model_size(model) / ModelQuantizer.measure_model_size(half)
    pictures = np.random.default_rng(0).random((2, 3, *SIZE), np.float32)
    error = ModelQuantizer.compare(model, half, pictures, iterations=1).max_error
    return f"{ratio:.1f} times smaller in FP16, largest error {error:.1e}"


def batching(device: DeviceWord, network: Any, frames: list[np.ndarray]) -> str:
    """Three batchers, a size that follows memory, and the best size by measurement."""

    def inference_fn(batch: Any) -> Any:
        if not HAS_TORCH:
            return network.infer(batch)
        import torch

        place = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
        with torch.inference_mode():
            return network.to(place)(torch.as_tensor(batch).to(place)).cpu().numpy()

    pictures = [np.moveaxis(frame, -1, 0).astype(np.float32) / 255 for frame in frames]
    config = BatchConfig(min_batch_size=1, max_batch_size=8, timeout_ms=5)
    made: list[str] = []
    batchers: list[Callable[[], Any]] = [
        lambda: DynamicBatcher(config, inference_fn, device=device),
        lambda: StreamBatcher(config, inference_fn, num_streams=2, device=device),
        lambda: PriorityBatcher(config, inference_fn, device=device),
    ]
    for make in batchers:
        with make() as batcher, ThreadPoolExecutor(8) as clients:
            requests = [InferenceRequest(picture, f"frame_{n:03}") for n, picture in enumerate(pictures)]
            responses = list(clients.map(batcher.submit, requests))
            mean = sum(response.batch_size for response in responses) / len(responses)
            made.append(f"{type(batcher).__name__} {mean:.1f}")
    sizer = AdaptiveBatchSizer(initial_batch_size=2, max_batch_size=8, device=device)
    sizes = [sizer.adjust_batch_size() for _ in range(3)]
    best = BatchSizeOptimizer(
        inference_fn, pictures[0], max_batch_size=4, rounds=2, warm_ups=1, device=device
    ).search()
    alone = find_optimal_batch_size(network, (3, *SIZE), 0.9, max_batch_size=2, device=device)
    return (
        f"frames a call: {', '.join(made)}; sizes that fit: {sizes}; best of 1..4: {best.batch_size} ({best.reason}); "
        f"of the network alone, best of 1 and 2: {alone}"
    )


def pipeline(device: DeviceWord, network: Any, frames: list[np.ndarray]) -> str:
    """Frames in, masks out, and the stage to look at first."""
    config = {"batch_size": 4, "queue_size": 16, "preprocess_streams": 2, "postprocess_threads": 2}
    with AsyncPipeline(
        network, config, device_id=0, device=device, target_size=SIZE, postprocess="mask"
    ) as stages:
        with ThreadPoolExecutor(1) as submitter:
            done = submitter.submit(lambda: [stages.submit_frame(frame) for frame in frames])
            results = [stages.get_result(timeout_s=60) for _ in frames]
            done.result()
        stats = stages.get_stats()
        verdict = BottleneckDetector().analyze(stages.report())
    in_order = [result.frame_id for result in results if result] == list(range(len(frames)))
    return (
        f"{stats.fps:.0f} FPS, in order: {in_order}, p95 {stats.latency.p95_seconds * 1e3:.0f} ms, "
        f"bottleneck {stats.bottleneck_stage}; {verdict.main.title}"
    )


def pieces(device: DeviceWord, frames: list[np.ndarray]) -> str:
    """Threads for preprocessing, batches brought ahead, results that are used again, stages of one's own."""
    with PreprocessingPipeline(num_threads=2, target_size=SIZE, device=device) as threads:
        prepared = threads.preprocess_batch(frames)
    batches = [np.concatenate(prepared[first : first + 8]) for first in range(0, len(prepared), 8)]
    brought = sum(len(batch) for batch in PrefetchDataLoader(batches, device, prefetch_factor=2))
    optimizer = TemporalOptimizer(skip_threshold=0.01, model=lambda frame: float(frame.mean()))
    for frame in frames:
        optimizer.process(frame)
    darkest: list[float] = []
    Pipeline(
        [
            Source("frames", frames),
            Map("measure", lambda frame: float(frame.mean()), workers=2),
            Group("pairs", Batched(lambda pair: [min(pair)], size=2)),
            Sink("keep", darkest.append),
        ]
    ).run()
    return (
        f"{len(prepared)} prepared, {brought} brought; {optimizer.reused} of {len(frames)} results used again; "
        f"{len(darkest)} pairs measured"
    )


def kernel_table(device: DeviceWord, frames: list[np.ndarray]) -> str:
    """What the GPU spent its time on, kernel by kernel."""
    del frames
    try:
        profiler = CUDAProfiler(device=device)
    except MissingDependencyError as error:
        return f"left out: {error}"
    import torch

    place = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    model, picture = make_model().to(place), torch.rand(4, 3, *SIZE, device=place)
    with profiler, torch.inference_mode():
        for _ in range(3):
            model(picture)
    return profiler.summary(top=3)


def main(
    *,
    device: DeviceWord = "auto",
    engine: str = INSTALLED,
    frames: int = 48,
) -> dict[str, str]:
    """Run every part under the profiler; what each found, by name."""
    video = make_frames(frames)
    profiler = Profiler("toolkit", device="cpu" if device == "cpu" else "auto")
    parts: dict[str, Callable[[], str]] = {
        "kernels": lambda: kernels(device, video),
        "memory": lambda: memory(device, video),
        "engines": lambda: engines(device, engine, video),
        "quantization": lambda: quantization(device, video),
        "batching": lambda: batching(device, network, video),
        "pipeline": lambda: pipeline(device, network, video),
        "pieces": lambda: pieces(device, video),
        "kernel table": lambda: kernel_table(device, video),
    }
    found = {}
    with opened_network(device) as network, MemoryProfiler(device=device, interval_seconds=0.02) as watcher:
        for name, part in parts.items():
            began = time.perf_counter()
            with profiler.profile(name):
                found[name] = part()
            watcher.step()
            print(f"[{time.perf_counter() - began:6.2f} s] {name}: {found[name]}")
    profiler.print_summary()
    watcher.print_summary()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--engine", choices=sorted(ENGINES), default=INSTALLED)
    parser.add_argument("--frames", type=int, default=48)
    options = parser.parse_args()
    main(device=options.device, engine=options.engine, frames=options.frames)
