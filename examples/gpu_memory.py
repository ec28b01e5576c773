"""Memory that is used again: buffers on the host and on the GPU, copies beside the computing, figures, a cache on disk.

Usage: python examples/gpu_memory.py [--device cpu] [--frames 24]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from vitascope.gpu import CacheManager, MemoryPool, PinnedMemoryPool, VRAMMonitor

SHAPE = (270, 480, 3)


class Found(NamedTuple):
    """What the example measured."""

    mean_levels: list[float]
    """Mean level of every frame, brightened on the device."""
    pinned_allocations: int
    device_allocations: int
    peak_bytes: int
    warnings: int
    hit_rate: float


def brighten(frame: Any, out: Any) -> Any:
    """Something to compute: the same line for NumPy and CuPy."""
    out[...] = frame
    out += 16
    return out


def main(*, device: Literal["auto", "cuda", "cpu"] = "auto", frames: int = 24) -> Found:
    """Bring frames up, compute, bring results down; print what it took."""
    monitor = VRAMMonitor(device_id=0, device=device, interval_s=0.02)
    warned: list[float] = []
    monitor.on_usage_above(0.95, lambda stats: warned.append(stats.utilization))
    print(f"computing on {monitor.device.label}; {monitor.get_stats().free_vram_gb:.1f} GB are free")

    with (
        monitor,
        monitor.measure() as block,
        PinnedMemoryPool(max_size_gb=0.5, device=device) as pinned,
        MemoryPool(max_size_gb=0.5, device=device) as pool,
    ):
        pending = []
        levels: list[float] = []
        for number in range(frames):
            # A decoder would write right into the lease, and nothing would be copied on the host.
            lease = pinned.lease(SHAPE)
            lease.array[:] = number
            on_device = pinned.upload(lease.array)
            lease.release()  # lent again only once the copy is over
            buffer = pool.lease(SHAPE, "uint8")
            # The copy runs on a stream of its own; the loop goes on meanwhile.
            pending.append((pinned.download(brighten(on_device, buffer.array)), buffer))
            if len(pending) == 3 or number == frames - 1:
                for download, done in pending:
                    levels.append(float(download.wait().mean()))
                    done.release()  # after it has come down, for the next frame may get it
                pending.clear()
        print(f"{pinned.stats().leases} leases of host memory out of {pinned.stats().allocations} buffers")
        pinned_allocations, device_allocations = pinned.stats().allocations, pool.stats().allocations

    slope = monitor.leak(of="in_tensors")
    print(
        f"at most {(block.peak_bytes() or 0) / 1e9:.2f} GB in use; growth {slope.bytes_per_second:.0f} bytes/s"
    )
    monitor.close()

    with tempfile.TemporaryDirectory() as folder:
        with CacheManager(disk_cache_gb=0.1, folder=Path(folder)) as cache:
            cache.put("levels", np.array(levels))
        with CacheManager(disk_cache_gb=0.1, folder=Path(folder)) as cache:  # another run
            assert cache.get("levels") is not None
            hit_rate = cache.stats().hit_rate
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("vitascope")]
    print(f"found on disk by the next run; threads left: {len(threads)}")
    return Found(
        levels, pinned_allocations, device_allocations, block.peak_bytes() or 0, len(warned), hit_rate
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--frames", type=int, default=24)
    options = parser.parse_args()
    main(device=options.device, frames=options.frames)
