"""Turns on the GPU for tests in several processes: most share it, some need it alone.

A test that fills the GPU's memory, measures free memory, or looks at a clock is alone. Otherwise it would
fail because of others, or others because of it: a job gets no memory if others have used up its
``gpu.max_vram_usage``.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

if sys.platform != "win32":
    import fcntl

__all__ = ["gpu_turn", "release_gpu_memory"]


@contextmanager
def gpu_turn(*, alone: bool, folder: Path | None = None) -> Iterator[None]:
    """Be on the GPU, with others or alone.

    Who waits to be alone goes before those who come later. What others hold idle they give back first. Windows, which
    has no such locks, is not asked to wait.

    Args:
        alone: Wait until all others have left, and keep them out.
        folder: Where the lock files lie; that of temporary files when omitted.
    """
    if sys.platform == "win32":
        yield
        return
    place = folder or Path(tempfile.gettempdir())
    user = os.getuid()
    with (
        (place / f"vitascope-test-gpu-{user}.gate").open("w") as gate,
        (place / f"vitascope-test-gpu-{user}.lock").open("w") as room,
    ):
        wanted = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        for lock in (gate, room):
            if not _took(lock, wanted):
                release_gpu_memory()  # a test that is alone, or waits for that, measures free memory
                fcntl.flock(lock, wanted)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield
        if not alone and not _took(gate, wanted):
            release_gpu_memory()


def _took(lock: TextIO, wanted: int) -> bool:
    """Take a lock if it is free; returns whether it was taken."""
    try:
        fcntl.flock(lock, wanted | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release_gpu_memory() -> None:
    """Free idle memory of CuPy's and PyTorch's allocators, so that other processes can use it."""
    gc.collect()
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
