"""In how many frames something of those who are kept is seen: another network than found them may miss them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.segmentation.people.table import Look

_SEEN = 0.5
"""Share of full alpha from which on somebody is there."""
_RARELY = 0.5
"""Share of the frames with somebody below which it is told."""


class KeptFrames(NamedTuple):
    """Frames of a part of a video with somebody who is kept."""

    person: int
    known: int
    """Frames in which they are, as a scan found."""
    seen: int
    """Those of them in whose matte something of them is."""


class KeptSeen:
    """Counts, frame by frame; for one thread."""

    def __init__(self) -> None:
        self.owns: Callable[[int], bool] = lambda _: True
        """Says of a frame's pts whether it counts."""
        self._known: Counter[int] = Counter()
        self._seen: Counter[int] = Counter()

    def look(
        self,
        pts: int,
        alpha: npt.NDArray[np.floating],
        around: Sequence[tuple[float, Look]],
        kept: npt.NDArray[np.bool_],
    ) -> None:
        """Count a frame.

        Args:
            pts: The frame's.
            alpha: float [E, h, w], 0..1: everybody's matte.
            around: Whose each cell is, as ``PeopleTable.looks_around``.
            kept: bool [256], True for the numbers of those who are kept.
        """
        if not around or not self.owns(pts):
            return
        _, look = max(around, key=lambda one: one[0])
        size = alpha.shape[:0:-1]
        # One eye's labels may be those of both, and of two eyes' labels the left ones those of one matte.
        eyes = [cv2.resize(eye, size, interpolation=cv2.INTER_NEAREST) for eye in look.labels[: len(alpha)]]
        labels = np.broadcast_to(np.stack(eyes), alpha.shape)
        there = np.bincount(labels[alpha >= _SEEN], minlength=256)
        for number in look.numbers.tolist():
            if number and kept[number]:
                self._known[number] += 1
                self._seen[number] += bool(there[number])

    @property
    def frames(self) -> tuple[KeptFrames, ...]:
        """What was counted, by number."""
        return tuple(KeptFrames(one, self._known[one], self._seen[one]) for one in sorted(self._known))


def notes_on_kept(
    frames: Iterable[KeptFrames], *, network: str, scanned_by: str, profile: str
) -> tuple[str, ...]:
    """A note on those of whom hardly anything is seen; nothing where all are seen as a rule.

    Args:
        frames: Of all parts of a video.
        network: The run's.
        scanned_by: The network that found who is in the video.
        profile: The run's.
    """
    known, seen = Counter[int](), Counter[int]()
    for one in frames:
        known[one.person] += one.known
        seen[one.person] += one.seen
    rarely = [one for one in sorted(known) if seen[one] < _RARELY * known[one]]
    if not rarely:
        return ()
    people = ", ".join(f"of person {one} in {seen[one]} of {known[one]} frames" for one in rarely)
    help_ = "--profile balanced" if (network, profile) == ("selfie", "fast") else f"--model {scanned_by}"
    return (
        f"{network} sees something {people} that show them, as {scanned_by} found for vitascope people; what it "
        f"misses is background" + ("" if network == scanned_by else f": {help_} sees them"),
    )
