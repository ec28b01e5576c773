"""The threads that a test began and did not end; those that earlier tests of its process left are not its own."""

from __future__ import annotations

import threading
from weakref import WeakSet

__all__ = ["left_threads", "note_threads"]

_before: WeakSet[threading.Thread] = WeakSet()


def note_threads() -> None:
    """A test begins."""
    _before.clear()
    _before.update(threading.enumerate())


def left_threads(prefix: str) -> list[str]:
    """The names, which begin so, of threads that run and did not when the test began."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(prefix) and thread not in _before
    ]
