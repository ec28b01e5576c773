"""Check that the keys of a live run are the same in every list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vitascope.animation.live.controls import KEYS, Controls, LiveState, keys_in_words
from vitascope.cli import main
from vitascope.cli.prompt.console import HELP

DOCS = Path(__file__).parents[2] / "docs"


def test_the_help_of_the_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["animate", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"Keys of a live run, in its window or in the terminal: {keys_in_words()}." in told


def test_the_key_that_lists_them():
    said = []
    Controls(LiveState(), on_message=said.append).press("?")
    assert said == [f"keys: {keys_in_words()}"]


def test_the_prompt():
    assert "press ? lists them" in HELP["press KEYS"]


def test_the_page():
    page = (DOCS / "live.md").read_text(encoding="utf-8")
    section = page.split("## Keys")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    listed = [key for row in rows if row != "key" for key in row.lower().replace("−", "-").split(" and ")]
    assert set(listed) == set(KEYS)
