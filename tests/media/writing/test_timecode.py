"""Tests of the time codes of later frames, against counting one by one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from vitascope.media.writing.output_clock import moved_timecode


def numbers(rate: int, dropped: int, *, minutes: range):
    """Return every number that such a clock shows, in order (SMPTE ST 12-1, 5.2)."""
    for minute in minutes:
        for second in range(60):
            for frame in range(rate):
                if second == 0 and minute % 10 and frame < dropped:
                    continue
                yield f"{minute // 60:02}:{minute % 60:02}:{second:02}", frame


@pytest.mark.parametrize(
    ("rate", "nominal", "dropped", "mark"),
    [
        (Fraction(30000, 1001), 30, 2, ";"),
        (Fraction(60000, 1001), 60, 4, ";"),
        (Fraction(24000, 1001), 24, 0, ":"),
        (Fraction(25), 25, 0, ":"),
    ],
)
def test_it_is_what_counting_gives(rate, nominal, dropped, mark):
    def shown(minutes: range) -> list[str]:
        return [f"{time}{mark}{frame:02}" for time, frame in numbers(nominal, dropped, minutes=minutes)]

    morning, midnight = shown(range(538, 562)), shown(range(1438, 1440))
    for later in [*range(0, 3 * 60 * nominal, 7), len(morning) - 1]:
        assert moved_timecode(morning[0], seconds=later / rate, frame_rate=rate) == morning[later]
    assert moved_timecode(midnight[0], seconds=len(midnight) / rate, frame_rate=rate) == f"00:00:00{mark}00"


def test_what_is_none_stays_none():
    for wrong in ("", "1:2:3:4", "00:00:00:25", "00:00:00;01", "in the evening"):
        assert moved_timecode(wrong, seconds=Fraction(1), frame_rate=Fraction(25)) is None
