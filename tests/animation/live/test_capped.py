"""Check that a driver's pictures are limited to a rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from vitascope.animation.live.sources import Capped
from vitascope.media.reading.camera import CameraPicture


class Timed:
    """A source of pictures with known times."""

    def __init__(self, moments: Sequence[float], *, first_again: int = 0) -> None:
        self._moments, self._first_again = moments, first_again
        self.captured_count = 0

    @property
    def is_over(self) -> bool:
        return self.captured_count == len(self._moments)

    def take(self, *, timeout_seconds: float | None = None) -> CameraPicture:
        index = self.captured_count
        self.captured_count += 1
        is_first = index in (0, self._first_again)
        return CameraPicture(np.zeros((1, 1, 3), np.uint8), self._moments[index], index, is_first)


def let_through(source: Timed, *, frame_rate: float) -> list[int]:
    capped = Capped(source, frame_rate=frame_rate)
    taken = []
    while not capped.is_over:
        picture = capped.take()
        taken += [] if picture is None else [picture.index]
    assert capped.captured_count == len(taken)
    return taken


@pytest.mark.parametrize(
    ("given", "wanted", "shares"), [(60, 30, 0.5), (60, 50, 5 / 6), (30, 30, 1), (30, 90, 1)]
)
def test_no_more_pictures_come_through_than_are_wanted(given: float, wanted: float, shares: float) -> None:
    trembling = np.random.default_rng(3).uniform(-0.1, 0.1, 600)
    moments = 7 + (np.arange(600) + trembling) / given
    taken = let_through(Timed(list(moments)), frame_rate=wanted)
    assert len(taken) == pytest.approx(600 * shares, abs=2)
    assert max(np.diff(taken)) <= round(given / wanted) + 1


def test_after_a_gap_the_rate_is_no_higher() -> None:
    moments = [*np.arange(20) / 100, *(5 + np.arange(20) / 100)]
    taken = let_through(Timed(moments), frame_rate=10)
    assert 20 in taken and len(taken) == 6
    assert np.diff([moments[index] for index in taken]).min() >= 0.07 - 1e-9


def test_the_first_picture_of_a_camera_that_is_back_is_never_left_out() -> None:
    assert let_through(Timed(list(np.arange(12) / 100), first_again=3), frame_rate=10)[:2] == [0, 3]


def test_what_nobody_took_counts_no_more_than_would_have_come_through() -> None:
    source = Timed(list(np.arange(200) / 100))
    capped = Capped(source, frame_rate=8)
    for index in range(0, 200, 7):  # the loop takes every seventh of a hundred a second
        source.captured_count = index
        capped.take()
    assert capped.captured_count <= 17

    source.captured_count = 120  # half a second late
    late = Capped(source, frame_rate=8)
    late.take()
    source.captured_count = 170
    late.take()
    assert late.captured_count == 5  # two passed on, three lost
