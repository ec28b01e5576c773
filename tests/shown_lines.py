"""Command lines that pages show, each understood once in a process: it takes up to a twentieth of a second."""

from __future__ import annotations

from functools import cache

from cyclopts import CycloptsError

from vitascope.cli.app import app


@cache
def refusal(*words: str) -> CycloptsError | None:
    """What the command line of today says against these words, which begin with a command; None where it takes them."""
    try:
        app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        return error.with_traceback(None)
    return None
