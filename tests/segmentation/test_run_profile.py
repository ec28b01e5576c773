"""Tests of the files that ``debug.profile_performance`` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clips import write_clip
from scripted import BrightnessNetwork
from vitascope.config import load_settings
from vitascope.errors import OutputError
from vitascope.gpu.profiling.document import load_profile
from vitascope.segmentation import film_run
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.segmentation.run_profile import not_profiled, profile_paths, run_profile
from vitascope.segmentation.segmenter import Segmenter


def test_files_lie_beside_the_output():
    assert profile_paths(Path("a/out.mp4")) == (
        Path("a/out.mp4.profile.json"),
        Path("a/out.mp4.trace.json"),
    )
    # A folder of pictures is replaced as a whole, so the files must be outside.
    assert profile_paths(Path("a/frames/"))[0] == Path("a/frames.profile.json")


def test_unless_it_is_wanted_nothing_happens():
    stages = [object()]
    with run_profile([Path("out.mp4")], wanted=False, device_id=0) as profile:
        assert profile.profiler is None
        assert profile.stages(stages) == stages
    assert profile.save(None) == ()


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(
        film_run,
        "open_network",
        lambda *_, **__: ChosenNetwork(BrightnessNetwork(), "scripted", None),
    )


def test_a_profile_that_cannot_be_written_is_an_error_and_the_film_is_there(scripted, tmp_path):
    clip = write_clip(tmp_path / "in.mp4", frame_count=24)
    out = tmp_path / "out.mp4"
    profile_paths(out)[0].mkdir()
    with (
        Segmenter(settings={"debug.profile_performance": True}) as segmenter,
        pytest.raises(OutputError, match="profile"),
    ):
        segmenter.write(clip, [("key", out)])
    assert out.is_file()


@pytest.mark.cuda
def test_parts_on_the_gpu_lie_inside_their_stages(monkeypatch, tmp_path):
    from vitascope.models.host_network import HostNetwork

    monkeypatch.setattr(
        film_run,
        "open_network",
        lambda *_, **__: ChosenNetwork(HostNetwork(BrightnessNetwork()), "scripted", None),
    )
    clip = write_clip(tmp_path / "in.mp4", width=320, height=240, frame_count=48)
    out = tmp_path / "out.mp4"
    flags = {"gpu.device": "cuda", "debug.profile_performance": True}
    with Segmenter(loaded=load_settings(profile="fast", flags=flags)) as segmenter:
        report = segmenter.write(clip, [("key", out)])
    document = load_profile(f"{out}.profile.json")
    rows = {tuple(row["path"]): row for row in document["summary"]}
    for path, name in (
        (("preprocess", "preprocess"), "preprocess"),
        (("matte", "network"), "network"),
        (("matte", "composite"), "composite"),
        (("matte", "device to host"), "device to host"),
    ):
        assert rows[path]["gpu"]["total_seconds"] > 0
        # The report has the profiler's figures.
        assert report.gpu.span_seconds[name] == pytest.approx(rows[path]["gpu"]["total_seconds"])
        assert rows[path[:1]]["gpu"] is None
    assert report.frame_count == 48
    assert rows["matte", "composite"]["gpu"]["count"] == 12  # frames are drawn in fours
    events = json.loads(Path(f"{out}.trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events if event.get("cat") == "gpu"} == {
        "preprocess",
        "network",
        "composite",
        "device to host",
    }


def test_work_in_other_processes_is_not_profiled_and_that_is_said():
    assert not_profiled(wanted=False) == []
    (note,) = not_profiled(wanted=True)
    assert note.startswith("debug.profile_performance has no effect")
