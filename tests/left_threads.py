"""Finds threads that a test started and did not end, without those of earlier tests."""

from __future__ import annotations

import threading
from weakref import WeakSet

__all__ = ["left_threads", "note_threads"]

_before: WeakSet[threading.Thread] = WeakSet()


def note_threads() -> None:
    """Note the threads at the start of a test."""
    _before.clear()
    _before.update(threading.enumerate())


def left_threads(prefix: str) -> list[str]:
    """Return the names, with this prefix, of running threads that did not run when the test began."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(prefix) and thread not in _before
    ]
