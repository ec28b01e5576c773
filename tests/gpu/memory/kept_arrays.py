"""Arrays for tests of the cache, and the file in which it stores one."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vitascope.gpu.memory.disk_cache import CacheManager


def kib(count: float) -> float:
    return count * 1024 / 1e9


def file_of(cache: CacheManager) -> Path:
    (path,) = cache.folder.rglob("*.vsarray")
    return path


def noise(seed: int, size: int = 1024) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)
