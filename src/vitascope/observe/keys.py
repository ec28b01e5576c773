"""Single keys from the terminal, while something runs."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["PressedKeys"]

_POLL_SECONDS = 0.1


class PressedKeys:
    """Reads keys from the terminal one by one, and turns Ctrl-C into an orderly end. A context manager.

    Nothing is read where standard input is no terminal, or has no single keys (Windows' console has them by another
    way, which is not built; there, keys are pressed in the window).
    """

    def __init__(self) -> None:
        self._press: Callable[[str], object] | None = None
        self._is_over = threading.Event()
        self._restore = ExitStack()

    def hand_to(self, press: Callable[[str], object], *, at_interrupt: Callable[[], object]) -> None:
        """Hand keys on from now on.

        Args:
            press: Told each character, from a thread.
            at_interrupt: Called on the first Ctrl-C; the second one interrupts as ever.
        """
        self._press = press
        if threading.current_thread() is threading.main_thread():
            self._end_orderly(at_interrupt)
        if _has_single_keys():
            self._take_single_keys()
            threading.Thread(target=self._read, name="vitascope-keys", daemon=True).start()

    def _end_orderly(self, at_interrupt: Callable[[], object]) -> None:
        before = signal.getsignal(signal.SIGINT)

        def stop(number: int, frame: FrameType | None) -> None:
            del number, frame
            signal.signal(signal.SIGINT, before)
            at_interrupt()

        signal.signal(signal.SIGINT, stop)
        self._restore.callback(signal.signal, signal.SIGINT, before)

    def _take_single_keys(self) -> None:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
        self._restore.callback(termios.tcsetattr, descriptor, termios.TCSADRAIN, before)
        tty.setcbreak(descriptor)

    def _read(self) -> None:
        descriptor = sys.stdin.fileno()
        while not self._is_over.is_set():
            if select.select([descriptor], [], [], _POLL_SECONDS)[0]:
                given = os.read(descriptor, 1).decode("utf-8", errors="ignore")
                if given and self._press is not None:
                    self._press(given)

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give terminal and Ctrl-C back as they were."""
        self._is_over.set()
        self._restore.close()


def _has_single_keys() -> bool:
    stdin: Any = sys.stdin
    return os.name == "posix" and stdin is not None and stdin.isatty()
