"""Measure RVM's coarse network on a GPU, by engine, frames per call and arithmetic.

Every variant's matte is first compared with ONNX Runtime's on the CPU, on drifting smooth noise, one frame at a time
(``tests/models/test_rvm_torch_cuda.py`` compares batches). Then calls of the whole network object are timed: pictures
on the GPU in, coefficients in fresh memory on the GPU out, the state carried on. Pictures are random and rotate among
enough buffers to defeat the L2 cache; medians and p20/p80 of CUDA events around one call, and a host clock around 50
calls without waiting between them. ``start_s`` is the time from opening the network to its first result: it
includes compiling (compilers reuse what earlier runs left on disk).

Prediction: the network reads and writes about 75 MB a frame of 512x288 as the fused kernels do it, 18 us at 4.2 TB/s,
so launches and latencies bind at one frame (92 kernels of about 3 us), and sixteen frames should approach 100 us each.
Measured on an H100: 0.62 ms in a row, and 188 us each of sixteen.

Usage: python benchmarks/rvm_cuda.py RVM.onnx [--quick] [--only VARIANT] [--packages DIR] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from row_stamp import gpu_stamp, write_rows
from vitascope.models.network_check import random_pictures
from vitascope.models.rvm.fused_network import RvmFusedNetwork
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.rvm.torch_network import RvmTorchNetwork

# Frames, eyes, height, width.
CALLS = (
    (1, 1, 288, 512),
    (8, 1, 288, 512),
    (16, 1, 288, 512),
    (1, 1, 432, 768),
    (16, 1, 432, 768),
    (8, 2, 512, 512),
)
VARIANTS: dict[str, dict[str, Any]] = {
    "fused fp16": {"precision": "fp16"},
    "fused mixed": {"precision": "mixed"},
    "operators fp16, no graph": {"precision": "fp16", "cuda_graph": False},
    "operators fp16": {"precision": "fp16"},
    "operators tf32": {"precision": "tf32"},
    "operators fp32": {"precision": "fp32"},
    "compiled fp16": {"precision": "fp16", "mode": "compile"},
    "package fp16": {"precision": "fp16", "mode": "aot"},
}
QUICK = ("fused fp16", "fused mixed", "operators fp16", "operators fp32")
L2_BYTES = 128 * 2**20


def mean_alpha_error(path: Path, network: RvmFusedNetwork | RvmTorchNetwork) -> float:
    """Mean difference of alpha from ONNX Runtime on the CPU, in codes of 255: three frames, one at a time.

    Alpha is not clipped: noise shows nobody, so it would be 0 everywhere.
    """
    reference = RvmNetwork(path)
    size = CALLS[0][2:]
    pictures: Any = random_pictures(steps=3, size=size)()["pictures"]
    own = pictures.astype(network.input_for(size).dtype)
    states = network.new_state(), reference.new_state()
    errors = []
    for picture in own:
        ours = network.infer(cupy.asarray(picture[None]), states[0])[0]
        theirs = reference.infer(picture[None].astype(np.float32), states[1])[0]
        grey = picture.astype(np.float32).mean(axis=1)
        gain, offset = (cupy.asnumpy(part)[:, -1].astype(np.float32) for part in (ours.gain, ours.offset))
        errors.append(np.abs(gain * grey + offset - theirs.gain[:, -1] * grey - theirs.offset[:, -1]).mean())
    reference.close()
    return float(np.mean(errors) * 255)


def first_result(
    network: RvmFusedNetwork | RvmTorchNetwork, shape: tuple[int, int, int, int], began: float
) -> float:
    """Measure seconds from ``began`` to the network's first result."""
    steps, eyes, height, width = shape
    dtype = network.input_for((height, width)).dtype
    network.infer(cupy.zeros((steps, eyes, 3, height, width), dtype), network.new_state())
    cupy.cuda.get_current_stream().synchronize()
    return round(time.perf_counter() - began, 1)


def time_calls(
    network: RvmFusedNetwork | RvmTorchNetwork, shape: tuple[int, int, int, int]
) -> dict[str, Any]:
    """Milliseconds of one call, alone and in a row."""
    steps, eyes, height, width = shape
    dtype = network.input_for((height, width)).dtype
    one = steps * eyes * 3 * height * width * np.dtype(dtype).itemsize
    buffers = [
        cupy.random.random((steps, eyes, 3, height, width), dtype=np.float32).astype(dtype)
        for _ in range(min(16, 1 + L2_BYTES // one))
    ]
    state = network.new_state()
    network.infer(buffers[0], state)
    cupy.cuda.get_current_stream().synchronize()
    samples = []
    for index in range(40):
        events = [cupy.cuda.Event() for _ in range(2)]
        events[0].record()
        network.infer(buffers[index % len(buffers)], state)
        events[1].record()
        events[1].synchronize()
        samples.append(cupy.cuda.get_elapsed_time(*events))
    cupy.cuda.get_current_stream().synchronize()
    begun = time.perf_counter()
    for index in range(50):
        network.infer(buffers[index % len(buffers)], state)
    cupy.cuda.get_current_stream().synchronize()
    in_a_row = (time.perf_counter() - begun) / 50 * 1e3
    low, median, high = (float(np.percentile(samples, share)) for share in (20, 50, 80))
    return {
        "ms_p50": round(median, 3),
        "ms_p20": round(low, 3),
        "ms_p80": round(high, 3),
        "ms_in_a_row": round(in_a_row, 3),
        "pictures_per_s": round(steps * eyes / in_a_row * 1e3),
        "vram_mib": round(
            (torch.cuda.memory_reserved() + cupy.get_default_memory_pool().total_bytes()) / 2**20
        ),
        "vram_peak_mib": round(torch.cuda.max_memory_reserved() / 2**20),
    }


def main() -> None:
    """Compare, time, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--quick", action="store_true", help="leave out what compiles")
    parser.add_argument("--only", action="append", choices=list(VARIANTS), help="these variants only")
    parser.add_argument("--packages", type=Path, help="keep compiled packages here")
    options = parser.parse_intermixed_args()
    machine = gpu_stamp()
    packages = options.packages or Path(tempfile.mkdtemp(prefix="vitascope-packages-"))
    rows = []
    for name, arguments in VARIANTS.items():
        mode = arguments.get("mode", "eager")
        if (options.quick and name not in QUICK) or (options.only and name not in options.only):
            continue
        make: Any = RvmFusedNetwork if name.startswith("fused") else RvmTorchNetwork
        keeps = mode == "aot" or make is RvmFusedNetwork
        variant = {**arguments, **({"cache_dir": packages} if keeps else {})}
        error = 0.0
        # Compilers take half a minute per shape, and packages more: a few shapes suffice.
        for shape in {"eager": CALLS, "compile": (CALLS[0], CALLS[2]), "aot": CALLS[:1]}[mode]:
            torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            network = make(options.model, **variant)
            steps, eyes, height, width = shape
            first = first_result(network, shape, began)
            if shape == CALLS[0]:
                error = round(mean_alpha_error(options.model, network), 3)
            row = {
                "claim": f"rvm {name}",
                "frames": steps,
                "eyes": eyes,
                "size": f"{width}x{height}",
                "alpha_error_255": error,
                **time_calls(network, shape),
                "start_s": first,
                "engine": network.engine_name,
                **machine,
            }
            network.close()
            if keeps:
                began = time.perf_counter()
                network = make(options.model, **variant)
                row["start_again_s"] = first_result(network, shape, began)
                network.close()
            rows.append(row)
            print(json.dumps(row), flush=True)
            if options.out is not None:  # keep these rows even if a later one fails
                write_rows(options.out, rows)


if __name__ == "__main__":
    main()
