"""The time that deadlines are measured by; tests put their own in its place."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Tells the time, and waits."""

    def now(self) -> float:
        """Seconds from any origin; never goes back."""
        ...

    def wait(self, condition: threading.Condition, seconds: float | None) -> object:
        """Wait on a condition that the caller holds until it is notified, or for so long; None: for ever."""
        ...


class SystemClock:
    """``time.perf_counter``, and the condition's own wait."""

    def now(self) -> float:
        """Seconds."""
        return perf_counter()

    def wait(self, condition: threading.Condition, seconds: float | None) -> object:
        """Wait; see ``Clock``."""
        return condition.wait(seconds)
