"""Check that the page on batching runs from top to bottom, as typed."""

from __future__ import annotations

from typed_pages import run_page


def test_the_page_runs(capsys) -> None:
    count, names = run_page("batching.md")
    assert count == 6
    told = capsys.readouterr().out
    assert "batch size: 1" in told
    assert len(names["masks"]) == 100
    assert names["found"].batch_size >= 1
    assert names["mask"].shape == (288, 512)
