"""``render`` on the GPU: a frame and small coefficients to a finished picture, against copy bandwidth and PyTorch.

Every variant is checked against the NumPy reference before it is timed; inputs are random and rotate, like the results,
among enough buffers to defeat the L2 cache; medians of CUDA events. ``worst`` has partial alpha everywhere (random
coefficients); ``person`` is a matte that covers a fifth of the picture; the kernel does not read the parts
that can only be background, so only the bytes that it moves count. Prediction for 8K NV12 on one colour: 100
MB, 23 us at 4.28 TB/s; some 25 instructions a sample, 26 us at 132 x 4 a clock and 1.98 GHz.

Usage: python benchmarks/composite_cuda.py [OUT.json]
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from row_stamp import gpu_stamp, write_rows
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame
from vitascope.gpu.kernels import composite_launch as composite_cuda
from vitascope.gpu.kernels.color import color_codes, grey_bounds, rgb_from_yuv
from vitascope.gpu.kernels.composite import render
from vitascope.gpu.kernels.composite_launch import MatteOnly, OnColor, OnFrame
from vitascope.gpu.kernels.cuda_module import multiprocessors
from vitascope.gpu.kernels.region import Region

SIZES = {"1080p": (1080, 1920), "4K": (2160, 3840), "8K": (4320, 7680)}
CELLS = {"1080p": [(288, 512)], "4K": [(288, 512)], "8K": [(288, 512), (432, 768)]}
COLOR = ColorSpec(chroma_location="left")
KEY = (0, 177, 64)
REPEATS = 200
TILE_WIDTH = 248
"""Columns that a warp of the kernel paints; 256 for a mask, a negligible difference."""


def random_frames(height: int, width: int, name: str) -> list[Frame]:
    """Enough random frames of legal codes to overflow 60 MB of L2 twice."""
    fmt = PIXEL_FORMATS[name]
    count = max(3, int(120e6 / (height * width * 1.5 * fmt.dtype.itemsize)) + 1)
    random = cupy.random.default_rng(0)
    unit = 1 << (fmt.bit_depth - 8)

    def plane(low: int, high: int, *shape: int) -> Any:
        return random.integers(low * unit, high * unit, shape).astype(fmt.dtype) << fmt.sample_shift

    return [
        Frame(
            (plane(16, 236, height, width), plane(16, 241, height // 2, width // 2, 2)),
            fmt,
            COLOR,
            index,
            index,
            Fraction(1, 60),
        )
        for index in range(count)
    ]


def coefficients(kind: str, size: tuple[int, int]) -> tuple[Any, Any]:
    """Make gain and offset, float16 [1, 1, h, w]: partial alpha everywhere, or a person in the middle."""
    random = np.random.default_rng(1)
    height, width = size
    if kind == "worst":
        gain, offset = random.uniform(-0.6, 0.6, size), random.uniform(0.4, 0.6, size)
    else:
        y, x = np.mgrid[0:height, 0:width]
        # An ellipse over a fifth of the picture, its rim four cells wide.
        distance = np.hypot((x - width / 2) / (0.17 * width), (y - height * 0.55) / (0.37 * height))
        offset = np.clip((1 - distance) * 0.25 * height / 4 + 0.5, -0.02, 1.02)
        gain = np.where((offset > 0) & (offset < 1), 0.3, 0.0)
        offset = offset - 0.5 * gain
    return tuple(cupy.asarray(plane[None, None], cupy.float16) for plane in (gain, offset))


def shares_read(frame: Frame, gain: Any, offset: Any) -> tuple[float, float]:
    """Shares of picture and background that strips read, without strips of all background or all person."""
    darkest, brightest = grey_bounds(frame.color, frame.format)
    slope, bias = (plane[0, 0].get().astype(np.float32) for plane in (gain, offset))
    peak = 255 if frame.format.bit_depth == 8 else 65535
    visible = (np.maximum(slope * darkest, slope * brightest) + bias) * peak >= 0.5
    clear = (np.minimum(slope * darkest, slope * brightest) + bias) * peak < peak - 0.5
    region = Region(0, 0, frame.width, frame.height)
    processors = multiprocessors()
    rows = composite_cuda._strip_rows((region,), TILE_WIDTH, processors, decontaminates=False)
    read, behind = 0, 0
    for top in range(0, frame.height, rows):
        for left in range(0, frame.width, TILE_WIDTH):
            bottom, right = min(top + rows, frame.height), min(left + TILE_WIDTH, frame.width)
            cells = (
                span(top - 1, bottom - 1, visible.shape[0], frame.height),
                span(left - 8, right - 1, visible.shape[1], frame.width),
            )
            samples = (bottom - top) * (right - left)
            read += samples if visible[cells].any() else 0
            behind += samples if clear[cells].any() else 0
    return read / (frame.height * frame.width), behind / (frame.height * frame.width)


def span(first: int, last: int, cells: int, samples: int) -> slice:
    """The cells that samples ``first`` to ``last`` are interpolated between."""
    begin, end = ((max(sample, 0) + 0.5) * cells / samples - 0.5 for sample in (first, last))
    return slice(max(math.floor(begin), 0), min(math.floor(end) + 2, cells))


def torch_operations(luma: Any, chroma: Any, gain: Any, offset: Any, constants: tuple[Any, ...]) -> Any:
    """Make the same picture in framework code: everything at full resolution, in half floats."""
    weights, bias, codes = constants
    size = luma.shape
    pair = chroma.permute(2, 0, 1)[None].half()
    full = torch.nn.functional.interpolate(pair, size=size, mode="bilinear")
    grey = luma.half() * weights[0] + full[0, 0] * weights[1] + full[0, 1] * weights[2] + bias
    steep, shift = (
        torch.nn.functional.interpolate(plane, size=size, mode="bilinear")[0, 0] for plane in (gain, offset)
    )
    alpha = (steep * grey + shift).clamp(0, 1)
    keyed = (codes[0] + (luma.half() - codes[0]) * alpha).round().to(torch.uint8)
    weight = torch.nn.functional.avg_pool2d(alpha[None, None], 2)[0, 0, ..., None]
    behind = codes[1:]
    return keyed, (behind + (chroma.half() - behind) * weight).round().to(torch.uint8)


def microseconds(run: Any, count: int) -> dict[str, float]:
    """p20, p50 and p80 of single calls, from CUDA events."""
    for index in range(20):
        run(index % count)
    torch.cuda.synchronize()
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)
    ]
    # A long kernel first, so that the host runs ahead and launch overhead on the host is not what is timed.
    torch.cuda._sleep(150_000_000)
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


def on_cpu(frame: Frame) -> Frame:
    """The same frame in NumPy planes."""
    return frame.with_planes(tuple(plane.get() for plane in frame.planes))


def check(frame: Frame, gain: Any, offset: Any, paint: Any) -> float:
    """The share of samples that differ from the reference by a code; none may differ by more than alpha's last bit."""
    regions = [Region(0, 0, frame.width, frame.height)]
    made = render(frame, regions=regions, gain=gain, offset=offset, paint=paint)
    small = (gain.get().astype(np.float32), offset.get().astype(np.float32))
    host_paint = OnFrame(on_cpu(paint.background)) if isinstance(paint, OnFrame) else paint
    expected = render(on_cpu(frame), regions=regions, gain=small[0], offset=small[1], paint=host_paint)
    step = 1 << made.format.sample_shift
    differing = 0.0
    for actual, wanted in zip(made.planes, expected.planes, strict=True):
        error = np.abs(actual.get().astype(np.int32) - wanted) / step
        # Alpha itself may round to the other side of a tie, which moves a sample by one code more.
        if error.max() > 2 or (error > 1).mean() > 1e-4:
            raise SystemExit(f"{frame!r} {paint}: the kernel is off by {error.max()} codes")
        differing = max(differing, float((error > 0).mean()))
    return differing


def measure(
    name: str, fmt: str, kind: str, matte: str, cells: tuple[int, int], bandwidth: float
) -> dict[str, Any]:
    """Check one variant, then time it."""
    height, width = SIZES[name]
    frames = random_frames(height, width, fmt)
    gain, offset = coefficients(matte, cells)
    paints: dict[str, Any] = {
        "key": OnColor(KEY),
        "replace": OnFrame(frames[-1]),
        "mask": MatteOnly(full_range=False),
    }
    paint = paints[kind]
    differing = check(frames[0], gain, offset, paint)
    kept: list[Any] = [None] * len(frames)
    options = {"regions": [Region(0, 0, width, height)], "gain": gain, "offset": offset, "paint": paint}

    def run(n: int) -> None:
        kept[n] = render(frames[n], **options)

    ours = microseconds(run, len(frames) - (kind == "replace"))
    picture = height * width * 1.5 * frames[0].format.dtype.itemsize
    read, behind = shares_read(frames[0], gain, offset)
    moved = picture * (1 + read + (behind if kind == "replace" else 0))
    return {
        "claim": f"composite {name} {fmt} {kind} {matte} {cells[1]}x{cells[0]}",
        "vitascope": ours,
        "megabytes_moved": round(moved / 1e6, 2),
        "share_of_copy_bandwidth": round(moved / ours["p50_us"] / 1e6 / bandwidth, 3),
        "share_that_differs_by_a_code": round(differing, 5),
    }


def peers(name: str, cells: tuple[int, int]) -> dict[str, Any]:
    """Times of framework code for NV12 on one colour."""
    height, width = SIZES[name]
    frames = random_frames(height, width, "nv12")
    gain, offset = (torch.as_tensor(plane, device="cuda") for plane in coefficients("worst", cells))
    matrix, shift = rgb_from_yuv(COLOR, frames[0].format)
    constants = (
        torch.tensor(matrix.mean(axis=0), device="cuda", dtype=torch.float16),
        float(shift.mean()),
        torch.tensor(color_codes(KEY, COLOR, frames[0].format), device="cuda", dtype=torch.float16),
    )
    tensors = [tuple(torch.as_tensor(plane, device="cuda") for plane in frame.planes) for frame in frames]
    kept: list[Any] = [None] * len(frames)

    def run(n: int, operations: Any) -> None:
        kept[n] = operations(*tensors[n], gain, offset, constants)

    eager = microseconds(lambda n: run(n, torch_operations), len(frames))
    # Compiled for this size alone: a graph for all sizes is several times slower.
    torch._dynamo.reset()
    compiled = torch.compile(torch_operations, dynamic=False)
    return {"torch_eager": eager, "torch_compile": microseconds(lambda n: run(n, compiled), len(frames))}


def main(target: Path | None) -> None:
    """Check, time, print, and write the rows."""
    stream = cupy.cuda.Stream.from_external(torch.cuda.current_stream())
    stream.use()
    machine = gpu_stamp()
    bandwidth = copy_bandwidth()
    rows: list[dict[str, Any]] = [{"claim": "copy", "tb_per_s": round(bandwidth, 3), **machine}]
    for name, all_cells in CELLS.items():
        for cells in all_cells:
            for matte in ("worst", "person"):
                for fmt, kind in (("nv12", "key"), ("nv12", "replace"), ("nv12", "mask"), ("p010le", "key")):
                    row = measure(name, fmt, kind, matte, cells, bandwidth)
                    rows.append({**row, **machine})
                    print(row["claim"], row["vitascope"], row["share_of_copy_bandwidth"], flush=True)
        framework = peers(name, all_cells[0])
        ours = next(r for r in rows if r["claim"].startswith(f"composite {name} nv12 key worst"))["vitascope"]
        ratios = {
            f"ratio_{key}": round(value["p50_us"] / ours["p50_us"], 2) for key, value in framework.items()
        }
        rows.append(
            {
                "claim": f"composite {name} against PyTorch",
                "vitascope": ours,
                **framework,
                **ratios,
                **machine,
            }
        )
        print(rows[-1]["claim"], framework, ratios, flush=True)
    if target is not None:
        write_rows(target, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
