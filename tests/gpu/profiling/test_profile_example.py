"""Check that the profiling example and the snippets of its page work."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SNIPPETS = re.findall(
    r"^```python\n(.*?)^```",
    (ROOT / "docs" / "profiling.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


def test_the_example(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    verdict = importlib.import_module("profile_pipeline").main(device="cpu", frames=40, out=tmp_path)
    assert verdict.main.stage in {pace.stage for pace in verdict.paces}
    printed = capsys.readouterr().out
    for words in ("postprocess", "  network", "main memory", "do this: "):
        assert words in printed
    assert {path.name for path in tmp_path.iterdir()} == {
        "profile.json",
        "trace.json",
        "profile.html",
        "profile.png",
    }


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.splitlines()[0])
def test_a_snippet_of_the_page_runs(snippet, tmp_path, monkeypatch):
    if "CUDAProfiler" in snippet:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "docs/profiling.md", "exec"), {"__name__": "snippet"})
