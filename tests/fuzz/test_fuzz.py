"""Tests with three hundred damaged files, the same each time; ``make fuzz N=100000`` tries more."""

from __future__ import annotations

import json
import random
import re
import sys

import pytest

from clips import write_clip
from fuzz.campaign import tries
from fuzz.forking import ForkServer, Outcome
from fuzz.judging import what_is_bad
from fuzz.mutation import MUTATORS, mutated
from fuzz.victims import make_victims

CASES, SHARES = 300, 6


@pytest.fixture(scope="module")
def victims(tmp_path_factory):
    """Write complete files, which tests only read."""
    return make_victims(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def server():
    with ForkServer() as server:
        yield server


@pytest.mark.skipif(sys.platform != "linux", reason="a try is a forked process")
@pytest.mark.parametrize("share", range(SHARES))
def test_damaged_files_are_answered_well(share, victims, server, tmp_path):
    size = CASES // SHARES
    numbers = range(share * size, (share + 1) * size)
    done = list(tries(numbers, seed=2, folder=tmp_path, victims=victims, server=server))
    assert len(done) == size
    assert [one for one in done if one.bad is not None] == []


@pytest.mark.parametrize("kind", MUTATORS)
def test_a_number_and_a_seed_say_all(kind):
    for content in (b"", b"a", bytes(range(256)) * 20, b"model:\n  batch_size: 2\n"):
        for number in range(50):
            once, again = (mutated(random.Random(f"7/{number}"), content, kind) for _ in range(2))
            assert once == again


@pytest.mark.parametrize(
    ("damage", "is_known"), [("images", False), ("bytes", True), ("two runs", True), ("a bit", True)]
)
def test_the_judge_forgives_a_gif_that_cannot_tell_and_nothing_else(victims, tmp_path, damage, is_known):
    whole = next(path for path in victims["video"] if path.suffix == ".gif")
    data = whole.read_bytes()
    at = [match.start() for match in re.finditer(rb"\x21\xf9\x04", data)]
    hurt = tmp_path / "hurt.gif"
    hurt.write_bytes(
        {
            "images": data[: at[3]] + data[at[6] :],
            "bytes": data[: at[3] + 50] + data[at[6] :],
            "two runs": data[: at[3]] + data[at[6] : at[9]] + data[at[12] :],
            "a bit": data[: at[3]] + bytes([data[at[3]] ^ 1]) + data[at[3] + 1 :],
        }[damage]
    )
    out = write_clip(tmp_path / "made.mkv", frame_count=21)
    report = json.dumps([{"frame_count": 21, "corrupt_count": 0, "notes": []}])
    ended = Outcome(exit_code=0, timed_out=False, stdout=report, stderr="", seconds=0.1, peak_mb=100.0)
    (tmp_path / "out").mkdir()
    bad = what_is_bad(
        ended, hurt=hurt, whole=whole, out=out.rename(tmp_path / "out" / out.name), whole_frames=24
    )
    assert (bad is not None) == is_known


def test_the_judge_forgives_a_recording_that_ends_between_two_pictures(victims, tmp_path):
    whole = next(path for path in victims["video"] if path.suffix == ".ts")
    data = whole.read_bytes()
    starts = [match.start() // 188 * 188 for match in re.finditer(b"\0\0\1\xe0", data)]
    (tmp_path / "out").mkdir()
    out = write_clip(tmp_path / "out" / "made.mkv", frame_count=20)
    report = json.dumps([{"frame_count": 20, "corrupt_count": 0, "notes": []}])
    ended = Outcome(exit_code=0, timed_out=False, stdout=report, stderr="", seconds=0.1, peak_mb=100.0)
    hurt = tmp_path / "hurt.ts"
    for end, is_known in ((starts[20], False), (starts[18] + 188, True), (starts[20] + 100, True)):
        hurt.write_bytes(data[:end])
        bad = what_is_bad(ended, hurt=hurt, whole=whole, out=out, whole_frames=24)
        assert (bad is not None) == is_known, end


@pytest.mark.parametrize(
    ("keyframe", "hole", "made", "is_known"),
    [(0, 1, 18, False), (0, 1, 17, True), (2, 1, 18, True), (0, 400, 18, True)],
)
def test_the_judge_forgives_a_recording_that_begins_late_and_nothing_else(
    victims, tmp_path, keyframe, hole, made, is_known
):
    """Check a transport stream without its first keyframe, as recorders of broadcasts write."""
    whole = next(path for path in victims["video"] if path.suffix == ".ts")
    data = bytearray(whole.read_bytes())
    signs = [match.end() - 1 for match in re.finditer(b"\0\0\1\x65", data)]  # H.264: a slice of a keyframe
    data[signs[keyframe] : signs[keyframe] + hole] = bytes(hole)
    hurt = tmp_path / "hurt.ts"
    hurt.write_bytes(data)
    (tmp_path / "out").mkdir()
    out = write_clip(tmp_path / "out" / "made.mkv", frame_count=made)
    report = json.dumps([{"frame_count": made, "corrupt_count": 0, "notes": []}])
    ended = Outcome(exit_code=0, timed_out=False, stdout=report, stderr="", seconds=0.1, peak_mb=100.0)
    bad = what_is_bad(ended, hurt=hurt, whole=whole, out=out, whole_frames=24)
    assert (bad is not None) == is_known
