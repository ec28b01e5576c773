"""Turns flags and hints into layers that define which parts of the matte to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import isinf
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config import Settings
from vitascope.config.hints import Eye, Hints, Mark, PeopleRule, Region, Timed, read_hints
from vitascope.errors import UsageError
from vitascope.frames import Frame
from vitascope.media.reading.reader import VideoReader
from vitascope.models.network import NetworkInput
from vitascope.segmentation.matting.batch import Estimator
from vitascope.segmentation.matting.shots import EyeViews
from vitascope.segmentation.people.choice import Choice, Rule, chosen_people, numbers_of
from vitascope.segmentation.people.held import FindSalient, HeldThings
from vitascope.segmentation.people.kept import (
    KeptFrames,
    KeptPeople,
    KeptSeen,
    Layer,
    PeopleLayer,
    notes_on_kept,
)
from vitascope.segmentation.people.strokes import StrokeLayer, carried_strokes, stroke_bounds
from vitascope.segmentation.people.table import Labels, PeopleTable, known_people
from vitascope.vr.detection import VrDescription
from vitascope.vr.stereo import eye_regions

FloatMap = npt.NDArray[np.float32]


def hints_of(settings: Settings, video: Path) -> Hints:
    """Read the hints named in the settings; empty without any.

    Raises:
        ConfigError: The file cannot be read, or has an invalid hint.
        UsageError: The hints are for another video.
    """
    if settings.people.hints is None:
        return Hints(label="")
    hints = read_hints(settings.people.hints)
    if hints.video is not None and hints.video != video.name:
        raise UsageError(
            f"{hints.label}: these hints are for {hints.video}, not for {video.name}; "
            "if they fit, change its video:"
        )
    return hints


def needs_scan(settings: Settings, video: Path) -> bool:
    """True if the people of a video must be known.

    Raises:
        ConfigError: As ``hints_of``.
        UsageError: As ``hints_of``.
    """
    people, hints = settings.people, hints_of(settings, video)
    return people.keep is not None or people.exclude is not None or hints.needs_people


@dataclass(frozen=True)
class Keeping:
    """Decides what is kept of one video, which must have been scanned if ``needs_scan`` is true.

    Raises:
        UsageError: A named person is not in the video, the hints are for another video, or a hint is beyond its end
            or on nobody.
        ConfigError: The hints cannot be read.
        InputError: The stored scan of the video is damaged.
    """

    reader: VideoReader
    vr: VrDescription
    settings: Settings
    moment: float | None = None
    """Time of the only frame needed, in seconds; None for the whole video."""
    span: tuple[float, float] | None = None
    """The only part needed, begin and end in seconds; None for the whole video."""
    scanned: Path | None = None
    """File with the people of the video; None uses the one that ``known_people`` finds."""
    open_salient: Callable[[], FindSalient] | None = None
    """Opens the finder of held things; called by ``around`` if they are kept. The caller closes it."""

    def around(self, inner: Estimator, shown: NetworkInput) -> Estimator:
        """Wrap an estimator so that only kept people remain, for ``StreamMatting``.

        Raises:
            ModelError: Held things are to be kept, but the network that finds them is unavailable.
        """
        info = self.reader.info
        regions = eye_regions(info.width, info.height, self.vr.layout)
        views = EyeViews(regions, info.rotation_degrees)
        if not self.settings.people.keep_held:
            return KeptPeople(inner, self.layers, shown=shown, views=views, seen=self.seen)
        assert self.open_salient is not None  # given by the caller
        things = HeldThings(self.open_salient())
        return KeptPeople(inner, self.layers, things=things, shown=shown, views=views, seen=self.seen)

    @cached_property
    def seen(self) -> KeptSeen:
        """Number of frames that passed through ``around`` in which kept people are visible."""
        return KeptSeen()

    def notes_on(self, frames: Iterable[KeptFrames], *, network: str, profile: str) -> tuple[str, ...]:
        """Notes for the user on the kept people, at the end.

        Args:
            frames: Counts of ``seen`` from all parts of the video.
            network: The run's network.
            profile: The run's profile.
        """
        if self.table is None:
            return ()
        return notes_on_kept(frames, network=network, scanned_by=self.table.facts.network, profile=profile)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user."""
        found = self.choice.contradictions()
        for rule in self.choice.rules:
            found += [
                f"{rule.said_by}: person {number} does not appear while it applies"
                for number in sorted(rule.people)
                if self.table is not None and not self._is_seen(number, rule)
            ]
        return tuple(found)

    @cached_property
    def hints(self) -> Hints:
        """The hints for this video; empty if the settings name none."""
        video, length = self.reader.info.path, self.reader.info.duration_seconds
        hints = hints_of(self.settings, video)
        moment, hint = hints.last or (0.0, None)
        if length is not None and hint is not None and moment > length:
            raise UsageError(
                f"{hints.place(hint)}: {moment:g} s is after the end of {video.name}, "
                f"which is {length:.1f} s long"
            )
        return hints

    @cached_property
    def table(self) -> PeopleTable | None:
        """The people of the video; None if they make no difference."""
        video = self.reader.info.path
        if not needs_scan(self.settings, video):
            return None
        if self.scanned is not None:
            return PeopleTable(self.scanned)
        table = known_people(video, self.settings.video)
        if table is None:
            raise UsageError(f"{video}: its people have not been searched yet; run vitascope people first")
        return table

    @cached_property
    def layers(self) -> list[Layer]:
        """Make the layers for everything that is kept, left out and added."""
        hints, table, layers = self.hints, self.table, list[Layer]()
        eyes: tuple[Eye, Eye] = ("right", "left") if self.vr.right_eye_first else ("left", "right")
        if self.choice.rules:
            assert table is not None  # rules need it
            add_up = self.settings.people.edges_add_up
            layers.append(PeopleLayer(table, self.choice, edges_add_up=add_up))
        info = self.reader.info
        if hints.never:
            origin = float(self.reader.origin_pts * info.time_base)
            layers.append(RegionLayer(hints.never, origin_seconds=origin, eyes=eyes))
        if hints.painted:
            assert table is not None  # marks need it
            carried = carried_strokes(
                info.path,
                hints.painted,
                table,
                regions=eye_regions(info.width, info.height, self.vr.layout),
                rotation_degrees=info.rotation_degrees,
                eyes=eyes,
                moment=self.moment,
                span=self.span,
            )
            layers.append(StrokeLayer(carried))
        return layers

    def reaching_into(self, begin_seconds: float, end_seconds: float) -> str | None:
        """Fingerprint of all that affects a part of the video: equal ones keep the same; None if all is kept.

        A rule counts if somebody whom it leaves out is visible, a region while it lasts, and a stroke as far as it is
        carried; held things count everywhere. Rules with the same effect are equal.

        Args:
            begin_seconds: Begin of the part.
            end_seconds: End of the part; infinity is the video's end.

        Returns:
            Hexadecimal BLAKE2b-160.
        """
        table, hints = self.table, self.hints
        reaching: list[tuple[Any, ...]] = []

        def within(begin: float, end: float) -> tuple[float, float] | None:
            begin, end = max(begin, begin_seconds), min(end, end_seconds)
            return (begin, end) if begin < end else None

        seen = blake2b(digest_size=20)
        if table is not None and self.choice.rules:
            last = max((piece.pts[-1] for piece in table.facts.pieces), default=0)
            until = last + 1 if isinf(end_seconds) else table.pts_at(end_seconds)
            people = {0}
            for pts, labels in table.labels_between(table.pts_at(begin_seconds), until):
                people |= _people_in(labels)
                seen.update(b"%d" % pts + labels.tobytes())
            for begin, end, numbers in self.choice.left_out(begin_seconds, end_seconds, people):
                near = {0}  # people visible around the part's own time
                for _, labels in table.labels_between(
                    table.pts_at(begin), until if end == end_seconds else table.pts_at(end)
                ):
                    near |= _people_in(labels)
                if out := [number for number in numbers if number in near]:
                    reaching.append(("people", self.settings.people.edges_add_up, begin, end, out))
        if not reaching:
            seen = blake2b(digest_size=20)  # the owner of each cell makes no difference
        if self.settings.people.keep_held:
            reaching.append(("held things", "polished ones whole"))
        assert table is not None or not hints.painted  # marks need it
        firsts = [group[0] for group in hints.painted]
        bounds = stroke_bounds(firsts, table) if table is not None else ()
        for group, (begin, end) in zip(hints.painted, bounds, strict=True):
            if (times := within(begin, end)) is not None:
                reaching += [
                    ("stroke", times, mark.at, mark.do, mark.stroke, mark.radius, mark.eye) for mark in group
                ]
        for region in hints.never:
            if (times := within(*_times(region))) is not None:
                reaching.append(("never", times, region.polygon, region.eye))
        if not reaching:
            return None
        seen.update(repr(reaching).encode())
        return seen.hexdigest()

    @cached_property
    def choice(self) -> Choice:
        """Who is kept at each time: by flags, then the rules, then the clicks and boxes of the hints."""
        if self.table is None:
            return Choice()
        name = self.reader.info.path.name
        rules = chosen_people(self.settings.people, self.table.people, video=name)
        for hint in self.hints.people:
            named = hint.keep if hint.keep is not None else hint.exclude
            assert named is not None  # ensured by the schema
            flag = f"{self.hints.place(hint)}: {'keep' if hint.keep is not None else 'exclude'}"
            numbers = numbers_of(named, self.table.people, video=name, flag=flag)
            rules.append(self._rule(hint, numbers, keeps=hint.keep is not None))
        for mark in self.hints.pointed:
            rules.append(self._rule(mark, frozenset({self._marked(mark)}), keeps=mark.do == "keep"))
        return Choice(tuple(rules))

    def _rule(self, hint: PeopleRule | Mark, numbers: frozenset[int], *, keeps: bool) -> Rule:
        return Rule(numbers, keeps, *_times(hint), said_by=self.hints.place(hint))

    def _marked(self, mark: Mark) -> int:
        """The person meant by a click or a box."""
        assert self.table is not None
        person = marked_person(mark, self.table, right_eye_first=self.vr.right_eye_first)
        if person:
            return person
        if mark.click is not None:
            x, y = mark.click
            what = f"the click at {mark.at:g} s, {x:g},{y:g}"
        else:
            assert mark.box is not None
            left, top, right, bottom = mark.box
            x, y = (left + right) / 2, (top + bottom) / 2
            what = f"the box at {mark.at:g} s"
        eye = _marked_eye(mark, self.table, right_eye_first=self.vr.right_eye_first)
        assert eye is not None  # a video has at least a frame
        raise UsageError(f"{self.hints.place(mark)}: {what} hits nobody; {_nearest(eye, x, y)}")

    def _is_seen(self, number: int, rule: Rule) -> bool:
        assert self.table is not None
        person = next(one for one in self.table.people if one.number == number)
        return any(
            seen.begin_seconds < rule.end_seconds and seen.end_seconds >= rule.begin_seconds
            for seen in person.seen
        )


def marked_person(mark: Mark, table: PeopleTable, *, right_eye_first: bool) -> int:
    """The person meant by a click or a box.

    Args:
        mark: A click or a box.
        table: The people in the video.
        right_eye_first: True if the right eye's picture is left or above.

    Returns:
        Their number, 0 for nobody.
    """
    eye = _marked_eye(mark, table, right_eye_first=right_eye_first)
    if eye is None:
        return 0
    height, width = eye.shape
    if mark.click is not None:
        x, y = mark.click
        return int(eye[min(int(y * height), height - 1), min(int(x * width), width - 1)])
    assert mark.box is not None  # it is not a stroke
    left, top, right, bottom = mark.box
    inside = eye[int(top * height) : max(round(bottom * height), int(top * height) + 1), :]
    inside = inside[:, int(left * width) : max(round(right * width), int(left * width) + 1)].ravel()
    people = inside[inside > 0]
    return int(np.bincount(people).argmax()) if len(people) else 0


def _marked_eye(mark: Mark, table: PeopleTable, *, right_eye_first: bool) -> npt.NDArray[np.uint8] | None:
    """Labels of the eye's picture that contains a mark; None for a video without frames."""
    labels = table.labels_at(table.pts_at(mark.at))
    if labels is None:
        return None
    eye: npt.NDArray[np.uint8] = labels[-1] if (mark.eye == "right") != right_eye_first else labels[0]
    return eye


def _people_in(labels: Labels) -> set[int]:
    """Numbers of the people in a look; 0 is nobody."""
    return set(np.flatnonzero(np.bincount(labels.ravel())).tolist())


def _times(hint: Timed) -> tuple[float, float]:
    return hint.from_, float("inf") if hint.to is None else hint.to


def _nearest(eye: npt.NDArray[np.uint8], x: float, y: float) -> str:
    """Describe the person nearest to a point, for a message."""
    height, width = eye.shape
    rows, columns = np.nonzero(eye)
    if not len(rows):
        return "nobody is visible at that time"
    nearest = int(np.hypot((columns + 0.5) / width - x, (rows + 0.5) / height - y).argmin())
    row, column = int(rows[nearest]), int(columns[nearest])
    return f"the nearest is person {eye[row, column]}, at {column / width:.2f},{row / height:.2f}"


_REGION_SIDE, _REGION_FINE = 256, 4
"""Samples of a map along each side of an eye's picture; and the oversampling with which edges are drawn and
averaged."""


def polygon_map(corners: Sequence[tuple[float, float]]) -> FloatMap:
    """Coverage of each sample by a polygon.

    Args:
        corners: x and y as shares of the picture.

    Returns:
        float32 [256, 256], 0..1.
    """
    fine = np.zeros((_REGION_SIDE * _REGION_FINE, _REGION_SIDE * _REGION_FINE), np.float32)
    points = np.rint(np.array(corners) * fine.shape[0]).astype(np.int32)
    cv2.fillPoly(fine, [points], 1.0)
    return np.asarray(
        cv2.resize(fine, (_REGION_SIDE, _REGION_SIDE), interpolation=cv2.INTER_AREA), np.float32
    )


class RegionLayer:
    """Leaves out regions: garbage mattes.

    Args:
        regions: The regions, with their times.
        origin_seconds: Time of the video's first picture on the clock of its frames.
        eyes: The eye of each half of a frame, in order.
    """

    def __init__(
        self, regions: Sequence[Region], *, origin_seconds: float, eyes: tuple[Eye, Eye] = ("left", "right")
    ) -> None:
        self._eyes = eyes
        self._regions = [(region, polygon_map(region.polygon)) for region in regions]
        self._origin_seconds = origin_seconds

    def share_at(self, frame: Frame, _: int | None = None) -> FloatMap | None:
        """See ``Layer``."""
        seconds = frame.pts_seconds - self._origin_seconds
        acting = [
            (region.eye, drawn)
            for region, drawn in self._regions
            if region.from_ <= seconds < (float("inf") if region.to is None else region.to)
        ]
        if not acting:
            return None
        eyes = np.ones((2, _REGION_SIDE, _REGION_SIDE), np.float32)
        for eye, drawn in acting:
            for place, name in enumerate(self._eyes):
                if eye in (name, "both"):
                    eyes[place] *= 1 - drawn
        return eyes

    def added_at(self, _: Frame) -> FloatMap | None:
        """None: regions add nothing."""
        return None
