"""Reads single keys from the terminal during a run, and handles Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, Self

_POLL_SECONDS = 0.1
_JOIN_SECONDS = 2.0
_ESCAPE = b"\x1b"
_LONGEST_SEQUENCE_BYTES = 64


class PressedKeys:
    """Reads single keys from the terminal, and turns Ctrl-C into an orderly end. A context manager.

    Nothing is read while the program is in the background, nor if standard input is not a terminal or cannot give
    single keys (as on Windows, whose console would need other code; there, press keys in the window).
    """

    def __init__(self) -> None:
        self._press: Callable[[str], object] | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._restore = ExitStack()

    @property
    def are_read(self) -> bool:
        """True while keys are read from the terminal."""
        return self._thread is not None and self._thread.is_alive()

    def hand_to(self, press: Callable[[str], object], *, at_interrupt: Callable[[], object]) -> None:
        """Pass keys to a function from now on.

        Args:
            press: Called with each character, from a thread.
            at_interrupt: Called on the first Ctrl-C; the second one interrupts as usual. It runs between any two
                steps of the main thread, so it must not wait for anything that the main thread holds.
        """
        self._press = press
        if threading.current_thread() is threading.main_thread():
            self._end_orderly(at_interrupt)
        if _has_single_keys():
            self._take_single_keys()
            self._thread = threading.Thread(target=self._read, name="vitascope-keys", daemon=True)
            self._thread.start()

    def _end_orderly(self, at_interrupt: Callable[[], object]) -> None:
        before = signal.getsignal(signal.SIGINT)

        def stop(number: int, frame: FrameType | None) -> None:
            del number, frame
            signal.signal(signal.SIGINT, before)
            at_interrupt()

        self._restore.callback(signal.signal, signal.SIGINT, before)
        signal.signal(signal.SIGINT, stop)

    def _take_single_keys(self) -> None:
        import termios
        import tty

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)

        def give_back() -> None:
            # in the background the terminal is another program's, and changing it would stop this one
            if _is_in_foreground(descriptor):
                with suppress(termios.error):  # it may be gone
                    # not TCSADRAIN, which would block on a terminal halted with Ctrl-S
                    termios.tcsetattr(descriptor, termios.TCSANOW, before)

        self._restore.callback(give_back)
        tty.setcbreak(descriptor, termios.TCSANOW)

    def _read(self) -> None:
        descriptor = sys.stdin.fileno()
        try:
            while not self._is_over.is_set():
                if not _is_in_foreground(descriptor):  # reading would stop the whole program
                    self._is_over.wait(_POLL_SECONDS)
                elif select.select([descriptor], [], [], _POLL_SECONDS)[0]:
                    given = os.read(descriptor, 1)
                    if not given:
                        return  # end of input, which would be read again and again
                    if given == _ESCAPE and _is_dropped_at_once(descriptor):
                        continue
                    if self._press is not None and (key := given.decode("utf-8", errors="ignore")):
                        self._press(key)
        except OSError:  # the terminal is gone; the run continues without keys
            return

    def __enter__(self) -> Self:
        """Enter the context."""
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal and Ctrl-C."""
        self._is_over.set()
        with self._restore:
            if self._thread is not None:
                self._thread.join(_JOIN_SECONDS)


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Defer a Ctrl-C until the block is over.

    It is for imports of native modules: an interrupted one leaves a half-initialised module that crashes, or raises
    ``ImportError`` in place of the interruption.

    Raises:
        KeyboardInterrupt: At the end, if Ctrl-C was pressed inside.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before in (signal.SIG_IGN, None):  # ignored in a script's background, or not Python's
        yield
        return
    # A list, because an event's lock may be held when a second Ctrl-C arrives within the first one's handler.
    came = list[int]()
    signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _is_dropped_at_once(terminal: int) -> bool:
    """Discard pending bytes after an escape, and say whether there were any; arrow keys send several bytes."""
    is_dropped = False
    while select.select([terminal], [], [], 0)[0] and os.read(terminal, _LONGEST_SEQUENCE_BYTES):
        is_dropped = True
    return is_dropped


def _has_single_keys() -> bool:
    stdin: Any = sys.stdin
    return os.name == "posix" and stdin is not None and stdin.isatty() and _is_in_foreground(stdin.fileno())


def _is_in_foreground(terminal: int) -> bool:
    """False if a shell keeps the terminal, as after ``&``; reading or changing it would stop this program."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # a terminal without job control
        return True
