"""Tests of ``vitascope segment --metrics-port`` and ``--tensorboard``."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from command_line import run

from clips import write_clip
from vitascope.observe.metrics import Metrics, MetricsServer
from vitascope.observe.tensorboard import EventFile


def test_a_run_can_be_watched(tmp_path, capsys, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", frame_count=6)
    broken = tmp_path / "text.mp4"
    broken.write_text("no video")
    looks, urls = [], []
    begin, end = MetricsServer.__enter__, Metrics.job_ended

    def began(server):
        urls.append(server.url)
        return begin(server)

    def ended(metrics, *words, **more):
        with urlopen(urls[0], timeout=10) as answer:
            looks.append(answer.read().decode())
        end(metrics, *words, **more)
        with urlopen(urls[0], timeout=10) as answer:
            looks.append(answer.read().decode())

    monkeypatch.setattr(MetricsServer, "__enter__", began)
    monkeypatch.setattr(Metrics, "job_ended", ended)
    folder = tmp_path / "out"
    assert run("segment", broken, clip, "-o", folder, "--profile", "fast", "--metrics-port", 0) == 3
    assert f"metrics: {urls[0]}\n" in capsys.readouterr().err
    after_the_broken, working, after_all = looks[1:]
    assert 'vitascope_errors_total{kind="InputError"} 1.0' in after_the_broken
    assert "vitascope_job_running 1.0" in working
    assert 'vitascope_stage_items_total{stage="infer"} 6.0' in working
    assert "vitascope_frames_total 6.0" in after_all
    assert 'vitascope_jobs_total{status="done"} 1.0' in after_all
    assert 'vitascope_jobs_total{status="failed"} 1.0' in after_all
    with pytest.raises(OSError, match="refused"):
        urlopen(urls[0], timeout=1)


def test_a_port_in_use_is_one_line_before_anything_is_written(tmp_path, capsys):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run("segment", clip, "-o", tmp_path / "out.mp4", "--metrics-port", port) == 4
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"vitascope: metrics cannot be served at 127.0.0.1, port {port}: ")
    assert len(complaint.splitlines()) == 1
    assert not (tmp_path / "out.mp4").exists()


def test_what_is_refused(tmp_path, capsys):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    begin = ("segment", clip, "-o", tmp_path / "out.mp4")
    assert run(*begin, "--metrics-host", "0.0.0.0") == 2
    assert run(*begin, "--metrics-port", 9100, "--dry-run") == 2
    assert run(*begin, "--metrics-port", 70000) == 2
    assert run(*begin, "--metrics-port", "http") == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
    assert not (tmp_path / "out.mp4").exists()


def test_without_the_extra(tmp_path, capsys, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert run("segment", clip, "-o", tmp_path / "out.mp4", "--metrics-port", 0) == 5
    assert "pip install 'vitascope[metrics]'" in capsys.readouterr().err


def test_curves_for_tensorboard(tmp_path, capsys, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", frame_count=6)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # not needed without a server
    runs = tmp_path / "runs"
    words = ("--profile", "fast", "--tensorboard", runs)
    assert run("segment", clip, "-o", tmp_path / "out.mp4", *words) == 0
    (folder,) = runs.iterdir()
    assert f"metrics: {folder}; tensorboard --logdir {runs} shows them\n" in capsys.readouterr().err
    (file,) = folder.iterdir()
    written = file.read_bytes()
    for tag in (b"frames_per_second", b"frame_latency_seconds/p99", b"resident_memory_bytes"):
        assert tag in written


def test_a_disk_that_fills_up_under_the_curves_costs_no_video(tmp_path, capsys, monkeypatch):
    clip = write_clip(tmp_path / "in.mp4", frame_count=6)
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    add = EventFile.add

    def add_to_a_full_disk(self, *values, **more):
        self._file.close()
        self._file = full.open("wb")
        add(self, *values, **more)

    monkeypatch.setattr(EventFile, "add", add_to_a_full_disk)
    out = tmp_path / "out.mp4"
    words = ("--profile", "fast", "--tensorboard", tmp_path / "runs", "--json")
    assert run("segment", clip, "-o", out, *words) == 4
    told = capsys.readouterr()
    assert "No space left on device" in told.err.splitlines()[-1]
    assert [item["status"] for item in json.loads(told.out)] == ["done"]
    assert out.exists()


def test_tensorboard_folders_that_cannot_be(tmp_path, capsys):
    clip = write_clip(tmp_path / "in.mp4", frame_count=2)
    begin = ("segment", clip, "-o", tmp_path / "out.mp4", "--tensorboard")
    assert run(*begin, clip) == 4
    assert run(*begin, tmp_path, "--dry-run") == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert not (tmp_path / "out.mp4").exists()


def test_curves_of_an_animation(face_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    out, runs = tmp_path / "out.mp4", tmp_path / "runs"
    words = ("animate", "examples/astronaut.jpg", "--driver", "examples/talk.motion", "--end", "0.5")
    assert run(*words, "-o", out, "--tensorboard", runs) == 0
    sinks = ("--sink", "null", "--duration", "1", "--set", "animation.calibrate=false")
    assert run(*words[:4], *sinks, "--tensorboard", runs) == 0
    assert capsys.readouterr().err.count("tensorboard --logdir") == 2
    offline, live = (next(folder.iterdir()).read_bytes() for folder in sorted(runs.iterdir()))
    assert b"stage_busy_ratio/" in offline
    assert b"frames_per_second" in live
    assert b"captured_frames_total" in live
