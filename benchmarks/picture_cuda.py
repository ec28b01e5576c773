"""Picture kernels on the GPU: RGB and back, shrinking, blurring, remapping, layouts, upload, fitting a background.

Every kernel is checked against its CPU reference before it is timed; inputs are random and rotate among enough
buffers to defeat the L2 cache; medians of CUDA events. Shares are relative to the device-to-device copy of
the same run: bytes that must be read and written once, divided by the time and by the copy's rate.

Usage: python benchmarks/picture_cuda.py [OUT.json] [CLAIM ...]; a claim is the first word of a row, all when omitted.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from preprocess_cuda import COLOR, SIZES, copy_bandwidth, microseconds, random_frames
from row_stamp import gpu_stamp, write_rows
from vitascope.frames import PIXEL_FORMATS, Frame
from vitascope.gpu.kernels.blur import blur_without
from vitascope.gpu.kernels.color import rgb_from_yuv, yuv_from_rgb
from vitascope.gpu.kernels.fit import fit_frame
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.remap import map_shape, remap
from vitascope.gpu.kernels.rgb import nv12_to_rgb, rgb_to_nv12
from vitascope.gpu.kernels.semi_planar import to_planar, to_semi_planar, upload
from vitascope.gpu.kernels.shrink import shrink_frame

Row = dict[str, Any]
ITEM_BYTES = {"uint8": 1, "float16": 2, "float32": 4}
L2_BYTES = 60e6


def p010_of(frame: Frame) -> Frame:
    """The same picture in 10 bits, with low bits of its own."""
    planes = tuple(
        (
            plane.astype(cupy.uint16) * 4
            + cupy.arange(plane.shape[1], dtype=cupy.uint16).reshape(-1, *(1,) * (plane.ndim - 2)) % 4
        )
        << 6
        for plane in frame.planes
    )
    return frame.with_planes(planes, format=PIXEL_FORMATS["p010le"])


def on_cpu(frame: Frame) -> Frame:
    """The frame in NumPy planes."""
    return replace(frame, planes=tuple(plane.get() for plane in frame.planes), ready=None)


def whole(frame: Frame) -> list[Region]:
    """One eye."""
    return [Region(0, 0, frame.width, frame.height)]


def require(claim: str, actual: Any, expected: Any, tolerance: float) -> float:
    """Return the largest difference; end the run if it is above the tolerance."""
    error = float(np.abs(actual.astype(np.float64) - expected).max())
    if error > tolerance:
        raise SystemExit(f"{claim}: off by {error}, more than {tolerance}")
    return round(error, 6)


def require_planes(claim: str, actual: Frame, expected: Frame, codes: int = 1) -> float:
    """As ``require``, in codes, for all planes."""
    word = 1 << expected.format.sample_shift
    return max(
        require(claim, made.get() / word, plane / word, codes)
        for made, plane in zip(actual.planes, expected.planes, strict=True)
    )


def timed(
    make: Callable[..., Any], arguments: list[tuple[Any, ...]], moved_bytes: float, bandwidth: float
) -> Row:
    """Median and spread over the sets of arguments, and the share of the copy's bandwidth."""
    times = microseconds(lambda n: make(*arguments[n]), len(arguments))
    return {**times, "share_of_copy_bandwidth": round(moved_bytes / times["p50_us"] / 1e6 / bandwidth, 3)}


def compiled_peer(operations: Callable[..., Any], arguments: list[tuple[Any, ...]], ours: Row) -> Row:
    """The same operations in PyTorch, eager and compiled for this size alone."""
    count = len(arguments)
    eager = microseconds(lambda n: operations(*arguments[n]), count)
    torch._dynamo.reset()
    inductor = torch.compile(operations, dynamic=False)
    compiled = microseconds(lambda n: inductor(*arguments[n]), count)
    return {
        "torch_eager_us": eager["p50_us"],
        "torch_compile_us": compiled["p50_us"],
        "ratio_eager": round(eager["p50_us"] / ours["p50_us"], 2),
        "ratio_compile": round(compiled["p50_us"] / ours["p50_us"], 2),
    }


def torch_to_rgb(
    luma: torch.Tensor, chroma: torch.Tensor, matrix: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """NV12 to uint8 [1, H, W, 3], centred chroma read bilinearly."""
    uv = torch.nn.functional.interpolate(
        chroma.permute(2, 0, 1)[None].float(), scale_factor=2, mode="bilinear"
    )
    y, (u, v) = luma.float(), uv[0]
    # Written out: an einsum with 3x3 becomes a matrix product, which is many times slower.
    channels = [matrix[c, 0] * y + matrix[c, 1] * u + matrix[c, 2] * v + offset[c] for c in range(3)]
    return (torch.stack(channels, dim=-1).clamp(0, 1) * 255).round().to(torch.uint8)[None]


def torch_from_rgb(
    rgb: torch.Tensor, matrix: torch.Tensor, offset: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Uint8 [1, H, W, 3] to NV12, centred chroma."""
    red, green, blue = (rgb[0].float() / 255).unbind(-1)
    y, u, v = (matrix[p, 0] * red + matrix[p, 1] * green + matrix[p, 2] * blue + offset[p] for p in range(3))
    chroma = torch.nn.functional.avg_pool2d(torch.stack([u, v])[None], 2)
    luma = y.round().clamp(0, 255).to(torch.uint8)
    return luma, chroma[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).contiguous()


def constants(affine: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrix and offset on the GPU."""
    matrix, offset = (torch.tensor(np.asarray(value, np.float32), device="cuda") for value in affine)
    return matrix, offset


def to_rgb_into(frame: Frame, out: Any, **options: Any) -> Any:
    """Call ``nv12_to_rgb`` with the output as a separate argument."""
    return nv12_to_rgb(frame, out=out, **options)


def rgb_rows(bandwidth: float) -> Iterator[Row]:
    """NV12 and P010 to RGB and back."""
    for name in ("4K", "8K"):
        height, width = SIZES[name]
        eight_bit = random_frames(height, width)
        for fmt, dtype, layout in (
            ("nv12", "uint8", "NHWC"),
            ("nv12", "float16", "NCHW"),
            ("nv12", "float32", "NHWC"),
            ("p010le", "float16", "NCHW"),
        ):
            frames = eight_bit if fmt == "nv12" else [p010_of(frame) for frame in eight_bit]
            claim = f"to_rgb {name} {fmt} to {dtype} {layout}"
            shape = (1, height, width, 3) if layout == "NHWC" else (1, 3, height, width)
            outs = [cupy.empty(shape, dtype) for _ in frames]
            options: Any = {"layout": layout, "dtype": dtype}
            made = nv12_to_rgb(frames[0], out=outs[0], **options).get()
            reference = nv12_to_rgb(on_cpu(frames[0]), **options)
            error = require(claim, made, reference, {"uint8": 1, "float16": 1e-3, "float32": 1e-5}[dtype])
            moved = frames[0].nbytes + height * width * 3 * ITEM_BYTES[dtype]
            row = timed(
                partial(to_rgb_into, **options), list(zip(frames, outs, strict=True)), moved, bandwidth
            )
            row |= {"claim": claim, "largest_error": error}
            if dtype == "uint8":
                matrix, offset = constants(rgb_from_yuv(COLOR, frames[0].format))
                peers = [
                    (*(torch.as_tensor(p, device="cuda") for p in f.planes), matrix, offset) for f in frames
                ]
                row |= compiled_peer(torch_to_rgb, peers, row)
            yield row
            pictures = [nv12_to_rgb(frame, **options) for frame in frames]
            claim = f"from_rgb {name} {dtype} {layout} to {fmt}"
            back: Any = {"color": COLOR, "like": frames[0], "format": fmt, "layout": layout}
            twin = rgb_to_nv12(pictures[0].get(), **back)
            error = require_planes(claim, rgb_to_nv12(pictures[0], **back), twin)
            row = timed(partial(rgb_to_nv12, **back), [(rgb,) for rgb in pictures], moved, bandwidth)
            row |= {"claim": claim, "largest_error": error}
            if dtype == "uint8":
                matrix, offset = constants(yuv_from_rgb(COLOR, frames[0].format))
                peers = [(torch.as_tensor(p, device="cuda"), matrix, offset) for p in pictures]
                row |= compiled_peer(torch_from_rgb, peers, row)
            yield row


def shrink_rows(bandwidth: float) -> Iterator[Row]:
    """Measure shrinking a video to the size of its mask."""
    for name, size in (("8K", (1152, 2048)), ("4K", (1152, 2048)), ("8K", (576, 1024))):
        for fmt in ("nv12", "p010le"):
            frames = random_frames(*SIZES[name])
            frames = frames if fmt == "nv12" else [p010_of(frame) for frame in frames]
            half = frames[0].width // 2
            eyes = [Region(0, 0, half, frames[0].height), Region(half, 0, half, frames[0].height)]
            for label, regions in (("mono", whole(frames[0])), ("side by side", eyes)):
                claim = f"shrink {name} {fmt} to {size[1]}x{size[0]} {label}"
                options: Any = {"regions": regions, "size": size}
                made = shrink_frame(frames[0], **options)
                error = require_planes(claim, made, shrink_frame(on_cpu(frames[0]), **options))
                moved = frames[0].nbytes + made.nbytes
                row = timed(
                    partial(shrink_frame, **options), [(frame,) for frame in frames], moved, bandwidth
                )
                yield {"claim": claim, "largest_error": error, **row}


def blurred(frame: Frame, weights: tuple[Any, ...], sigma: float) -> list[Any]:
    """Both planes, chroma half as far."""
    return [
        blur_without(plane, weight, sigma / part, sigma / part)
        for part, plane, weight in zip((1, 2), frame.planes, weights, strict=True)
    ]


def blur_rows(bandwidth: float) -> Iterator[Row]:
    """Luma and chroma of a frame, the default blur."""
    for name, (height, width) in SIZES.items():
        frames = random_frames(height, width)
        sigma = 24 * height / 1080
        weights = [(frame.planes[0] >> 1, frame.planes[1][..., 0] >> 1) for frame in frames]
        weights = [tuple(cupy.ascontiguousarray(part) for part in pair) for pair in weights]

        claim = f"blur {name} nv12"
        error = max(
            require(claim, made.get(), blur_without(plane.get(), weight.get(), sigma / part, sigma / part), 2)
            for made, part, plane, weight in zip(
                blurred(frames[0], weights[0], sigma), (1, 2), frames[0].planes, weights[0], strict=True
            )
        )
        moved = 2 * frames[0].nbytes + sum(weight.nbytes for weight in weights[0])
        yield {
            "claim": claim,
            "largest_error": error,
            **timed(
                blurred,
                [(frame, pair, sigma) for frame, pair in zip(frames, weights, strict=True)],
                moved,
                bandwidth,
            ),
        }


def remap_rows(bandwidth: float) -> Iterator[Row]:
    """A turn and a zoom, with maps of every sample and of every eighth; OpenCV on the host beside it."""
    for name in ("4K", "8K"):
        height, width = SIZES[name]
        frames = random_frames(height, width)
        for scale in (1, 8):
            shape = map_shape((height, width), scale)
            # Multiples of 1/16, which OpenCV's tables hold exactly in chroma too.
            y, x = np.mgrid[0 : shape[0], 0 : shape[1]].astype(np.float32) * scale
            places = (
                np.rint((0.75 * x + 0.25 * y + 40) * 16) / 16,
                np.rint((0.75 * y - 0.125 * x + 500) * 16) / 16,
            )
            maps = [tuple(cupy.asarray(place, cupy.float32) for place in places) for _ in frames]
            options: Any = {"map_scale": scale, "size": (height, width)}
            claim = f"remap {name} nv12, a map sample for {scale}"
            host = on_cpu(frames[0])
            host_maps = [place.get() for place in maps[0]]
            began = time.perf_counter()
            expected = remap(host, *host_maps, **options)
            cpu_ms = (time.perf_counter() - began) * 1e3
            # Between map samples places are finer than OpenCV's tables: a 64th of neighbours' difference on noise.
            error = require_planes(
                claim, remap(frames[0], *maps[0], **options), expected, 1 if scale == 1 else 9
            )
            moved = 2 * frames[0].nbytes + 2 * maps[0][0].nbytes
            row = timed(
                partial(remap, **options),
                [(frame, *places) for frame, places in zip(frames, maps, strict=True)],
                moved,
                bandwidth,
            )
            yield {"claim": claim, "largest_error": error, **row, "opencv_host_ms": round(cpu_ms, 1)}


def layout_rows(bandwidth: float) -> Iterator[Row]:
    """Three planes and two, and the way up."""
    for fmt in ("nv12", "p010le"):
        frames = random_frames(*SIZES["8K"])
        frames = frames if fmt == "nv12" else [p010_of(frame) for frame in frames]
        planar = [to_planar(frame) for frame in frames]
        chroma_bytes = 2 * frames[0].planes[1].nbytes
        moved = chroma_bytes if fmt == "nv12" else 2 * frames[0].nbytes
        for claim, make, pictures in (
            ("to_planar", to_planar, frames),
            ("to_semi_planar", to_semi_planar, planar),
        ):
            error = require_planes(claim, make(pictures[0]), make(on_cpu(pictures[0])), 0)
            row = timed(make, [(frame,) for frame in pictures], moved, bandwidth)
            yield {"claim": f"layout 8K {claim} {fmt}", "largest_error": error, **row}
        for host in (on_cpu(frames[0]), on_cpu(planar[0])):
            claim = f"upload 8K {host.format.name}"
            require_planes(claim, upload(host), to_semi_planar(host), 0)
            cupy.cuda.Device().synchronize()
            began = time.perf_counter()
            for _ in range(20):
                upload(host)
            returned = (time.perf_counter() - began) / 20 * 1e3
            cupy.cuda.Device().synchronize()
            done = (time.perf_counter() - began) / 20 * 1e3
            began = time.perf_counter()
            for _ in range(5):
                pageable = [cupy.asarray(plane) for plane in host.planes]
            cupy.cuda.Device().synchronize()
            plain = (time.perf_counter() - began) / 5 * 1e3
            del pageable
            yield {
                "claim": claim,
                "host_ms": round(returned, 3),
                "frame_ms": round(done, 3),
                "pageable_copy_ms": round(plain, 3),
            }


def fit_rows(_: float) -> Iterator[Row]:
    """Measure a 1080p background behind videos: the host's share of a frame, and the total."""
    picture = to_planar(on_cpu(random_frames(*SIZES["1080p"])[0]))
    for name, size in SIZES.items():
        like = random_frames(*size)[0]
        host = on_cpu(like)
        for label, target in (("cpu", host), ("gpu", like)):
            fit_frame(picture, like=target, regions=whole(target))
            cupy.cuda.Device().synchronize()
            began = time.perf_counter()
            for _repeat in range(5):
                fit_frame(picture, like=target, regions=whole(target))
            cupy.cuda.Device().synchronize()
            yield {
                "claim": f"fit 1080p to {name} {label}",
                "ms": round((time.perf_counter() - began) / 5 * 1e3, 3),
            }


def leak_rows(_: float) -> Iterator[Row]:
    """Launch everything in turn 20,000 times; measure the growth of device and host memory."""
    frame = random_frames(270, 480)[0]
    host = to_planar(on_cpu(frame))
    weights = (
        cupy.ascontiguousarray(frame.planes[0] >> 1),
        cupy.ascontiguousarray(frame.planes[1][..., 0] >> 1),
    )
    rgb = nv12_to_rgb(frame)
    x, y = cupy.meshgrid(cupy.arange(480, dtype=cupy.float32), cupy.arange(270, dtype=cupy.float32))

    def work() -> int:
        nv12_to_rgb(frame)
        rgb_to_nv12(rgb, color=COLOR, like=frame)
        shrink_frame(frame, regions=whole(frame), size=(72, 128))
        blurred(frame, weights, 12.0)
        remap(frame, x, y)
        to_semi_planar(to_planar(frame))
        upload(host)
        return 13  # two planes of blur are four kernels, of remap two, and upload interleaves

    for _round in range(50):
        work()
    cupy.cuda.Device().synchronize()
    pool = cupy.get_default_memory_pool()
    before = (cupy.cuda.runtime.memGetInfo()[0], pool.total_bytes(), resident_bytes())
    launches = 0
    while launches < 20_000:
        launches += work()
    cupy.cuda.Device().synchronize()
    after = (cupy.cuda.runtime.memGetInfo()[0], pool.total_bytes(), resident_bytes())
    yield {
        "claim": "leak",
        "launches": launches,
        "device_growth_bytes": before[0] - after[0],
        "pool_growth_bytes": after[1] - before[1],
        "host_growth_bytes": after[2] - before[2],
    }


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()


CLAIMS = {
    "rgb": rgb_rows,
    "shrink": shrink_rows,
    "blur": blur_rows,
    "remap": remap_rows,
    "layout": layout_rows,
    "fit": fit_rows,
    "leak": leak_rows,
}


def main(target: Path | None, wanted: list[str]) -> None:
    """Check, time, print, and write the rows."""
    stream = cupy.cuda.Stream.from_external(torch.cuda.current_stream())
    stream.use()
    machine = gpu_stamp()
    bandwidth = copy_bandwidth()
    rows: list[Row] = [{"claim": "copy", "tb_per_s": round(bandwidth, 3), **machine}]
    for name, measure in CLAIMS.items():
        if wanted and name not in wanted:
            continue
        for row in measure(bandwidth):
            print(json.dumps(row), flush=True)
            rows.append({**row, **machine})
    if target is not None:
        write_rows(target, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, sys.argv[2:])
