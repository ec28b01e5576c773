"""Tests of ``vitascope cache``, and of the flag that needs the cache."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from clips import write_clip
from vitascope.file_lock import exclusive_lock


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    return run


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


@pytest.fixture
def home(tmp_path):
    """Create a home with files of 1000 bytes in every part."""
    files = (
        "stretches/a.stretch",
        "studio/proxies/a.1.proxy.mp4",
        "studio/proxies/b.1.proxy.mp4",
        "studio/cuts/a.json",
        "studio/queue.json",
        "studio/queue.lock",
        "studio/cookie.key",
        "people/a.zip",
        "finished/a.json",
        "engines/deep/a.engine",
        "optimization_history.jsonl",
        "models/rvm.onnx",
        "liveportrait/a.pth",
        "of an earlier version/x",
    )
    for name in files:
        path = tmp_path / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    return tmp_path / "home"


def test_everything_that_lies_in_the_home_is_listed_with_its_size(run, home):
    told = json.loads(run("cache", "info", "--json")[1])
    assert told["home"] == str(home)
    entries = {name: part["entries"] for name, part in told.items() if isinstance(part, dict)}
    assert entries == {
        "mattes": 0, "stretches": 1, "quantized": 0, "proxies": 2, "cuts": 1, "people": 1, "finished": 1,
        "engines": 1, "tuning": 1, "studio": 2, "models": 1, "liveportrait": 1, "other": 2,
    }  # fmt: skip
    size = sum(file.stat().st_size for file in home.rglob("*") if file.is_file())
    assert told["total_bytes"] == size == 14_000
    assert told["proxies"] == {
        "folder": str(home / "studio" / "proxies"),
        "entries": 2,
        "size_bytes": 2000,
    }
    printed = run("cache", "info")[1]
    assert f"{home / 'studio' / 'proxies'}: 2 entries" in printed
    assert "0.0 MB in all" in printed


def left(home):
    return {file.relative_to(home).as_posix() for file in home.rglob("*") if file.is_file()}


def test_clear_removes_what_is_made_again_and_leaves_what_a_user_would_miss(run, home):
    code, printed, _ = run("cache", "clear")
    assert (code, "(proxies)" in printed) == (0, True)
    assert left(home) == {
        "studio/queue.json",
        "studio/queue.lock",
        "studio/cookie.key",
        "people/a.zip",
        "finished/a.json",
        "engines/deep/a.engine",
        "optimization_history.jsonl",
        "models/rvm.onnx",
        "liveportrait/a.pth",
        "of an earlier version/x",
    }


def test_parts_are_cleared_by_name_and_all_but_networks_at_once(run, home):
    assert run("cache", "clear", "proxies", "people")[0] == 0
    assert not {"studio/proxies/a.1.proxy.mp4", "people/a.zip"} & left(home)
    assert {"studio/cuts/a.json", "stretches/a.stretch"} <= left(home)
    assert run("cache", "clear", "--everything")[0] == 0
    assert left(home) == {
        "studio/queue.lock",
        "models/rvm.onnx",
        "liveportrait/a.pth",
        "of an earlier version/x",
    }


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("models", "vitascope models remove"),
        ("liveportrait", "by hand"),
        ("proxy", "expected some of mattes"),
    ],
)
def test_what_is_not_cleared_here_is_told_and_nothing_is_lost(run, home, part, why):
    before = left(home)
    code, _, complained = run("cache", "clear", "proxies", part)
    assert (code, why in complained) == (2, True)
    assert left(home) == before


def test_what_a_running_studio_writes_stays(run, home):
    (home / "studio" / "proxies" / ".c.1.proxy.part.mp4").write_bytes(bytes(1000))
    old = home / "studio" / "proxies" / ".d.1.proxy.part.mp4"
    old.write_bytes(bytes(1000))
    os.utime(old, (1, 1))
    with exclusive_lock(home / "studio" / "queue.lock"):
        assert run("cache", "clear", "proxies")[0] == 0
        code, _, complained = run("cache", "clear", "studio")
    assert (code, "a studio is running" in complained) == (4, True)
    assert {name for name in left(home) if name.startswith("studio/")} == {
        "studio/proxies/.c.1.proxy.part.mp4",
        "studio/cuts/a.json",
        "studio/queue.json",
        "studio/queue.lock",
        "studio/cookie.key",
    }


def test_a_home_that_is_not_there_is_empty(run, tmp_path):
    assert json.loads(run("cache", "info", "--json")[1])["total_bytes"] == 0
    assert run("cache", "clear", "--everything")[0] == 0
    assert not (tmp_path / "home").exists()


def test_parts_and_everything_are_not_named_together(run, home):
    code, _, said = run("cache", "clear", "people", "--everything")
    assert code == 2
    assert "people and --everything" in said


def test_a_part_that_is_a_link_belongs_to_somebody_else(run, tmp_path):
    theirs = tmp_path / "theirs"
    (theirs / "sub").mkdir(parents=True)
    (theirs / "precious.mp4").write_bytes(b"x")
    (theirs / "sub" / "a.txt").write_bytes(b"x")
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "stretches").symlink_to(theirs)
    assert run("cache", "clear")[0] == 0
    assert (theirs / "precious.mp4").exists()
    assert (theirs / "sub" / "a.txt").exists()


def test_nothing_is_cleared_while_a_studio_runs(run, home):
    kept = sorted(path for path in home.rglob("*") if path.is_file())
    with exclusive_lock(home / "studio" / "queue.lock"):
        assert run("cache", "clear", "--everything")[0] == 4
    assert [path for path in kept if not path.exists()] == []
