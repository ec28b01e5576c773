"""Tests of ``performance.auto_tune``: the settings that a job starts with."""

from __future__ import annotations

import pytest

from clips import write_clip
from scripted_runs import HELD, script_runs
from vitascope.cli import main
from vitascope.config import SettingsSource
from vitascope.tune.optimizer import auto_tune


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr("vitascope.tune.optimizer._SECONDS", 0.1)
    return script_runs(monkeypatch)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("auto") / "in.mp4", frame_count=60)


def source_of(*assignments):
    return SettingsSource(profile="fast", assignments=("performance.auto_tune=true", *HELD, *assignments))


def test_a_job_takes_what_was_found(opened, clip, tmp_path, capsys):
    words = [word for one in source_of().assignments for word in ("--set", one)]
    with pytest.raises(SystemExit) as end:
        main(["segment", str(clip), "-o", str(tmp_path / "o.mp4"), "--profile", "fast", *words])
    assert end.value.code == 0
    assert "note: auto-tune: model.batch_size=4: " in capsys.readouterr().err
    assert opened[-1].frames_per_call == 4  # the job's own
    assert opened[-1].model.input_size is None  # the matte does not change
    assert len(opened) > 4


def test_without_it_nothing_is_tried(opened, clip, tmp_path):
    with pytest.raises(SystemExit) as end:
        main(["segment", str(clip), "-o", str(tmp_path / "o.mp4"), "--profile", "fast"])
    assert end.value.code == 0
    assert len(opened) == 1


def test_a_dry_run_tunes_nothing(opened, clip, tmp_path):
    words = ["segment", str(clip), "-o", str(tmp_path / "o.mp4"), "--dry-run", "--profile", "fast"]
    with pytest.raises(SystemExit):
        main([*words, "--set", "performance.auto_tune=true"])
    assert len(opened) == 1  # the trial of its estimate


def test_target_fps_ends_it(opened, clip):
    tuned = auto_tune(source_of("performance.target_fps=2"), clip)
    assert tuned.values == {}
    with_target = len(opened)
    opened.clear()
    auto_tune(source_of(), clip)
    assert len(opened) > with_target


def test_max_latency_bounds_it(opened, clip):
    tuned = auto_tune(source_of("performance.max_latency_ms=0.01"), clip)
    assert tuned.values == {}
    assert "no settings keep all limits" in tuned.note
    assert "latency_ms" in tuned.note


def test_a_video_that_is_too_short_is_segmented_as_it_is(opened, tmp_path):
    tuned = auto_tune(source_of(), write_clip(tmp_path / "short.mp4", frame_count=5))
    assert tuned.values == {}
    assert "5 frames are too few to tune with" in tuned.note
    assert tuned.loaded.settings.performance.auto_tune
    assert not opened
