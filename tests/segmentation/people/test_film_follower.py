"""People followed through a whole video, here and in a process of its own."""

import os
import signal

import numpy as np
import pytest

from vitascope.errors import WorkerError
from vitascope.segmentation.people.film_follower import FilmFollower, FollowingProcess, Settled, ShotEnded
from vitascope.segmentation.people.small_frames import SmallFrames

SIZE = (60, 120)
CLOTHES = {1: (220, 60, 40), 2: (60, 90, 210)}


def frames(shots=2, frames_each=30):
    """Two people who cross in each shot."""
    ground = np.random.default_rng(7).integers(60, 120, (*SIZE, 3))
    made = SmallFrames()
    for n in range(shots * frames_each):
        time = n % frames_each / (frames_each - 1)
        rgb, alpha = ground.copy(), np.zeros(SIZE, np.float32)
        for who, middle in ((2, round(90 - 60 * time)), (1, round(30 + 60 * time))):
            rgb[12:56, middle - 8 : middle + 8] = CLOTHES[who]
            alpha[12:56, middle - 8 : middle + 8] = 1
        planes = (rgb / 255).astype(np.float32).transpose(2, 0, 1)
        yield made.next(n, planes[None], alpha[None], n % frames_each == 0)


@pytest.fixture
def process():
    with FollowingProcess() as process:
        yield process


def test_a_process_finds_what_is_found_here(process):
    here, there = FilmFollower(), []
    expected = [here.look(frame, ()) for frame in frames()]
    for frame in frames():
        process.show(frame, ())
        there.append(process.settled())
    ended, other = here.finish(), process.finish()

    def flat(looks):
        return [one for settled in looks for one in settled]

    for one, same in zip(flat([*expected, ended.rest]), flat([*there, other.rest]), strict=True):
        if isinstance(one, Settled):
            assert one.pts == same.pts
            np.testing.assert_array_equal(one.labels, same.labels)
        else:
            assert one == same
    assert other.presences == ended.presences
    assert other.faces == ended.faces and sorted(ended.faces) == [1, 2]


def test_each_frame_is_settled_once_and_before_its_shot_ends():
    follower = FilmFollower()
    settled = [one for frame in frames() for one in follower.look(frame, ())]
    settled += follower.finish().rest
    ends = [at for at, one in enumerate(settled) if isinstance(one, ShotEnded)]
    assert ends == [30, 61]
    assert [one.pts for one in settled if isinstance(one, Settled)] == list(range(60))
    assert all(sorted(settled[end].named.values()) == [1, 2] for end in ends)


def test_a_process_that_is_gone_is_an_error(process):
    first = next(frames())
    process.show(first, ())
    process.settled()
    os.kill(process._process._process.pid, signal.SIGKILL)
    process.show(first, ())
    with pytest.raises(WorkerError, match="the process that follows people was killed by SIGKILL"):
        process.settled()


def test_what_goes_wrong_there_is_raised_here(process):
    process.show("no frame", ())
    with pytest.raises(AttributeError, match="starts_shot") as caught:
        process.settled()
    assert caught.value.__notes__ == ["in the process that follows people"]
