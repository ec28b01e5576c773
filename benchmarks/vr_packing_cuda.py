"""Packed alpha and fisheye views on a GPU: kernel time of a frame of VR180 at 8192x4096.

``packed alpha`` is ``AlphaPacker.pack``: the frame as two fisheye eyes, the matte as two discs, painted. ``views`` is
what mattes of equirectangular eyes cost beside the network: its fisheye pictures, and its coefficients back, of four
frames together, as runs make them; a row says what one of them takes. On the GPU's clock: calls one behind the other,
on pictures larger than the L2 cache, and their kernels alone, as a CUDA graph.
First the packed picture is unpacked and its matte compared with the one that went in.

Prediction for one H200: one eye's maps, which serve both, are 134 MB of float32, 0.04 ms; samples 100 MB, 0.03 ms; the
discs 0.05 ms. The rows: 0.26 ms at 8 bits and 0.27 at 10; with the views there and back in FP16 0.29 and 0.30.

Usage: python benchmarks/vr_packing_cuda.py [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from row_stamp import gpu_stamp, write_rows
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, StereoLayout
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.vr.packing import AlphaPacker, unpack_discs
from vitascope.vr.projection import Equirectangular
from vitascope.vr.stereo import eye_regions

SIZE = (4096, 8192)
NETWORK = (768, 768)
TOGETHER = 4
RUNS = 50


def recorded(call: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    """The call as a CUDA graph: its kernels one behind the other; and what they write into."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(3):
            call()
        stream.synchronize()
        stream.begin_capture()
        kept = call()
        graph = stream.end_capture()
    return graph.launch, (kept, stream)


def milliseconds(call: Callable[[], Any]) -> list[float]:
    """Each of the calls on the GPU's clock."""
    for _ in range(3):
        call()
    events = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(RUNS)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    cupy.cuda.runtime.deviceSynchronize()
    return [cupy.cuda.get_elapsed_time(begin, end) for begin, end in events]


def picture(name: str, size: tuple[int, int]) -> Frame:
    """Random codes on the GPU."""
    fmt = PIXEL_FORMATS[name]
    height, width = size
    rng = np.random.default_rng(0)
    planes = tuple(
        cupy.asarray((rng.integers(0, 1 << fmt.bit_depth, shape) << fmt.sample_shift).astype(fmt.dtype))
        for shape in ((height, width), (height // 2, width // 2, 2))
    )
    return Frame(planes, fmt, ColorSpec("bt709"), 0, 0, Fraction(1, 30))


def row(claim: str, call: Callable[[], Any], *, frames: int = 1, **more: Any) -> dict[str, Any]:
    """A row of times of a frame: of calls about so many, and of their kernels alone."""
    ordered = sorted(whole / frames for whole in milliseconds(call))
    replay, kept = recorded(call)
    kernels = statistics.median(milliseconds(replay)) / frames
    del kept
    return {
        "claim": claim,
        "kernels_ms_p50": round(kernels, 4),
        "ms_p50": round(statistics.median(ordered), 4),
        "ms_p95": round(ordered[int(0.95 * len(ordered))], 4),
        "ms_p99": round(ordered[-1], 4),
        **more,
        **gpu_stamp(),
    }


def main() -> None:
    """Check, time, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?")
    options = parser.parse_args()
    rows = []
    lens = Equirectangular()
    for name in ("nv12", "p010le"):
        frame = picture(name, SIZE)
        dtype = np.uint8 if name == "nv12" else np.uint16
        peak = np.iinfo(dtype).max
        y, x = cupy.mgrid[0 : SIZE[0], 0 : SIZE[1]]
        alpha = (peak * (0.5 + 0.5 * cupy.cos(x / 300) * cupy.sin(y / 200))).astype(dtype)
        packer = AlphaPacker(eye_regions(SIZE[1], SIZE[0], StereoLayout.SIDE_BY_SIDE), [lens] * 2)
        packed = packer.pack(frame, alpha)
        found = unpack_discs(packed.with_planes(tuple(plane.get() for plane in packed.planes)))
        wanted = packer.tiles(alpha).get()
        inside = found > 0
        error = float(np.abs(found - wanted)[inside].mean() * 255)
        assert error < 2, error
        rows.append(
            row(
                f"packed alpha {name} 8192x4096",
                partial(packer.pack, frame, alpha),
                matte_error_255=round(error, 3),
            )
        )
    for dtype in ("float16", "float32"):
        eye = NetworkInput(NETWORK, "NCHW", dtype=dtype)
        views = FisheyeViews(lens, eye, NETWORK)
        images = cupy.random.random((TOGETHER, 2, 3, *NETWORK), dtype=np.float32).astype(dtype)
        answer = cupy.random.random((TOGETHER * 2, 4, *NETWORK), dtype=np.float32)
        estimates = [
            MatteEstimate(gain=answer[eyes], offset=answer[eyes])
            for eyes in (slice(2 * frame, 2 * frame + 2) for frame in range(TOGETHER))
        ]
        for way, call in (
            ("there", partial(views.show, images)),
            ("back", partial(views.take_back, estimates)),
        ):
            claim = f"fisheye views {way}, {dtype} {NETWORK[0]}x{NETWORK[1]}, two eyes"
            rows.append(row(claim, call, frames=TOGETHER))
    print(json.dumps(rows, indent=1))
    if options.out is not None:
        write_rows(options.out, rows)


if __name__ == "__main__":
    main()
