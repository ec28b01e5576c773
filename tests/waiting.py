"""Waiting for what another thread or process does: no test asks how fast that is."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE_SECONDS", "eventually"]

PATIENCE_SECONDS = 60.0
"""After so long on a busy machine it hangs."""


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true; fail after ``PATIENCE_SECONDS``."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "never became true"
        time.sleep(0.002)
