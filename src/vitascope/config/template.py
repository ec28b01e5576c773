"""The commented configuration template of the GPU toolkit, generated from the sections.

::

    python -m vitascope.config.template            rewrite configs/gpu_config.yaml
    python -m vitascope.config.template --check    exit 1 when it is not current
    python -m vitascope.config.template --print    show it
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from vitascope.config.catalogue import SettingField, setting_fields, value_of
from vitascope.config.loading import load_settings
from vitascope.config.origins import display

__all__ = ["SECTIONS", "main", "template"]

DEFAULT_FILE = Path("configs/gpu_config.yaml")

SECTIONS = ("gpu", "model", "processing", "tensorrt", "batching", "pipeline", "dataloader")
"""Sections of the toolkit, in the order of the template."""

_HEAD = """\
# The settings of the GPU toolkit, all of them, with the values of the profile "balanced".
#
#   vitascope segment in.mp4 -o out.mp4 -c configs/gpu_config.yaml
#
# Copy it, keep the lines that you change and delete the others: what stands here wins over a profile, and what is not
# here follows it. `vitascope config show -c FILE` prints each value and where it came from; docs/configuration.md has
# all settings, docs/gpu_optimization_guide.md says which to change, and in which order.
#
# This file is generated: python -m vitascope.config.template
"""
_WIDTH = 118


def template() -> str:
    """The file's text: every setting of the sections with its meaning, its limits and its value."""
    settings = load_settings().settings
    fields = [entry for entry in setting_fields().values() if entry.key.partition(".")[0] in SECTIONS]
    fields.sort(key=lambda entry: SECTIONS.index(entry.key.partition(".")[0]))  # stable: else as declared
    lines: list[str] = [_HEAD.rstrip()]
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite, check or show the template.

    Returns:
        0, or 1 when ``--check`` found a file that is not current.
    """
    parser = argparse.ArgumentParser(prog="python -m vitascope.config.template", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("file", nargs="?", type=Path, default=DEFAULT_FILE)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="change nothing; exit 1 when it is not current")
    action.add_argument("--print", action="store_true", help="write it to standard output")
    options = parser.parse_args(arguments)
    wanted = template()
    if options.print:
        sys.stdout.write(wanted)
        return 0
    current = options.file.read_text(encoding="utf-8") if options.file.exists() else None
    if current == wanted:
        return 0
    if options.check:
        sys.stderr.write(f"{options.file} is not current; run python -m vitascope.config.template\n")
        return 1
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text(wanted, encoding="utf-8")
    return 0


def _comment(entry: SettingField, indent: str) -> Iterator[str]:
    text = f"{entry.description} ({entry.expected})"
    for line in textwrap.wrap(text, _WIDTH - len(indent) - 2):
        yield f"{indent}# {line}"


if __name__ == "__main__":
    sys.exit(main())
