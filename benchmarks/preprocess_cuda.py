"""``preprocess`` on the GPU: NV12 to a 512x512 network input, against the same operations in PyTorch.

Every variant is checked against the NumPy reference before it is timed; inputs are random and rotate among enough
buffers to defeat the L2 cache; medians of CUDA events. Where CV-CUDA is installed (``cvcuda-cu13``), its chains are
timed, too. Prediction, at 4.28 TB/s of copy bandwidth: 8K NV12 is 50 MB read once, 12 us; 4K 3 us and 1080p 1 us, both
below a launch's own 3 to 5 us.

Usage: python benchmarks/preprocess_cuda.py [OUT.json]
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

import preprocess_cvcuda
from row_stamp import gpu_stamp, write_rows
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame
from vitascope.gpu.kernels.color import rgb_from_yuv
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region

SIZES = {"1080p": (1080, 1920), "4K": (2160, 3840), "8K": (4320, 7680)}
TARGET = (512, 512)
COLOR = ColorSpec(chroma_location="center")
FMT = PIXEL_FORMATS["nv12"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
REPEATS = 200


def random_frames(height: int, width: int) -> list[Frame]:
    """Enough random frames to overflow 60 MB of L2 twice."""
    count = max(2, int(120e6 / (height * width * 1.5)) + 1)
    random = cupy.random.default_rng(0)
    frames = []
    for index in range(count):
        luma = random.integers(16, 236, (height, width), dtype=cupy.uint8)
        chroma = random.integers(90, 166, (height // 2, width // 2, 2), dtype=cupy.uint8)
        frames.append(Frame((luma, chroma), FMT, COLOR, index, index, Fraction(1, 60)))
    return frames


def torch_operations(
    luma: torch.Tensor, chroma: torch.Tensor, constants: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    """Convert NV12 to RGB to 512x512 to normalised half, in framework code."""
    matrix, offset, mean, std = constants
    y = luma[None, None].float()
    uv = torch.nn.functional.interpolate(
        chroma.permute(2, 0, 1)[None].float(), scale_factor=2, mode="nearest"
    )
    yuv = torch.cat([y, uv], dim=1)
    rgb = torch.einsum("cp,nphw->nchw", matrix, yuv) + offset
    small = torch.nn.functional.interpolate(rgb.clamp(0, 1), TARGET, mode="bilinear", antialias=False)
    return ((small - mean) / std).half()


def microseconds(run: Any, count: int) -> dict[str, float]:
    """p20, p50 and p80 of single calls, from CUDA events."""
    for index in range(20):
        run(index % count)
    torch.cuda.synchronize()
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)
    ]
    # A long kernel first, so that the host runs ahead and launch overhead on the host is not what is timed.
    torch.cuda._sleep(50_000_000)
    for index, (start, stop) in enumerate(pairs):
        start.record()
        run(index % count)
        stop.record()
    torch.cuda.synchronize()
    times = [start.elapsed_time(stop) * 1e3 for start, stop in pairs]
    return {f"p{p}_us": round(float(np.percentile(times, p)), 2) for p in (20, 50, 80)}


def copy_bandwidth() -> float:
    """Device-to-device copy, bytes read and written, in TB/s: the ceiling of everything here."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda").random_()
    sink = torch.empty_like(source)
    return 2 * source.numel() / microseconds(lambda _: sink.copy_(source), 1)["p50_us"] / 1e6


def compare(size: tuple[int, int], constants: tuple[torch.Tensor, ...], bandwidth: float) -> dict[str, Any]:
    """Check our kernel, then time it and both peers on the same frames."""
    height, width = size
    frames = random_frames(height, width)
    options: dict[str, Any] = {
        "regions": [Region(0, 0, width, height)],
        "size": TARGET,
        "mean": MEAN,
        "std": STD,
    }
    first = frames[0]
    reference = preprocess(first.with_planes(tuple(plane.get() for plane in first.planes)), **options)
    out = cupy.empty((1, 3, *TARGET), cupy.float16)
    error = float(np.abs(preprocess(first, dtype="float16", out=out, **options).get() - reference).max())
    if error > 2e-2:
        raise SystemExit(f"{width}x{height}: the kernel is off by {error}")
    tensors = [tuple(torch.as_tensor(plane, device="cuda") for plane in frame.planes) for frame in frames]
    ours = microseconds(lambda n: preprocess(frames[n], dtype="float16", out=out, **options), len(frames))
    eager = microseconds(lambda n: torch_operations(*tensors[n], constants), len(frames))
    # Compiled for this size alone: a graph for all sizes is several times slower.
    torch._dynamo.reset()
    compiled = torch.compile(torch_operations, dynamic=False)
    inductor = microseconds(lambda n: compiled(*tensors[n], constants), len(frames))
    peer: dict[str, Any] = {}
    if preprocess_cvcuda.available():
        smooth = preprocess_cvcuda.smooth_planes(height, width)
        as_bt601 = replace(first.with_planes(smooth), color=replace(COLOR, matrix="bt601"))
        on_gpu = tuple(torch.as_tensor(plane, device="cuda") for plane in smooth)
        peer = preprocess_cvcuda.time_chains(
            preprocess_cvcuda.CvCudaChains([*tensors, on_gpu], TARGET, MEAN, STD),
            smooth=len(tensors),
            reference=preprocess(as_bt601, **options),
            measure=lambda chain: microseconds(chain, len(frames)),
        )
        peer |= {
            f"ratio_{name}": round(peer[name]["p50_us"] / ours["p50_us"], 2)
            for name in ("cvcuda_linear", "cvcuda_antialias")
        }
    moved = height * width * 1.5 + 3 * TARGET[0] * TARGET[1] * 2
    return {
        "vitascope": ours,
        "torch_eager": eager,
        "torch_compile": inductor,
        "ratio_eager": round(eager["p50_us"] / ours["p50_us"], 2),
        "ratio_compile": round(inductor["p50_us"] / ours["p50_us"], 2),
        "share_of_copy_bandwidth": round(moved / ours["p50_us"] / 1e6 / bandwidth, 3),
        "largest_error": round(error, 5),
        **peer,
    }


def main(target: Path | None) -> None:
    """Check, time, print, and write the rows."""
    stream = cupy.cuda.Stream.from_external(torch.cuda.current_stream())
    stream.use()
    matrix, offset = rgb_from_yuv(COLOR, FMT)
    constants = tuple(
        torch.tensor(np.asarray(value, np.float32), device="cuda").reshape(shape)
        for value, shape in (
            (matrix, (3, 3)),
            (offset, (1, 3, 1, 1)),
            (MEAN, (1, 3, 1, 1)),
            (STD, (1, 3, 1, 1)),
        )
    )
    machine = gpu_stamp()
    bandwidth = copy_bandwidth()
    rows: list[dict[str, Any]] = [{"claim": "copy", "tb_per_s": round(bandwidth, 3), **machine}]
    for name, size in SIZES.items():
        rows.append({"claim": f"preprocess {name}", **compare(size, constants, bandwidth), **machine})
    for row in rows:
        print(json.dumps(row))
    if target is not None:
        write_rows(target, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
