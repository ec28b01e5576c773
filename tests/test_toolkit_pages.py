"""Check that code on the toolkit's pages runs unchanged without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from test_docs import snippets

DOCS = Path(__file__).parents[1] / "docs"
SNIPPETS = [
    pytest.param(page, text, id=f"{page}-{n}")
    for page in ("async_pipeline.md", "gpu_optimization_guide.md", "pipeline.md")
    for n, text in enumerate(snippets(DOCS / page))
]


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS)
def test_a_snippet_runs(
    page: str,
    snippet: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, page, "exec"), {"__name__": "snippet"})


def test_the_guide_names_every_class() -> None:
    from vitascope import gpu

    text = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("gpu_optimization_guide",))
    helpers = {"BatchConfig", "InferenceRequest", "InferenceResponse"}
    assert {name for name in gpu.__all__ if name not in text} <= helpers
