"""Tests of what the process's heap takes from the system, seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vitascope.gpu.memory.host_heap import give_back_free_memory, keep_heaps_small

HEAPS_OF_THREADS = """
import ctypes, sys, threading
from pathlib import Path
from vitascope.gpu.memory.host_heap import keep_heaps_small

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
if sys.argv[1] == "kept small":
    keep_heaps_small()
together = threading.Barrier(12)
blocks = set()

def allocate():
    together.wait()
    blocks.add(library.malloc(5000) >> 26)  # a thread's heap is 64 MiB, and begins at a multiple of that
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(blocks))
"""

needs_glibc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or "glibc" not in __import__("platform").libc_ver()[0],
    reason="only glibc has several heaps",
)


@needs_glibc
def test_threads_share_two_heaps():
    def heaps(word):
        command = [sys.executable, "-c", HEAPS_OF_THREADS, word]
        return int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)

    assert heaps("kept small") <= 2
    assert heaps("own") > 2


PICTURES = """
import ctypes, sys
from vitascope.gpu.memory.host_heap import keep_heaps_small

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "kept small":
    keep_heaps_small()
library.free(library.malloc(20 << 20))  # from now on glibc would take up to 20 MiB from the heap
for block in (library.malloc(6 << 20), library.malloc(1 << 20)):
    size_and_flags = ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value
    print(int(not size_and_flags & 2))
"""


@needs_glibc
@pytest.mark.parametrize(("word", "in_heap"), [("kept small", [0, 1]), ("own", [1, 1])])
def test_pictures_lie_beside_the_heaps(word, in_heap):
    command = [
        sys.executable,
        "-c",
        PICTURES,
        word,
    ]  # bit 1 of a block's size means separate pages
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert [int(value) for value in printed.split()] == in_heap


@needs_glibc
def test_free_memory_goes_back_to_the_system():
    def resident_pages():
        return int(Path("/proc/self/statm").read_text().split()[1])

    kept = []
    arrays = []
    for _ in range(3000):  # too small for separate pages; blocks that stay lie between them
        arrays.append(np.ones(12_000, np.uint8))
        kept.append(np.ones(100, np.uint8))
    del arrays
    before = resident_pages()
    give_back_free_memory()
    assert resident_pages() < before - 3000  # pages of 4 KiB, out of about 8800
    assert all(array.sum() == 100 for array in kept)


def test_both_may_be_called_again_and_again():
    for _ in range(3):
        keep_heaps_small()
        give_back_free_memory()
