"""Decides which of the found people to keep at each time, from flags and hints."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from vitascope.config.flags import PersonWord
from vitascope.config.result import PeopleSettings
from vitascope.errors import UsageError
from vitascope.segmentation.people.table import Person

_MOST_CONTRADICTIONS: Final = 20
"""Maximum lines about contradictions; users do not read more."""
_POV_SHARE: Final = 0.5
"""Minimum share of frames in which the camera wearer's body must be at the bottom of the picture."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Keeps only some people, or leaves them out, for a time."""

    people: frozenset[int]
    keeps: bool
    begin_seconds: float = 0.0
    end_seconds: float = float("inf")
    said_by: str = ""
    """Source of the rule, for messages: ``--keep``, or the line of a file."""

    def acts_at(self, seconds: float) -> bool:
        """True while the rule applies."""
        return self.begin_seconds <= seconds < self.end_seconds


@dataclass(frozen=True, slots=True)
class Choice:
    """Decides who is kept, by rules.

    While some rules keep people, everybody whom they do not name is left out, and so is what belongs to
    nobody. If two rules name the same person, the later one wins.
    """

    rules: tuple[Rule, ...] = ()

    def kept_at(self, seconds: float) -> npt.NDArray[np.bool_]:
        """For each number, True if that person is kept; number 0 belongs to nobody, bool [256]."""
        return _kept_by([rule for rule in self.rules if rule.acts_at(seconds)])

    def left_out(
        self, begin_seconds: float, end_seconds: float, people: Iterable[int]
    ) -> list[tuple[float, float, tuple[int, ...]]]:
        """List who is left out and when, in a part of the video: begin, end, numbers; empty if all are kept.

        Args:
            begin_seconds: Begin of the part.
            end_seconds: End of the part.
            people: Numbers; 0 stands for what belongs to nobody.
        """
        ends = {end for rule in self.rules for end in (rule.begin_seconds, rule.end_seconds)}
        times = sorted(
            {begin_seconds, end_seconds, *(end for end in ends if begin_seconds < end < end_seconds)}
        )
        parts = []
        coming = deque(sorted(enumerate(self.rules), key=lambda one: one[1].begin_seconds))
        acting: list[tuple[int, Rule]] = []
        for begin, end in pairwise(times):
            acting = [one for one in acting if one[1].end_seconds > begin]
            while coming and coming[0][1].begin_seconds <= begin:
                one = coming.popleft()
                if one[1].end_seconds > begin:
                    insort(acting, one, key=itemgetter(0))
            kept = _kept_by([rule for _, rule in acting])
            if out := tuple(number for number in sorted(people) if not kept[number]):
                parts.append((begin, end, out))
        return parts

    def contradictions(self) -> list[str]:
        """Describe the rules that contradict each other, and which one wins; one line each, up to a maximum."""
        lines: list[str] = []
        for first, later in self._opposed():
            if len(lines) == _MOST_CONTRADICTIONS:
                return [*lines, "more rules contradict each other"]
            begin = max(first.begin_seconds, later.begin_seconds)
            people = ", ".join(map(str, sorted(first.people & later.people)))
            what = "kept" if later.keeps else "left out"
            lines.append(
                f"{first.said_by} and {later.said_by} contradict each other about person "
                f"{people} from {begin:g} s on; the later one wins: {what}"
            )
        return lines

    def _opposed(self) -> Iterator[tuple[Rule, Rule]]:
        """Pairs of contradicting rules, each in order, sorted by the time from which the second one applies."""
        acting: dict[bool, list[tuple[int, Rule]]] = {True: [], False: []}
        for number, rule in sorted(enumerate(self.rules), key=lambda one: one[1].begin_seconds):
            if rule.begin_seconds >= rule.end_seconds:
                continue
            others = [one for one in acting[not rule.keeps] if one[1].end_seconds > rule.begin_seconds]
            acting[not rule.keeps] = others
            acting[rule.keeps].append((number, rule))
            for at, other in others:
                if rule.people & other.people:
                    yield (other, rule) if at < number else (rule, other)


def _kept_by(acting: Sequence[Rule]) -> npt.NDArray[np.bool_]:
    """Like ``Choice.kept_at``, for the rules in force at a time, in order."""
    kept = np.full(256, not any(rule.keeps for rule in acting))
    for rule in acting:
        kept[list(rule.people)] = rule.keeps
    return kept


def chosen_people(wanted: PeopleSettings, people: Sequence[Person], *, video: str) -> list[Rule]:
    """Turn ``keep`` and ``exclude`` into rules for a video.

    Args:
        wanted: The settings.
        people: The people in the video.
        video: The video's name, for messages.

    Raises:
        UsageError: A named person is not in it.
    """
    rules = []
    for flag, named, keeps in (("--keep", wanted.keep, True), ("--exclude", wanted.exclude, False)):
        if named is not None:
            rules.append(Rule(numbers_of(named, people, video=video, flag=flag), keeps, said_by=flag))
    return rules


def numbers_of(
    named: Sequence[int | PersonWord], people: Sequence[Person], *, video: str, flag: str
) -> frozenset[int]:
    """Numbers of people that are named by number or by word.

    Args:
        named: Numbers, ``largest`` and ``pov``.
        people: The people in the video.
        video: The video's name, for messages.
        flag: Flag or hint that names them, for messages.

    Raises:
        UsageError: There is no such person.
    """
    numbers: set[int] = set()
    there = {person.number for person in people}
    for one in named:
        if one == "largest" or one == "pov":
            found = meant_by(one, people)
            if not found:
                lacking = {
                    "largest": f"nobody was found in {video}",
                    "pov": f"nobody in {video} is at the bottom of the picture, where the camera wearer's body appears",
                }
                raise UsageError(f"{flag} {one}: {lacking[one]}")
            numbers |= found
        elif one in there:
            numbers.add(int(one))
        else:
            raise UsageError(
                f"{flag} {one}: {video} has {_told(len(people))}; run vitascope people to see who is who"
            )
    return frozenset(numbers)


def meant_by(word: PersonWord, people: Sequence[Person]) -> frozenset[int]:
    """The numbers of the people that a word means; empty if there are none.

    Args:
        word: The word.
        people: The people in the video.
    """
    if word == "pov":
        return frozenset(person.number for person in people if person.low >= _POV_SHARE)
    largest = max(people, key=lambda person: person.largest * person.seconds, default=None)
    return frozenset() if largest is None else frozenset({largest.number})


def _told(count: int) -> str:
    if count == 0:
        return "nobody in it"
    return "1 person, number 1" if count == 1 else f"{count} people, numbers 1 to {count}"
