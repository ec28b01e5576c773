"""Logs that C++ libraries write to standard error by themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_native_stderr() -> Iterator[None]:
    """Keep what a library's C++ code writes off the terminal, where no setting of the library does.

    It covers the whole process meanwhile, so keep the block short.
    """
    try:
        descriptor = sys.__stderr__.fileno() if sys.__stderr__ is not None else -1
        kept = os.dup(descriptor)
    except (OSError, ValueError):  # no stderr, as in a service
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, descriptor)
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(nowhere)
