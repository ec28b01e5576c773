"""The generated table in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitascope.config.catalogue import setting_fields
from vitascope.config.reference import BEGIN, END, main, reference_table, with_reference
from vitascope.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(PAGE), "--check"]) == 0, capsys.readouterr().err


def test_the_table_has_a_row_for_each_setting() -> None:
    rows = [line for line in reference_table().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(setting_fields())
    assert all(row.replace(r"\|", "").count("|") == 5 for row in rows)


def test_only_what_lies_between_the_markers_changes() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_reference(page) == f"before\n{BEGIN}\n\n{reference_table()}\n\n{END}\nafter\n"
    assert with_reference(with_reference(page)) == with_reference(page)


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}"])
def test_a_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ConfigError, match="settings:begin"):
        with_reference(page)


def test_check_reports_and_writing_repairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}", encoding="utf-8")
    assert main([str(page), "--check"]) == 1
    assert "not current" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == f"{BEGIN}{END}"
    assert main([str(page)]) == 0
    assert main([str(page), "--check"]) == 0
    assert main(["--print"]) == 0
    assert capsys.readouterr().out == reference_table() + "\n"
