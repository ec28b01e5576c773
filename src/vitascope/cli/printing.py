"""Prints the results of commands: JSON for programs, and tables for people that programs can cut into lines."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from vitascope.observe.terminal import Page, on_one_line

_UNLIMITED_WIDTH = 100_000


def print_json(data: Any) -> None:
    """Print plain data as JSON, indented, and nothing else."""
    json.dump(data, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_json_line(data: Any) -> None:
    """Print plain data as one line of JSON, at once."""
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def facts(rows: Mapping[str, str] | Iterable[tuple[str, str]]) -> Table:
    """Make a table of names and descriptions."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in rows.items() if isinstance(rows, Mapping) else rows:
        table.add_row(Text(on_one_line(name)), Text(on_one_line(value)))
    return table


def listing(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Make a table with a heading for each column."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(on_one_line(cell)) for cell in row))
    return table


def print_table(table: Table) -> None:
    """Print a table: as wide as the terminal; in a pipe or a file, one line per row."""
    if sys.stdout.isatty():
        Page(soft_wrap=False).print(table)
        return
    page = io.StringIO()
    Page(file=page, width=_UNLIMITED_WIDTH, color_system=None, soft_wrap=False).print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())
