"""Tests of following people through a whole video, in this process and in a separate one."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from vitascope.device import Device
from vitascope.errors import PipelineError
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Source
from vitascope.segmentation.people import scan
from vitascope.segmentation.people.film_follower import (
    FilmFollower,
    FollowingProcess,
    Settled,
    ShotEnded,
    Sighting,
    settle,
)
from vitascope.segmentation.people.small_frames import SmallFrames

SIZE = (60, 120)
CLOTHES = {1: (220, 60, 40), 2: (60, 90, 210)}


def looks(shots=2, frames_each=30):
    """Simulate two people who cross in each shot."""
    ground = np.random.default_rng(7).integers(60, 120, (*SIZE, 3))
    frames = SmallFrames()
    for n in range(shots * frames_each):
        time = n % frames_each / (frames_each - 1)
        rgb, alpha = ground.copy(), np.zeros(SIZE, np.float32)
        for who, middle in ((2, round(90 - 60 * time)), (1, round(30 + 60 * time))):
            rgb[12:56, middle - 8 : middle + 8] = CLOTHES[who]
            alpha[12:56, middle - 8 : middle + 8] = 1
        planes = (rgb / 255).astype(np.float32).transpose(2, 0, 1)
        yield *frames.next(n, planes[None], alpha[None], n % frames_each == 0), ()


@pytest.fixture
def process():
    with FollowingProcess() as process:
        yield process


def test_a_process_finds_what_is_found_here(process):
    heard = []
    for follower in (FilmFollower(), process):
        found, pictures = [], []

        def write(some, eye, found=found, pictures=pictures):
            found += some
            pictures.append(eye)

        Pipeline([Source("looks", looks()), *follower.stages(write)]).run()
        heard.append((follower.finish(write), found, pictures))
    (here, found_here, pictures_here), (there, found_there, pictures_there) = heard
    assert there == here
    assert {one.track for one in found_there if isinstance(one, Sighting)} == {1, 2}
    for eye, same, (_, expected, _) in zip(pictures_here[:-1], pictures_there[:-1], looks(), strict=True):
        np.testing.assert_array_equal(eye, expected)
        np.testing.assert_array_equal(same, expected)
    assert pictures_there[-1] is None  # marks the end
    for one, same in zip(found_here, found_there, strict=True):
        assert type(one) is type(same)
        if isinstance(one, Settled):
            assert one.pts == same.pts
            np.testing.assert_array_equal(one.labels, same.labels)
        else:
            assert one == same


def test_each_frame_is_settled_once_and_before_its_shot_ends():
    follower = FilmFollower()
    steps = [step for frame, _, faces in looks() for step in follower.look(frame, faces)]
    found = settle([*steps, *follower.end_shot()])  # nothing settled these steps before
    settled = [one for one in found if not isinstance(one, Sighting)]
    ends = [at for at, one in enumerate(settled) if isinstance(one, ShotEnded)]
    assert ends == [30, 61]
    assert [one.pts for one in settled if isinstance(one, Settled)] == list(range(60))
    assert all(sorted(settled[end].named.values()) == [1, 2] for end in ends)


def wandering(seed, count=120, people=3):
    """Simulate people who swing past one another; at times the first has an arm that moves away."""
    random = np.random.default_rng(seed)
    ground, clothes = random.integers(60, 120, (*SIZE, 3)), random.integers(30, 230, (people, 3))
    phases, speeds = random.uniform(0, 6.3, people), random.uniform(1, 4, people)
    widths, tops = random.integers(3, 9, people), random.integers(8, 30, people)
    frames = SmallFrames()
    for n in range(count):
        rgb, alpha = ground.copy(), np.zeros(SIZE, np.float32)
        for one in range(people):
            middle = int(SIZE[1] / 2 + SIZE[1] * 0.42 * np.sin(phases[one] + speeds[one] * 6.3 * n / count))
            parts = [(slice(tops[one], 56), max(middle - widths[one], 0), middle + widths[one])]
            if one == 0 and n % 90 > 40:
                left = max(middle + widths[one] + (n % 90 - 40) // 2, 0)
                parts.append((slice(20, 40), left, left + 6))
            for rows, left, right in parts:
                rgb[rows, left:right], alpha[rows, left:right] = clothes[one], 1
        noisy = (rgb + random.integers(-6, 6, rgb.shape)).clip(0, 255) / 255
        yield frames.next(n, noisy.astype(np.float32).transpose(2, 0, 1)[None], alpha[None], n == 0)[0]


@pytest.mark.parametrize("seed", [4, 17], ids=["limb", "two"])
def test_limbs_and_who_turn_out_to_be_two_are_told_from_labels_that_are_given_out(seed):
    at_once, late = FilmFollower(), FilmFollower()
    found, steps = [], []
    for frame in wandering(seed):
        found += settle(at_once.look(frame, ()))
        steps += late.look(frame, ())
    found += settle(at_once.end_shot())
    for one, same in zip(found, settle([*steps, *late.end_shot()]), strict=True):
        if isinstance(one, Settled):
            np.testing.assert_array_equal(one.labels, same.labels)
        else:
            assert one == same


def test_a_process_that_is_gone_is_an_error(process):
    def killed_after_a_shot():
        yield from looks(shots=1)
        os.kill(process._process.process.pid, signal.SIGKILL)
        yield next(looks())

    with pytest.raises(PipelineError, match="the process that follows people was killed by SIGKILL"):
        Pipeline([Source("looks", killed_after_a_shot()), *process.stages(lambda *_: None)]).run()


def test_what_goes_wrong_there_is_raised_here(process):
    with pytest.raises(PipelineError) as caught:
        Pipeline([Source("looks", [("no frame", None, ())]), *process.stages(lambda *_: None)]).run()
    (error,) = caught.value.exceptions
    assert isinstance(error, AttributeError)
    assert "in the process that follows people" in error.__notes__


@pytest.mark.parametrize(
    ("kind", "daemon", "here"), [("cpu", False, True), ("cuda", True, True), ("cuda", False, False)]
)
def test_a_process_of_its_own_is_for_gpus_and_where_one_may_be_started(kind, daemon, here, monkeypatch):
    monkeypatch.setattr(scan, "current_process", lambda: SimpleNamespace(daemon=daemon))
    with scan._open_follower(Device(kind, "device")) as follower:
        assert isinstance(follower, FilmFollower) is here
