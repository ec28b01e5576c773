"""Tests of ``vitascope optimize`` from the command line."""

from __future__ import annotations

import json
import os

import command_line
import pytest

from brightness_file import brightness_settings
from clips import write_clip
from vitascope.bench import synthetic_clip
from vitascope.config import load_settings
from vitascope.tune import optimizer as search_time
from vitascope.tune.optimizer import ClipTrials

FAST = ("--profile", "fast", "--set=video.scene_cut_threshold=0")
FAST = (*FAST, *(f"--set={key}={value}" for key, value in brightness_settings().items()))
SMALL = (*FAST, "--trials", "3", "--seconds", "0.1")


def run(*words):
    return command_line.run("optimize", *words)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("optimize") / "in.mp4", frame_count=60)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(search_time, "_TURNS", 1)


def test_a_file_that_segment_takes(clip, tmp_path, capsys):
    tuned = tmp_path / "tuned.yaml"
    assert run(clip, "--auto-optimize", "--save-config", tuned, *SMALL, "--minutes", 5) == 0
    printed = capsys.readouterr()
    assert f"written: {tuned}" in printed.out
    told = printed.err.splitlines()  # what it does, and how long it takes
    assert told[0].startswith("measuring the current settings")
    assert "in about 5 minutes at most" in told[1]
    assert told[2].startswith("1/3 ")
    assert "(start: what the settings say)" in printed.err
    assert load_settings(files=[tuned]).profile == "fast"
    assert tuned.read_text().startswith("# Tuned by vitascope ")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["tuned.yaml"]  # state is removed
    (tmp_path / "other").touch()
    assert tuned.stat().st_mode == (tmp_path / "other").stat().st_mode
    (line,) = (tmp_path / "home" / "optimization_history.jsonl").read_text().splitlines()
    assert json.loads(line)["file"] == str(tuned)


def test_for_machines(clip, capsys):
    assert run(clip, "--json", *SMALL) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert len(document["trials"]) <= 3
    assert document["after"]["fps"] > 0
    assert printed.err == ""


def test_an_impossible_target(clip, tmp_path, capsys):
    tuned = tmp_path / "tuned.yaml"
    assert run(clip, "--save-config", tuned, "--target-fps", 99_999, *SMALL) == 1
    assert "99999 fps cannot be reached here" in capsys.readouterr().err
    assert not tuned.exists()
    # Its trials are stored, so a lower target needs none of them again.
    assert run(clip, "--save-config", tuned, "--target-fps", 1, "--resume", *SMALL) == 0
    assert tuned.exists()
    assert "/3 " not in capsys.readouterr().err


def test_a_settings_file_that_is_there_is_replaced_only_when_asked_for(clip, tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    mine.write_text("profile: fast\n")
    assert run(clip, "--save-config", mine, *SMALL) == 4
    assert capsys.readouterr().err == f"vitascope: {mine} already exists; -y replaces it\n"
    assert mine.read_text() == "profile: fast\n"
    assert run(clip, "--save-config", mine, "-y", *SMALL) == 0
    assert mine.read_text().startswith("# Tuned by")


def test_a_search_that_goes_on_asks_for_its_own_file_no_more(clip, tmp_path, capsys):
    tuned = tmp_path / "tuned.yaml"
    tuned.write_text("profile: fast\n")
    assert run(clip, "--save-config", tuned, "-y", "--target-fps", 99_999, *SMALL) == 1  # its trials stay
    assert run(clip, "--save-config", tuned, "--target-fps", 1, *SMALL) == 4
    assert run(clip, "--save-config", tuned, "--target-fps", 1, "--resume", "--no-overwrite", *SMALL) == 4
    assert tuned.read_text() == "profile: fast\n"
    tuned.write_text("profile: balanced\n")  # a different file: edited, or moved here with an old date
    os.utime(tuned, (1, 1))
    assert run(clip, "--save-config", tuned, "--target-fps", 1, "--resume", *SMALL) == 4
    assert tuned.read_text() == "profile: balanced\n"
    tuned.write_text("profile: fast\n")  # the file that the search began with, whatever its date
    capsys.readouterr()
    assert run(clip, "--save-config", tuned, "--target-fps", 1, "--resume", *SMALL) == 0
    assert tuned.read_text().startswith("# Tuned by")
    assert "/3 " not in capsys.readouterr().err
    assert run(clip, "--save-config", tuned, "--resume", *SMALL) == 4
    assert capsys.readouterr().err == (
        f"vitascope: {tuned} already exists; -y replaces it, and there is no unfinished search for it\n"
    )


def test_bottlenecks(clip, capsys):
    assert run(clip, "--detect-bottlenecks", *FAST) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("60 frames at ")
    assert "do this: " in printed
    assert "busy: decode " in printed
    assert run(clip, "--detect-bottlenecks", *FAST, "--json") == 0
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert finding["evidence"]


def test_a_synthetic_clip_where_none_is_named(monkeypatch, capsys):
    monkeypatch.setattr(synthetic_clip, "_USUAL_SIZE", (96, 64))
    monkeypatch.setattr(synthetic_clip, "_USUAL_FRAMES", 60)
    assert run("--detect-bottlenecks", *FAST) == 0
    assert capsys.readouterr().out.startswith("60 frames at ")


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["missing.mp4"], 3, "missing.mp4"),
        (["--resume"], 2, "--resume needs --save-config"),
        (["--save-config", "."], 2, "is a folder"),
        (["--detect-bottlenecks", "--save-config", "x.yaml"], 2, "nothing to save"),
        (["CLIP", "--preset", "gtx480-4k"], 2, "there is no preset 'gtx480-4k'"),
        (["CLIP", "--target-fps", "-3"], 2, "--target-fps"),
        (["CLIP", "--min-quality", "7"], 2, "--min-quality"),
        (["CLIP", "--trials", "0"], 2, "at least one trial, not 0"),
        (["CLIP", "--set", "model.nonsense=1"], 2, "unknown setting"),
        (["SHORT"], 3, "5 frames are too few to tune with"),
        (["SHORT", "--detect-bottlenecks", "--profile", "fast"], 3, "5 frames are too few for a verdict"),
    ],
)
def test_what_cannot_be_done(words, code, complaint, clip, tmp_path, capsys):
    short = write_clip(tmp_path / "short.mp4", frame_count=5)
    named = {"CLIP": clip, "SHORT": short}
    assert run(*(named.get(word, word) for word in words)) == code
    said = capsys.readouterr().err.strip()
    assert complaint in said
    assert len(said.splitlines()) == 1


def test_ctrl_c_keeps_the_runs_so_far_and_no_file(clip, tmp_path, capsys, monkeypatch):
    measured, calls = ClipTrials.measure, []

    def measure(trials, values):
        calls.append(values)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measured(trials, values)

    monkeypatch.setattr(ClipTrials, "measure", measure)
    tuned = tmp_path / "tuned.yaml"
    assert run(clip, "--save-config", tuned, *SMALL) == 130
    assert "has the trials so far; --resume continues" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "tuned.yaml.search.json").read_text())["trials"]) == 2
    assert not tuned.exists()
    assert not (tmp_path / "home" / "optimization_history.jsonl").exists()
