"""The process's own heap, kept small while pipelines come and go.

glibc gives threads heaps of their own, up to eight a core. What the threads of one run freed stays in their heaps, in
pieces, while those of the next take new memory: as much is in use, but more is taken. Two heaps, and free
pages given back between runs, keep the peak of many jobs near that of one (``benchmarks/memory_over_jobs.py``).

Every command imports this first, so it imports next to nothing.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

__all__ = ["give_back_free_memory", "share_heaps"]

_M_ARENA_MAX = -8
"""``mallopt``'s number for the most heaps, from glibc's malloc.h."""
_HEAPS = 2


def share_heaps() -> None:
    """Have threads that start from now on share two heaps; call it before libraries start theirs.

    The setting is the process's. Does nothing where the C library is not glibc.
    """
    if (library := _glibc()) is not None:
        library.mallopt(_M_ARENA_MAX, _HEAPS)


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
