"""Tests of ``vitascope interactive`` with commands from a pipe."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from clips import write_clip
from vitascope.cli import main
from vitascope.cli.prompt import live as live_run
from vitascope.observe.metrics import Metrics


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Pipe lines into it; returns exit code and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def runner(lines, *words):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        with pytest.raises(SystemExit) as end:
            main(["interactive", "--set", "gpu.device=cpu", *map(str, words)])
        return end.value.code, capsys.readouterr().out

    return runner


def test_the_end_of_the_input_waits_for_the_jobs(run, tmp_path):
    write_clip(tmp_path / "in.mp4", frame_count=6)
    code, told = run("start in.mp4 -o out.mp4\n", "--profile", "fast")
    assert code == 0
    assert "job 1 done: 6 frames" in told
    assert (tmp_path / "out.mp4").is_file()


def test_quit_does_not(run, tmp_path):
    write_clip(tmp_path / "in.mp4", frame_count=400)
    code, told = run("start in.mp4 -o out.mp4\nquit\nhelp\n", "--profile", "fast")
    assert code == 0
    assert "job 1 stopped" in told
    assert "unset" not in told, "what comes after quit is not read"
    assert not (tmp_path / "out.mp4").exists()


def test_the_first_failure_is_the_exit_code(run, tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    code, told = run("start text.mp4 -o out.mp4\n", "--profile", "fast")
    assert code == 3
    assert "job 1 failed: " in told
    assert run("start nothing.mp4 -o out.mp4\n")[0] == 3
    assert run("dance\n")[0] == 2


def test_settings_that_are_wrong_from_the_start(run):
    assert run("help\n", "--set", "model.batch_size=no") == (2, "")


def test_hardware_and_metrics(run):
    code, told = run("hardware\nconfig fp\nstats\n", "--metrics-port", 0)
    assert code == 0
    assert "metrics: http://127.0.0.1:" in told
    assert "segment runs on" in told
    assert "none runs" in told


def test_a_live_animation_among_the_jobs(run, tmp_path, face_model, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    animate = "animate examples/astronaut.jpg -d examples/talk.motion --sink file:out.mp4 --duration 0.5"
    code, told = run(f"{animate}\nwait\nlive\n")
    assert code == 0
    assert "live: ended: " in told
    assert "mesh at 512x512" in told
    assert (tmp_path / "out.mp4").is_file()
    code, told = run("animate examples/astronaut.jpg -d examples/talk.motion --sink hologram\n")
    assert code == 2
    assert "live: failed: unknown sink 'hologram'" in told
    assert run("stop live\n")[0] == 2


def test_a_live_run_is_followed_until_it_ends(run, tmp_path, monkeypatch):
    followed, told_of = [], []
    monkeypatch.setattr(Metrics, "follow_live", lambda _, session: followed.append(session))
    monkeypatch.setattr(Metrics, "live_ended", lambda _: told_of.append(len(followed)))
    session = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(live_run, "animate_live", lambda *_, on_session, **__: on_session(session))
    (tmp_path / "a.jpg").touch()
    (tmp_path / "talk.motion").touch()
    code, _ = run("animate a.jpg -d talk.motion --sink window\n", "--metrics-port", 0)
    assert code == 0
    assert followed == [session]
    assert told_of == [1], "once, after it was followed"
