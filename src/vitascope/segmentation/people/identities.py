"""People of a film known again from shot to shot, by what they look like; each answer with how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from vitascope.segmentation.people.appearance import Appearance
from vitascope.segmentation.people.following import Track

MOST_PEOPLE: Final = 254
"""People of a film who get a number; those who appear later are nobody."""
_SAME = 0.72
"""Similarity from which two shots show the same person; chosen on ten shots of three people in other light, sizes and
mirrored, of which it named 25 of 25 right where the cuts were known."""
_SURE = 0.15
"""By how much the best answer must be better than the second to be beyond doubt."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A person in one shot."""

    person: int
    """1 and up, in the order of appearance."""
    begin_pts: int
    end_pts: int
    """pts of the last frame with them."""
    largest: float
    """The largest share of the picture that they covered."""
    sure: float
    """0 to 1: that it is this person and no other."""
    frames: int
    low_frames: int
    """Frames in which they lie at the bottom of the picture."""


@dataclass(slots=True, eq=False)
class _Person:
    number: int
    looks: Appearance = field(default_factory=Appearance)


class Identities:
    """The people of a film so far."""

    def __init__(self) -> None:
        self._people: list[_Person] = []
        self.presences: list[Presence] = []
        """In the order of shots."""

    def recognise(self, tracks: Sequence[Track]) -> dict[int, int]:
        """Say who the people of a shot are: those of other shots, or somebody new.

        Two that are in the picture at the same time are two people.

        Args:
            tracks: Everybody of the shot.

        Returns:
            The person's number for the number of each track.
        """
        alike = {
            (track.number, person.number): track.appearance.similarity(person.looks)
            for track in tracks
            for person in self._people
        }
        named: dict[int, int] = {}
        by_number = {track.number: track for track in tracks}
        for (number, person), likeness in sorted(alike.items(), key=lambda item: -item[1]):
            if number in named or likeness < _SAME:
                continue
            others = [by_number[other] for other, name in named.items() if name == person]
            if not any(_together(by_number[number], other) for other in others):
                named[number] = person
        known = {person.number: person for person in self._people}
        for track in sorted(tracks, key=lambda one: (one.first_pts, one.first_x)):
            scores = [alike[track.number, one] for one in known if (track.number, one) in alike]
            if track.number in named:
                somebody, own = known[named[track.number]], alike[track.number, named[track.number]]
                rival = max([_SAME - _SURE, *(score for score in scores if score != own)])
                sure = own - rival
            elif len(self._people) == MOST_PEOPLE:
                continue  # nobody's number is left
            else:
                somebody = _Person(len(self._people) + 1)
                self._people.append(somebody)
                known[somebody.number] = somebody
                named[track.number] = somebody.number
                sure = _SAME + _SURE - max(scores, default=0.0)
            somebody.looks.join(track.appearance, weight=float(min(track.frames, 50)))
            self.presences.append(
                Presence(
                    somebody.number,
                    track.first_pts,
                    track.last_pts,
                    round(track.largest, 4),
                    round(min(max(0.5 + 0.5 * sure / _SURE, 0.05), 0.99), 2),
                    track.frames,
                    track.low_frames,
                )
            )
        return named


def _together(one: Track, other: Track) -> bool:
    """True when both are seen at the same time."""
    return one.first_pts <= other.last_pts and other.first_pts <= one.last_pts
