"""``vitascope config``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from vitascope.cli.tables import print_table
from vitascope.config import load_settings
from vitascope.observe.terminal import Page

__all__ = ["app"]

app = App(name="config", help="Look at settings.", help_format="plaintext")


@app.command
def show(
    *,
    profile: str | None = None,
    config: Annotated[list[Path] | None, Parameter(alias="-c", negative="")] = None,
    set_: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    yaml: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Show every setting, its value, and where the value came from.

    Args:
        profile: fast, balanced, quality or animator.
        config: Settings file (YAML); several override one another in order.
        set_: One setting as key=value.
        yaml: Print a settings file that gives the same values.
        json: Print for machines.
    """
    loaded = load_settings(profile=profile, files=config or (), assignments=set_ or ())
    page = Page()
    if yaml:
        page.print(loaded.to_yaml(), end="")
        return
    rows = loaded.rows()
    if json:
        page.print_json(
            data=[
                {
                    "key": row.key,
                    "value": row.plain_value,
                    "origin": str(row.origin),
                    "description": row.description,
                }
                for row in rows
            ]
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, (row.key, row.value_text, str(row.origin))))
    print_table(table)
