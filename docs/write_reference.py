"""Writes what the documentation takes from the source: ``python docs/write_reference.py [--check]``.

``docs/commands.md`` is what ``--help`` prints, ``docs/configuration.md`` has a table of all settings, and
``configs/gpu_config.yaml`` is a commented template of those of the GPU toolkit. ``--check`` changes nothing, and exits
with 1 when one of them is not current.
"""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby, takewhile
from pathlib import Path

from rich.console import Console

from vitascope.cli.app import app
from vitascope.config import load_settings
from vitascope.config.settings import SettingField, setting_fields, value_of
from vitascope.config.yaml_file import display
from vitascope.errors import ConfigError

COMMANDS = (
    ("segment",),
    ("people",),
    ("studio",),
    ("serve",),
    ("animate",),
    ("vr",),
    ("vr", "info"),
    ("vr", "convert"),
    ("vr", "library"),
    ("vr", "verify"),
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
    ("cluster",),
    ("cluster", "status"),
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
_COMMANDS_HEAD = """# Commands

`make docs` writes this page from `--help`. Options after *Also* are explained under `segment`; `--json` prints the
answer as JSON. Every command takes `--debug`, which shows where an error came from. `vitascope --help` lists the
commands, `--version` the version, and `--install-completion` completes options in your shell.
"""

BEGIN = "<!-- settings:begin -->"
END = "<!-- settings:end -->"

SECTIONS = ("gpu", "model", "processing", "tensorrt", "batching", "pipeline", "dataloader")
"""Sections of the GPU toolkit, in the order of the template."""
_TEMPLATE_HEAD = """\
# The settings of the GPU toolkit, all of them, with the values of the profile "balanced".
#
#   vitascope segment in.mp4 -o out.mp4 -c configs/gpu_config.yaml
#
# Copy it, keep the lines that you change and delete the others: what stands here wins over a profile, and what is not
# here follows it. `vitascope config show -c FILE` prints each value and where it came from; docs/configuration.md has
# all settings, docs/gpu_optimization_guide.md says which to change, and in which order.
#
# This file is generated: python docs/write_reference.py
"""
_TEMPLATE_WIDTH = 118
_OPTION = re.compile(r" (\*  |   )?--\S")
"""A line of help on which an option begins; one that is required has an asterisk before it."""
_EMPTY_BOX = re.compile(r"^[A-Z][\w ]*:\n(?:\n|\Z)", re.MULTILINE)
"""The title of a box that nothing is left in."""
_INSIDE_AN_OPTION = " " * 10
"""How every further line of its explanation begins, at least."""


def main(arguments: Sequence[str] | None = None, *, root: Path = Path()) -> int:
    """Write or check the pages.

    Args:
        arguments: ``--check``, or nothing.
        root: The repository.

    Returns:
        0, or 1 when ``--check`` found a page that is not current.
    """
    check = "--check" in (sys.argv[1:] if arguments is None else arguments)
    stale = 0
    for name, write in PAGES.items():
        path = root / name
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        wanted = write(current)
        if current == wanted:
            continue
        if check:
            sys.stderr.write(f"{path} is not current; run `make docs`\n")
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
    return stale


@cache
def commands_page() -> str:
    """Write the help of all commands as Markdown, each option that several explain alike once, under ``segment``."""
    app.resolved_commands()  # one that was not imported has no help yet
    explained = {words for _, words in _options(_help_of(("segment",)))} | {"--json Print as JSON."}
    parts = [_COMMANDS_HEAD]
    for command in COMMANDS:
        if any(other[:-1] == command for other in COMMANDS):
            continue  # a group; its commands follow
        page = _help_of(command)
        if command != ("segment",):
            page = _without(page, explained)
        parts.append(f"## `{' '.join(('vitascope', *command))}`\n\n```text\n{page}\n```\n")
    return "\n".join(parts)


def _help_of(command: tuple[str, ...]) -> str:
    page = io.StringIO()
    # A fixed width and no colour, so that the page is the same wherever it is made.
    console = Console(file=page, width=100, color_system=None, force_terminal=False, legacy_windows=False)
    app.help_print(list(command), console=console)
    text = "\n".join(_unboxed(page.getvalue().strip().splitlines()))
    return text[text.index("\n\n") + 2 :].removesuffix(str(app.help_epilogue)).rstrip()  # no line of usage


def _options(page: str) -> Iterator[tuple[range, str]]:
    """Find the options in a help text.

    Yields:
        The lines of an option, and its words without their place in the columns.
    """
    lines = page.splitlines()
    for first, line in enumerate(lines):
        if _OPTION.match(line):
            last = first + 1
            while last < len(lines) and lines[last].startswith(_INSIDE_AN_OPTION):
                last += 1
            yield range(first, last), " ".join(" ".join(lines[first:last]).split())


def _without(page: str, explained: set[str]) -> str:
    """Name the options that are explained elsewhere, in the place of explaining them."""
    named = [(place, words) for place, words in _options(page) if words in explained]
    if not named:
        return page
    left_out = {number for place, _ in named for number in place}
    kept = [line for number, line in enumerate(page.splitlines()) if number not in left_out]
    text = _EMPTY_BOX.sub("", "\n".join([*kept, ""])).rstrip()
    return "\n".join([text, "", f"Also: {', '.join(map(_names, (words for _, words in named)))}"])


def _names(words: str) -> str:
    """The long names of an option, without what only turns it off."""
    written = takewhile(lambda word: word.startswith("-"), words.split())
    first, *others = (name for name in written if name.startswith("--") and not name.startswith("--no-"))
    return f"{first} ({', '.join(others)})" if others else first


def _unboxed(lines: Sequence[str]) -> Iterator[str]:
    """Take the frames away that help has on a terminal: their titles stay, and what is in them."""
    for line in lines:
        if line.startswith("╭"):
            yield f"{line.strip('╭─╮ ')}:"
        elif line.startswith("╰"):
            yield ""
        else:
            yield line.removeprefix("│").removesuffix("│").rstrip()


def settings_table() -> str:
    """Write all settings as Markdown: a heading and a table for each section."""
    parts = []
    for section, fields in groupby(setting_fields().values(), key=lambda entry: entry.key.partition(".")[0]):
        parts.append(f"### `{section}`\n\n| Setting | Default | Values | Meaning |\n|-|-|-|-|")
        parts[-1] += "".join(f"\n{_row(entry)}" for entry in fields)
    return "\n\n".join(parts)


def with_settings(page: str) -> str:
    """Put the current table between the markers of a page.

    Raises:
        ConfigError: The page lacks the markers.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"the page has no {BEGIN} … {END} to put the table between")
    return f"{before}{BEGIN}\n\n{settings_table()}\n\n{END}{after}"


def _row(entry: SettingField) -> str:
    values = entry.expected if entry.default is not None else entry.expected.removesuffix(" or null")
    values = re.sub(r"a whole number from (\d+) to (\d+)", r"integer \1–\2", values)
    values = re.sub(r"a number from (\d+) to (\d+)", r"\1–\2", values)
    values = re.sub(r"a number (from )?", "", values).replace("true or false", "boolean")
    values = re.sub(r"above 0 up to (\d+)", r"0–\1, not 0", values).replace(
        " (vitascope people shows them)", ""
    )
    values = re.sub(r'(,? or|,) a (range|time) such as ("\d[\d:-]+").*', r" or \3", values)
    if values.startswith("a colour:"):
        values = "a colour"  # its row says how it is spelt
    cells = (f"`{entry.key}`", f"`{display(entry.default)}`", values, entry.description)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def template() -> str:
    """Write every setting of the GPU toolkit as YAML, with its meaning, its limits and its value."""
    settings = load_settings().settings
    fields = [entry for entry in setting_fields().values() if entry.key.partition(".")[0] in SECTIONS]
    fields.sort(key=lambda entry: SECTIONS.index(entry.key.partition(".")[0]))  # stable: else as declared
    lines: list[str] = [_TEMPLATE_HEAD.rstrip()]
    open_path: list[str] = []
    for entry in fields:
        *path, name = entry.key.split(".")
        shared = 0
        while shared < min(len(path), len(open_path)) and path[shared] == open_path[shared]:
            shared += 1
        if shared == 0:
            lines.append("")
        for depth in range(shared, len(path)):
            lines.append(f"{'  ' * depth}{path[depth]}:")
        open_path = path
        indent = "  " * len(path)
        lines += _comment(entry, indent)
        lines.append(f"{indent}{name}: {display(value_of(settings, entry.key))}")
    return "\n".join(lines) + "\n"


def _comment(entry: SettingField, indent: str) -> Iterator[str]:
    text = f"{entry.description} ({entry.expected})"
    for line in textwrap.wrap(text, _TEMPLATE_WIDTH - len(indent) - 2):
        yield f"{indent}# {line}"


PAGES: dict[str, Callable[[str], str]] = {
    "docs/commands.md": lambda _: commands_page(),
    "docs/configuration.md": with_settings,
    "configs/gpu_config.yaml": lambda _: template(),
}
"""Writers of the pages, which make the new text from the text that is there."""


if __name__ == "__main__":
    sys.exit(main())
