"""The page on batching runs from top to bottom, as somebody would type it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "batching.md"


def test_the_page_runs(capsys) -> None:
    snippets = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(snippets) == 6
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)
    told = capsys.readouterr().out
    assert "batch size: 1" in told
    assert len(names["masks"]) == 100
    assert names["found"].batch_size >= 1
    assert names["mask"].shape == (288, 512)
