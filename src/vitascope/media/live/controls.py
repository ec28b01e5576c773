"""What can be asked of every live run, and the keys for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import ClassVar

__all__ = ["RUN_KEYS", "RunControls"]

RUN_KEYS: dict[str, str] = {
    "r": "performance report",
    "p": "pause",
    "s": "snapshot",
    "t": "try failed sinks again",
    "q": "quit",
    "?": "this list",
}
"""Effect of each key of every live run."""


class RunControls:
    """What is asked of a live run. Thread-safe: keys come from sinks, consoles and programs.

    Args:
        on_message: Told, in a few words, what a key did.
    """

    keys: ClassVar[Mapping[str, str]] = RUN_KEYS
    """Effect of each key."""
    _asks: ClassVar[Mapping[str, str]] = {"r": "report", "s": "snapshot", "t": "restart", "q": "quit"}
    """Keys that ask for something that a stage does when it comes to it."""

    def __init__(self, *, on_message: Callable[[str], object] | None = None) -> None:
        self._lock = threading.Lock()
        self._requests: set[str] = set()
        self._on_message = on_message
        self.paused = False
        """True while pictures are held."""

    def in_words(self) -> str:
        """List all keys, on one line."""
        return ", ".join(f"{key.upper()} {what}" for key, what in self.keys.items())

    def press(self, key: str) -> bool:
        """Do what a key stands for.

        Args:
            key: A character of ``keys``; ``=`` is ``+``, and ``_`` is ``-``.

        Returns:
            False when the key stands for nothing.
        """
        key = {"=": "+", "_": "-"}.get(key, key.lower())
        if key not in self.keys:
            return False
        with self._lock:
            said = self._do(key)
        if said and self._on_message is not None:
            self._on_message(said)
        return True

    def request(self, wanted: str) -> None:
        """Ask for something that a stage does when it comes to it. Waits for nothing: Ctrl-C's handler calls it."""
        self._requests.add(wanted)

    def is_asked(self, wanted: str) -> bool:
        """True while it is asked for and nobody took it."""
        return wanted in self._requests

    def take(self, wanted: str) -> bool:
        """True once for each request."""
        with self._lock:
            if wanted in self._requests:
                self._requests.discard(wanted)
                return True
            return False

    def _do(self, key: str) -> str:
        """Do what one of ``keys`` stands for; what to say of it, if anything."""
        if key in self._asks:
            self._requests.add(self._asks[key])
            return ""
        if key == "p":
            self.paused = not self.paused
            return "paused" if self.paused else "going on"
        return f"keys: {self.in_words()}"
