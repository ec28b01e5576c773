"""Recognises people from shot to shot by colours and faces, with a confidence for each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Final

from vitascope.segmentation.people.appearance import Appearance, FaceLooks
from vitascope.segmentation.people.following import Track

MOST_PEOPLE: Final = 254
"""Maximum people of a video who get a number; people who appear later count as nobody."""
_SAME = 0.72
"""Minimum similarity of the same person in two shots; chosen on ten shots of three people in other light, other sizes
and mirrored, in which it identified 25 of 25 correctly where the cuts were known."""
_FACES_COUNT = 4.0
"""Weight of the amount by which two faces are closer than the strangers' limit."""
_STRANGERS: Final = 0.6
"""Distance of two faces that tells nothing: closer faces are the same person's, farther ones are not."""
_ODDS_OF_E = 0.1
"""Lead of the best answer's likeness over the second's at which the odds are e to 1."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A person in one shot."""

    person: int
    """Number of the person, from 1, in the order of appearance."""
    begin_pts: int
    end_pts: int
    """pts of the last frame with them."""
    largest: float
    """Largest share of the picture that they covered."""
    sure: float
    """Confidence that it is this person, 0 to 1."""
    frames: int
    low_frames: int
    """Frames in which they are at the bottom of the picture."""


@dataclass(slots=True, eq=False)
class _Person:
    number: int
    looks: Appearance = field(default_factory=Appearance)
    face: FaceLooks = field(default_factory=FaceLooks)

    def likeness(self, track: Track) -> float:
        """Similarity to a person of a shot: by colours, from 0 to 1, raised or lowered by faces."""
        colors = track.appearance.similarity(self.looks)
        if track.face.is_blank or self.face.is_blank:
            return colors
        return colors + _FACES_COUNT * (_STRANGERS - track.face.distance(self.face))


class Identities:
    """The people of a video so far."""

    def __init__(self) -> None:
        self._people: list[_Person] = []
        self.presences: list[Presence] = []
        """All appearances, in the order of shots."""

    def recognise(self, tracks: Sequence[Track]) -> dict[int, int]:
        """Identify the people of a shot, as those of other shots or as new ones.

        Two tracks visible at the same time are two people.

        Args:
            tracks: All tracks of the shot.

        Returns:
            The person's number for each track's number.
        """
        alike = {
            (track.number, person.number): person.likeness(track)
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
        ahead = {track.number: _ahead(track, tracks, named, alike) for track in tracks}
        for track in sorted(tracks, key=lambda one: (one.first_pts, one.first_x)):
            if track.number in named:
                somebody = known[named[track.number]]
            elif len(self._people) == MOST_PEOPLE:
                continue  # all numbers are taken
            else:
                somebody = _Person(len(self._people) + 1)
                self._people.append(somebody)
                named[track.number] = somebody.number
            somebody.looks.join(track.appearance, weight=float(min(track.frames, 50)))
            somebody.face.join(track.face)
            self.presences.append(
                Presence(
                    somebody.number,
                    track.first_pts,
                    track.last_pts,
                    round(track.largest, 4),
                    round(min(1 / (1 + exp(-ahead[track.number] / _ODDS_OF_E)), 0.99), 2),
                    track.frames,
                    track.low_frames,
                )
            )
        return named


def _ahead(
    track: Track, tracks: Sequence[Track], named: Mapping[int, int], alike: Mapping[tuple[int, int], float]
) -> float:
    """Lead of a track's answer over the best other answer.

    If the best other person is visible at the same time, the alternative is that they exchange places, or that they
    are somebody new.

    Args:
        track: A track of a shot.
        tracks: All tracks of the shot.
        named: Numbers of identified people, by track number.
        alike: Likeness of tracks to people, by both numbers.
    """
    person = named.get(track.number)
    own = _SAME if person is None else alike[track.number, person]
    margins = [] if person is None else [own - _SAME]
    for (number, other), likeness in alike.items():
        if number != track.number or other == person:
            continue
        margin = own - likeness
        for holder in tracks:
            if named.get(holder.number) == other and _together(track, holder):
                instead = _SAME if person is None else alike[holder.number, person]
                margin += alike[holder.number, other] - max(instead, _SAME)
        margins.append(margin)
    return min(margins, default=_SAME)


def _together(one: Track, other: Track) -> bool:
    """True if both are seen at the same time."""
    return one.first_pts <= other.last_pts and other.first_pts <= one.last_pts
