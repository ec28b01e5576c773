"""Keeps the heap of the process small while pipelines come and go.

glibc gives threads their own heaps, up to eight per core. Memory freed by the threads of one run stays in their
heaps, fragmented, while the threads of the next run take new memory: no more is in use, but more is allocated.
Pictures make it worse: once one was freed, glibc also takes blocks of its size from the heaps, where small blocks
then lie between them. With two heaps, pictures outside them, and free pages returned between runs, the peak of many
jobs stays near that of one (``benchmarks/memory_over_jobs.py``).

Every command imports this first, so it imports almost nothing.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
"""``mallopt``'s parameter numbers, from glibc's malloc.h."""
_HEAPS = 2
_PICTURE_BYTES = 4 << 20
"""Blocks of at least this size get their own pages; for smaller ones, the page faults would cost too much."""
_KEPT_FREE_BYTES = 64 << 20
"""Free memory that stays at a heap's end: the value that glibc adapts to by itself. Setting only the block size would
reset this to 128 KiB, and a heap would return and take the same pages again and again (a fifth more CPU time for 4K
with ``fast``, measured once, without a stored result).
"""


def keep_heaps_small() -> None:
    """Let threads started from now on share two heaps, without pictures; call it before libraries start threads.

    Applies to the whole process. Does nothing if the C library is not glibc.
    """
    if (library := _glibc()) is not None:
        library.mallopt(_M_ARENA_MAX, _HEAPS)
        library.mallopt(_M_MMAP_THRESHOLD, _PICTURE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


def give_back_free_memory() -> None:
    """Return the heaps' free pages to the system.

    Takes some milliseconds after a large job, and no time if there is nothing to return. Does nothing if the C
    library is not glibc.
    """
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None  # musl has neither
