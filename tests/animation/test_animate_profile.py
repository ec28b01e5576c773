"""Tests of ``debug.profile_performance`` in ``animate``, offline and live: its files, and where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vitascope.animation.face import FaceMotion
from vitascope.animation.live.run import animate_live
from vitascope.animation.motion_file import write_motion
from vitascope.animation.offline import animate_file
from vitascope.config import load_settings
from vitascope.gpu.profiling.document import load_profile

PORTRAIT = Path(__file__).parents[2] / "examples" / "astronaut.jpg"


@pytest.fixture
def motion(tmp_path):
    rows = [FaceMotion(blendshapes=np.zeros(52, np.float32), pts_seconds=index / 25) for index in range(9)]
    write_motion(tmp_path / "still.motion", rows, frame_rate=25)
    return tmp_path / "still.motion"


def settings(*, wanted: bool):
    return load_settings(
        assignments=[f"debug.profile_performance={str(wanted).lower()}", "animation.calibrate=false"]
    )


def stages_of(path: Path) -> dict[str, int]:
    return {row["path"][-1]: row["count"] for row in load_profile(path)["summary"]}


@pytest.mark.parametrize(("out", "profile"), [("out.mp4", "out.mp4"), ("frames/", "frames")])
def test_offline(face_model, model_store, motion, tmp_path, out, profile):
    report = animate_file(PORTRAIT, motion, tmp_path / out, loaded=settings(wanted=True), store=model_store)
    stages = stages_of(tmp_path / f"{profile}.profile.json")
    assert {"read motion", "animate", "convert", "encode"} <= set(stages)
    assert stages["encode"] == report.frame_count == 9
    assert (tmp_path / f"{profile}.trace.json").is_file()
    files, *verdict = [note for note in report.notes if note.startswith("profile: ")]
    assert "trace.json" in files
    assert verdict  # which one depends on this machine's load


@pytest.mark.parametrize(
    ("sinks", "pattern"),
    [(["null", "file:{}/live.mp4"], "live.mp4"), (["null"], "animate-????????-??????")],
)
def test_live(face_model, model_store, motion, tmp_path, monkeypatch, sinks, pattern):
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    report = animate_live(
        PORTRAIT,
        str(motion),
        [sink.format(tmp_path) for sink in sinks],
        loaded=settings(wanted=True),
        store=model_store,
        on_message=said.append,
    )
    (path,) = tmp_path.glob(f"{pattern}.profile.json")
    stages = stages_of(path)
    assert stages["animate"] >= stages["output"] == report.shown > 0
    (trace,) = tmp_path.glob(f"{pattern}.trace.json")
    # Waiting for the driver's next picture does not count as a limit.
    assert not any("capture" in line for line in said)
    assert sum(line.startswith("profile: ") for line in said) == 2
    assert any(trace.name in line for line in said)


def test_unless_it_is_wanted_nothing_is_written(face_model, model_store, motion, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = settings(wanted=False)
    animate_live(PORTRAIT, str(motion), ["null"], loaded=loaded, store=model_store)
    animate_file(PORTRAIT, motion, tmp_path / "out.mp4", loaded=loaded, store=model_store)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.mp4", "still.motion"]
