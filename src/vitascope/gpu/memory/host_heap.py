"""Keeps the heap of the process small while pipelines come and go.

glibc gives threads heaps of their own, up to eight a core. What the threads of one run freed stays in their heaps, in
pieces, while those of the next take new memory: as much is in use, but more is taken. Pictures make it worse: once one
was freed, glibc takes blocks of its size from the heaps, too, where small blocks come to lie between them. Two heaps,
pictures beside them, and free pages given back between runs keep the peak of many jobs near that of one
(``benchmarks/memory_over_jobs.py``).

Every command imports this first, so it imports next to nothing.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
"""``mallopt``'s numbers, from glibc's malloc.h."""
_HEAPS = 2
_PICTURE_BYTES = 4 << 20
"""Blocks from this size on get pages of their own; what smaller ones cost in page faults would be felt."""
_KEPT_FREE_BYTES = 64 << 20
"""Free memory at a heap's end that stays there: what glibc itself comes to. Setting the size of blocks alone would put
this back to 128 KiB, and a heap would give back and take the same pages over and over (a fifth more CPU time for 4K
with ``fast`` when it was written; no row is kept).
"""


def keep_heaps_small() -> None:
    """Have threads that start from now on share two heaps, pictures beside them; call it before libraries start theirs.

    The setting is the process's. Does nothing where the C library is not glibc.
    """
    if (library := _glibc()) is not None:
        library.mallopt(_M_ARENA_MAX, _HEAPS)
        library.mallopt(_M_MMAP_THRESHOLD, _PICTURE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE_BYTES)


def give_back_free_memory() -> None:
    """Give the heaps' free pages back to the system.

    Takes some milliseconds after a large job, none when there is nothing to give. Does nothing where the C library is
    not glibc.
    """
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None  # musl has neither
