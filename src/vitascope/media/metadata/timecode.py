"""The time code of a video: what the recorder's clock counted at its first picture (SMPTE ST 12-1)."""

from __future__ import annotations

import re
from fractions import Fraction

_TIMECODE = re.compile(r"(\d\d):([0-5]\d):([0-5]\d)([:;.])(\d{2,3})")
_MINUTES_A_DAY = 24 * 60


def moved_timecode(timecode: str, *, seconds: Fraction, frame_rate: Fraction) -> str | None:
    """The time code of a later picture.

    Args:
        timecode: That of the first picture, ``hh:mm:ss:ff``. With a semicolon or a full stop before the frames it drops
            numbers, so that it keeps pace with a clock at 29.97 or 59.94 pictures a second.
        seconds: How much later, 0 or more.
        frame_rate: Pictures a second.

    Returns:
        It in the same form; None where what is given is no time code of that rate. After a day it begins anew.
    """
    found = _TIMECODE.fullmatch(timecode.strip())
    rate = round(frame_rate)
    if found is None or rate < 1 or int(found[5]) >= rate:
        return None
    hours, minutes, whole_seconds, frames = (int(found[n]) for n in (1, 2, 3, 5))
    # Two numbers of each minute at 29.97, four at 59.94, but not of every tenth minute.
    dropped = rate // 15 if found[4] != ":" else 0
    if dropped and rate % 30:
        return None
    minute = hours * 60 + minutes
    count = (minute * 60 + whole_seconds) * rate + frames - dropped * (minute - minute // 10)
    count += round(seconds * frame_rate)
    count %= _MINUTES_A_DAY * 60 * rate - dropped * (_MINUTES_A_DAY - _MINUTES_A_DAY // 10)
    ten_minutes = 600 * rate - 9 * dropped
    tens, rest = divmod(count, ten_minutes)
    # The first minute of ten is whole; each of the others begins with numbers that are not there.
    minutes_in_ten = 0 if rest < 60 * rate else 1 + (rest - 60 * rate) // (60 * rate - dropped)
    count += dropped * (9 * tens + minutes_in_ten)
    whole, frames = divmod(count, rate)
    minute, whole_seconds = divmod(whole, 60)
    width = len(found[5])
    return f"{minute // 60:02}:{minute % 60:02}:{whole_seconds:02}{found[4]}{frames:0{width}}"
