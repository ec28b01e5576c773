"""Compare ``PinnedMemoryPool`` with pageable copies and PyTorch's pinned copies; and take 10^6 leases.

For sizes from 64 KB to an 8K P010 frame, round trips (up to the GPU and down again) of:

* ``pool``: an array in a lease; it is downloaded to another lease.
* ``pool_staged``: an ordinary array, which the pool copies to a lease first.
* ``pageable``: ordinary memory both ways, the faster of CuPy's ``set``/``get`` and PyTorch's ``copy_``.
* ``torch_pinned``: ``tensor.to("cuda", non_blocking=True)`` out of pinned memory, ``copy_(non_blocking=True)`` into a
  new pinned tensor, of PyTorch's caching host allocator.
* ``torch_streams``: the same on a stream for each direction, with the events and ``record_stream`` that this takes.

``alone`` waits for each trip before the next begins; ``in a row`` has four under way. ``download 8K``
compares ``segment``'s downloads with the same copies into CuPy's pinned pool, which it used before.
``overlap`` has a kernel compute beside both copies. Every trip's values are compared before anything is
timed.

Bars: ``pool`` at least 2x ``pageable``, and no slower than ``torch_pinned`` (frames of video, in a row); no memory left
after 10^6 leases.

Prediction for an H200 on PCIe 5 x16, at 50 GB/s each way: 8K NV12 (49.8 MB) 2.0 ms a trip alone, 1.0 ms in a row.

Usage: python benchmarks/memory_cuda.py [OUT.json] [--size "NV12 8K"]
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from row_stamp import gpu_stamp, write_rows
from vitascope.gpu.memory.host_memory import host_memory
from vitascope.gpu.memory.pinned_pool import Download, PinnedMemoryPool

SIZES = {
    "64 KB": 1 << 16,
    "1 MB": 1 << 20,
    "NV12 1080p": 1920 * 1080 * 3 // 2,
    "NV12 4K": 3840 * 2160 * 3 // 2,
    "NV12 8K": 7680 * 4320 * 3 // 2,
    "P010 8K": 7680 * 4320 * 3,
}
UNDER_WAY = 4
SECONDS = 0.4
LEASES = 1_000_000

Trip = Callable[[], Callable[[], Any]]
"""Begins a round trip; the returned function waits for its end, and returns the array on the host."""


def trips_of(nbytes: int, pool: PinnedMemoryPool) -> dict[str, tuple[Trip, Any]]:
    """The variants, each with the values that must come back."""
    values = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    lease = pool.lease(nbytes)
    lease.array[:] = values
    on_cupy, on_torch = cupy.empty(nbytes, cupy.uint8), torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    back = np.empty_like(values)
    ordinary, back_torch = torch.from_numpy(values), torch.empty(nbytes, dtype=torch.uint8)
    pinned = ordinary.pin_memory()

    def by_pool(source: Any) -> Callable[[], Any]:
        return pool.download(pool.upload(source)).wait

    def pageable_cupy() -> Callable[[], Any]:
        on_cupy.set(values)
        on_cupy.get(out=back)
        return lambda: back

    def pageable_torch() -> Callable[[], Any]:
        on_torch.copy_(ordinary)
        back_torch.copy_(on_torch)
        return back_torch.numpy

    def torch_pinned() -> Callable[[], Any]:
        up = pinned.to("cuda", non_blocking=True)
        down = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        down.copy_(up, non_blocking=True)
        event = torch.cuda.Event()
        event.record()

        def wait() -> Any:
            event.synchronize()
            return down.numpy()

        return wait

    up_stream, down_stream = torch.cuda.Stream(), torch.cuda.Stream()

    def torch_streams() -> Callable[[], Any]:
        reader = torch.cuda.current_stream()
        with torch.cuda.stream(up_stream):
            up = pinned.to("cuda", non_blocking=True)
        reader.wait_stream(up_stream)
        up.record_stream(reader)
        down = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        down_stream.wait_stream(reader)
        with torch.cuda.stream(down_stream):
            down.copy_(up, non_blocking=True)
            event = down_stream.record_event()
        up.record_stream(down_stream)

        def wait() -> Any:
            event.synchronize()
            return down.numpy()

        return wait

    return {
        "pool": (lambda: by_pool(lease.array), values),
        "pool_staged": (lambda: by_pool(values), values),
        "pageable_cupy": (pageable_cupy, values),
        "pageable_torch": (pageable_torch, values),
        "torch_pinned": (torch_pinned, values),
        "torch_streams": (torch_streams, values),
    }


def alone_us(trip: Trip) -> dict[str, float]:
    """Microseconds of one trip at a time."""
    times = []
    ends = time.perf_counter() + SECONDS
    while len(times) < 20 or time.perf_counter() < ends:
        began = time.perf_counter()
        trip()()
        times.append((time.perf_counter() - began) * 1e6)
    return {f"p{share}": round(float(np.percentile(times, share)), 1) for share in (50, 95, 99)}


def in_a_row_us(trip: Trip) -> float:
    """Microseconds a trip, with several under way."""
    count, under_way = 0, deque[Callable[[], Any]]()
    began = time.perf_counter()
    while count < 20 or time.perf_counter() - began < SECONDS:
        under_way.append(trip())
        if len(under_way) == UNDER_WAY:
            under_way.popleft()()
        count += 1
    while under_way:
        under_way.popleft()()
    return round((time.perf_counter() - began) / count * 1e6, 1)


def round_trips(name: str, nbytes: int) -> dict[str, Any]:
    """Measure one size: check, warm up, and alternate, so that a quiet minute favours no variant."""
    with PinnedMemoryPool(2.0, device="cuda") as pool:
        trips = trips_of(nbytes, pool)
        for label, (trip, values) in trips.items():
            for _ in range(2 * UNDER_WAY):
                if not np.array_equal(trip()(), values):
                    raise SystemExit(f"{name}: {label} brought other values back")
        alone = {label: alone_us(trip) for label, (trip, _) in trips.items()}
        rows: dict[str, list[float]] = {label: [] for label in trips}
        for _ in range(3):
            for label, (trip, _) in trips.items():
                rows[label].append(in_a_row_us(trip))
    row = {label: float(np.median(times)) for label, times in rows.items()}
    for one in (alone, row):
        by_speed = sorted(("pageable_cupy", "pageable_torch"), key=lambda label: row[label])
        one["pageable"] = one[by_speed[0]]
    return {
        "claim": f"round trip {name}",
        "mb": round(nbytes / 1e6, 3),
        "alone_us": alone,
        "in_a_row_us": row,
        "gb_per_s_each_way": round(nbytes / row["pool"] / 1e3, 2),
        "times_pageable": round(row["pageable"] / row["pool"], 2),
        "times_pageable_alone": round(alone["pageable"]["p50"] / alone["pool"]["p50"], 2),
        "times_torch_pinned": round(row["torch_pinned"] / row["pool"], 2),
        "times_torch_streams": round(row["torch_streams"] / row["pool"], 2),
        "times_torch_pinned_alone": round(alone["torch_pinned"]["p50"] / alone["pool"]["p50"], 2),
    }


def downloads() -> dict[str, Any]:
    """Download planes of an 8K NV12 picture as ``segment`` does, and as it did before the pool."""
    planes = [cupy.arange(size, dtype=cupy.uint8).reshape(shape) for size, shape in (
        (7680 * 4320, (4320, 7680)), (7680 * 2160, (2160, 3840, 2)))]  # fmt: skip
    stream = cupy.cuda.Stream(non_blocking=True)

    def before() -> Callable[[], Any]:
        memory = cupy.cuda.alloc_pinned_memory(sum(plane.nbytes for plane in planes))
        produced = cupy.cuda.Event(disable_timing=True)
        produced.record()
        stream.wait_event(produced)
        views, offset = [], 0
        for plane in planes:
            view = np.frombuffer(memory, plane.dtype, plane.size, offset).reshape(plane.shape)
            cupy.cuda.runtime.memcpyAsync(view.ctypes.data, plane.data.ptr, plane.nbytes, 2, stream.ptr)
            views.append(view)
            offset += plane.nbytes
        arrived = cupy.cuda.Event(block=True, disable_timing=True)
        arrived.record(stream)

        def wait() -> Any:
            arrived.synchronize()
            return views

        return wait

    with PinnedMemoryPool(2.0, device="cuda") as pool:
        variants: dict[str, Trip] = {
            "pool": lambda: Download(planes, stream=stream, pool=pool).wait,
            "cupy_pool": before,
        }
        for label, trip in variants.items():
            for view, plane in zip(trip()(), planes, strict=True):
                if not np.array_equal(view, plane.get()):
                    raise SystemExit(f"download: {label} brought other values down")
        times: dict[str, list[float]] = {label: [] for label in variants}
        for _ in range(5):
            for label, trip in variants.items():
                times[label].append(in_a_row_us(trip))
    row = {label: float(np.median(values)) for label, values in times.items()}
    return {
        "claim": "download 8K",
        "in_a_row_us": row,
        "times_cupy_pool": round(row["cupy_pool"] / row["pool"], 3),
    }


def overlap() -> dict[str, Any]:
    """A matrix product beside the copies of 8K frames: what the three take one after another, and together."""
    nbytes = SIZES["NV12 8K"]
    reader = cupy.cuda.Stream(non_blocking=True)
    factor = cupy.random.default_rng(0).random((4096, 4096), dtype=cupy.float32)

    def compute(array: Any) -> Any:
        with reader:
            cupy.matmul(factor, factor)
            return array

    with PinnedMemoryPool(2.0, device="cuda") as pool:
        lease = pool.lease(nbytes)

        def compute_only() -> Callable[[], Any]:
            compute(None)
            return reader.synchronize

        def copies_only() -> Callable[[], Any]:
            return pool.download(pool.upload(lease.array, stream=reader), stream=reader).wait

        def both() -> Callable[[], Any]:
            return pool.download(compute(pool.upload(lease.array, stream=reader)), stream=reader).wait

        for trip in (compute_only, copies_only, both):
            trip()()
        times = {trip.__name__: in_a_row_us(trip) for trip in (compute_only, copies_only, both)}
    longest = max(times["compute_only"], times["copies_only"])
    return {"claim": "overlap 8K", "us": times, "share_of_the_longest": round(longest / times["both"], 3)}


def leases() -> dict[str, Any]:
    """Take 10^6 leases of many sizes; the held memory must not grow."""
    sizes = np.random.default_rng(0).integers(1, 1 << 20, 64).tolist()
    with PinnedMemoryPool(0.2, device="cuda") as pool:
        for size in sizes:  # every class once
            pool.lease(size).release()
        gc.collect()
        before, free_before = host_memory().process_bytes, cupy.cuda.runtime.memGetInfo()[0]
        began = time.perf_counter()
        for n in range(LEASES // 2):
            size = sizes[n & 63]
            pool.lease(size).release()
            pool.empty(size)
        seconds = time.perf_counter() - began
        stats = pool.stats()
        grown = host_memory().process_bytes - before
        if stats.leased_count or stats.allocations > 64 or grown > 4 << 20:
            raise SystemExit(f"leases left something behind: {stats}, {grown} bytes more resident")
        for n in range(20_000):
            pool.download(pool.upload(np.full(10_000, n & 255, np.uint8))).wait()
        gc.collect()
        grown_by_trips = free_before - cupy.cuda.runtime.memGetInfo()[0]
        if pool.stats().leased_count or grown_by_trips > 64 << 20:
            raise SystemExit(f"round trips left something behind: {pool.stats()}, {grown_by_trips} bytes")
        return {
            "claim": "10^6 leases",
            "us_per_lease": round(seconds / LEASES * 1e6, 2),
            "leases": stats.leases,
            "allocations": stats.allocations,
            "resident_growth_bytes": grown,
            "vram_growth_bytes_after_20000_trips": grown_by_trips,
        }


def main() -> None:
    """Check, time, print, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--size", action="append", choices=list(SIZES), help="round trips of these alone")
    options = parser.parse_args()
    cupy.cuda.Stream(non_blocking=True).use()
    stamp = gpu_stamp()
    rows: list[dict[str, Any]] = []
    jobs: list[Callable[[], dict[str, Any]]] = [] if options.size else [leases, downloads, overlap]
    jobs += [partial(round_trips, name, SIZES[name]) for name in options.size or SIZES]
    for job in jobs:
        rows.append({**job(), **stamp})
        print(json.dumps(rows[-1]), flush=True)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_rows(options.out, rows)
    for row in rows:
        if row["claim"].startswith(("round trip NV12", "round trip P010")):
            ok = row["times_pageable"] >= 2 and row["times_torch_pinned"] >= 1
            print(f"{row['claim']}: {'bars met' if ok else 'BARS MISSED'}")


if __name__ == "__main__":
    main()
