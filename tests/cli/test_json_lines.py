"""Tests of ``segment --json-lines``, which reports events to programs as they happen."""

from __future__ import annotations

import json

import pytest

from clips import write_clip
from vitascope.cli.app import main
from vitascope.observe import progress


def run_command(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(["segment", *map(str, arguments), "--profile", "fast", "--device", "cpu"])
    said = capsys.readouterr()
    return end.value.code, [json.loads(line) for line in said.out.splitlines()], said.err


def test_each_line_is_something_that_happened(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_TOLD", 0.0)
    monkeypatch.setattr(progress, "_REFRESH_SECONDS", 0.001)
    films = tmp_path / "films"
    films.mkdir()
    write_clip(films / "a.mp4", frame_count=30)
    (films / "b.mp4").write_bytes(b"no film")
    write_clip(films / "c.mp4", frame_count=10)
    code, lines, _ = run_command(capsys, films, "-o", tmp_path / "cut", "--json-lines")
    assert code == 3
    a, b, c = (str(films / name) for name in ("a.mp4", "b.mp4", "c.mp4"))
    told = [(line["event"], line["input"]) for line in lines]
    assert [one for one in told if one[0] != "progress"] == [
        ("began", a),
        ("done", a),
        ("failed", b),
        ("began", c),
        ("done", c),
    ]
    assert ("progress", a) in told
    assert lines[0]["expected_frame_count"] == 30
    for line in lines:
        if line["event"] == "progress":
            assert 0 <= line["frame_count"] <= line["expected_frame_count"]
            assert line["frames_per_second"] >= 0
    assert [line["frame_count"] for line in lines if line["event"] == "done"] == [30, 10]
    assert "b.mp4" in next(line["error"] for line in lines if line["event"] == "failed")
    code, lines, _ = run_command(
        capsys, films / "a.mp4", "-o", tmp_path / "cut/a.mp4", "--json-lines", "--resume"
    )
    assert (code, [line["event"] for line in lines]) == (0, ["skipped"])


def test_a_run_that_is_refused_says_so_for_each(tmp_path, capsys):
    film = write_clip(tmp_path / "in.mp4", frame_count=3)
    out = tmp_path / "o.mp4"
    code, lines, said = run_command(capsys, film, "-o", out, "--json-lines", "--model", "none.onnx")
    assert code != 0
    assert [(line["event"], line["input"]) for line in lines] == [("failed", str(film))]
    assert lines[0]["error"] in said


@pytest.mark.parametrize("flag", ["--json", "--dry-run"])
def test_it_goes_with_no_other_report(tmp_path, capsys, flag):
    code, lines, said = run_command(capsys, "in.mp4", "-o", tmp_path / "o.mp4", "--json-lines", flag)
    assert (code, lines) == (2, [])
    assert f"leave {flag} out" in said
