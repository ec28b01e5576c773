"""The page on memory runs from top to bottom, as somebody would type it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "memory.md"


def test_the_page_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(snippets) == 5
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)
    told = capsys.readouterr().out
    assert told.startswith("16.0\n")
    assert "VRAM: " in told
    assert list(tmp_path.glob("my-cache/*/*.vsarray"))
