"""Pages of the documentation, typed from top to bottom like a reader would."""

from __future__ import annotations

import re
from pathlib import Path

_PAGES = Path(__file__).parents[1] / "docs"
_SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_page(name: str) -> tuple[int, dict[str, object]]:
    """Run all Python of a page, one snippet after the other in one namespace; returns their number, and the names."""
    page = _PAGES / name
    snippets = _SNIPPET.findall(page.read_text(encoding="utf-8"))
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets:
        exec(compile(snippet, str(page), "exec"), names)
    return len(snippets), names
