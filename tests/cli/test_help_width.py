"""Check that help fits a terminal of 80 columns without breaking lines."""

from __future__ import annotations

import inspect
import re
from contextlib import redirect_stdout
from functools import cache
from io import StringIO

import pytest

from vitascope.cli.app import app
from write_reference import COMMANDS

_LONGEST_BOX = 20
"""Maximum number of flags in a box; more must be grouped by topic."""


@cache
def shown(command):
    """Return the help of a command, made once."""
    with redirect_stdout(StringIO()) as page:
        app([*command, "--help"], exit_on_error=False, result_action="return_value")
    return page.getvalue()


def paragraphs(command):
    """Return the lines of a command's description in paragraphs, without its arguments."""
    node = app
    for word in command:
        node = node[word]
    if node.default_command is None:
        return []
    text = inspect.cleandoc(node.default_command.__doc__).split("\nArgs:")[0]
    return [part.splitlines() for part in text.strip().split("\n\n")]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_line_of_a_description_is_broken(command):
    lines = [line.rstrip() for line in shown(command).splitlines()]
    assert max(map(len, lines)) <= 80
    for paragraph in paragraphs(command)[1:]:  # the first is a sentence, and wraps
        assert set(paragraph) <= set(lines)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_examples_stand_on_a_line_each(command):
    for paragraph in paragraphs(command)[1:]:
        if paragraph[0].startswith("vitascope "):
            assert all(re.match(r"vitascope |curl ", line) for line in paragraph)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_box_holds_more_flags_than_can_be_overseen(command):
    boxes = shown(command).split("╭─ ")[1:]
    flags = {box.split(" ─")[0]: len(re.findall(r"^│ [ *]*--\S", box, re.MULTILINE)) for box in boxes}
    assert max(flags.values(), default=0) <= _LONGEST_BOX


def test_animate_tells_its_flags_apart_as_segment_does():
    boxes = {
        name: [box.split(" ─")[0] for box in shown((name,)).split("╭─ ")[1:]]
        for name in ("segment", "animate")
    }
    assert boxes["animate"] == [
        "Input",
        "Output",
        "Face",
        "Live",
        "Quality",
        "Device",
        "Monitoring",
        "Settings",
    ]
    assert set(boxes["animate"]) - {"Face"} <= set(boxes["segment"])
