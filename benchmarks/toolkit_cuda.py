"""The kernel processor against PyTorch's operations, and the asynchronous pipeline against its slowest stage.

* ``fused preprocess``: one picture, RGB bytes or NV12, to a normalised half-precision network input, at every pair of
  sizes, through ``CUDAKernelProcessor``. PyTorch does it with ``interpolate`` once as it is (it reads four samples
  whatever the size, and aliases) and once with ``antialias=True``, which is what ours computes. ``ratio`` is the faster
  of the two over ours, by GPU time; ``call_us`` is what a call costs when calls follow one another, host included.
* ``async pipeline``: DeepLabV3+ at 512x512 in FP16 with random weights, the network being the slowest stage, against
  calls of the same network in a row, from one thread, with inputs on the GPU. Both record the network as CUDA
  graphs (``network_alone_fps``); ``network_eager_fps`` is the module as it is, operation by operation.

Results are compared with the CPU's before anything is timed. Bars: 3x at every size; 0.95 of the network
alone; its stream busy 90 % of the time.

Predictions for one H200: launch-bound below 1080p, 3 us against six launches of 2 us; 8K RGB reads 100 MB once, 25 us,
where PyTorch moves 100 MB to 400 MB of floats and reads them again.

Usage: python benchmarks/toolkit_cuda.py [--only preprocess|pipeline] [--batch N]... [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from deeplab_v3_plus import DeepLabV3Plus
from preprocess_cuda import microseconds
from row_stamp import gpu_stamp, write_rows
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame
from vitascope.gpu import AsyncPipeline, CUDAKernelProcessor
from vitascope.gpu.kernels.color import rgb_from_yuv
from vitascope.gpu.toolkit.async_pipeline import AsyncStats
from vitascope.gpu.toolkit.torch_module import ModuleNetwork

SIZES = {
    "256": (256, 256),
    "512": (512, 512),
    "1080p": (1080, 1920),
    "4K": (2160, 3840),
    "8K": (4320, 7680),
}
TARGETS = (256, 512, 1024)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COLOR = ColorSpec(chroma_location="center")
FMT = PIXEL_FORMATS["nv12"]
L2_BYTES = 60e6
FRAMES = 2880
Row = dict[str, Any]


def pictures(kind: str, size: tuple[int, int]) -> list[Any]:
    """Enough random pictures on the GPU to overflow the L2 cache twice, 64 at most."""
    height, width = size
    nbytes = height * width * (3 if kind == "rgb" else 1.5)
    count = max(2, min(64, int(2 * L2_BYTES / nbytes) + 1))
    random = cupy.random.default_rng(0)
    if kind == "rgb":
        return [random.integers(0, 256, (height, width, 3), dtype=cupy.uint8) for _ in range(count)]
    return [
        Frame(
            (
                random.integers(16, 236, (height, width), dtype=cupy.uint8),
                random.integers(90, 166, (height // 2, width // 2, 2), dtype=cupy.uint8),
            ),
            FMT,
            COLOR,
            n,
            n,
            Fraction(1, 60),
        )
        for n in range(count)
    ]


def constants() -> tuple[torch.Tensor, ...]:
    """Matrix, offset, mean and deviation as PyTorch wants them."""
    matrix, offset = rgb_from_yuv(COLOR, FMT)
    return tuple(
        torch.tensor(np.asarray(value, np.float32), device="cuda").reshape(shape)
        for value, shape in (
            (matrix, (3, 3)),
            (offset, (1, 3, 1, 1)),
            (MEAN, (1, 3, 1, 1)),
            (STD, (1, 3, 1, 1)),
        )
    )


def torch_operations(
    planes: tuple[torch.Tensor, ...], target: int, values: tuple[torch.Tensor, ...], *, antialias: bool
) -> torch.Tensor:
    """The same work as framework code does it."""
    matrix, offset, mean, std = values
    resize = torch.nn.functional.interpolate
    if len(planes) == 1:
        rgb = planes[0].permute(2, 0, 1)[None].float() / 255
    else:
        uv = resize(planes[1].permute(2, 0, 1)[None].float(), scale_factor=2, mode="nearest")
        yuv = torch.cat([planes[0][None, None].float(), uv], dim=1)
        rgb = (torch.einsum("cp,nphw->nchw", matrix, yuv) + offset).clamp(0, 1)
    small = resize(rgb, (target, target), mode="bilinear", antialias=antialias)
    return ((small - mean) / std).half()


def call_us(run: Callable[[int], Any], count: int, repeats: int = 200) -> float:
    """Microseconds of a call when calls follow one another, host and GPU together."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for n in range(repeats):
        run(n % count)
    torch.cuda.synchronize()
    return round((time.perf_counter() - begun) / repeats * 1e6, 1)


def preprocess_rows() -> Iterator[Row]:
    """Every pair of sizes, both kinds of picture."""
    values = constants()
    host = CUDAKernelProcessor(device="cpu")
    gpu = CUDAKernelProcessor(device="cuda")
    for kind in ("rgb", "nv12"):
        for name, size in SIZES.items():
            given = pictures(kind, size)
            first = given[0]
            on_host = (
                first.get() if kind == "rgb" else first.with_planes(tuple(p.get() for p in first.planes))
            )
            planes = [
                tuple(torch.as_tensor(plane, device="cuda") for plane in ([g] if kind == "rgb" else g.planes))
                for g in given
            ]
            for target in TARGETS:
                out = cupy.empty((1, 3, target, target), cupy.float16)
                options: dict[str, Any] = {"mean": MEAN, "std": STD}

                def ours(n: int, given: Any = given, out: Any = out, options: Any = options) -> Any:
                    return gpu.fused_preprocess(given[n], out.shape[2:], out=out, **options)

                def theirs(n: int, *, antialias: bool, planes: Any = planes, target: int = target) -> Any:
                    return torch_operations(planes[n], target, values, antialias=antialias)

                expected = host.fused_preprocess(on_host, (target, target), **options)
                error = float(np.abs(ours(0).get().astype(np.float32) - expected).max())
                if not error <= 2e-2:
                    raise SystemExit(f"{kind} {name} to {target}: off by {error}")
                count = len(given)
                row: Row = {"claim": f"fused preprocess {kind} {name} to {target}", "largest_error": error}
                row["vitascope"] = microseconds(ours, count)
                for peer, antialias in (("pytorch", False), ("pytorch_antialias", True)):
                    row[peer] = microseconds(lambda n, a=antialias: theirs(n, antialias=a), count)
                fastest = min(row["pytorch"]["p50_us"], row["pytorch_antialias"]["p50_us"])
                row["ratio"] = round(fastest / row["vitascope"]["p50_us"], 2)
                row["ratio_same_filter"] = round(
                    row["pytorch_antialias"]["p50_us"] / row["vitascope"]["p50_us"], 2
                )
                row["call_us"] = call_us(ours, count)
                row["pytorch_call_us"] = call_us(lambda n: theirs(n, antialias=False), count)
                yield row


def network_alone(network: Callable[[Any], Any], batch: int, calls: int) -> float:
    """Pictures a second of calls in a row, from one thread, each answer dropped for the next."""
    random = cupy.random.default_rng(0)
    inputs = [random.random((batch, 3, 512, 512), cupy.float32).astype(cupy.float16) for _ in range(4)]
    for n in range(10):
        network(inputs[n % 4])
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for n in range(calls):
        network(inputs[n % 4])
    torch.cuda.synchronize()
    return batch * calls / (time.perf_counter() - begun)


def through(pipeline: AsyncPipeline, frames: list[Any], count: int) -> list[Any]:
    """Submit from one thread, take in another; the last results."""

    def submit() -> None:
        for n in range(count):
            pipeline.submit_frame(frames[n % len(frames)], n)
        pipeline.finish()

    with pipeline:
        thread = threading.Thread(target=submit)
        thread.start()
        kept = [result for result in pipeline.results() if result.frame_id < len(frames)]
        thread.join()
    return kept


def paced(pipeline: AsyncPipeline, frames: list[Any], count: int) -> tuple[float, float, AsyncStats]:
    """Frames a second and the share of the time that the GPU computed, once the network is recorded; and figures."""
    warm_up = (
        4 * pipeline.config.batch_size
    )  # the first call of a shape runs as it is, the second is recorded
    is_warm = threading.Event()

    def submit() -> None:
        for n in range(warm_up + count):
            if n == warm_up:
                is_warm.wait()
            pipeline.submit_frame(frames[n % len(frames)], n)
        pipeline.finish()

    begun = gpu_seconds = 0.0
    with pipeline:
        thread = threading.Thread(target=submit)
        thread.start()
        for result in pipeline.results():
            if result.frame_id == warm_up - 1:
                begun = time.perf_counter()
                is_warm.set()
            elif result.frame_id >= warm_up:
                gpu_seconds += result.metadata["stages"]["infer"] / result.metadata["batch_size"]
        seconds = time.perf_counter() - begun
        thread.join()
    return count / seconds, gpu_seconds / seconds, pipeline.get_stats()


def pipeline_rows(batches: Sequence[int]) -> Iterator[Row]:
    """The network as the slowest stage, fed from the GPU and from the host."""
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    network = DeepLabV3Plus().cuda().half().eval().to(memory_format=torch.channels_last)
    random = np.random.default_rng(0)
    on_host = [random.integers(0, 256, (720, 1280, 3), dtype=np.uint8) for _ in range(16)]
    sources = {
        "1080p NV12 on the GPU": pictures("nv12", SIZES["1080p"])[:16],
        "720p RGB on the host": on_host,
    }
    processor = CUDAKernelProcessor(device="cuda")
    for batch in batches:
        for name, frames in sources.items():
            options: dict[str, Any] = {
                "target_size": (512, 512),
                "mean": MEAN,
                "std": STD,
                "postprocess": "mask",
            }
            config = {
                "batch_size": batch, "timeout_ms": 50, "queue_size": 4 * batch, "preprocess_streams": 2,
                "postprocess_threads": 1, "decode_threads": 1,
            }  # fmt: skip
            kept = through(AsyncPipeline(network, config, device="cuda", **options), frames, 2 * len(frames))
            with torch.inference_mode():
                inputs = [
                    torch.as_tensor(
                        processor.fused_preprocess(f, (512, 512), mean=MEAN, std=STD), device="cuda"
                    )
                    for f in frames
                ]
                wanted = [
                    mask
                    for first in range(0, len(inputs), batch)  # the pipeline's own batches
                    for mask in network(torch.cat(inputs[first : first + batch]).half())
                    .argmax(1)
                    .cpu()
                    .numpy()
                ]
            agree = [
                float((cupy.asnumpy(result.data) == mask).mean())
                for result, mask in zip(kept, wanted, strict=True)
            ]
            if min(agree) < 0.97:  # an algorithm of cuDNN's may be another
                raise SystemExit(f"{name}, batch {batch}: only {min(agree):.3f} of the pixels agree")
            runs = []
            recorded = ModuleNetwork(network, processor.device, cuda_graphs=True)
            for _ in range(3):
                alone = network_alone(recorded, batch, FRAMES // batch)
                pipeline = AsyncPipeline(network, config, device="cuda", **options)
                runs.append((*paced(pipeline, frames, FRAMES), alone))
            recorded.close()
            eager = network_alone(ModuleNetwork(network, processor.device, cuda_graphs=False), batch, 40)
            fps, gpu_busy, stats, alone = sorted(runs, key=lambda run: run[0] / run[3])[1]
            yield {
                "claim": f"async pipeline, DeepLabV3+ 512 fp16, batch {batch}, {name}",
                "fps": round(fps, 1),
                "network_alone_fps": round(alone, 1),
                "network_eager_fps": round(eager, 1),
                "ratio": round(fps / alone, 3),
                "gpu_busy": round(gpu_busy, 3),
                "cores_busy": round(stats.cores_busy, 2),
                "mean_batch_size": round(stats.mean_batch_size, 2),
                "bottleneck_stage": stats.bottleneck_stage,
                "latency_ms": {
                    key: round(getattr(stats.latency, f"{key}_seconds") * 1e3, 2)
                    for key in ("p50", "p95", "p99")
                },
                "load": {stage: round(report.load, 3) for stage, report in stats.stages.items()},
                "least_agreement": round(min(agree), 4),
            }


def main() -> None:
    """Check, time, print, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("preprocess", "pipeline"))
    parser.add_argument(
        "--batch", type=int, action="append", help="of the pipeline; 4, 8 and 16 when omitted"
    )
    parser.add_argument("out", nargs="?", type=Path)
    options = parser.parse_args()
    cupy.cuda.Stream.from_external(torch.cuda.current_stream()).use()
    rows = []
    parts = {"preprocess": preprocess_rows, "pipeline": partial(pipeline_rows, options.batch or (4, 8, 16))}
    for part, make in parts.items():
        if options.only in (None, part):
            for row in make():
                print(json.dumps(row), flush=True)
                rows.append({**row, **gpu_stamp()})
                if options.out is not None:
                    write_rows(options.out, rows)


if __name__ == "__main__":
    main()
