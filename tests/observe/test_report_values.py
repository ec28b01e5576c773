"""Tests of the values of a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from live_reports import live_report
from vitascope.observe.report_values import (
    VideoReport,
    WrittenFile,
    frames_in_words,
    plain_value,
    size_in_words,
)


def test_json_can_hold_what_comes_out():
    value = {"files": (Path("a") / "b.mp4", [Path("c")]), "n": 3, "none": None, "share": 0.5}
    plain = plain_value(value)
    assert plain == {"files": [str(Path("a") / "b.mp4"), ["c"]], "n": 3, "none": None, "share": 0.5}
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize(
    ("size_bytes", "words"), [(0, "0 kB"), (440_496, "440 kB"), (999_999, "1000 kB"), (14_975_696, "15.0 MB")]
)
def test_sizes(size_bytes, words):
    assert size_in_words(size_bytes) == words


def test_counts_of_frames():
    assert [frames_in_words(count) for count in (0, 1, 2)] == ["0 frames", "1 frame", "2 frames"]


def test_a_file_for_people():
    file = WrittenFile(path=Path("a.mp4"), codec="h264", size_bytes=2_000_000, notes=("no sound",))
    assert file.lines() == ["a.mp4  h264, 2.0 MB", "  note: no sound"]
    assert file.lines(kind="mask")[0] == "a.mp4  mask, h264, 2.0 MB"


def test_every_job_says_its_rate():
    report = VideoReport(
        frame_count=30,
        notes=(),
        profile="fast",
        wall_seconds=2.0,
        pipeline=live_report(latency_ms=1).pipeline,
    )
    assert report.to_dict()["frames_per_second"] == 15
    assert replace(report, wall_seconds=0.0).frames_per_second == 0
    json.dumps(report.to_dict())
