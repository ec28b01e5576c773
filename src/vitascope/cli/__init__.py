"""The command line: parse, call, print."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from vitascope.observe.keys import holding_interrupts

__all__ = ["main"]

_OBJECTS_BETWEEN_SEARCHES = 100_000
"""Of the collector of cycles. Its usual 700 is for programs that make many; loading ours, it would search in vain for a
twentieth of a second."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit; see ``vitascope.cli.app.main``.

    Ctrl-C while the commands are still being loaded is answered as it is later: with one line, and 130.
    """
    if arguments is None:  # this process is ours
        gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
    try:
        with holding_interrupts():
            from vitascope.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("vitascope: interrupted\n")
        raise SystemExit(130) from None
    try:
        run(arguments)
    finally:
        if arguments is None:
            gc.freeze()  # no search on the way out, which would take a sixth of a second
