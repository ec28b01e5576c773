"""Writes ``docs/commands.md`` from ``--help``: ``python -m vitascope.cli.reference [PAGE] [--check]``."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console

from vitascope.cli.app import app

__all__ = ["COMMANDS", "reference_page"]

COMMANDS = (
    (),
    ("segment",),
    ("animate",),
    ("models",),
    ("models", "list"),
    ("models", "pull"),
    ("models", "where"),
    ("models", "verify"),
    ("models", "remove"),
    ("models", "export"),
    ("cache",),
    ("cache", "info"),
    ("cache", "clear"),
    ("doctor",),
    ("optimize",),
    ("profile",),
    ("interactive",),
    ("bench",),
    ("bench", "run"),
    ("bench", "analyze"),
    ("bench", "compare"),
    ("bench", "pipeline"),
    ("bench", "baseline"),
    ("bench", "checklist"),
    ("bench", "animate"),
    ("config",),
    ("config", "show"),
)
_PAGE = Path("docs/commands.md")
_HEAD = """# Commands

Written from `--help` by `make docs`; a test fails when the two differ.
"""


def reference_page() -> str:
    """The page, as Markdown."""
    app.resolved_commands()  # one that was not imported has no help yet
    parts = [_HEAD]
    for command in COMMANDS:
        parts.append(f"## `{' '.join(('vitascope', *command))}`\n\n```text\n{_help_of(command)}\n```\n")
    return "\n".join(parts)


def _help_of(command: tuple[str, ...]) -> str:
    page = io.StringIO()
    # A fixed width and no colour, so that the page is the same wherever it is made.
    console = Console(file=page, width=100, color_system=None, force_terminal=False, legacy_windows=False)
    app.help_print(list(command), console=console)
    return "\n".join(line.rstrip() for line in page.getvalue().strip().splitlines())


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with ``--check``."""
    paths = [Path(argument) for argument in arguments if not argument.startswith("--")]
    path = paths[0] if paths else _PAGE
    if "--check" in arguments:
        if path.exists() and path.read_text(encoding="utf-8") == reference_page():
            return 0
        sys.stderr.write(f"{path} does not match --help; run `make docs`\n")
        return 1
    path.write_text(reference_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
