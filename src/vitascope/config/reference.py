"""The table of all settings in the documentation, generated from the sections.

::

    python -m vitascope.config.reference            rewrite the table in docs/configuration.md
    python -m vitascope.config.reference --check    exit 1 when the table is not current
    python -m vitascope.config.reference --print    show the table
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from vitascope.config.catalogue import SettingField, setting_fields
from vitascope.config.origins import display
from vitascope.errors import ConfigError

__all__ = ["BEGIN", "END", "main", "reference_table", "with_reference"]

BEGIN = "<!-- settings:begin -->"
END = "<!-- settings:end -->"
DEFAULT_PAGE = Path("docs/configuration.md")


def reference_table() -> str:
    """All settings as Markdown: a heading and a table for each section."""
    parts = []
    for section, fields in groupby(setting_fields().values(), key=lambda entry: entry.key.partition(".")[0]):
        parts.append(f"### `{section}`\n\n| Setting | Default | Values | Meaning |\n|-|-|-|-|")
        parts[-1] += "".join(f"\n{_row(entry)}" for entry in fields)
    return "\n\n".join(parts)


def with_reference(page: str) -> str:
    """A page of documentation with the current table between its markers.

    Raises:
        ConfigError: The page lacks the markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page has no {BEGIN} … {END} to put the table between")
    return f"{before}{BEGIN}\n\n{reference_table()}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite, check or show the table.

    Returns:
        0, or 1 when ``--check`` found a page that is not current.
    """
    parser = argparse.ArgumentParser(prog="python -m vitascope.config.reference", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("page", nargs="?", type=Path, default=DEFAULT_PAGE, help="page with the markers")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 when the page is not current"
    )
    action.add_argument("--print", action="store_true", help="write the table to standard output")
    options = parser.parse_args(arguments)
    if options.print:
        sys.stdout.write(reference_table() + "\n")
        return 0
    current = options.page.read_text(encoding="utf-8")
    wanted = with_reference(current)
    if current == wanted:
        return 0
    if options.check:
        sys.stderr.write(f"{options.page} is not current; run python -m vitascope.config.reference\n")
        return 1
    options.page.write_text(wanted, encoding="utf-8")
    return 0


def _row(entry: SettingField) -> str:
    cells = (f"`{entry.key}`", f"`{display(entry.default)}`", entry.expected, entry.description)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
