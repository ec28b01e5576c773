"""Waiting for other threads and processes: no test asks how fast they are."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE_SECONDS", "eventually"]

PATIENCE_SECONDS = 60.0
"""After this long, a busy machine counts as hanging."""


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true; fail after ``PATIENCE_SECONDS``."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "never became true"
        time.sleep(0.002)
