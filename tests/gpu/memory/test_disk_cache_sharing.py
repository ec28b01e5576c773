"""Check that processes and threads can share a cache: nobody reads wrong content, and the limit holds."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from kept_arrays import noise

from vitascope.gpu.memory.disk_cache import CacheManager

WORK = """
import sys, pathlib, numpy as np
from vitascope.gpu.memory.disk_cache import CacheManager

def noise(key):
    return np.random.default_rng(key).integers(0, 256, 3000 + key, np.uint8)

seed = int(sys.argv[2])
with CacheManager(disk_cache_gb=100e-6, folder=pathlib.Path(sys.argv[1])) as cache:
    for n in range(150):
        key = n % 20 if n % 2 else 1000 * seed + n
        cache.put(str(key), noise(key))
        for other in (key, (n * 7) % 20):
            found = cache.get(str(other))
            assert found is None or (found == noise(other)).all()
        assert cache.stats().disk_bytes <= 100_000
    assert cache.stats().damaged == 0
    print("done", flush=True)
"""


def test_several_processes_share_a_folder_and_its_cap(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    command = [sys.executable, "-c", WORK, str(folder)]
    writers = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)]
    most = 0
    while any(writer.poll() is None for writer in writers):
        sizes = []
        for path in folder.rglob("*.vsarray"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue
        most = max(most, len(sizes))
        time.sleep(0.02)
    assert [writer.communicate()[0] for writer in writers] == ["done\n"] * 3
    assert most > 5
    left = [path.stat().st_size for path in folder.rglob("*.vsarray")]
    with CacheManager(disk_cache_gb=100e-6, folder=folder) as cache:
        assert (cache.stats().disk_entries, cache.stats().disk_bytes) == (len(left), sum(left))
    assert sum(left) <= 100_000


def test_a_writer_that_is_killed_harms_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    endless = WORK.replace("range(150)", "range(10**9)")
    with CacheManager(disk_cache_gb=100e-6, folder=folder) as cache:
        for _ in range(3):
            with subprocess.Popen([sys.executable, "-c", endless, str(folder), "1"]) as writer:
                before = cache.stats()
                while cache.stats() == before:
                    time.sleep(0.01)
                writer.kill()
            cache.put("mine", noise(7))
            np.testing.assert_array_equal(cache.get("mine"), noise(7))
            assert sum(path.stat().st_size for path in folder.rglob("*.vsarray")) <= 100_000


def test_threads_share_a_cache(tmp_path: Path) -> None:
    def work(seed: int) -> None:
        for n in range(60):
            key = (seed * 7 + n) % 25
            cache.put(str(key), noise(key, 900))
            found = cache.get(str((key * 3) % 25))
            assert found is None or (found == noise((key * 3) % 25, 900)).all()

    with CacheManager(disk_cache_gb=15e-6, memory_cache_gb=5e-6, folder=tmp_path) as cache:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        assert cache.stats().disk_bytes <= 15_000
