"""Follows people through one shot, from small pictures and mattes, and assigns each cell to a person.

"Frames" here are the frames that are scanned, about nine per second of video.

People are connected parts of the matte. Optical flow carries them from frame to frame. If several share a part,
because they touch or cross, its cells are assigned by each person's earlier position, hidden or not, by their
appearance there, and by a cell's surroundings. When they separate again, their earlier appearance decides who is who;
then the frames in between are assigned again, from both ends at once. Labels are therefore a few frames late, and
those of a crossing come after it. Reassignment is half of the work, but delays nothing: another thread can do it
while the next frames are followed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, count, permutations
from threading import Lock
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.segmentation.people.appearance import Appearance, Codes, FaceLooks, SeenFace
from vitascope.segmentation.people.bodies import (
    UNKNOWN_FIT,
    Body,
    carried_bodies,
    fit,
    joined_body,
    learned_body,
)
from vitascope.segmentation.people.small_frames import MotionField, SmallFrame

FloatMap = npt.NDArray[np.float32]
Labels = npt.NDArray[np.uint8]

_SOLID = 0.4
"""Minimum alpha of a cell that is part of a person."""
_LEAST_SHARE = 0.003
"""Minimum share of the picture for a part of the matte to start a person."""
_MASS_CLAIM, _COVER_CLAIM = 0.1, 0.35
"""Shares for claiming a part: a person claims it if it holds that share of them, or if they cover that share
of it."""
_HIDDEN = 0.06
"""Share of a person's usual area below which they count as hidden."""
_SURE_FRAMES = 5
"""Frames after which a new track counts as a person, and after which people who parted count as apart."""
_ALIKE = 0.55
"""Minimum similarity for a person who appears to be one seen earlier in the shot."""
_MARGIN = 0.02
"""Minimum gain of exchanging identities after a crossing, against leaving them."""
_MOST_PENDING = 750
"""Maximum frames of a crossing that are reassigned; in a longer one, the first frames keep their labels."""
_LOW_TOP = 0.5
"""Top of the picture's lower part, as a share of its height."""
_FACES_TALL = 8
"""Height of a person, in heights of the face from brow to chin."""
_MOST_NAMES = 5
"""Maximum people of one crossing for whom every assignment is tried."""
_TOO_LARGE = 1.6
"""Factor on a person's usual area above which it is more than one person."""
_PATIENCE_FRAMES = 75
"""Frames to wait, after a crossing, for a person who is still hidden."""
_TURN = 6.0
"""Steepness of the change from trusting a crossing's beginning to trusting its end, in its middle."""
_HOME = 0.4
"""Share of a person's usual area above which a part counts as the whole person."""
_OUT_OF_REACH = 0.04
"""Distance, as a share of the width, beyond which a part of the matte is not a person's limb."""
_MOST_TRACKS: Final = 200
_HALF, _PARTED_FRAMES = 0.25, 10
"""If somebody is in two parts that moved apart, each with at least this share of their area, for at least this many
frames, they are two people."""
_GROWN = 0.25
"""Growth of the gap between two people who part, as a share of their joint width: about half a person's width."""
_HELD_BACK = 120
"""Frames that are reassigned when one person in them turns out to be two."""
_SMOOTH_SIGMA, _SMOOTH_REACH = 0.8, 4
_COLOR_WEIGHT, _COLOR_WEIGHT_OF_KNOWN = 1.0, 0.8
"""Weight of the colours of a person's body bands, and the weight if the colour of each cell is known too."""
_WORST_COLOR = 3.0
_NOT_THEIRS = -6.0
"""Score of a cell that belongs to another person, who was alone."""
_LEAST_OVERLAP, _MOST_LEAN = 8, 0.5
_AWAY = 0.1
"""Loss of score of a cell without matte, per cell of distance from the person."""
_SHADOW = 0.04
"""Likelihood of a carried mask outside it."""


@dataclass(slots=True, eq=False)
class Track:
    """A person in one shot."""

    number: int
    """Number in the labels, from 1, in the order of discovery."""
    appearance: Appearance
    first_pts: int
    last_pts: int
    mask: FloatMap
    """Mask when last seen, float32 [h, w], 0..1."""
    frames: int = 0
    """Frames in which they were seen."""
    area: float = 0.0
    """Unhidden area, in cells."""
    first_x: float = 0.0
    """Horizontal centre when found, as a share of the width."""
    low_frames: int = 0
    """Frames in which they reach in from the bottom and stay in the lower part of the picture."""
    largest: float = 0.0
    """Largest share of the picture that they covered."""
    place: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    """Centre (x, y), in cells."""
    body: Body | None = None
    """Layer in the last frame; None if they are gone or were hidden for too long."""
    unseen: int = 0
    """Frames since they were seen."""
    apart_frames: int = 0
    """Frames in which they touched nobody."""
    face_height: float = 0.0
    """Height of their face in rows, if one was seen."""
    face: FaceLooks = field(default_factory=FaceLooks)
    """Description of their face, from views that are certainly theirs."""
    begin: int = 0
    """Number of the frame in which they were found."""
    parted_frames: int = 0
    """Frames for which they have been in two parts that moved apart."""
    whole_width: int = 0
    """Width in columns when they were last in one part."""
    least_gap: int | None = None
    """Smallest gap since then between their two parts, in columns; None while they are in one."""

    @property
    def rows(self) -> tuple[int, int]:
        """Rows at which they begin and end in the picture."""
        rows = np.flatnonzero(self.mask.max(axis=1) > 0.5)
        return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, self.mask.shape[0])

    @property
    def span(self) -> tuple[int, int]:
        """Rows from the crown to the feet, even beyond the picture, if their face was seen; otherwise as ``rows``."""
        top, bottom = self.rows
        return (
            (top, top + max(round(_FACES_TALL * self.face_height), 2)) if self.face_height else (top, bottom)
        )


@dataclass(slots=True, eq=False)
class Labelled:
    """A frame with the owner of each cell, which may change until ``ShotFollower`` yields it."""

    pts: int
    rgb: npt.NDArray[np.uint8]
    codes: Codes
    labels: Labels
    """uint8 [h, w]: numbers of tracks; 0 is nobody."""
    scores: dict[int, npt.NDArray[np.float16]]
    """Score of each cell of a shared part for each person who shares it, by number."""


@dataclass(slots=True, eq=False)
class _Crossing:
    """People who share a part of the matte, from the frame before they met on."""

    members: dict[int, Appearance]
    """Track numbers, and the earlier appearance of each."""
    begin: int
    """Number of the frame before."""
    apart: int = 0
    """Frames since parts were last shared."""
    whole: int = 0
    """Frames for which all of them have also been visible."""
    is_first: bool = False
    """True if none of them was seen apart before, so that only the end of the crossing shows who is who."""


class GivingOut:
    """Frames of a crossing whose cells will be assigned again, by the first thread that needs them.

    Args:
        work: Assigns them.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self._lock = Lock()

    def finish(self) -> None:
        """Assign the frames, or wait until they are assigned.

        Crossings of a shot are assigned one after the other, in the order of their ends: a later one may begin with
        the labels of an earlier one, and all use the shot's optical flow, which has state.
        """
        with self._lock:
            work, self._work = self._work, None
            if work is not None:
                work()


class ShotFollower:
    """Follows the people of one shot.

    Both methods return the next steps in order: crossings to reassign, and frames whose labels are settled once all
    earlier crossings are finished. Another thread may run them while more frames are followed.

    Args:
        size: (height, width) of the grid of cells.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._least = max(_LEAST_SHARE * size[0] * size[1], 6.0)
        self._motion = MotionField(size)
        self._rows, self._columns = self._motion.rows, self._motion.columns
        self._numbers = count(1)
        self._frame = -1
        self._faces: Sequence[SeenFace] = ()
        self._crossings: list[_Crossing] = []
        self._pending: deque[Labelled] = deque()
        self._first_pending = 0
        self._giving_out: GivingOut | None = None
        self._bodies: dict[int, Body] = {}
        self.tracks: dict[int, Track] = {}
        """All tracks so far."""
        self.limbs: dict[int, int] = {}
        """Numbers that turned out to be parts of other people, and theirs."""

    def follow(self, frame: SmallFrame, *, faces: Sequence[SeenFace] = ()) -> Iterator[GivingOut | Labelled]:
        """Process the next frame.

        Args:
            frame: Next frame from ``SmallFrames``.
            faces: Its faces, if they were searched.
        """
        self._frame += 1
        self._faces = faces
        pts, codes = frame.pts, frame.codes
        rgb = frame.rgb.astype(np.float32)
        self._bodies = {} if frame.before is None else self._carried(rgb, frame.before)
        labels, shared, scores = self._labels(pts, rgb, codes, frame.alpha)
        self._pending.append(Labelled(pts, frame.rgb, codes, labels, scores))
        self._note(pts, rgb, labels, codes, shared)
        shared = self._without_limbs(shared)
        over = self._watch_crossings(shared)
        self._learn_faces(self._pending[-1].labels)  # renamed when a crossing is over
        self._tell_apart()
        yield from over
        yield from self._settled()

    def finish(self) -> Iterator[GivingOut | Labelled]:
        """End the shot, and return the remaining steps."""
        for crossing in self._crossings:
            if (begun := self._resolve(crossing)) is not None:
                yield begun
        self._crossings.clear()
        yield from self._settled(is_over=True)

    @property
    def confirmed(self) -> list[Track]:
        """People visible for long enough to get a number."""
        return [one for one in self.tracks.values() if one.frames >= min(_SURE_FRAMES, self._frame + 1)]

    def is_alone(self, number: int) -> bool:
        """True while a person touches nobody else."""
        return all(number not in crossing.members for crossing in self._crossings)

    def _labels(
        self, pts: int, rgb: FloatMap, codes: Codes, alpha: FloatMap
    ) -> tuple[Labels, list[set[int]], dict[int, npt.NDArray[np.float16]]]:
        """The owner of each cell, the people sharing each part, and how well its cells fit each of them."""
        solid = (alpha > _SOLID).astype(np.uint8)
        part_of: Any
        parts, part_of, stats, _ = cv2.connectedComponentsWithStats(solid, connectivity=8)
        labels = np.zeros(self._size, np.uint8)
        shared: list[set[int]] = []
        unclaimed: list[int] = []
        cells = np.flatnonzero(solid)
        parts_of_cells = part_of.take(cells)
        masses = {
            number: np.bincount(parts_of_cells, body.whole.take(cells), parts).astype(np.float64)
            for number, body in self._bodies.items()
        }
        scores: dict[int, npt.NDArray[np.float16]] = {}
        areas = stats[:, cv2.CC_STAT_AREA].astype(np.int32)
        claims = self._claims(masses, areas)
        self._part_ways(claims, areas, part_of, codes)
        for part in range(1, parts):
            inside = part_of == part
            if not claims[part]:
                unclaimed.append(part)
                continue
            here = claims[part] | self._hidden_behind(claims[part])
            faces = self._faces_in(inside)
            if len(here) == 1 and len(faces) < 2:
                labels[inside] = next(iter(here))
                continue
            priors = {number: self._prior(number) for number in here}
            by_face = self._name_faces(faces, priors, codes)
            for number, face in by_face.items():
                priors[number] = 0.5 * priors[number] + 0.5 * self._body(face)
            strangers = [face for face in faces if face not in by_face.values()] if len(faces) > 1 else []
            newcomers = self._strangers(pts, strangers, inside, rgb, codes, priors, by_face)
            numbers = here | newcomers
            bodies = {n: self._bodies[n] for n in here if n in self._bodies}
            looks = {n: self._looks(n) for n in numbers}
            near = _surroundings(inside, solid > 0)
            found = _scores(near, rgb, codes, priors, bodies, looks, self._spans(numbers))
            labels[inside] = _best(found)[inside]
            for number, score in found.items():
                whole = scores.setdefault(number, np.full(self._size, _NOT_THEIRS, np.float16))
                whole[near] = score[near]
            if len(claims[part] | newcomers) > 1:
                shared.append(claims[part] | newcomers)
        for part in sorted(unclaimed, key=lambda part: -int(stats[part, cv2.CC_STAT_AREA])):
            inside = part_of == part
            faces = self._faces_in(inside)
            if len(faces) < 2:
                labels[inside] = self._newcomer(pts, inside, codes, labels)
                continue
            priors = {}
            numbers = self._strangers(pts, faces, inside, rgb, codes, priors, {})
            if not numbers:  # all numbers are taken
                continue
            looks = {n: self._looks(n) for n in numbers}
            found = _scores(inside, rgb, codes, priors, {}, looks, self._spans(numbers))
            labels[inside] = _best(found)[inside]
            shared.append(numbers)
        self._note_faces(labels)
        return labels, shared, scores

    def _faces_in(self, inside: npt.NDArray[np.bool_]) -> list[SeenFace]:
        """The faces whose centres are in a part."""
        height, width = self._size
        middles = [
            (min(int(one.top + one.height / 2), height - 1), min(int(one.left + one.width / 2), width - 1))
            for one in self._faces
        ]
        return [face for face, middle in zip(self._faces, middles, strict=True) if inside[middle]]

    def _note_faces(self, labels: Labels) -> None:
        for track in self.tracks.values():
            own = self._faces_in(labels == track.number) if self._faces else []
            if len(own) == 1:
                track.face_height = own[0].height

    def _learn_faces(self, labels: Labels) -> None:
        """Learn the faces of people who touch nobody, or were never seen apart; other faces may be somebody else's."""
        for track in self.tracks.values() if self._faces else ():
            own = self._faces_in(labels == track.number)
            is_theirs = not track.apart_frames or self.is_alone(track.number)
            if len(own) == 1 and own[0].description is not None and is_theirs:
                track.face.learn(own[0].description)

    def _body(self, face: SeenFace) -> FloatMap:
        """Presence of a face's owner, 0..1: the head, and shoulders that widen below it."""
        left, top, wide, tall = face[:4]
        below = np.clip((self._rows - (top + tall)) / tall, 0, 1.5)
        across = (self._columns - (left + wide / 2)) / (wide * (0.75 + 0.6 * below))
        above = np.clip((top - 0.7 * tall - self._rows) / (0.3 * tall), 0, None)
        body: FloatMap = np.exp(-0.7 * across**2 - above**2).astype(np.float32)
        return body

    def _name_faces(
        self, faces: Sequence[SeenFace], priors: dict[int, FloatMap], codes: Codes
    ) -> dict[int, SeenFace]:
        """Match several faces to people, by position and appearance."""
        numbers = list(priors)
        if (
            not len(faces)
            or (len(numbers) < 2 and len(faces) < 2)
            or max(len(numbers), len(faces)) > _MOST_NAMES
        ):
            return {}
        scores = {}
        spans = self._spans(set(numbers))
        for at, face in enumerate(faces):
            body = self._body(face)
            weight = max(float(body.sum()), 1e-3)
            head = body > 0.6
            for number in numbers:
                likely = self._looks(number).log_likelihood(codes, spans[number])
                there = float((priors[number] * body).sum()) / weight
                score = float(likely[head].mean()) + 2.0 * np.log(there + _SHADOW)
                scores[at, number] = float(score)
        places: list[int | None] = [*range(len(faces)), *[None] * (len(numbers) - len(faces))]

        def total(order: Sequence[int | None]) -> float:
            return sum(
                scores[at, number] for number, at in zip(numbers, order, strict=True) if at is not None
            )

        best = max(permutations(places, len(numbers)), key=total)
        return {number: faces[at] for number, at in zip(numbers, best, strict=True) if at is not None}

    def _strangers(
        self,
        pts: int,
        faces: Sequence[SeenFace],
        inside: npt.NDArray[np.bool_],
        rgb: FloatMap,
        codes: Codes,
        priors: dict[int, FloatMap],
        known: dict[int, SeenFace],
    ) -> set[int]:
        """Begin a track for each face that has no owner yet, and store their presence in ``priors``.

        Tracks that included such a person are learned again from the rest.
        """
        if not faces:
            return set()
        begun: dict[int, SeenFace] = {}
        for face in sorted(faces, key=lambda one: one.left):
            if len(self.tracks) >= _MOST_TRACKS:
                break
            number = next(self._numbers)
            place = np.array([face.left + face.width / 2, face.top + face.height / 2])
            self.tracks[number] = Track(
                number,
                Appearance(),
                pts,
                pts,
                self._body(face),
                first_x=float(place[0]) / self._size[1],
                place=place,
                begin=self._frame,
            )
            priors[number] = self._body(face)
            begun[number] = face
        whole = begun | known
        blank = {number: Appearance() for number in priors}
        for _ in range(2):
            found = _best(_scores(inside, rgb, codes, priors, {}, blank, self._spans(set(priors))))
            for number in whole:
                track = self.tracks[number]
                mask = ((found == number) & inside).astype(np.float32)
                if number in known and mask.sum() > _HOME * track.area and track.frames > _SURE_FRAMES:
                    blank[number] = self._looks(number)
                    continue
                track.mask, track.area, track.face_height = mask, float(mask.sum()), whole[number].height
                blank[number] = Appearance()
                blank[number].learn(codes, mask, span=track.span)
                track.appearance = blank[number]
        return set(begun)

    def _claims(
        self, masses: dict[int, npt.NDArray[np.float64]], areas: npt.NDArray[np.int32]
    ) -> list[set[int]]:
        """Find the people who claim each part.

        A part that is mostly one person's is theirs alone if the other claimants have parts of their own: they have
        separated, and what remains of them here does not count.
        """
        claims = [
            {
                number
                for number, mass in masses.items()
                if mass[part] > _MASS_CLAIM * max(self.tracks[number].area, 1)
                or mass[part] > _COVER_CLAIM * areas[part]
            }
            for part in range(len(areas))
        ]
        first = [
            max(own, key=lambda number: masses[number][part], default=0) for part, own in enumerate(claims)
        ]
        homes = {
            number: part
            for part, number in enumerate(first)
            if part
            and number
            and masses[number][part] > 0.5 * areas[part]
            and areas[part] > _HOME * self.tracks[number].area
        }
        for part, own in enumerate(claims):
            if part and len(own) > 1 and homes.get(first[part]) is not None:
                own -= {number for number in own if number != first[part] and homes.get(number, part) != part}
        return claims

    def _part_ways(
        self,
        claims: list[set[int]],
        areas: npt.NDArray[np.int32],
        part_of: npt.NDArray[np.int32],
        codes: Codes,
    ) -> None:
        """If people who met are apart, by number and size of the parts, assign the parts to them by appearance.

        This includes people who were wholly hidden until now.
        """
        for crossing in self._crossings:
            members = set(crossing.members)
            least = _HOME * min(self.tracks[number].area for number in members)
            parts = [
                part
                for part, own in enumerate(claims)
                if part and own and own <= members and areas[part] > least
            ]
            seen = set().union(*(claims[part] for part in parts))
            names = sorted(seen | {number for number in members if self.tracks[number].unseen})
            is_plain = len(parts) == len(seen) and all(len(claims[part]) == 1 for part in parts)
            if is_plain or not len(seen) <= len(parts) <= len(names) <= _MOST_NAMES or len(parts) < 2:
                continue
            alike = {}
            for part in parts:
                looks = Appearance()
                looks.learn(codes, (part_of == part).astype(np.float32))
                for name in names:
                    fits = areas[part] < _TOO_LARGE * self.tracks[name].area
                    alike[part, name] = looks.similarity(crossing.members[name]) if fits else -np.inf
            order = max(
                permutations(names, len(parts)),
                key=lambda order: sum(alike[place] for place in zip(parts, order, strict=True)),
            )
            if all(alike[place] > 0 for place in zip(parts, order, strict=True)):
                for part, name in zip(parts, order, strict=True):
                    claims[part] = {name}

    def _carried(self, rgb: FloatMap, before: FloatMap) -> dict[int, Body]:
        """Predict everybody's layer in this frame."""
        bodies = {track.number: track.body for track in self.tracks.values() if track.body is not None}
        alone = {number for number in bodies if self.is_alone(number)}
        return carried_bodies(bodies, rgb, before, self._motion, alone=alone)

    def _prior(self, number: int) -> FloatMap:
        """Possible positions of a person; vague if they are hidden."""
        track, body = self.tracks[number], self._bodies.get(number)
        if body is None:
            return np.zeros(self._size, np.float32)
        if not track.unseen:
            return np.asarray(cv2.GaussianBlur(body.whole, (0, 0), 1.0), np.float32)
        return np.asarray(0.3 * cv2.GaussianBlur(body.whole, (0, 0), 2.0 + 0.3 * track.unseen), np.float32)

    def _looks(self, number: int) -> Appearance:
        """A person's appearance; in a crossing, that from before."""
        for crossing in self._crossings:
            if number in crossing.members:
                return crossing.members[number]
        return self.tracks[number].appearance

    def _spans(self, numbers: set[int]) -> dict[int, tuple[int, int]]:
        return {number: self.tracks[number].span for number in numbers}

    def _hidden_behind(self, numbers: set[int]) -> set[int]:
        """The people hidden by any of these."""
        return {
            member
            for crossing in self._crossings
            if not numbers.isdisjoint(crossing.members)
            for member in crossing.members
            if self.tracks[member].unseen
        }

    def _newcomer(self, pts: int, inside: npt.NDArray[np.bool_], codes: Codes, labels: Labels) -> int:
        """The number of the person appearing in an unclaimed part; 0 for nobody."""
        mask = inside.astype(np.float32)
        area = float(mask.sum())
        if area < self._least:
            return self._nearest(inside, labels)
        place = self._middle(mask)
        emerging = self._emerging(area, codes, inside, labels)
        torn = emerging or self._torn_from(inside, labels)
        if torn:
            return torn
        looks = Appearance()
        looks.learn(codes, mask)
        best, score = None, _ALIKE
        for track in self.tracks.values():
            if not track.unseen or (labels == track.number).any():
                continue
            distance = float(np.hypot(*(place - track.place))) / self._size[1]
            likeness = looks.similarity(self._looks(track.number)) + 0.2 * max(0.0, 0.3 - distance)
            if likeness > score:
                best, score = track, likeness
        if best is not None:
            return best.number
        if len(self.tracks) >= _MOST_TRACKS:
            return 0
        number = next(self._numbers)
        first_x = float(place[0]) / self._size[1]
        self.tracks[number] = Track(
            number, looks, pts, pts, mask, area=area, first_x=first_x, place=place, begin=self._frame
        )
        return number

    def _emerging(self, area: float, codes: Codes, inside: npt.NDArray[np.bool_], labels: Labels) -> int:
        """The person emerging from behind somebody here, by colour, among hidden people nearby; or 0."""
        best, score = 0, -np.inf
        far: Any = cv2.distanceTransform((~inside).astype(np.uint8), cv2.DIST_L2, 3)
        for crossing in self._crossings:
            for number, looks in crossing.members.items():
                track, body = self.tracks[number], self._bodies.get(number)
                missing = track.area - float((labels == number).sum())
                if body is None or area > 1.3 * missing or not (body.whole > 0.5).any():
                    continue
                if far[body.whole > 0.5].min() > _OUT_OF_REACH * self._size[1] + 0.5 * track.unseen:
                    continue
                likely = float(looks.log_likelihood(codes, track.span)[inside].mean())
                if likely > score:
                    best, score = number, likely
        return best

    def _torn_from(self, inside: npt.NDArray[np.bool_], labels: Labels) -> int:
        """The person whose upper or lower half a part is, if the matte has a gap at their waist; or 0.

        The halves are above each other, and the lower one has no face, unlike a person in the next row of seats.
        """
        reach = max(round(_OUT_OF_REACH * self._size[1]), 2)
        rows, columns = np.flatnonzero(inside.any(axis=1)), inside.any(axis=0)
        for number, track in self.tracks.items():
            own = labels == number
            theirs = np.flatnonzero(own.any(axis=1))
            if not len(theirs):
                continue
            gap = max(rows[0] - theirs[-1], theirs[0] - rows[-1])  # less than 0 beside hanging arms
            common = (columns & own.any(axis=0)).sum()
            if not -len(rows) / 3 <= gap <= reach or common < 0.3 * min(columns.sum(), own.any(axis=0).sum()):
                continue
            is_below = rows[-1] > theirs[-1]
            if not (self._faces_in(inside) or not self._faces if is_below else track.face_height):
                return number
        return 0

    def _nearest(self, inside: npt.NDArray[np.bool_], labels: Labels) -> int:
        """The nearest person, if near enough for a small part to be their limb; or 0."""
        reach = max(round(_OUT_OF_REACH * self._size[1]), 2)
        near: Any = cv2.dilate(inside.astype(np.uint8), np.ones((2 * reach + 1, 2 * reach + 1), np.uint8))
        around = labels[(near > 0) & (labels > 0)]
        return int(np.bincount(around).argmax()) if len(around) else 0

    def _middle(self, mask: FloatMap) -> npt.NDArray[np.float64]:
        total = max(float(mask.sum()), 1e-6)
        return np.array([float((mask * self._columns).sum()), float((mask * self._rows).sum())]) / total

    def _note(
        self,
        pts: int,
        rgb: FloatMap,
        labels: Labels,
        codes: Codes,
        shared: Sequence[set[int]],
    ) -> None:
        """Update everybody from the new labels."""
        meeting = set().union(*shared) | {
            number for crossing in self._crossings for number in crossing.members
        }
        cells = np.bincount(labels.ravel(), minlength=_MOST_TRACKS + 1)
        for track in self.tracks.values():
            area = float(cells[track.number])
            own = labels == track.number
            others = (labels > 0) & ~own if track.number in meeting else None
            track.body = learned_body(self._bodies.get(track.number), rgb, own, others)
            if area < max(_HIDDEN * track.area, 2.0):
                track.unseen += 1
                if track.unseen > _PATIENCE_FRAMES or not track.body.whole.any():
                    track.body = None
                else:
                    track.place = self._middle(track.body.whole)
                continue
            mask = own.astype(np.float32)
            track.mask, track.place, track.unseen = mask, self._middle(track.body.whole), 0
            track.frames += 1
            track.last_pts = pts
            top, bottom = track.rows
            track.low_frames += top > _LOW_TOP * labels.shape[0] and bottom >= labels.shape[0] - 1
            track.largest = max(track.largest, area / labels.size)
            if track.number not in meeting:
                track.apart_frames += 1
                track.area = area if track.frames == 1 else 0.9 * track.area + 0.1 * area
                track.appearance.learn(codes, mask, span=track.span)

    def _without_limbs(self, shared: Sequence[set[int]]) -> list[set[int]]:
        """Return the people sharing each part, after merging tracks that are parts of others.

        Something small, without a face, that is attached to somebody and was hardly ever apart is a shoulder or a
        hand emerging from behind somebody else.
        """
        for group in shared:
            for number in sorted(group & self.tracks.keys()):
                track = self.tracks[number]
                if track.face_height or track.apart_frames >= _SURE_FRAMES or track.frames < 2 * _SURE_FRAMES:
                    continue
                around: Any = cv2.dilate(track.mask, np.ones((3, 3), np.uint8))
                touched = {
                    other: float((around * self.tracks[other].mask).sum())
                    for other in group & self.tracks.keys()
                    if other != number and self.tracks[other].area > 2 * track.mask.sum()
                }
                if touched and max(touched.values()) > 0:
                    self._join(number, max(touched, key=lambda other: touched[other]))
        kept = [group & self.tracks.keys() for group in shared]
        return [group for group in kept if len(group) > 1]

    def _join(self, number: int, host: int) -> None:
        """Make one track a part of another, from now on and in waiting frames."""
        part, whole = self.tracks.pop(number), self.tracks[host]
        whole.mask = np.maximum(whole.mask, part.mask)
        if whole.body is not None and part.body is not None:
            whole.body = joined_body(whole.body, part.body)
        whole.face.join(part.face)
        self.limbs[number] = host
        self._finish_giving_out()
        for frame in self._pending:
            frame.labels[frame.labels == number] = host
            scores = frame.scores.pop(number, None)
            if scores is not None and host in frame.scores:
                frame.scores[host] = np.maximum(frame.scores[host], scores)
        for crossing in self._crossings:
            crossing.members.pop(number, None)
        # Both members may have become parts of somebody else; then the crossing is over.
        self._crossings = [crossing for crossing in self._crossings if crossing.members]

    def _watch_crossings(self, shared: Sequence[set[int]]) -> list[GivingOut]:
        """Begin, join and end crossings; return those that ended, for reassignment."""
        for group in shared:
            touching = [one for one in self._crossings if not group.isdisjoint(one.members)]
            members = {number: self._looks(number).copy() for number in group}
            begin = max(self._frame - 1, 0)
            is_first = all(self.tracks[number].apart_frames == 0 for number in group)
            for one in touching:
                members |= one.members
                begin = min(begin, one.begin)
                is_first = is_first and one.is_first
                self._crossings.remove(one)
            self._crossings.append(_Crossing(members, begin, is_first=is_first))
        over: list[GivingOut] = []
        for crossing in list(self._crossings):
            if any(not group.isdisjoint(crossing.members) for group in shared):
                crossing.apart = crossing.whole = 0
                continue
            # A person only partly visible is hidden or cut by the frame; wait for them, but not for ever.
            tracks = [self.tracks[number] for number in crossing.members]
            whole = all(not one.unseen and one.mask.sum() > _HOME * one.area for one in tracks)
            crossing.apart += 1
            crossing.whole = crossing.whole + 1 if whole else 0
            if crossing.whole >= _SURE_FRAMES or crossing.apart >= _PATIENCE_FRAMES:
                self._crossings.remove(crossing)
                if (begun := self._resolve(crossing)) is not None:
                    over.append(begun)
        return over

    def _tell_apart(self) -> None:
        """Separate people who were together from the beginning, once they moved apart."""
        for track in [one for one in self.tracks.values() if self.is_alone(one.number)]:
            parts = self._halves(track)
            track.parted_frames = track.parted_frames + 1 if parts else 0
            if track.parted_frames >= _PARTED_FRAMES and len(self.tracks) < _MOST_TRACKS:
                track.parted_frames = 0
                self._split(track, parts)

    def _halves(self, track: Track) -> list[npt.NDArray[np.bool_]]:
        """The two largest parts of a person, from left to right, if they moved apart; otherwise none.

        Somebody hidden in the middle by a pillar is in two parts as well, but these keep their distance. If instead
        the gap in the matte grows, the outer sides stay where they are.
        """
        own = self._pending[-1].labels == track.number
        count, parts, stats, _ = cv2.connectedComponentsWithStats(own.astype(np.uint8), connectivity=8)
        columns = np.flatnonzero(own.any(axis=0))
        spread = int(columns[-1] - columns[0]) + 1 if len(columns) else 0
        large = sorted(range(1, count), key=lambda part: -int(stats[part, cv2.CC_STAT_AREA]))[:2]
        if len(large) < 2 or stats[large[1], cv2.CC_STAT_AREA] < max(_HALF * track.area, self._least):
            track.whole_width, track.least_gap = spread, None
            return []
        first, second = sorted(large, key=lambda part: int(stats[part, cv2.CC_STAT_LEFT]))
        left, top, width, height = (int(side) for side in stats[first, :4])
        other_left, other_top, _, other_height = (int(side) for side in stats[second, :4])
        gap = max(other_left - (left + width), 0)
        track.least_gap = gap if track.least_gap is None else min(track.least_gap, gap)
        grown = min(gap - track.least_gap, spread - track.whole_width)
        common = min(top + height, other_top + other_height) - max(top, other_top)
        if (
            gap < _OUT_OF_REACH * self._size[1]
            or grown < _GROWN * track.whole_width
            or common < 0.5 * min(height, other_height)
        ):
            return []
        return [np.asarray(parts == part) for part in (first, second)]

    def _split(self, track: Track, halves: Sequence[npt.NDArray[np.bool_]]) -> None:
        """Split a person who turns out to be two: the left one keeps the number; waiting frames are assigned again."""
        self._finish_giving_out()
        first = max(track.begin - self._first_pending, 0)
        seen = list(self._pending)[first:]
        other = next(self._numbers)
        last = seen[-1]
        last.labels = np.where(halves[1], np.uint8(other), last.labels)
        for number, mask in zip((track.number, other), (last.labels == track.number, halves[1]), strict=True):
            own = mask.astype(np.float32)
            looks = Appearance()
            area, place = float(own.sum()), self._middle(own)
            one = Track(
                number, looks, track.first_pts, last.pts, own, frames=track.frames, area=area, place=place
            )
            one.begin, one.low_frames, one.apart_frames = track.begin, track.low_frames, _SURE_FRAMES
            one.largest = area / own.size
            one.body = learned_body(None, last.rgb.astype(np.float32), mask, None)
            looks.learn(last.codes, own, span=one.span)
            self.tracks[number] = one
        looks_of = {number: self.tracks[number].appearance for number in (track.number, other)}
        _give_out_anew(seen, list(looks_of), looks_of, self._motion, from_the_end=True)
        for number in looks_of:
            one = self.tracks[number]
            there = [frame for frame in seen if (frame.labels == number).any()]
            one.first_pts, one.frames = there[0].pts, len(there)
            middle = self._middle((there[0].labels == number).astype(np.float32))
            one.first_x = float(middle[0]) / self._size[1]

    def _settled(self, *, is_over: bool = False) -> Iterator[Labelled]:
        """Yield the frames that no crossing will change any more."""
        begin = self._frame + 1 if is_over else self._frame + 1 - _HELD_BACK
        begin = min((begin, *(one.begin for one in self._crossings)))
        while self._pending and (self._first_pending < begin or len(self._pending) > _MOST_PENDING):
            self._first_pending += 1
            yield self._pending.popleft()
        for crossing in self._crossings:
            crossing.begin = max(crossing.begin, self._first_pending)

    def _finish_giving_out(self) -> None:
        """Finish the reassignment of all frames still in use."""
        if self._giving_out is not None:
            self._giving_out.finish()
            self._giving_out = None

    def _resolve(self, crossing: _Crossing) -> GivingOut | None:
        """Decide who is who after a crossing; return its frames for reassignment."""
        self._finish_giving_out()
        first = max(crossing.begin - self._first_pending, 0)
        seen = list(self._pending)[first:]
        numbers = [number for number in crossing.members if not self.tracks[number].unseen]
        if len(seen) < 3 or len(crossing.members) < 2:
            return None
        begin = min(self.tracks[number].begin for number in crossing.members)
        if crossing.is_first and crossing.begin <= begin and len(numbers) == len(crossing.members):
            looks = self._looks_at_the_end(numbers, seen)
            for number, own in looks.items():
                self.tracks[number].appearance = own.copy()  # the original continues to learn
            work = partial(_give_out_anew, seen, numbers, looks, self._motion, from_the_end=True)
        else:
            order = self._names_after(crossing, numbers, seen)
            if order != numbers:
                self._exchange(dict(zip(numbers, order, strict=True)), seen)
            work = partial(_give_out_anew, seen, list(crossing.members), crossing.members, self._motion)
        last = seen[-1].labels
        for number in numbers:
            mask = (last == number).astype(np.float32)
            if mask.any():
                self.tracks[number].mask, self.tracks[number].place = mask, self._middle(mask)
        self._giving_out = GivingOut(work)
        return self._giving_out

    @staticmethod
    def _looks_at_the_end(numbers: Sequence[int], seen: Sequence[Labelled]) -> dict[int, Appearance]:
        """The appearance of people in the last frames of a crossing, where they are apart."""
        after = {number: Appearance() for number in numbers}
        for frame in seen[-_SURE_FRAMES:]:
            for number, looks in after.items():
                looks.learn(frame.codes, (frame.labels == number).astype(np.float32), keep=1.0)
        return after

    def _names_after(self, crossing: _Crossing, numbers: list[int], seen: Sequence[Labelled]) -> list[int]:
        """Identify the people who separated, by their earlier appearance."""
        after = self._looks_at_the_end(numbers, seen)
        if len(numbers) < 2 or len(numbers) > _MOST_NAMES or any(looks.is_blank for looks in after.values()):
            return numbers
        alike = {
            (part, name): after[part].similarity(crossing.members[name])
            for part in numbers
            for name in numbers
        }

        def total(order: Sequence[int]) -> float:
            return sum(alike[part, name] for part, name in zip(numbers, order, strict=True))

        best = max(permutations(numbers), key=total)
        return list(best) if total(best) > total(numbers) + _MARGIN else numbers

    def _exchange(self, names: dict[int, int], seen: Sequence[Labelled]) -> None:
        """Exchange tracks from the end of a crossing on."""
        before = {number: self.tracks[number] for number in names}
        places = {number: (one.mask, one.place, one.body, one.area) for number, one in before.items()}
        for number, name in names.items():
            track = self.tracks[name]
            track.mask, track.place, track.body, track.area = places[number]
        table = np.arange(256, dtype=np.uint8)
        for number, name in names.items():
            table[number] = name
        for frame in seen[-_SURE_FRAMES:]:
            frame.labels = table[frame.labels]


def _scores(
    inside: npt.NDArray[np.bool_],
    rgb: FloatMap,
    codes: Codes,
    priors: dict[int, FloatMap],
    bodies: dict[int, Body],
    looks: dict[int, Appearance],
    spans: dict[int, tuple[int, int]],
) -> dict[int, FloatMap]:
    """Score each cell of a part for each person by their earlier position, colours, and the cell's surroundings.

    Args:
        inside: bool [h, w], the part.
        rgb: The frame, 0..255, float32 [h, w, 3].
        codes: int16 [h, w], its colours.
        priors: For each number, float32 [h, w], the probability that they are there.
        bodies: Layers whose colours are known cell by cell, carried to this frame.
        looks: Everybody's appearance.
        spans: Rows at which each person begins and ends.

    Returns:
        For each number, float32 [h, w], log-likelihoods; meaningless outside the part.
    """
    box = _box_of(inside, margin=_SMOOTH_REACH)
    inside, rgb, codes = inside[box], rgb[box], codes[box]
    bodies = {number: body.cut(box) for number, body in bodies.items()}
    cover = inside.astype(np.float32)
    around = np.maximum(cv2.GaussianBlur(cover, (0, 0), _SMOOTH_SIGMA), 1e-3)
    likely = {
        number: own.log_likelihood(codes, spans[number], top=box[0].start)
        for number, own in looks.items()
        if not own.is_blank
    }
    best = np.max(list(likely.values()), axis=0) if likely else 0.0
    fits = {number: fit(body, rgb) for number, body in bodies.items()}
    before = _before_others(inside, bodies, fits)
    scores = {}
    for number, prior in priors.items():
        score = np.log(prior[box] + _SHADOW) + fits.get(number, UNKNOWN_FIT) + before.get(number, 0.0)
        if number in likely:
            weight = _COLOR_WEIGHT_OF_KNOWN if number in fits else _COLOR_WEIGHT
            score = score + weight * np.maximum(likely[number] - best, -_WORST_COLOR)
        whole = np.full(prior.shape, _NOT_THEIRS, np.float32)
        whole[box] = cv2.GaussianBlur(score * cover, (0, 0), _SMOOTH_SIGMA) / around
        scores[number] = whole
    return scores


def _box_of(inside: npt.NDArray[np.bool_], *, margin: int) -> tuple[slice, slice]:
    """The rows and columns of a non-empty part, with a margin."""
    rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
    return (
        slice(max(rows[0] - margin, 0), rows[-1] + 1 + margin),
        slice(max(columns[0] - margin, 0), columns[-1] + 1 + margin),
    )


def _before_others(
    inside: npt.NDArray[np.bool_], bodies: dict[int, Body], fits: dict[int, FloatMap]
) -> dict[int, FloatMap]:
    """Bonus where bodies overlap: the person visible in most of an overlap is in front in all of it."""
    added = {number: np.zeros(inside.shape, np.float32) for number in bodies}
    for one, other in combinations(bodies, 2):
        overlap = inside & (bodies[one].whole > 0.5) & (bodies[other].whole > 0.5)
        overlap = cv2.erode(overlap.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
        if overlap.sum() >= _LEAST_OVERLAP:
            lean = float((fits[one] - fits[other])[overlap].mean())
            added[one][overlap] += np.clip(lean, -_MOST_LEAN, _MOST_LEAN)
            added[other][overlap] -= np.clip(lean, -_MOST_LEAN, _MOST_LEAN)
    return added


def _surroundings(inside: npt.NDArray[np.bool_], solid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """A part and the empty cells around it, bool [h, w]: the network may have missed more of the people there."""
    reach = 2 * max(round(_OUT_OF_REACH * inside.shape[1]), 2) + 1
    near: Any = cv2.dilate(inside.astype(np.uint8), np.ones((reach, reach), np.uint8)) > 0
    found: npt.NDArray[np.bool_] = inside | (near & ~solid)
    return found


def _best(scores: dict[int, FloatMap]) -> Labels:
    """The number with the best score of each cell, uint8 [h, w]."""
    (first, best), *rest = scores.items()
    found = np.full(best.shape, first, np.uint8)
    for number, score in rest:
        better = score > best
        found[better] = number
        best = np.where(better, score, best)
    return found


def _give_out_anew(
    seen: Sequence[Labelled],
    members: Sequence[int],
    looks: dict[int, Appearance],
    motion: MotionField,
    *,
    from_the_end: bool = False,
) -> None:
    """Assign the frames of a crossing again, backwards from its end and forwards from its beginning at once.

    Args:
        seen: From the frame before the people met to the frames where they are apart; their labels change.
        members: The people who met.
        looks: Their earlier appearance.
        motion: The grid's motion.
        from_the_end: Only the end shows who is who, and the first frame is assigned again too, since they were taken
            for one person until then.
    """
    is_member = np.zeros(256, bool)
    is_member[list(members)] = True
    last = seen[-1]
    bodies = {
        number: learned_body(None, last.rgb.astype(np.float32), last.labels == number, None)
        for number in members
        if (last.labels == number).any()
    }
    greys: list[Any] = [cv2.cvtColor(one.rgb, cv2.COLOR_RGB2GRAY) for one in seen]
    for at in range(len(seen) - 2, -1 if from_the_end else 0, -1):
        frame = seen[at]
        ahead = motion.place(greys[at], greys[at + 1])
        ours = is_member[frame.labels]
        late = 1.0 if from_the_end else 1 / (1 + np.exp(-_TURN * (at / (len(seen) - 1) - 0.5)))
        priors, spans = {}, {}
        rgb = frame.rgb.astype(np.float32)
        bodies = carried_bodies(bodies, rgb, ahead, motion, alone=())
        for number, body in bodies.items():
            priors[number] = np.asarray(cv2.GaussianBlur(body.whole, (0, 0), 1.0), np.float32)
            rows = np.flatnonzero(body.whole.max(axis=1) > 0.3)
            spans[number] = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, len(ours))
        known = {number: looks[number] for number in bodies}
        near = _surroundings(ours, frame.labels > 0)
        backward = _scores(near, rgb, frame.codes, priors, bodies, known, spans) if near.any() else {}
        forward = {
            number: frame.scores.get(number, np.where(frame.labels == number, 0.0, _NOT_THEIRS))
            for number in members
        }
        both = {
            number: (1 - late) * own.astype(np.float32) + late * backward.get(number, own)
            for number, own in forward.items()
        }
        frame.labels = np.where(ours, _best(both), frame.labels)
        for number, body in bodies.items():
            own = frame.labels == number
            bodies[number] = learned_body(body, rgb, own, ours & ~own)
            far: Any = cv2.distanceTransform((~own).astype(np.uint8), cv2.DIST_L2, 3)
            both[number] = both[number] - _AWAY * far
        frame.labels = np.where(near & ~ours, _best(both), frame.labels)


def everywhere(labels: Labels, *, reach: float) -> Labels:
    """Extend labels to unlabelled cells from the nearest labelled cell, if it is close.

    Args:
        labels: uint8 [h, w]; 0 is none.
        reach: Maximum distance, in cells.

    Returns:
        uint8 [h, w].
    """
    empty = (labels == 0).astype(np.uint8)
    if empty.all():
        return labels
    distance, nearest = cv2.distanceTransformWithLabels(empty, cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL)
    names = np.zeros(int(nearest.max()) + 1, np.uint8)
    names[nearest[empty == 0]] = labels[empty == 0]
    filled = names[nearest]
    filled[distance > reach] = 0
    return filled
