"""Tests of whether anybody was found, on the CPU and on a GPU, for which NumPy stands in except in one test."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from vitascope.segmentation.matting import people_seen
from vitascope.segmentation.matting.people_seen import PeopleSeen

NOBODY, FAINT, SOMEBODY = (np.full((1, 4, 6), alpha, np.float32) for alpha in (0.0, 0.3, 0.9))
SOMEBODY[0, 1:] = 0  # one sample wide


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_one_frame_with_somebody_is_enough_and_faint_specks_are_nobody(dtype):
    seen = PeopleSeen()
    full = np.iinfo(dtype).max
    for alpha in (NOBODY, FAINT):
        seen.look_at_finished((alpha[0] * full).astype(dtype))
    assert not seen.is_anybody
    seen.look_at_finished((SOMEBODY[0] * full).astype(dtype))
    seen.look_at_finished((NOBODY[0] * full).astype(dtype))
    assert seen.is_anybody


def test_an_empty_frame_of_a_slow_thread_takes_nobody_back():
    class Slow(np.ndarray):
        def max(self, *args, **kwargs):
            looked.set()
            found.wait(10)
            return super().max(*args, **kwargs)

    seen, looked, found = PeopleSeen(), threading.Event(), threading.Event()
    slow = threading.Thread(target=seen.look_at_finished, args=(np.zeros((4, 6), np.uint8).view(Slow),))
    slow.start()
    assert looked.wait(10)
    seen.look_at_finished(np.full((4, 6), 255, np.uint8))
    found.set()
    slow.join()
    assert seen.is_anybody


@pytest.fixture
def on_gpu(monkeypatch):
    """Treat NumPy's arrays as a GPU's."""
    monkeypatch.setattr(people_seen, "is_on_gpu", lambda array: True)


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("at", [0, 15, 16, 99])
def test_a_gpu_is_waited_for_now_and_then_and_at_the_end(at):
    seen = PeopleSeen()
    frames = [NOBODY] * 100
    frames[at] = SOMEBODY
    for first in range(0, 100, 8):
        seen.look_at_small(iter(frames[first : first + 8]))
    seen.finish()
    assert seen.is_anybody
    nobody = PeopleSeen()
    nobody.look_at_small([NOBODY, FAINT])
    nobody.finish()
    assert not nobody.is_anybody


@pytest.mark.usefixtures("on_gpu")
def test_mattes_on_a_gpu_are_not_even_made_once_somebody_was_found():
    seen = PeopleSeen()
    seen.look_at_small([SOMEBODY] * 16)
    assert seen.is_anybody

    def refuse():
        raise AssertionError
        yield

    seen.look_at_small(refuse())


def test_small_mattes_of_the_host_are_known_at_once():
    seen = PeopleSeen()
    seen.look_at_small([NOBODY, FAINT])
    assert not seen.is_anybody
    seen.look_at_small([SOMEBODY])
    assert seen.is_anybody


@pytest.mark.cuda
@pytest.mark.parametrize("somebody", ["gpu", "host", None])
def test_mattes_of_both_memories_in_turn(somebody):
    import cupy

    seen = PeopleSeen()
    mattes = {"gpu": cupy.asarray(SOMEBODY), "host": SOMEBODY, None: cupy.asarray(FAINT)}
    seen.look_at_small([cupy.asarray(NOBODY), NOBODY, mattes[somebody], NOBODY, cupy.asarray(NOBODY)])
    seen.finish()
    assert seen.is_anybody == (somebody is not None)
