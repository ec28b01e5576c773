"""Whether anybody was found, on the CPU and on a GPU, whose arrays are NumPy's here."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.segmentation.matting.people_seen import PeopleSeen

NOBODY, FAINT, SOMEBODY = (np.full((1, 4, 6), alpha, np.float32) for alpha in (0.0, 0.3, 0.9))
SOMEBODY[0, 1:] = 0  # a row of one


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_one_frame_with_somebody_is_enough_and_faint_specks_are_nobody(dtype):
    seen = PeopleSeen()
    full = np.iinfo(dtype).max
    for alpha in (NOBODY, FAINT):
        seen.add_alpha((alpha[0] * full).astype(dtype))
    assert not seen.is_anybody
    seen.add_alpha((SOMEBODY[0] * full).astype(dtype))
    seen.add_alpha((NOBODY[0] * full).astype(dtype))
    assert seen.is_anybody


@pytest.mark.parametrize("at", [0, 15, 16, 99])
def test_a_gpu_is_waited_for_now_and_then_and_at_the_end(at):
    seen = PeopleSeen()
    frames = [NOBODY] * 100
    frames[at] = SOMEBODY
    for first in range(0, 100, 8):
        seen.add_on_gpu(iter(frames[first : first + 8]))
    seen.finish()
    assert seen.is_anybody
    nobody = PeopleSeen()
    nobody.add_on_gpu([NOBODY, FAINT])
    nobody.finish()
    assert not nobody.is_anybody


def test_mattes_on_a_gpu_are_not_even_made_once_somebody_was_found():
    seen = PeopleSeen()
    seen.add_on_gpu([SOMEBODY] * 16)
    assert seen.is_anybody

    def refuse():
        raise AssertionError
        yield

    seen.add_on_gpu(refuse())
