"""Ctrl-C ends a command within a second or two, even inside native code."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from vitascope.observe.terminal import escaped

INTERRUPTED = 130
_PATIENCE_SECONDS = 1.0
"""Time that threads get for an orderly end."""


@contextmanager
def ending_promptly(kept: Callable[[], str] = str) -> Iterator[None]:
    """End a measuring command promptly; such commands leave nothing half-written, whenever they end.

    An interrupted pipeline joins its threads, and one inside a network ends only with that call: eight frames of
    1080p take a slow CPU ten seconds. Here they get one second; then temporary files, which are all in one folder,
    are removed, and the program ends.

    Args:
        kept: Says what is on disk and how to continue it; empty for nothing.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, and the threads ended in time.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        with _saying(kept):
            yield
        return
    ending = threading.Lock()
    folder_before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="vitascope-") as scratch:

        def end() -> None:
            if ending.acquire(blocking=False):
                _end(scratch, kept)

        def pressed(_number: int, _frame: FrameType | None) -> NoReturn:
            timer = threading.Timer(_PATIENCE_SECONDS, end)
            timer.daemon = True
            timer.start()
            raise KeyboardInterrupt

        tempfile.tempdir = scratch
        signal.signal(signal.SIGINT, pressed)
        try:
            with _saying(kept):
                yield
        finally:
            ending.acquire()  # never released: if the timer was first, the program ends while this waits
            signal.signal(signal.SIGINT, signal.default_int_handler)
            tempfile.tempdir = folder_before


@contextmanager
def _saying(kept: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(str(error) or kept()) from error


def _end(scratch: str, kept: Callable[[], str]) -> NoReturn:
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        said = kept()
        sys.stderr.write(escaped(f"vitascope: interrupted{'; ' if said else ''}{said}") + "\n")
        sys.stderr.flush()
    finally:
        os._exit(INTERRUPTED)
