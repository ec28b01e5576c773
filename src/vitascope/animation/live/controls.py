"""Controls of a live run: the state that can be changed, and the keys for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

__all__ = ["KEYS", "Background", "Controls", "LiveState", "keys_in_words"]

Background = Literal["portrait", "green"]

_STRENGTH_STEP = 1.1
_STRENGTHS = (0.1, 4.0)
_WINDOWS = (1, 60)

Number = TypeVar("Number", int, float)
Request = Literal["report", "neutral", "best-neutral", "snapshot", "quit", "smoothing", "restart"]

KEYS: dict[str, str] = {
    "r": "performance report",
    "n": "this face is neutral",
    "f": "find the best neutral",
    "m": "mirror",
    "+": "stronger",
    "-": "weaker",
    "[": "less smoothing",
    "]": "more smoothing",
    "b": "background",
    "o": "overlay of landmarks",
    "p": "pause",
    "s": "snapshot",
    "t": "try failed sinks again",
    "q": "quit",
    "?": "this list",
}
"""Effect of each key."""


_ASKS: dict[str, Request] = {
    "r": "report",
    "n": "neutral",
    "f": "best-neutral",
    "s": "snapshot",
    "t": "restart",
    "q": "quit",
}
"""Keys that ask for something that a stage does when it comes to it."""


def keys_in_words() -> str:
    """List all keys, on one line."""
    return ", ".join(f"{key.upper()} {what}" for key, what in KEYS.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The state of a live run that keys change."""

    strength: float = 1.0
    """Times the gains of expression and pose."""
    smoothing_window: int = 5
    """Frames."""
    mirror: bool = False
    overlay: bool = False
    paused: bool = False
    background: Background = "portrait"


class Controls:
    """The state of a live run and what is asked of it. Thread-safe: keys come from sinks, consoles and programs.

    Args:
        state: To begin with.
        on_message: Told, in a few words, what a key did.
    """

    def __init__(self, state: LiveState, *, on_message: Callable[[str], object] | None = None) -> None:
        self._lock = threading.Lock()
        self._state = state
        self._requests: set[Request] = set()
        self._on_message = on_message

    @property
    def state(self) -> LiveState:
        """The state as it is now."""
        return self._state

    def press(self, key: str) -> bool:
        """Do what a key stands for.

        Args:
            key: A character of ``KEYS``; ``=`` is ``+``, and ``_`` is ``-``.

        Returns:
            False when the key stands for nothing.
        """
        key = {"=": "+", "_": "-"}.get(key, key.lower())
        if key not in KEYS:
            return False
        with self._lock:
            said = self._do(key)
        if said and self._on_message is not None:
            self._on_message(said)
        return True

    def request(self, wanted: Request) -> None:
        """Ask for something that a stage does when it comes to it."""
        with self._lock:
            self._requests.add(wanted)

    def is_asked(self, wanted: Request) -> bool:
        """True while it is asked for and nobody took it."""
        return wanted in self._requests

    def take(self, wanted: Request) -> bool:
        """True once for each request."""
        with self._lock:
            if wanted in self._requests:
                self._requests.discard(wanted)
                return True
            return False

    def change(self, *, strength: float | None = None, smoothing_window: int | None = None) -> None:
        """Set what keys change by steps, within the same limits; None leaves a value.

        Args:
            strength: 0.1 to 4.
            smoothing_window: 1 to 60 frames.
        """
        with self._lock:
            if strength is not None:
                self._state = replace(self._state, strength=_within(strength, *_STRENGTHS))
            if smoothing_window is not None:
                self._state = replace(self._state, smoothing_window=_within(smoothing_window, *_WINDOWS))
                self._requests.add("smoothing")

    def _do(self, key: str) -> str:
        if key in _ASKS:
            self._requests.add(_ASKS[key])
            return ""
        state = self._state
        match key:
            case "?":
                return f"keys: {keys_in_words()}"
            case "m":
                self._state = replace(state, mirror=not state.mirror)
                return f"mirror {_on(self._state.mirror)}"
            case "o":
                self._state = replace(state, overlay=not state.overlay)
                return f"overlay {_on(self._state.overlay)}"
            case "p":
                self._state = replace(state, paused=not state.paused)
                return "paused" if self._state.paused else "going on"
            case "b":
                background: Background = "green" if state.background == "portrait" else "portrait"
                self._state = replace(state, background=background)
                return f"background: {background}"
            case "+" | "-":
                factor = _STRENGTH_STEP if key == "+" else 1 / _STRENGTH_STEP
                strength = _within(state.strength * factor, *_STRENGTHS)
                self._state = replace(state, strength=strength)
                return f"strength {strength:.2f}"
            case _:
                window = state.smoothing_window + (1 if key == "]" else -1)
                window = _within(window, *_WINDOWS)
                self._state = replace(state, smoothing_window=window)
                self._requests.add("smoothing")
                return f"smoothing over {window} frames"


def _within(value: Number, low: Number, high: Number) -> Number:
    return min(max(value, low), high)


def _on(value: bool) -> str:
    return "on" if value else "off"
