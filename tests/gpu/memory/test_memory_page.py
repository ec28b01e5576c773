"""Check that the page on memory runs from top to bottom, as typed."""

from __future__ import annotations

from pathlib import Path

from typed_pages import run_page


def test_the_page_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    count, _ = run_page("memory.md")
    assert count == 5
    told = capsys.readouterr().out
    assert told.startswith("16.0\n")
    assert "VRAM: " in told
    assert list(tmp_path.glob("my-cache/*/*.vsarray"))
