"""The command line: parse, call, print."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from vitascope.errors import OutputError
from vitascope.gpu.memory.host_heap import share_heaps
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.standard_streams import outlive_readers

__all__ = ["main"]

_OBJECTS_BETWEEN_SEARCHES = 100_000
"""New objects between two searches for cycles. The usual 700 is for programs that make many; while ours is loaded, it
would search in vain for a twentieth of a second."""


def _end_as_ctrl_c_does() -> None:
    """Have a request to end (``kill``, a closed terminal) answered as Ctrl-C is: nothing is left half-written.

    Who had it ignored (``nohup``) has it ignored.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _press_ctrl_c)


def _press_ctrl_c(_number: int, _frame: FrameType | None) -> None:
    # A script's shell starts what runs in the background with Ctrl-C ignored.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit; see ``vitascope.cli.app.main``.

    Ctrl-C while the commands are still being loaded is answered as it is later: with one line, and 130.
    """
    if arguments is None:  # this process is ours
        outlive_readers()
        _end_as_ctrl_c_does()
        gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
        share_heaps()
    try:
        with holding_interrupts():
            from vitascope.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("vitascope: interrupted\n")
        raise SystemExit(130) from None
    try:
        try:
            run(arguments)
        except KeyboardInterrupt:
            raise SystemExit(130) from None  # pressed again when the first one was about to be told
    except SystemExit as ended:
        if arguments is None:
            _leave(ended.code)
        raise


def _leave(code: str | int | None) -> None:
    """Get ready to end, when nothing is left that has to be ended in order."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OutputError):
            stream.flush()
    # A thread that is inside native code, and comes back while Python ends, takes the process with it.
    if isinstance(code, int) and code and any(thread.daemon for thread in threading.enumerate()):
        os._exit(code)
    gc.freeze()  # no search on the way out, which would take a sixth of a second
