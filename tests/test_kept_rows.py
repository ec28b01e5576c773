"""Rows of benchmarks that are kept: a script measures each again, at a commit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def row_stamp(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "row_stamp", raising=False)
    import row_stamp

    (tmp_path / "results").mkdir()
    monkeypatch.setattr(row_stamp, "RESULTS", tmp_path / "results")
    return row_stamp


def test_rows_of_uncommitted_sources_are_not_kept(row_stamp, monkeypatch, tmp_path, capsys):
    kept, elsewhere = tmp_path / "results" / "x.json", tmp_path / "x.json"
    monkeypatch.setattr(row_stamp, "commit", lambda: "0123abc+")
    with pytest.raises(SystemExit, match="sources differ from 0123abc; commit first"):
        row_stamp.write_rows(kept, [{"fps": 5}])
    assert not kept.exists()
    assert json.loads(capsys.readouterr().out) == [{"fps": 5}]  # an hour of measuring is not lost
    row_stamp.write_rows(elsewhere, [{"fps": 5}])
    monkeypatch.setattr(row_stamp, "commit", lambda: "0123abc")
    row_stamp.write_rows(kept, [{"fps": 5}])
    assert kept.read_text() == elsewhere.read_text() == '[\n {\n  "fps": 5\n }\n]\n'


def test_every_script_writes_through_it():
    for script in BENCHMARKS.glob("*.py"):
        text = script.read_text(encoding="utf-8")
        assert script.name == "row_stamp.py" or ".write_text(json.dumps(" not in text, script.name
        # The commit without a plus would hide what is not committed.
        assert script.name == "row_stamp.py" or '"rev-parse"' not in text, script.name


def test_every_kept_file_has_a_script():
    paths = [*BENCHMARKS.rglob("*.py"), *Path(__file__).with_name("fuzz").glob("*.py")]
    readers = {"readme_figures", "toolkit_tables", "levers_figures"}
    texts = [path.read_text(encoding="utf-8") for path in paths if path.stem not in readers]
    scripts = {path.stem for path in paths}
    for path in (BENCHMARKS / "results").glob("*.json"):
        named = any(path.name in text for text in texts)
        assert named or {path.stem, f"{path.stem}_cuda"} & scripts, path.name


def test_no_row_is_of_uncommitted_sources():
    found = {
        path.stem
        for path in (BENCHMARKS / "results").glob("*.json")
        for row in json.loads(path.read_text(encoding="utf-8"))
        if str(row.get("commit", "")).endswith("+")
    }
    assert found == set()
