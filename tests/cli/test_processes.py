"""Tests of the command with several processes: refusals, and what remains when it is ended from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from child_processes import children_of, is_running
from clips import write_clip
from vitascope.cli.app import main

TWO = ["--profile", "fast", "--device", "cpu", "--set", "processing.use_multiprocessing=true"]
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("processes") / "in.mp4", frame_count=400, codec_options={"g": "20"}
    )


def run_command(arguments):
    try:
        main(arguments)
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--gpu-ids", "0,0"], 5, "GPU 0 is not for this test"),
        (["--gpu-ids", "0;1"], 2, "numbers of GPUs"),
        (["--gpu-ids", "0,1", "--gpu-id", "1"], 2, "leave one of them out"),
        (["--gpu-ids", "0,1", "--device", "cpu"], 2, "gpu.device is cpu"),
        (["--gpu-ids", "0,1"], 5, "GPU 0 is not for this test"),
        (["--gpu-ids", "1", "--dry-run"], 5, "GPU 1 is not for this test"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused_in_one_line(clip, tmp_path, capsys, arguments, code, what):
    out = tmp_path / "o.mp4"
    assert run_command(["segment", str(clip), "-o", str(out), *arguments]) == code
    said = capsys.readouterr().err.strip()
    assert what in said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_film_by_two_processes(clip, tmp_path, capsys):
    out = tmp_path / "o.mp4"
    arguments = ["segment", str(clip), "-o", str(out), *TWO, "--end", "2", "--json"]
    assert run_command([*arguments, "--set", "processing.chunk_size=24"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["status"], report["frame_count"]) == ("done", 48)
    assert "2 of 2 processes" in report["device"]
    assert run_command([*arguments, "--resume"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["status"] == "skipped"


def until(is_so):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_command(clip, tmp_path, how):
    out = tmp_path / "o.mp4"
    command = [sys.executable, "-m", "vitascope", "segment", str(clip), "-o", str(out), *TWO]
    run = subprocess.Popen(
        [*command, "--set", "processing.chunk_size=50"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: len(list(tmp_path.glob(".o.*.part.mp4"))) == 1)  # workers are ready
    children = children_of(run.pid)
    assert len(children) >= 2
    if how is signal.SIGINT:
        os.killpg(run.pid, how)  # to the whole group, as a terminal does
    else:
        run.kill()
    _, said = run.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: not any(is_running(pid) for pid in children))
    if how is signal.SIGINT:
        assert run.returncode == 130
        assert "Traceback" not in said
        assert {path.name for path in tmp_path.iterdir()} <= {"o.mp4.part", ".o.mp4.stretches"}
    else:
        assert not out.exists()
