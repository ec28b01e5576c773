from __future__ import annotations

from pathlib import Path

from vitascope.cli import reference
from vitascope.cli.app import app

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_in_docs_is_what_help_says():
    assert PAGE.read_text(encoding="utf-8") == reference.reference_page(), "run `make docs`"


def test_every_command_is_on_the_page():
    def names(node, prefix=()):
        for name in node.resolved_commands():
            if not name.startswith("-"):
                yield (*prefix, name)
                yield from names(node[name], (*prefix, name))

    assert set(names(app)) <= set(reference.COMMANDS)


def test_check_notices_a_stale_page(tmp_path, capsys):
    stale = tmp_path / "commands.md"
    stale.write_text("old")
    assert reference.main([str(stale), "--check"]) == 1
    assert "make docs" in capsys.readouterr().err
    assert reference.main([str(stale)]) == 0
    assert reference.main([str(stale), "--check"]) == 0
