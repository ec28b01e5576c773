"""Tests of ``vitascope bench checklist`` from the command line."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from command_line import run

from clips import write_clip
from vitascope.bench import soak, suite
from vitascope.config import vitascope_home
from vitascope.tune import checklist


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(checklist, "_PASS_SECONDS", 2.0)


def test_every_question_gets_an_answer_and_a_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(soak, "_SHORTEST_SECONDS", 2.0)
    film = write_clip(tmp_path / "talk_sbs.mp4", frame_count=40)
    words = ("bench", "checklist", film, "--profile", "fast", "--duration", "2", "--json")
    assert run(*words) == 1
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert found["passed"] is False
    items = {item["question"]: item for item in found["items"]}
    assert {item["answer"] for item in items.values()} <= {"yes", "no", "not applicable"}
    assert all(item["figure"] for item in items.values())
    assert items["a comprehensive benchmark was run"]["answer"] == "no"
    assert items["real VR content was tested"]["answer"] == "yes"
    assert "40 frames of " in items["real VR content was tested"]["figure"]
    assert items["no frame is lost"]["answer"] == "yes"
    assert "batch 2 is " in items["a larger batch would not be faster"]["figure"]
    assert "infer" in items["where the time goes is known"]["figure"]


def test_a_tuned_file_that_is_in_use_is_told_from_one_that_is_not(tmp_path, capsys):
    film = write_clip(tmp_path / "in.mp4", frame_count=10)
    words = ("bench", "checklist", film, "--profile", "fast", "--json")
    cell = checklist.bench_pipeline(checklist.ChecklistOptions(profile="fast").run_of(film)).cells[0]
    line = {
        "date": "2026-11-20",
        "device": cell.device,
        "network": cell.model,
        "before": {"fps": 10},
        "after": {"fps": 15},
        "change": {"processing.max_queue_size": 9, "model.input_size": None},
        "file": "/tmp/tuned.yaml",
    }
    vitascope_home().mkdir(parents=True, exist_ok=True)
    missed = line | {"change": {"processing.max_queue_size": 5}, "unreachable": "1000 fps cannot be reached"}
    lines = "".join(json.dumps(one) + "\n" for one in (line, missed))  # the second wrote no settings
    (vitascope_home() / "optimization_history.jsonl").write_text(lines)

    def tuned(*more):
        run(*words, *more)
        items = json.loads(capsys.readouterr().out)["items"]
        (item,) = [item for item in items if item["question"].startswith("the best settings")]
        return item

    unused = tuned()
    assert unused["answer"] == "no"
    assert unused["figure"] == "optimize on 2026-11-20: 1.50x; not in use: processing.max_queue_size=9"
    assert tuned("--set", "processing.max_queue_size=9")["answer"] == "yes"


def test_a_table_for_people(tmp_path, capsys):
    film = write_clip(tmp_path / "in.mp4", frame_count=10)
    assert run("bench", "checklist", film, "--profile", "fast", "--set", "performance.target_fps=0.01") == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert any(line.startswith("yes") and "0.01 frames a second at" in line for line in lines)
    assert any(line.strip() == "before production" for line in lines)
    assert " not applicable here; not so: a comprehensive benchmark was run" in lines[-1]
    assert "in performance.mode=latency" in said.err


def test_what_is_refused(tmp_path, capsys):
    film = write_clip(tmp_path / "in.mp4", frame_count=10)
    assert run("bench", "checklist", tmp_path / "missing.mp4") == 3
    assert run("bench", "checklist", film, "--results", tmp_path / "missing.json") == 3
    assert run("bench", "checklist", film, "--duration", "1", "--profile", "fast") == 2
    assert run("bench", "checklist", film, "--duration", "soon") == 2
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith("vitascope: ")]) == 4
    assert not any("the same in" in line for line in said), "before anything is measured"


def test_a_doubled_batch_that_is_too_slow_to_tell_is_no_answer(tmp_path, capsys, monkeypatch):
    film = write_clip(tmp_path / "in.mp4", frame_count=40)
    measure = checklist.bench_pipeline

    def slow_when_doubled(options):
        if "model.batch_size=2" in options.assignments:
            at_once = nullcontext(lambda started: started.pipeline.stop())
            monkeypatch.setattr(suite, "stopping_after", lambda _: at_once)
        return measure(options)

    monkeypatch.setattr(checklist, "bench_pipeline", slow_when_doubled)
    run("bench", "checklist", film, "--profile", "fast", "--json")
    items = {item["question"]: item for item in json.loads(capsys.readouterr().out)["items"]}
    item = items["a larger batch would not be faster"]
    assert item["answer"] == "not applicable"
    assert "only 0 frames came out in " in item["figure"]
    assert "--profile fast" in item["figure"]
    assert "--duration" not in item["figure"], "which is the soak's here"
