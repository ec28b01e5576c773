"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from vitascope.observe.keys import holding_interrupts

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit; see ``vitascope.cli.app.main``.

    Ctrl-C while the commands are still being loaded is answered as it is later: with one line, and 130.
    """
    try:
        with holding_interrupts():
            from vitascope.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("vitascope: interrupted\n")
        raise SystemExit(130) from None
    run(arguments)
