"""Fixtures of the tests that run whole pipelines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from watched_runs import our_threads


@pytest.fixture
def no_thread_outlives_its_pipeline() -> Iterator[None]:
    yield
    assert our_threads() == []
