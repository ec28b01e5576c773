"""Handles standard input, output and error, whatever they lead to and whoever writes there, even a C++ library."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vitascope.errors import OutputError


def outlive_readers() -> None:
    """Keep the program running if the reader of its output goes away.

    Closed streams lead to the null device instead of the next file that is opened. If standard error cannot be
    written (a full disk, a reader that has left), its text is lost, but the work and its exit code stay. The same
    holds for standard output whose reader has left; a full disk behind it raises one ``OutputError``.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            if os.open(os.devnull, os.O_RDWR) == number:  # the lowest free number
                os.set_inheritable(number, True)
                setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        if type(getattr(buffer, "raw", buffer)) is io.FileIO:  # Windows' console has another type
            patient = io.TextIOWrapper(
                io.BufferedWriter(_Outliving(stream.fileno(), "w", closefd=False)),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, patient)


class _Outliving(io.FileIO):
    """Standard output or standard error."""

    _is_lost = False

    def write(self, data: Any, /) -> int:
        """Write, or drop the text if its reader is gone."""
        try:
            return super().write(data)
        except OSError as error:
            is_news = self.fileno() == 1 and not self._is_lost and not isinstance(error, BrokenPipeError)
            self._is_lost = True
            if is_news:
                raise OutputError(f"standard output cannot be written: {error.strerror}") from error
            return len(data)


@contextmanager
def quiet_native_stderr() -> Iterator[None]:
    """Suppress messages that a library's C++ code writes to the terminal, if the library has no setting for it.

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
