"""The result of a scan as a small file: when each person is visible, and the owner of each cell in each frame.

It is a zip archive: ``people.json`` lists the people; ``labels/N.npy`` has the labels of about a hundred frames,
uint8 [frames, eyes, rows, columns], which are track numbers within a shot that the JSON maps to people; and
``faces/N.png`` shows each person. One piece of labels and a few looks are in memory at a time, however long the
video.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, Self

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError

from vitascope.config import VideoSettings
from vitascope.errors import InputError
from vitascope.media.libav import wrap_output_error
from vitascope.media.writing.output_target import PartialFile
from vitascope.segmentation.matting.cached_film import cache_folder, video_fingerprint
from vitascope.segmentation.people.identities import Presence

_FORMAT = 1
_PIECE_FRAMES = 128
_READ_AROUND = 3
"""Scanned frames to read before and after a part of a video for its frames: the nearest ones, their
neighbours, and after a cut those behind it."""
_ARCHIVE_ERRORS = (OSError, zipfile.BadZipFile, KeyError, ValueError, EOFError)

FAR_CELLS = np.float32(8)
"""Distance in cells beyond which a person's distance no longer matters."""
_LOOKS_KEPT = 16
"""Number of looks kept in memory, since several frames around them use each."""

Labels = npt.NDArray[np.uint8]
_Place = tuple[int, int]
"""A scanned frame: the index of its piece, and its index in the piece."""


class Look:
    """A scanned frame, with the owner of each cell.

    Args:
        labels: People's numbers, uint8 [eyes, rows, columns]; 0 is nobody.
    """

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._depths: dict[int, npt.NDArray[np.float32]] = {}

    @cached_property
    def cell_counts(self) -> npt.NDArray[np.int64]:
        """Number of cells of each person: int64 [256]."""
        return np.bincount(self.labels.ravel(), minlength=256)

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The numbers of visible people, including 0, in ascending order: int64 [N]."""
        return np.flatnonzero(self.cell_counts)

    def depth(self, number: int) -> npt.NDArray[np.float32]:
        """Depth of each cell inside a person: float32 [eyes, rows, columns], in cells, negative outside.

        It is limited to ``FAR_CELLS`` either way, computed once, and must not be changed.
        """
        if number not in self._depths:
            depth = np.empty(self.labels.shape, np.float32)
            for eye, own in zip(depth, (self.labels == number).astype(np.uint8), strict=True):
                inside: Any = cv2.distanceTransform(own, cv2.DIST_L2, 3) if own.any() else -FAR_CELLS
                outside: Any = cv2.distanceTransform(1 - own, cv2.DIST_L2, 3) if not own.all() else -FAR_CELLS
                np.clip(inside - outside, -FAR_CELLS, FAR_CELLS, out=eye)
            self._depths[number] = depth
        return self._depths[number]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Seen(_Frozen):
    """A stretch of one shot that shows a person."""

    begin_seconds: float
    end_seconds: float
    sure: float
    """Confidence, 0 to 1."""


class Person(_Frozen):
    """A person in a video."""

    number: int
    """1 and up, by order of appearance, from left to right."""
    seen: tuple[Seen, ...]
    largest: float
    """Largest share of the picture that they covered."""
    low: float
    """Share of their frames in which they are at the bottom of the picture."""

    @property
    def seconds(self) -> float:
        """Time for which they are visible, in seconds."""
        return sum(one.end_seconds - one.begin_seconds for one in self.seen)

    @property
    def sure(self) -> float:
        """Confidence that all of this is one person, weighted by time, 0 to 1."""
        weights = [one.end_seconds - one.begin_seconds + 1e-3 for one in self.seen]
        return sum(one.sure * weight for one, weight in zip(self.seen, weights, strict=True)) / sum(weights)


class _Piece(_Frozen):
    """Some frames of a shot."""

    shot: int
    pts: tuple[int, ...]


class PeopleFacts(_Frozen):
    """``people.json``."""

    format: int = _FORMAT
    video: str
    """Name of the file."""
    fingerprint: str
    """Identifies the video by content, whatever its name."""
    begin_seconds: float
    end_seconds: float | None
    """End of the scanned part, in seconds; None is the video's end."""
    time_base: tuple[int, int]
    origin_pts: int
    """pts of the video's first picture, from which seconds count."""
    network: str
    notes: tuple[str, ...]
    """Notes for the user on how people were found."""
    people: tuple[Person, ...]
    shots: tuple[dict[int, int], ...]
    """For each shot, the person of each track."""
    pieces: tuple[_Piece, ...]


class PeopleWriter:
    """Writes a video's people file during the scan. A context manager; left without ``finish``, it leaves no file.

    Args:
        path: The file.

    Raises:
        OutputError: It cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._partial = PartialFile(path)
        self._archive = zipfile.ZipFile(self._partial.path, "w", zipfile.ZIP_DEFLATED, compresslevel=6)
        self._pieces: list[_Piece] = []
        self._shots: list[dict[int, int]] = []
        self._pts: list[int] = []
        self._labels: list[Labels] = []
        self._done = False

    def __enter__(self) -> Self:
        """Enter the context."""
        return self

    def __exit__(self, *_: object) -> None:
        """Discard an unfinished file."""
        if not self._done:
            with suppress(OSError):  # the file would be completed, perhaps on a full disk, only to be deleted
                self._archive.close()
            self._partial.discard()

    def add(self, pts: int, labels: Labels) -> None:
        """Add the next frame of the shot: uint8 [eyes, rows, columns] of track numbers."""
        self._pts.append(pts)
        self._labels.append(labels)
        if len(self._pts) >= _PIECE_FRAMES:
            self._flush()

    def end_shot(self, people: Mapping[int, int]) -> None:
        """End the shot.

        Args:
            people: The person of each track; tracks left out are nobody.
        """
        self._flush()
        self._shots.append(dict(people))

    def finish(
        self,
        presences: Sequence[Presence],
        *,
        faces: Mapping[int, bytes],
        time_base: tuple[int, int],
        origin_pts: int,
        **facts: Any,
    ) -> None:
        """Write the list of people, and give the file its name.

        Args:
            presences: Everybody's, in the order of shots.
            faces: A PNG for each person.
            time_base: Seconds per tick, as a fraction.
            origin_pts: pts of the video's first picture.
            **facts: Further fields of ``PeopleFacts``.
        """
        tick = time_base[0] / time_base[1]
        people = []
        for number in sorted({presence.person for presence in presences}):
            own = [presence for presence in presences if presence.person == number]
            seen = tuple(
                Seen(
                    begin_seconds=round((one.begin_pts - origin_pts) * tick, 3),
                    end_seconds=round((one.end_pts - origin_pts) * tick, 3),
                    sure=one.sure,
                )
                for one in own
            )
            frames = sum(one.frames for one in own)
            people.append(
                Person(
                    number=number,
                    seen=seen,
                    largest=max(one.largest for one in own),
                    low=round(sum(one.low_frames for one in own) / frames, 3),
                )
            )
        written = PeopleFacts(
            people=tuple(people),
            shots=tuple(self._shots),
            pieces=tuple(self._pieces),
            time_base=time_base,
            origin_pts=origin_pts,
            **facts,
        )
        with wrap_output_error(self._partial.target, "write the people of the video"):
            for number, face in faces.items():
                self._archive.writestr(f"faces/{number}.png", face)
            self._archive.writestr("people.json", written.model_dump_json(indent=1))
            self._archive.close()
        self._partial.commit()
        self._done = True

    def _flush(self) -> None:
        if not self._pts:
            return
        content = io.BytesIO()
        np.save(content, np.stack(self._labels))
        with wrap_output_error(self._partial.target, "write the people of the video"):
            self._archive.writestr(f"labels/{len(self._pieces)}.npy", content.getvalue())
        self._pieces.append(_Piece(shot=len(self._shots), pts=tuple(self._pts)))
        self._pts, self._labels = [], []


class PeopleTable:
    """Reads such a file, and returns the owner of each cell at a time. Thread-safe.

    Args:
        path: The file.

    Raises:
        InputError: It is damaged, or has another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                self.facts = PeopleFacts.model_validate_json(archive.read("people.json"))
        except (*_ARCHIVE_ERRORS, ValidationError, json.JSONDecodeError) as error:
            raise InputError(f"{path}: the people of the video cannot be read from it: {error}") from error
        if self.facts.format != _FORMAT:
            raise InputError(f"{path}: written by another version of Vitascope; delete it")
        self._begins = [piece.pts[0] for piece in self.facts.pieces]
        self._lock = Lock()
        self._open: tuple[int, Labels] | None = None
        self._looks: dict[_Place, Look] = {}

    @property
    def people(self) -> tuple[Person, ...]:
        """All people, by number."""
        return self.facts.people

    def seen_between(self, begin_seconds: float, end_seconds: float | None) -> tuple[Person, ...]:
        """List the people visible in a part of the video, with their times in it; everybody keeps their number.

        Args:
            begin_seconds: Begin of the part.
            end_seconds: End of the part; None is the video's end.
        """
        end = inf if end_seconds is None else end_seconds
        found = []
        for person in self.people:
            seen = tuple(
                one.model_copy(
                    update={
                        "begin_seconds": max(one.begin_seconds, begin_seconds),
                        "end_seconds": min(one.end_seconds, end),
                    }
                )
                for one in person.seen
                if one.begin_seconds < end and one.end_seconds >= begin_seconds
            )
            if seen:
                found.append(person.model_copy(update={"seen": seen}))
        return tuple(found)

    def face(self, number: int) -> bytes | None:
        """A PNG of a person."""
        with self.path.open("rb") as file, zipfile.ZipFile(file) as archive:
            name = f"faces/{number}.png"
            return archive.read(name) if name in archive.namelist() else None

    def pts_at(self, seconds: float) -> int:
        """The pts of a time since the video's beginning."""
        numerator, denominator = self.facts.time_base
        return self.facts.origin_pts + round(seconds * denominator / numerator)

    def seconds_at(self, pts: int) -> float:
        """The time since the video's beginning of a pts."""
        numerator, denominator = self.facts.time_base
        return (pts - self.facts.origin_pts) * numerator / denominator

    def shot_at(self, pts: int) -> tuple[int, int]:
        """The first and last pts of the shot at a time, among scanned frames."""
        at = max(bisect_right(self._begins, pts) - 1, 0)
        shot = self.facts.pieces[at].shot
        own = [piece for piece in self.facts.pieces if piece.shot == shot]
        return own[0].pts[0], own[-1].pts[-1]

    def labels_at(self, pts: int, *, since: int | None = None) -> Labels | None:
        """The owner of each cell at a time: uint8 [eyes, rows, columns] of numbers of people, 0 for nobody.

        They come from the nearest scanned frame in the same shot; None if there is none.

        Args:
            pts: The time.
            since: Start of the shot, if its first frame was not scanned; frames before it do not count.
        """
        nearest = self._nearest(pts, since)
        return None if nearest is None else self._piece(nearest[0])[nearest[1]]

    def looks_around(self, pts: int, *, since: int | None = None) -> list[tuple[float, Look]]:
        """The owners of cells in the scanned frames of a shot before and after a time.

        Args:
            pts: The time.
            since: As for ``labels_at``.

        Returns:
            One look, or two, with their weights by nearness, which add up to one; empty if nothing was scanned.
        """
        nearest = self._nearest(pts, since)
        if nearest is None:
            return []
        time, look = self._time(nearest), self._look(nearest)
        if time == pts:
            return [(1.0, look)]
        other = self._next(nearest, 1 if time < pts else -1)
        if other is None:
            return [(1.0, look)]
        other_time = self._time(other)
        share = (pts - time) / (other_time - time)
        if not 0 < share < 1 or (since is not None and other_time < since):
            return [(1.0, look)]
        return [(1 - share, look), (share, self._look(other))]

    def looks_beside(self, pts: int, *, since: int | None = None) -> list[list[tuple[float, Look]]]:
        """The owners of cells one look before a time and one look after it, within the shot.

        Args:
            pts: The time.
            since: As for ``labels_at``.

        Returns:
            For each of the two, looks as in ``looks_around``; none, one or two.
        """
        nearest = self._nearest(pts, since)
        if nearest is None:
            return []
        beside = []
        for step in (-1, 1):
            place = self._next(nearest, step)
            if place is None:
                continue
            there = pts + self._time(place) - self._time(nearest)
            if (behind := self._next(place, step)) is not None:  # looks may be closer together there
                there = min(step * there, step * self._time(behind)) * step
            found = self._nearest(there, since)
            if found is not None and self._shot(found) == self._shot(nearest):
                beside.append(self.looks_around(there, since=since))
        return beside

    def labels_between(self, begin: int, end: int) -> Iterator[tuple[int, Labels]]:
        """Pts and labels of all looks read for the frames of a part of the video.

        This covers ``labels_at``, ``looks_around`` and ``looks_beside``.

        Args:
            begin: Pts of its first frame.
            end: Pts before which its frames end.
        """
        places = [
            (pts, at, frame)
            for at, piece in enumerate(self.facts.pieces)
            for frame, pts in enumerate(piece.pts)
        ]
        first = max(bisect_left(places, (begin,)) - _READ_AROUND, 0)
        for pts, at, frame in places[first : bisect_left(places, (end,)) + _READ_AROUND]:
            yield pts, self._piece(at)[frame]

    def _time(self, place: _Place) -> int:
        return self.facts.pieces[place[0]].pts[place[1]]

    def _shot(self, place: _Place) -> int:
        return self.facts.pieces[place[0]].shot

    def _look(self, place: _Place) -> Look:
        with self._lock:
            if place not in self._looks:
                self._looks[place] = Look(self._opened(place[0])[place[1]].copy())
                if len(self._looks) > _LOOKS_KEPT:
                    del self._looks[next(iter(self._looks))]
            return self._looks[place]

    def _next(self, place: _Place, step: int) -> _Place | None:
        """The look after (1) or before (-1) another in the same shot; None at its ends."""
        at, frame = place[0], place[1] + step
        if not 0 <= frame < len(self.facts.pieces[at].pts):
            at += step
            if not 0 <= at < len(self.facts.pieces) or self._shot((at, 0)) != self._shot(place):
                return None
            frame = 0 if step > 0 else len(self.facts.pieces[at].pts) - 1
        return at, frame

    def _nearest(self, pts: int, since: int | None) -> _Place | None:
        """The piece, and the index in it, of the scanned frame nearest to a time."""
        pieces = self.facts.pieces
        if not pieces:
            return None
        at = max(bisect_right(self._begins, pts) - 1, 0)
        times = pieces[at].pts
        frame = min(range(len(times)), key=lambda frame: abs(times[frame] - pts))
        if since is not None and times[frame] < since:
            later = [frame for frame in range(len(times)) if times[frame] >= since]
            if later:
                frame = later[0]
            elif at + 1 < len(pieces):
                at, frame = at + 1, 0
        return at, frame

    def _piece(self, at: int) -> Labels:
        with self._lock:
            return self._opened(at)

    def _opened(self, at: int) -> Labels:
        """Read a piece; the caller must hold the lock."""
        if self._open is None or self._open[0] != at:
            self._open = at, self._read(at)
        return self._open[1]

    def _read(self, at: int) -> Labels:
        try:
            with self.path.open("rb") as file, zipfile.ZipFile(file) as archive:
                tracks = np.load(io.BytesIO(archive.read(f"labels/{at}.npy")), allow_pickle=False)
        except _ARCHIVE_ERRORS as error:
            raise InputError(
                f"{self.path}: the people of the video cannot be read from it: {error}"
            ) from error
        names = np.zeros(256, np.uint8)
        for track, person in self.facts.shots[self.facts.pieces[at].shot].items():
            names[track] = person
        labels: Labels = names[tracks]
        return labels


def table_path(video: Path, wanted: VideoSettings) -> Path:
    """The path of the stored scan of a part of a video.

    Raises:
        InputError: The video cannot be read.
    """
    stretch = wanted.start_seconds, wanted.end_seconds
    key = (_FORMAT, video_fingerprint(video), *stretch, wanted.stereo, wanted.projection, wanted.fov_degrees)
    name = hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()
    return cache_folder().with_name("people") / f"{name}.zip"


def known_people(video: Path, wanted: VideoSettings) -> PeopleTable | None:
    """The result of an earlier scan of the whole video, or of this part; None if there is none.

    Raises:
        InputError: The video cannot be read, or its stored scan is damaged.
    """
    whole = wanted.model_copy(update={"start_seconds": 0.0, "end_seconds": None})
    for stretch in (whole, wanted):
        path = table_path(video, stretch)
        if path.is_file():
            return PeopleTable(path)
    return None
