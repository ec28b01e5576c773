"""Tests how a fork of this process handles an object that was opened before it."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable

__all__ = ["said_in_a_fork"]


def said_in_a_fork(work: Callable[[], object]) -> str:
    """The error of a call in a forked child, as ``Type: message``; what it gave, without one.

    Args:
        work: The call. One that hangs is ended after 20 seconds by a signal, and gives an empty text.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python 3.12 warns of threads, which are the point here
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said
