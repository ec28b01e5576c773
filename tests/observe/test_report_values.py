"""Values of a report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vitascope.observe.report_values import frames_in_words, plain_value, size_in_words


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
