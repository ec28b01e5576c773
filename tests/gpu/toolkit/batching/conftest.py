"""Check that batchers leave no thread behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from watched_runs import our_threads


@pytest.fixture(autouse=True)
def no_worker_outlives_its_batcher() -> Iterator[None]:
    yield
    assert our_threads() == []
