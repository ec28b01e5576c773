"""Tests of ``vitascope profile`` from the command line."""

from __future__ import annotations

import pytest
from command_line import run

from clips import write_clip


def test_memory_of_a_real_run(tmp_path, capsys):
    clip = write_clip(tmp_path / "in.mp4", frame_count=12)
    assert run("profile", "-t", "memory", "-d", 20, clip, "--profile", "fast", "-o", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    for number in "123":
        assert f"\n{number}. " in printed
    assert f"written: {tmp_path / 'out' / 'memory.html'}" in printed
    assert (tmp_path / "out" / "memory.png").is_file()


def test_on_the_processor_stages_are_the_default(tmp_path, capsys):
    clip = write_clip(tmp_path / "in.mp4", frame_count=12)
    assert run("profile", "-d", 20, clip, "--profile", "fast", "-o", tmp_path / "out") == 0
    assert "written: " in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"stages.json", "stages.trace.json"}


@pytest.mark.parametrize("name", ["nsight", "nsight-systems"])
def test_nsight_has_two_names(name, tmp_path, capsys, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("profile", "-t", name, clip) == 5
    assert capsys.readouterr().err.startswith("vitascope: nsys is not installed")


@pytest.mark.parametrize("words", [("profile",), ("bench", "pipeline")])
def test_where_nothing_can_be_written_nothing_is_measured(tmp_path, capsys, words):
    clip = write_clip(tmp_path / "in.mp4", frame_count=12)
    assert run(*words, "-d", 20, clip, "--profile", "fast", "-o", clip) == 4
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith(f"vitascope: {clip}")
    assert printed.err.endswith("a part of the path is a file, not a folder\n")


def test_what_does_not_exist(tmp_path, capsys):
    assert run("profile", "-t", "vtune", "in.mp4") == 2
    assert run("profile", "-t", "memory", tmp_path / "missing.mp4") == 3
    assert run("profile", "-t", "memory", "-d", "-1", tmp_path / "missing.mp4") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 3
