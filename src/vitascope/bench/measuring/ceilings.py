"""The most a device gives: how fast it copies memory, and how fast it multiplies matrices.

Both are measured in the run whose figures are held against them. Data is random, so that nothing is compressed or
skipped, and well beyond any cache; each ceiling is warmed up, measured several times, and kept with all its samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from vitascope.bench.results import Ceilings, Row
from vitascope.device import Device, available_cores, physical_memory_bytes
from vitascope.gpu.engines.gpu_arrays import import_cupy

__all__ = ["CeilingEffort", "measure_ceilings"]

_BLOCK_BYTES = 1 << 25
_MOST_MEMORY_SHARE = 1 / 8
"""The share of the machine's memory that both arrays of a copy may take."""
_FIRST_SIDE = 1024
_SETTLED_SECONDS = 0.03
"""A product that takes this long is bound by arithmetic, not by what surrounds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingEffort:
    """How thoroughly ceilings are measured."""

    copy_bytes: int = 1 << 29
    """How much is copied; less where the machine has little memory."""
    largest_side: int = 8192
    """The side of the square matrices; smaller ones are taken where they take long enough."""
    warm_ups: int = 2
    samples: int = 15


def measure_ceilings(device: Device, effort: CeilingEffort) -> tuple[Ceilings, ...]:
    """Measure the processor, and the GPU of a run that has one.

    Args:
        device: Of the run.
        effort: How thoroughly.
    """
    found = [_of_processor(effort)]
    if device.kind == "cuda":
        found.append(_of_gpu(device, effort))
    return tuple(found)


def _of_processor(effort: CeilingEffort) -> Ceilings:
    cores = available_cores()
    memory = physical_memory_bytes()
    most = effort.copy_bytes if memory is None else int(memory * _MOST_MEMORY_SHARE / 2)
    nbytes = max(min(effort.copy_bytes, most) // _BLOCK_BYTES, 1) * _BLOCK_BYTES
    return Ceilings(
        device="cpu",
        rows=(_host_copies(nbytes, cores, effort), _host_products(effort)),
        methods=(
            f"copy: {nbytes / 2**20:.0f} MiB from one array to another by {cores} threads, read and written bytes",
            "matmul/fp32: square matrices, NumPy's library of linear algebra and its threads",
        ),
    )


def _host_copies(nbytes: int, threads: int, effort: CeilingEffort) -> Row:
    source = np.tile(_random_bytes(_BLOCK_BYTES), nbytes // _BLOCK_BYTES)
    target = np.empty_like(source)
    target.fill(1)  # the system hands memory out when it is first written
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads, thread_name_prefix="vitascope-copy") as pool:

        def copy() -> None:
            for done in [pool.submit(np.copyto, to, given) for to, given in parts]:
                done.result()

        return Row.of("copy", "bytes/s", [2 * nbytes / seconds for seconds in _host_seconds(copy, effort)])


def _host_products(effort: CeilingEffort) -> Row:
    side = _FIRST_SIDE
    once = replace(effort, warm_ups=1, samples=1)
    while True:
        one, other = _random_matrix(side), _random_matrix(side)
        multiply = partial(np.matmul, one, other, out=np.empty_like(one))
        if _host_seconds(multiply, once)[0] >= _SETTLED_SECONDS or 2 * side > effort.largest_side:
            break
        side *= 2
    times = _host_seconds(multiply, effort)
    return Row.of("matmul/fp32", "FLOP/s", [2 * side**3 / seconds for seconds in times])


def _host_seconds(work: Callable[[], object], effort: CeilingEffort) -> list[float]:
    for _ in range(effort.warm_ups):
        work()
    found = []
    for _ in range(effort.samples):
        began = perf_counter()
        work()
        found.append(perf_counter() - began)
    return found


def _of_gpu(device: Device, effort: CeilingEffort) -> Ceilings:
    """On the GPU's own clock; what its libraries lack is named and left out."""
    cupy = import_cupy()
    rows, methods, missing = [], [], []
    with cupy.cuda.Device(device.index), cupy.cuda.Stream(non_blocking=True) as stream:
        try:
            rows.append(_gpu_copies(cupy, effort))
            methods.append(f"copy: {effort.copy_bytes / 2**20:.0f} MiB within the GPU's memory, CuPy")
        except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError) as error:
            missing.append(f"copy: {error}")
        stream.synchronize()
    torch = _torch_with_gpu()
    with cupy.cuda.Device(device.index):
        for precision in ("fp32", "tf32", "fp16"):
            if torch is None and precision == "tf32":
                missing.append("matmul/tf32: needs PyTorch")
                continue
            try:
                if torch is None:
                    rows.append(_cupy_product(cupy, precision, effort))
                else:
                    rows.append(_torch_product(torch, device.index, precision, effort))
            # Errors of CUDA are RuntimeErrors, PyTorch's lack of memory, too; CuPy's lack of memory is a MemoryError.
            except (RuntimeError, MemoryError, ImportError) as error:
                missing.append(
                    f"matmul/{precision}: {str(error).partition(chr(10))[0] or type(error).__name__}"
                )
            else:
                by = "CuPy" if torch is None else "PyTorch"
                methods.append(f"matmul/{precision}: square matrices of {effort.largest_side}, {by}")
        # What comes now is measured, its memory too.
        cupy.get_default_memory_pool().free_all_blocks()
        if torch is not None:
            torch.cuda.empty_cache()
    return Ceilings(device="cuda", rows=tuple(rows), methods=tuple(methods), missing=tuple(missing))


def _torch_with_gpu() -> Any:
    """PyTorch, where it is installed and has a GPU; else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _gpu_copies(cupy: Any, effort: CeilingEffort) -> Row:
    blocks = max(effort.copy_bytes // _BLOCK_BYTES, 1)
    source = cupy.tile(cupy.asarray(_random_bytes(_BLOCK_BYTES)), blocks)
    target = cupy.empty_like(source)
    cuda = cupy.cuda
    copy = partial(
        cuda.runtime.memcpyAsync,
        target.data.ptr,
        source.data.ptr,
        source.nbytes,
        cuda.runtime.memcpyDeviceToDevice,
        cuda.get_current_stream().ptr,
    )
    times = _cupy_seconds(cupy, copy, effort)
    return Row.of("copy", "bytes/s", [2 * source.nbytes / seconds for seconds in times])


def _cupy_seconds(cupy: Any, work: Callable[[], object], effort: CeilingEffort) -> list[float]:
    """By events on the current stream."""
    for _ in range(effort.warm_ups):
        work()
    marks = []
    for _ in range(effort.samples):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        work()
        stop.record()
        marks.append((start, stop))
    marks[-1][1].synchronize()
    return [cupy.cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in marks]


def _cupy_product(cupy: Any, precision: str, effort: CeilingEffort) -> Row:
    dtype = np.float32 if precision == "fp32" else np.float16
    side = effort.largest_side
    one, other = (cupy.asarray(_random_matrix(side).astype(dtype)) for _ in range(2))
    result = cupy.empty_like(one)
    times = _cupy_seconds(cupy, partial(cupy.matmul, one, other, out=result), effort)
    return Row.of(f"matmul/{precision}", "FLOP/s", [2 * side**3 / seconds for seconds in times])


def _torch_product(torch: Any, index: int, precision: str, effort: CeilingEffort) -> Row:
    from vitascope.gpu.engines.torch_engine import torch_flags

    dtype = torch.float16 if precision == "fp16" else torch.float32
    side = effort.largest_side
    one, other = (torch.from_numpy(_random_matrix(side)).to(f"cuda:{index}", dtype) for _ in range(2))
    result = torch.empty_like(one)
    marks = []
    with (
        torch.cuda.device(index),
        torch.inference_mode(),
        torch_flags(allow_tf32=precision == "tf32", cudnn_benchmark=False, cudnn_deterministic=False),
    ):
        for _ in range(effort.warm_ups):
            torch.matmul(one, other, out=result)
        for _ in range(effort.samples):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            torch.matmul(one, other, out=result)
            stop.record()
            marks.append((start, stop))
        torch.cuda.synchronize()
    rates = [2 * side**3 / (start.elapsed_time(stop) / 1e3) for start, stop in marks]
    return Row.of(f"matmul/{precision}", "FLOP/s", rates)


def _random_bytes(nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(os.urandom(nbytes), np.uint8)


def _random_matrix(side: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng().standard_normal((side, side), np.float32)
