"""Command lines shown on pages, each parsed once in a process, as one takes up to a twentieth of a second."""

from __future__ import annotations

from functools import cache

from cyclopts import CycloptsError

from vitascope.cli.app import app


@cache
def refusal(*words: str) -> CycloptsError | None:
    """Return the command line's error for these words, which begin with a command; None if it accepts them."""
    try:
        app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        return error.with_traceback(None)
    return None
