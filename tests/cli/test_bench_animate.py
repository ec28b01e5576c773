"""Tests of ``vitascope bench animate --auto-tune`` from the command line, with simulated speeds."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from vitascope.animation.live import run as live_run
from vitascope.config import load_settings
from vitascope.gpu.pipeline.report import LatencyHistogram
from vitascope.tune import live_tuner

PORTRAIT = Path(__file__).parents[2] / "examples" / "astronaut.jpg"


@pytest.fixture
def run(run, monkeypatch, tmp_path, face_model):
    """Return a function that runs a command line in an empty folder, and returns exit code, stdout and stderr."""
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    monkeypatch.setattr("vitascope.tune.tuned_file.vitascope_home", lambda: tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    return partial(run, "bench", "animate", "--image", PORTRAIT)


@pytest.fixture
def slow_above_300(monkeypatch):
    """Report real runs as 10 fps for larger pictures, and as the requested rate for smaller ones."""
    runs = []

    def measured(portrait, driver, *, loaded, **words):
        words["seconds"] = 0.1
        report = live_run.measure_live(portrait, driver, loaded=loaded, **words)
        runs.append(report)
        latency = LatencyHistogram()
        latency.add(0.01)
        fps = 10.0 if max(report.size) > 300 else loaded.settings.performance.target_fps
        return replace(
            report, seconds=100.0, shown=int(fps * 100), latency=LatencyHistogram.summary([latency])
        )

    monkeypatch.setattr(live_tuner, "measure_live", measured)
    monkeypatch.setattr(live_tuner, "_COMPARISONS", 1)
    monkeypatch.setattr(live_tuner, "_FILM_SECONDS", 0.4)
    return runs


@pytest.fixture(scope="module")
def small_run():
    """Hold a real run of a small picture, once there is one."""
    return []


@pytest.fixture
def known_speed(slow_above_300, small_run, monkeypatch):
    """Simulate the same from one real run, for tests that do not depend on the others."""
    measure = live_tuner.measure_live

    def measured(portrait, driver, *, loaded, **words):
        side = min(loaded.settings.animation.max_side, 512)
        small = loaded.with_values({"animation.max_side": 256})
        small_run[:] = small_run or [measure(portrait, driver, loaded=small, **words)]
        fps = 10.0 if side > 300 else loaded.settings.performance.target_fps
        return replace(small_run[0], size=(side, side), shown=int(fps * 100))

    monkeypatch.setattr(live_tuner, "measure_live", measured)


HELD = ("--set", "tracking.refine_landmarks=true", "--set", "performance.frame_skip_enabled=false")
HELD = (*HELD, "--set", "performance.frame_skip_threshold=0.9", "--set", "animation.calibrate=false")


def test_the_settings_that_are_found_are_those_of_the_next_run(run, slow_above_300, tmp_path):
    code, out, err = run("--auto-tune", "--duration", 6, "--set", "performance.target_fps=30", *HELD)
    assert code == 0
    assert "1/4 max_side=3840: 10.0 fps" in err
    assert "animation.max_side: 256" in out
    assert "10.0 -> 30.0 fps of 30" in out
    assert "written: live.yaml; use it with: vitascope animate" in out
    assert "not reached" not in out
    assert load_settings(files=[tmp_path / "live.yaml"]).settings.animation.max_side == 256
    assert max(slow_above_300[-1].size) == 256
    assert all(report.lost == 0 for report in slow_above_300), "the film that was made has a face"


def test_the_command_that_searches_anew_is_the_one_that_was_typed(run, known_speed, tmp_path):
    (tmp_path / "my own.yaml").write_text("animation:\n  pose: 0.9\n", encoding="utf-8")
    typed = ("--auto-tune", "--duration", 6, "--profile", "fast", "-c", "my own.yaml", *HELD)
    assert run(*typed)[0] == 0
    head = (tmp_path / "live.yaml").read_text(encoding="utf-8").split("\nprofile")[0]
    said = head.replace("\n# ", " ").partition("a search of its own: ")[2].partition("\n")[0]
    words = shlex.split(said)
    assert words[:3] == ["vitascope", "bench", "animate"]
    for flag, value in (
        *(("--image", str(PORTRAIT)), ("--driver", "examples/talk.motion"), ("--duration", "6")),
        *(("--profile", "fast"), ("-c", "my own.yaml"), *zip(HELD[::2], HELD[1::2], strict=True)),
    ):
        assert (flag, value) in pairwise(words)
    assert "--auto-tune" in words


def test_for_machines(run, known_speed, tmp_path):
    words = ("--auto-tune", "--duration", "6", "--set", "performance.target_fps=80", *HELD)
    code, out, err = run(*words, "--json", "-o", "mine.yaml")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["change"] == {"animation.max_side": 256}
    assert told["trials"][0]["values"] == {"animation.max_side": 3840}
    assert told["file"] == "mine.yaml"
    assert told["after"]["fps"] == 80
    assert (tmp_path / "mine.yaml").is_file()


def test_a_settings_file_that_is_there_is_replaced_only_when_asked_for(run, known_speed, tmp_path):
    mine = tmp_path / "live.yaml"
    mine.write_text("profile: fast\n")
    words = ("--auto-tune", "--duration", 6, *HELD)
    code, out, err = run(*words)
    assert (code, out, err) == (4, "", "vitascope: live.yaml already exists; -y replaces it\n")
    assert mine.read_text() == "profile: fast\n"
    assert run(*words, "-y")[0] == 0
    assert mine.read_text().startswith("# Tuned by")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--auto-tune", "--duration", "3"], "needs at least 6 seconds of measuring"),
        (["--auto-tune", "-o", "."], "is a folder"),
        (["--save-config", "a.yaml"], "needs --auto-tune"),
        (["--auto-tune", "--set", "animation.max_side=no"], "animation.max_side"),
    ],
)
def test_wishes_that_cannot_be_met(run, words, says, tmp_path):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert says in err and err.count("\n") == 1
    assert not list(tmp_path.glob("*.yaml"))
