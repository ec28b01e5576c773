"""Fixtures for tests of memory and caches."""

from __future__ import annotations

from pathlib import Path

import pytest
from kept_arrays import kib

from vitascope.gpu.memory.disk_cache import CacheManager


@pytest.fixture
def cache(tmp_path: Path) -> CacheManager:
    return CacheManager(disk_cache_gb=kib(64), folder=tmp_path / "c")
