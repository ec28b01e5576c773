"""Controls of a live animation: the state that can be changed, and the keys for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

from vitascope.media.live_loop import RunControls

Background = Literal["portrait", "green"]

_STRENGTH_STEP = 1.1
_STRENGTHS = (0.1, 4.0)
_WINDOWS = (1, 60)

Number = TypeVar("Number", int, float)

KEYS: dict[str, str] = {
    "r": "performance report",
    "n": "take this face as neutral",
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


def keys_in_words() -> str:
    """List all keys, on one line."""
    return Controls(LiveState()).in_words()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """The state of a live run that keys change."""

    strength: float = 1.0
    """Factor on the gains of expression and pose."""
    smoothing_window: int = 5
    """Frames over which the face is smoothed."""
    mirror: bool = False
    overlay: bool = False
    background: Background = "portrait"


class Controls(RunControls):
    """Holds the state of a live animation and the requests to it. Thread-safe.

    Args:
        state: Initial state.
        on_message: Called with a short message about what a key did.
    """

    keys = KEYS
    _asks: ClassVar[Mapping[str, str]] = {**RunControls._asks, "n": "neutral", "f": "best-neutral"}

    def __init__(self, state: LiveState, *, on_message: Callable[[str], object] | None = None) -> None:
        super().__init__(on_message=on_message)
        self._state = state

    @property
    def state(self) -> LiveState:
        """The current state."""
        return self._state

    def change(self, *, strength: float | None = None, smoothing_window: int | None = None) -> None:
        """Set the values that keys change in steps, within the same limits; None leaves a value unchanged.

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
        state = self._state
        match key:
            case "m":
                self._state = replace(state, mirror=not state.mirror)
                return f"mirror {_on(self._state.mirror)}"
            case "o":
                self._state = replace(state, overlay=not state.overlay)
                return f"overlay {_on(self._state.overlay)}"
            case "b":
                background: Background = "green" if state.background == "portrait" else "portrait"
                self._state = replace(state, background=background)
                return f"background: {background}"
            case "+" | "-":
                factor = _STRENGTH_STEP if key == "+" else 1 / _STRENGTH_STEP
                strength = _within(state.strength * factor, *_STRENGTHS)
                self._state = replace(state, strength=strength)
                return f"strength {strength:.2f}"
            case "[" | "]":
                window = state.smoothing_window + (1 if key == "]" else -1)
                window = _within(window, *_WINDOWS)
                self._state = replace(state, smoothing_window=window)
                self._requests.add("smoothing")
                return f"smoothing over {window} frames"
            case _:
                return super()._do(key)


def _within(value: Number, low: Number, high: Number) -> Number:
    return min(max(value, low), high)


def _on(value: bool) -> str:
    return "on" if value else "off"
