"""Compare a network with this machine's limits: FLOP/s against matrix products and copy bandwidth.

::

    attainable FLOP/s = min(matrix products, copy bandwidth * FLOPs per byte)

A network whose FLOPs per byte are left of the ridge (matrix products / copy bandwidth) is at best bound by
memory, right of it by arithmetic (Williams, Waterman, Patterson: Roofline, 2009). Below half of its roof it
is bound by neither: launches, small operators or other work take the time. The passes over the picture stand
against copy bandwidth in ``preprocess_cuda.py`` and ``composite_cuda.py``.

Both ceilings are measured in the same run, with random data that no cache holds. The work is counted from the shapes
of the network's graph, run on the CPU as its file has it. FLOPs: two for each multiply-add of a convolution or
product, one for each element of every other operator. Bytes: weights once a call, and activations as if every operator
that can be fused into the one before it were; half of that in fp16. A CPU's caches hold some of it, so more than all
can be reached.

Usage: python benchmarks/roofline.py [--model rvm] [--batch 1 4 16] [--set gpu.precision=fp16] [--png roofline.png]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import ceil, prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from vitascope.bench.measured_run import ALONE, MeasuredSegmenter
from vitascope.bench.network_probe import (
    NetworkProbe,
    ProbeEffort,
    open_on_cpu,
    trace_network,
    video_pictures,
)
from vitascope.bench.synthetic_clip import make_clip
from vitascope.config import load_settings
from vitascope.device import available_cores
from vitascope.gpu.engines.onnx_runtime import OperatorCall
from vitascope.gpu.profiling.charts import GREY, Chart
from vitascope.gpu.profiling.tables import text_table
from vitascope.models.selfie.selfie import SelfieState
from vitascope.segmentation.matting.cached_film import opening

COPY_BYTES, SIDE, GPU_SIDE, SAMPLES = 1 << 28, 2048, 8192, 9
COUNTED_FRAMES, SETTLING_FRAMES = 4, 12
"""Frames of a counted call; and frames after which a stream's gate has decided."""

CONVOLUTIONS = {"Conv", "FusedConv"}
PRODUCTS = {"MatMul", "FusedMatMul", "Gemm", "FusedGemm"}
MOVING_NOTHING = {
    "Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape",
    "Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
FUSED = {
    "Add", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul",
    "Neg", "PRelu", "Pow", "QuickGelu", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
}  # fmt: skip


def flops_of(call: OperatorCall) -> float:
    """Arithmetic of one operator."""
    inputs, outputs = call.input_shapes, call.output_shapes
    if call.kind in CONVOLUTIONS:  # weights [out, in / groups, kernel ...]
        return 2.0 * prod(outputs[0]) * prod(inputs[1][1:])
    if call.kind == "ConvTranspose":  # weights [in, out / groups, kernel ...]
        return 2.0 * prod(inputs[0]) * prod(inputs[1][1:])
    if call.kind in PRODUCTS:  # [m, k] times [k, n], whichever is given transposed
        rows = prod(outputs[0][:-1]) if len(inputs[0]) > 1 else 1
        return 2.0 * prod(outputs[0]) * prod(inputs[0]) / rows
    if call.kind in MOVING_NOTHING:
        return 0.0
    return float(max(max(map(prod, inputs), default=0), sum(map(prod, outputs))))


def bytes_of(call: OperatorCall) -> float:
    """Count the bytes that one operator must move."""
    if call.kind in MOVING_NOTHING:
        return 0.0
    if call.kind in FUSED:
        # The largest input is what the operator before it holds; a second one must be read.
        largest = max(map(prod, call.input_shapes), default=0)
        itemsize = call.output_bytes / max(sum(map(prod, call.output_shapes)), 1)
        return max(call.activation_bytes - largest * itemsize, 0.0) + call.parameter_bytes
    return float(call.activation_bytes + call.parameter_bytes + call.output_bytes)


def count_work(calls: Iterable[OperatorCall], *, frames: int) -> tuple[float, float]:
    """FLOPs and bytes of a frame, in float32, of a graph that was run as it is."""
    flops = nbytes = 0.0
    for call in calls:
        flops, nbytes = flops + flops_of(call), nbytes + bytes_of(call)
    return flops / frames, nbytes / frames


@dataclass(frozen=True)
class Roof:
    """Both ceilings of a device."""

    bytes_per_second: float
    flops_per_second: float

    def attainable(self, intensity: float) -> float:
        """Return the maximum FLOP/s at a number of FLOPs per byte."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)

    def bound(self, rate: float, intensity: float) -> str:
        """Name what bounds a network of this rate."""
        if rate < 0.5 * self.attainable(intensity):
            return "neither"
        return "memory" if intensity * self.bytes_per_second < self.flops_per_second else "compute"


def cpu_roof() -> Roof:
    """NumPy's copies by as many threads as there are cores, and its matrix products in fp32."""
    draws, cores = np.random.default_rng(), available_cores()
    source = draws.integers(0, 256, COPY_BYTES, np.uint8)
    target = np.ones_like(source)  # the system hands memory out when it is first written
    parts = list(zip(np.array_split(target, cores), np.array_split(source, cores), strict=True))
    one, other = (draws.standard_normal((SIDE, SIDE), np.float32) for _ in range(2))

    def seconds(work: Callable[[], object]) -> float:
        times = []
        for _ in range(SAMPLES + 1):
            began = perf_counter()
            work()
            times.append(perf_counter() - began)
        return median(times[1:])

    with ThreadPoolExecutor(cores) as pool:
        copied = seconds(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)))
    return Roof(2 * COPY_BYTES / copied, 2 * SIDE**3 / seconds(partial(np.matmul, one, other)))


def gpu_roof(index: int, precision: str) -> Roof:
    """PyTorch's copies within the GPU's memory, and its matrix products."""
    import torch

    from vitascope.gpu.engines.torch_engine import torch_flags

    place, dtype = f"cuda:{index}", torch.float32 if precision in ("fp32", "tf32") else torch.float16
    source = torch.randint(256, (2 * COPY_BYTES,), dtype=torch.uint8, device=place)
    one, other = (torch.randn(GPU_SIDE, GPU_SIDE, device=place).to(dtype) for _ in range(2))
    target, result = torch.empty_like(source), torch.empty_like(one)

    def seconds(work: Callable[[], object]) -> float:
        marks = []
        for _ in range(SAMPLES + 2):
            marks.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
            marks[-1][0].record()
            work()
            marks[-1][1].record()
        torch.cuda.synchronize()
        return median(start.elapsed_time(stop) for start, stop in marks[2:]) / 1e3

    exact = torch_flags(allow_tf32=precision == "tf32", cudnn_benchmark=False, cudnn_deterministic=False)
    with torch.cuda.device(index), torch.inference_mode(), exact:
        copied = seconds(lambda: target.copy_(source))
        return Roof(
            2 * source.numel() / copied,
            2 * GPU_SIDE**3 / seconds(lambda: torch.matmul(one, other, out=result)),
        )


def measure(clip: Path, assignments: list[str], batch: int) -> dict[str, Any]:
    """One row: a network alone, its work, and its roof."""
    loaded = load_settings(assignments=assignments, flags={**ALONE, "model.batch_size": batch})
    with MeasuredSegmenter(loaded=loaded) as segmenter:
        probed = NetworkProbe(ProbeEffort()).look(segmenter, clip, batch=batch)
        network, gpu, on_gpu = (
            opening(segmenter.chosen).network,
            segmenter.settings.gpu,
            segmenter.device.kind == "cuda",
        )
        frames = min(batch, COUNTED_FRAMES)
        pictures = video_pictures(clip, network=network, loaded=loaded, count=frames).astype(np.float32)
        is_gated = isinstance(network.new_state(), SelfieState)
        calls = ceil(SETTLING_FRAMES / frames) if is_gated else 1
        sessions = trace_network(
            partial(open_on_cpu, loaded, segmenter.store),
            pictures,
            calls=calls,
            warm_ups=calls if is_gated else 0,
            optimised=False,
        )
        name, index = network.name, segmenter.device.index
    flops, nbytes = count_work(chain(*sessions), frames=calls * frames)
    precision = "fp32"
    if on_gpu:
        precision = "tf32" if gpu.precision == "fp32" and gpu.allow_tf32 else gpu.precision
        nbytes *= {"fp32": 1.0, "tf32": 1.0, "int8": 0.25}.get(precision, 0.5)
    roof = gpu_roof(index, precision) if on_gpu else cpu_roof()
    rate, intensity = flops / (probed.row.p50 / 1e3), flops / nbytes
    return {
        "label": f"{name}, batch {batch}, {precision}",
        "ms": probed.row.p50,
        "flops": flops,
        "nbytes": nbytes,
        "rate": rate,
        "intensity": intensity,
        "roof": roof,
        "roof_share": rate / roof.attainable(intensity),
        "bound": roof.bound(rate, intensity),
    }


def chart(rows: list[dict[str, Any]]) -> Chart:
    """FLOP/s over FLOPs per byte, both axes logarithmic, each network under its roof."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_title("roofline")
        for row in rows:
            roof, ridge = row["roof"], row["roof"].flops_per_second / row["roof"].bytes_per_second
            xs = np.geomspace(min(row["intensity"], ridge) / 4, max(row["intensity"], ridge) * 4, 100)
            axes.plot(xs, [roof.attainable(x) for x in xs], color=GREY, linewidth=1)
            axes.plot(row["intensity"], row["rate"], "o", label=row["label"])
        axes.set(xscale="log", yscale="log", xlabel="FLOPs for each byte that must move", ylabel="FLOP/s")
        axes.legend(loc="lower right")

    return Chart(4.5, draw)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, help="a video [default: a synthetic one of 1080p]")
    parser.add_argument("--model", default="rvm")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--set", action="append", default=[], help="one setting as key=value")
    parser.add_argument("--png", type=Path, help="draw the roofline, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clip = options.input or make_clip(
            Path(folder) / "in.mp4", width=1920, height=1080, frame_count=max(options.batch)
        )
        assignments = [f"model.name={options.model}", *options.set]
        rows = [measure(clip, assignments, batch) for batch in options.batch]
    heads = (
        "network",
        "ms a frame",
        "GFLOP",
        "MB",
        "GFLOP/s",
        "of matmul",
        "GB/s",
        "of copy",
        "of roof",
        "bound by",
    )
    figures = [
        (
            row["label"],
            f"{row['ms']:.3f}",
            f"{row['flops'] / 1e9:.3g}",
            f"{row['nbytes'] / 1e6:.3g}",
            f"{row['rate'] / 1e9:.4g}",
            f"{row['rate'] / row['roof'].flops_per_second:.1%}",
            f"{row['rate'] / row['intensity'] / 1e9:.4g}",
            f"{row['rate'] / row['intensity'] / row['roof'].bytes_per_second:.1%}",
            f"{row['roof_share']:.1%}",
            row["bound"],
        )
        for row in rows
    ]
    print(text_table(heads, figures))
    if options.png:
        options.png.write_bytes(chart(rows).to_png())


if __name__ == "__main__":
    main()
