"""Tables for people, which programs can cut into lines."""

from __future__ import annotations

import io
import sys

from rich.table import Table

from vitascope.observe.terminal import Page

__all__ = ["print_table"]

_UNLIMITED_WIDTH = 100_000


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal, or in a pipe or a file a row on a line, however long it gets."""
    if sys.stdout.isatty():
        Page(soft_wrap=False).print(table)
        return
    page = io.StringIO()
    Page(file=page, width=_UNLIMITED_WIDTH, color_system=None, soft_wrap=False).print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())
