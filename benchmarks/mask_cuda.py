"""Mask post-processing and the small tensor kernels on the GPU, against the same operations in PyTorch.

Every operation is checked against its reference before it is timed; inputs are random and rotate among enough buffers
to defeat the L2 cache; times are medians of CUDA events with the host far ahead, and ``host_us`` is what a call costs
the host. ``share_of_copy_bandwidth`` counts the bytes that must be read and written once.

Predictions at 4.28 TB/s: 8K smoothing of an 8-bit matte moves 365 MB, 85 us; normalising 64 x 512 x 512 x 3 bytes to
half moves 151 MB, 35 us.

Usage: python benchmarks/mask_cuda.py [OUT.json]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from mask_cuda_peers import TorchSmoother, torch_box, torch_disc, torch_edges, torch_gaussian
from row_stamp import gpu_stamp, write_rows
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame
from vitascope.gpu.kernels.batch_normalize import batch_normalize
from vitascope.gpu.kernels.edges import EdgeOptions, adjust_edges
from vitascope.gpu.kernels.mask_postprocess import postprocess_mask
from vitascope.gpu.kernels.morphology import dilate_box, dilate_disc
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.steady import AlphaSmoother

SIZES = {"1080p": (1080, 1920), "4K": (2160, 3840), "8K": (4320, 7680)}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
REPEATS = 25
L2_BYTES = 60e6

Run = Callable[[int], Any]
"""One call on the input of that number."""
Row = dict[str, Any]


def times(run: Run, count: int) -> Row:
    """p20, p50 and p80 of a call on the GPU, and the host's median, in microseconds."""
    for index in range(5):
        run(index % count)
    torch.cuda.synchronize()
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(REPEATS)
    ]
    host = []
    # A long kernel first, so that the host runs ahead and launch overhead on the host is not what is timed.
    torch.cuda._sleep(50_000_000)
    for index, (start, stop) in enumerate(pairs):
        start.record()
        began = time.perf_counter()
        run(index % count)
        host.append((time.perf_counter() - began) * 1e6)
        stop.record()
    torch.cuda.synchronize()
    gpu = [start.elapsed_time(stop) * 1e3 for start, stop in pairs]
    percentiles = {f"p{p}_us": round(float(np.percentile(gpu, p)), 2) for p in (20, 50, 80)}
    return {**percentiles, "host_us": round(float(np.median(host)), 1)}


def copy_bandwidth() -> float:
    """Device-to-device copy, bytes read and written, in TB/s: the ceiling of everything here."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda").random_()
    sink = torch.empty_like(source)
    return 2 * source.numel() / times(lambda _: sink.copy_(source), 1)["p50_us"] / 1e6


def compare(
    claim: str, count: int, ours: Run, peers: dict[str, Run], *, moved: float, bandwidth: float
) -> Row:
    """Time our operation and its peers on the same ``count`` inputs."""
    row: Row = {"claim": claim, "vitascope": times(ours, count)}
    for name, peer in peers.items():
        row[name] = times(peer, count)
        row[f"ratio_{name}"] = round(row[name]["p50_us"] / row["vitascope"]["p50_us"], 2)
    row["share_of_copy_bandwidth"] = round(moved / row["vitascope"]["p50_us"] / 1e6 / bandwidth, 3)
    return row


def check(claim: str, actual: Any, expected: Any, tolerance: float) -> None:
    """Stop when a result is off."""
    error = float(np.abs(np.asarray(actual, np.float64) - np.asarray(expected, np.float64)).max())
    if not error <= tolerance:
        raise SystemExit(f"{claim}: off by {error}, at most {tolerance} allowed")


def buffers(nbytes: int) -> int:
    """How many inputs of this size overflow the L2 cache twice."""
    return max(2, int(2 * L2_BYTES / nbytes) + 1)


def mattes(size: tuple[int, int], count: int) -> list[Any]:
    """Mostly empty or full, with noise, as cheap to make as it is to read."""
    random = cupy.random.default_rng(0)
    planes = random.integers(0, 256, (count, *size), dtype=cupy.uint8)
    return list(cupy.where(planes < 250, (planes > 125) * cupy.uint8(255), planes))


def as_tensor(array: Any) -> torch.Tensor:
    """The same memory."""
    return torch.from_dlpack(array)


def plane_rows(name: str, size: tuple[int, int], bandwidth: float) -> Iterator[Row]:
    """What is done to alpha planes of a frame's size."""
    height, width = size
    pixels = height * width
    count = buffers(pixels)
    planes = mattes(size, count)
    tensors = [as_tensor(plane) for plane in planes]
    first = planes[0].get()
    for radius in (3, 16, 64):
        check("box", dilate_box(planes[0], radius).get(), dilate_box(first, radius), 0)
        yield compare(
            f"dilate_box {name} r={radius}",
            count,
            lambda n, r=radius: dilate_box(planes[n], r),
            {"torch_eager": lambda n, r=radius: torch_box(tensors[n], r)},
            moved=2 * pixels,
            bandwidth=bandwidth,
        )
    for radius in (2, 5, 16):
        check(
            "disc",
            dilate_disc(planes[0][:512, :512], radius).get(),
            dilate_disc(first[:512, :512], radius),
            0,
        )
        yield compare(
            f"dilate_disc {name} r={radius}",
            count,
            lambda n, r=radius: dilate_disc(planes[n], r),
            {"torch_eager": lambda n, r=radius: torch_disc(tensors[n], r)},
            moved=2 * pixels,
            bandwidth=bandwidth,
        )
    options = EdgeOptions(threshold=(0.1, 0.9), grow_px=2, feather_px=2)
    regions = [Region(0, 0, width, height)]
    check("edges", adjust_edges(planes[0], options, regions=regions).get(),
          adjust_edges(first, options, regions=regions), 1)  # fmt: skip
    yield compare(
        f"adjust_edges {name} threshold, grow 2, feather 2",
        count,
        lambda n: adjust_edges(planes[n], options, regions=regions),
        {"torch_eager": lambda n: torch_edges(tensors[n])},
        moved=2 * pixels,
        bandwidth=bandwidth,
    )
    yield smoothing_row(name, planes, bandwidth)


def smoothing_row(name: str, planes: list[Any], bandwidth: float) -> Row:
    """``AlphaSmoother`` on NV12."""
    height, width = planes[0].shape
    chroma = cupy.full((height // 2, width // 2, 2), 128, cupy.uint8)
    frames = [
        Frame((plane[::-1].copy(), chroma), PIXEL_FORMATS["nv12"], ColorSpec(), n, n, Fraction(1, 60))
        for n, plane in enumerate(planes)
    ]
    on_gpu, on_cpu = AlphaSmoother(0.8), AlphaSmoother(0.8)
    for frame, plane in zip(frames[:2], planes, strict=False):
        host = frame.with_planes(tuple(part.get() for part in frame.planes))
        check("steady", on_gpu.smooth(frame, plane).get(), on_cpu.smooth(host, plane.get()), 1)
    peer = TorchSmoother(0.8)
    lumas = [as_tensor(frame.planes[0]) for frame in frames]
    tensors = [as_tensor(plane) for plane in planes]
    return compare(
        f"AlphaSmoother {name}",
        len(planes),
        lambda n: on_gpu.smooth(frames[n], planes[n]),
        {"torch_eager": lambda n: peer.smooth(lumas[n], tensors[n])},
        # Luma, alpha and result a byte each; 2 + 2 bytes of state, read and written.
        moved=height * width * 11,
        bandwidth=bandwidth,
    )


def mask_rows(bandwidth: float) -> Iterator[Row]:
    """Scores of a 21-class network at 512 x 512."""
    for pictures in (1, 8):
        shape = (pictures, 21, 512, 512)
        count = buffers(int(np.prod(shape)) * 2)
        random = cupy.random.default_rng(0)
        scores = [
            random.standard_normal(shape, dtype=cupy.float32).astype(cupy.float16) for _ in range(count)
        ]
        tensors = [as_tensor(one) for one in scores]
        moved = scores[0].nbytes + pictures * 512 * 512
        soft = {"class_index": 15, "smoothing_sigma": 2.0}
        for options in ({}, soft):
            check(
                "mask",
                postprocess_mask(scores[0], **options).get(),
                postprocess_mask(scores[0].get(), **options),
                0,
            )

        def torch_mask(n: int, tensors: list[torch.Tensor] = tensors) -> torch.Tensor:
            shown = (tensors[n].argmax(dim=1, keepdim=True) == 15).float() * 255
            return torch_gaussian(shown, 2.0, 6).round()[:, 0].to(torch.uint8)

        yield compare(
            f"postprocess_mask {pictures} x 21 x 512 x 512, argmax",
            count,
            lambda n, scores=scores: postprocess_mask(scores[n]),
            {"torch_eager": lambda n, tensors=tensors: tensors[n].argmax(dim=1).to(torch.uint8)},
            moved=moved,
            bandwidth=bandwidth,
        )
        yield compare(
            f"postprocess_mask {pictures} x 21 x 512 x 512, class 15, sigma 2",
            count,
            lambda n, scores=scores, soft=soft: postprocess_mask(scores[n], **soft),
            {"torch_eager": torch_mask},
            moved=moved,
            bandwidth=bandwidth,
        )


def normalize_rows(bandwidth: float) -> Iterator[Row]:
    """Decoded pictures to a network's input."""
    mean, std = (torch.tensor(value, device="cuda").reshape(1, 3, 1, 1) for value in (MEAN, STD))

    def operations(images: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return ((images.permute(0, 3, 1, 2).float() / 255 - mean) / std).to(dtype).contiguous()

    for shape in ((8, 512, 512, 3), (64, 512, 512, 3), (16, 1080, 1920, 3), (8, 2160, 3840, 3)):
        nbytes = int(np.prod(shape))
        count = buffers(nbytes)
        random = cupy.random.default_rng(0)
        images = [random.integers(0, 256, shape, dtype=cupy.uint8) for _ in range(count)]
        tensors = [as_tensor(one) for one in images]
        for dtype in ("float16", "float32"):
            out = cupy.empty((shape[0], 3, *shape[1:3]), dtype)
            options = {"mean": MEAN, "std": STD, "dtype": dtype}
            reference = batch_normalize(images[0][:1].get(), **options)
            check("normalize", batch_normalize(images[0], out=out, **options)[:1].get(), reference, 2e-3)
            torch._dynamo.reset()
            compiled = torch.compile(operations, dynamic=False)
            kind = getattr(torch, dtype)
            yield compare(
                f"batch_normalize {' x '.join(map(str, shape))} uint8 to {dtype}",
                count,
                lambda n, images=images, out=out, options=options: batch_normalize(
                    images[n], out=out, **options
                ),
                {
                    "torch_eager": lambda n, tensors=tensors, kind=kind: operations(tensors[n], kind),
                    "torch_compile": lambda n, tensors=tensors, kind=kind, compiled=compiled: compiled(
                        tensors[n], kind
                    ),
                },
                moved=nbytes * (1 + np.dtype(dtype).itemsize),
                bandwidth=bandwidth,
            )


def layout_rows(bandwidth: float) -> Iterator[Row]:
    """The other layouts of ``batch_normalize``, which PyTorch is not asked for."""
    random = cupy.random.default_rng(0)
    images = [random.integers(0, 256, (64, 512, 512, 3), dtype=cupy.uint8) for _ in range(3)]
    planar = [cupy.ascontiguousarray(cupy.moveaxis(one, -1, 1)) for one in images]
    for layout_in, layout_out in (("NCHW", "NCHW"), ("NCHW", "NHWC"), ("NHWC", "NHWC")):
        inputs = planar if layout_in == "NCHW" else images
        options = {
            "mean": MEAN,
            "std": STD,
            "layout_in": layout_in,
            "layout_out": layout_out,
            "dtype": "float16",
        }
        out = batch_normalize(inputs[0], **options)
        check("layouts", out[:1].get(), batch_normalize(inputs[0][:1].get(), **options), 2e-3)
        yield compare(
            f"batch_normalize 64 x 512 x 512 x 3 uint8 to float16, {layout_in} to {layout_out}",
            3,
            lambda n, inputs=inputs, out=out, options=options: batch_normalize(inputs[n], out=out, **options),
            {},
            moved=images[0].nbytes * 3,
            bandwidth=bandwidth,
        )


def main(target: Path | None) -> None:
    """Check, time, print, and write the rows."""
    stream = cupy.cuda.Stream.from_external(torch.cuda.current_stream())
    stream.use()
    machine = gpu_stamp()
    bandwidth = copy_bandwidth()
    rows: list[Row] = [{"claim": "copy", "tb_per_s": round(bandwidth, 3)}]
    for make in (normalize_rows, layout_rows, mask_rows):
        rows += make(bandwidth)
    for name, size in SIZES.items():
        rows += plane_rows(name, size, bandwidth)
    rows = [{**row, **machine} for row in rows]
    for row in rows:
        ours, eager = row.get("vitascope"), row.get("torch_eager", {})
        if ours:
            print(
                f"{row['claim']:60} {ours['p50_us']:9.1f} us (host {ours['host_us']:5.1f})"
                f"  bandwidth {row['share_of_copy_bandwidth']:5.0%}  eager {eager.get('p50_us', '-'):>9}"
                f"  x{row.get('ratio_torch_eager', '-')}  compile x{row.get('ratio_torch_compile', '-')}"
            )
        else:
            print(f"{row['claim']:60} {row['tb_per_s']} TB/s")
    if target is not None:
        write_rows(target, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
