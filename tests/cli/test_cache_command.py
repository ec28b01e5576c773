"""``vitascope cache``, and the flag of the lever that has one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from clips import write_clip
from vitascope.cli import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))

    def runner(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return runner


@pytest.fixture
def clip(tmp_path):
    return write_clip(tmp_path / "in.mp4", frame_count=12, paint=lambda _: np.full((64, 96, 3), 60, np.uint8))


def test_mattes_are_kept_listed_and_deleted(run, clip, tmp_path):
    assert "0 entries" in run("cache", "info")[1]
    cached = ("--profile", "fast", "--set", "processing.enable_caching=true")
    assert run("segment", clip, "-o", tmp_path / "one.mp4", *cached)[0] == 0
    code, printed, _ = run("segment", clip, "-o", tmp_path / "two.mp4", "--output", "mask", *cached)
    assert code == 0
    assert "12 of 12 frames came from the cache" in printed
    contents = json.loads(run("cache", "info", "--json")[1])
    assert contents["entries"] == 2
    assert contents["folder"].endswith("mattes")
    assert contents["stretches"]["entries"] == 0
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("{}\n")
    assert run("segment", clip, "-o", tmp_path / "three.mp4", "--profile", "fast", "--hints", hints)[0] == 0
    assert json.loads(run("cache", "info", "--json")[1])["stretches"]["entries"] == 1
    assert "2 entries removed" in (printed := run("cache", "clear")[1])
    assert "1 entries removed" in printed
    contents = json.loads(run("cache", "info", "--json")[1])
    assert contents["size_bytes"] == contents["stretches"]["size_bytes"] == 0


def test_skip_static_has_a_flag(run, clip, tmp_path):
    out = tmp_path / "out.mp4"
    code, printed, _ = run("segment", clip, "-o", out, "--profile", "fast", "--skip-static", "0.02", "--json")
    assert code == 0
    (report,) = json.loads(printed)
    assert report["levers"]["reused_frames"] == 11
    code, _, complained = run("segment", clip, "-o", out, "--skip-static", "2")
    assert code == 2
    assert "--skip-static" in complained
    assert "inference.skip_static" in complained
