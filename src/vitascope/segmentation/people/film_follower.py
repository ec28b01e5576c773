"""Follows people through a video, shot by shot, in this process or a separate one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.closing import Closing
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Map, Sink, Stage
from vitascope.segmentation.people.appearance import SeenFace
from vitascope.segmentation.people.following import GivingOut, Labelled, ShotFollower, everywhere
from vitascope.segmentation.people.identities import Identities, Presence
from vitascope.segmentation.people.small_frames import MotionField, Picture, SmallFrame
from vitascope.segmentation.processes.spawned import Failed, SpawnedProcess

FloatMap = npt.NDArray[np.float32]

_REACH = 0.06
"""Radius of a person's surroundings, as a share of the grid's longest side."""
_LOOKS_AHEAD = 128
"""Frames that the process may follow while a crossing is reassigned."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The owner of each cell of a frame."""

    pts: int
    labels: npt.NDArray[np.uint8]
    """Track numbers, uint8 [eyes, h, w]; 0 is nobody."""


@dataclass(frozen=True, slots=True)
class ShotEnded:
    """All frames of a shot are settled."""

    named: dict[int, int]
    """The person's number for each track number of the shot."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A better view of a person than earlier ones in the shot."""

    track: int
    worth: float
    """Quality of the view; higher is better."""
    rows: tuple[int, int]
    """First and last row of the person, in cells."""
    columns: tuple[int, int]
    """Likewise."""
    grid: tuple[int, int]
    """Cells of the frame, (height, width)."""


Found = Settled | ShotEnded | Sighting
Step = Callable[[], Found | None]
"""A step to run next; returns what it settles. Reassigning a crossing settles nothing, but lets later frames
settle."""


Write = Callable[[Iterable[Found], Picture | None], object]
"""Called with what is found, in order, and the frame just seen, uint8 [H, W, 3], from which sightings are taken."""


def settle(steps: Iterable[Step]) -> list[Found]:
    """Run the steps in order."""
    return [found for step in steps if (found := step()) is not None]


class FilmFollower:
    """Follows the people of a video, shot by shot.

    The steps that it returns must run in order, on one thread at a time; more frames can be followed meanwhile.
    """

    def __init__(self) -> None:
        self._identities = Identities()
        self._shot: ShotFollower | None = None
        self._other: dict[int, FloatMap] = {}
        self._best: dict[int, float] = {}

    def stages(self, write: Write) -> Sequence[Stage]:
        """Pipeline stages that take frames from ``FacesNowAndThen`` and pass the settled results to ``write``."""
        return [Sink("follow", lambda seen: write(settle(self.look(seen[0], seen[2])), seen[1]))]

    def finish(self, write: Write) -> Sequence[Presence]:
        """Finish at the end of the video, passing the rest to ``write``; returns when each person is visible."""
        write(settle(self.end_shot()), None)
        return self.presences

    def look(self, frame: SmallFrame, faces: Sequence[SeenFace]) -> list[Step]:
        """Process the next frame.

        Args:
            frame: Next frame from ``SmallFrames``.
            faces: Its faces, which separate people who touch and identify them after a cut.
        """
        steps = self.end_shot() if frame.starts_shot else []
        if self._shot is None:
            self._shot = ShotFollower(frame.alpha.shape)
        if frame.other is not None:
            self._other[frame.pts] = frame.other
        steps += map(self._step, self._shot.follow(frame, faces=faces))
        steps += self._sightings()
        return steps

    def end_shot(self) -> list[Step]:
        """End the shot, or the video."""
        if self._shot is None:
            return []
        steps = [self._step(one) for one in self._shot.finish()]
        named = self._identities.recognise(self._shot.confirmed)
        for limb, whole in reversed(self._shot.limbs.items()):  # follow parts of parts
            if whole in named:
                named[limb] = named[whole]
        steps.append(partial(ShotEnded, named))
        self._shot = None
        self._best.clear()
        self._other.clear()
        return steps

    @property
    def presences(self) -> Sequence[Presence]:
        """When each person was visible, in the finished shots."""
        return self._identities.presences

    def _step(self, one: GivingOut | Labelled) -> Step:
        return (
            one.finish
            if isinstance(one, GivingOut)
            else partial(_settled, one, self._other.pop(one.pts, None))
        )

    def _sightings(self) -> Iterator[Step]:
        assert self._shot is not None
        for track in self._shot.tracks.values():
            # In a group the view may show somebody else, so it is used only until there is a better one.
            worth = float(track.mask.sum()) * (1.0 if self._shot.is_alone(track.number) else 0.1)
            if track.unseen or worth <= 1.1 * self._best.get(track.number, 0.0):
                continue
            rows = np.flatnonzero(track.mask.max(axis=1) > 0.5).tolist()
            columns = np.flatnonzero(track.mask.max(axis=0) > 0.5).tolist()
            if not len(rows) or not len(columns):
                continue
            self._best[track.number] = worth
            height, width = track.mask.shape
            yield partial(
                Sighting, track.number, worth, (rows[0], rows[-1]), (columns[0], columns[-1]), (height, width)
            )


def _settled(labelled: Labelled, other: FloatMap | None) -> Settled:
    labels = everywhere(labelled.labels, reach=_REACH * max(labelled.labels.shape))
    eyes = [labels]
    if other is not None:
        eyes.append(MotionField.carried(labels, other, by="nearest"))
    return Settled(labelled.pts, np.stack(eyes).astype(np.uint8))


class FollowingProcess(Closing):
    """A ``FilmFollower`` in a separate process.

    Following takes thousands of short NumPy and OpenCV steps. In the process that decodes for a GPU, these and the
    decoding threads would keep waiting for each other at the interpreter.

    Raises:
        WorkerError: It cannot be started.
    """

    def __init__(self) -> None:
        self._process = SpawnedProcess(
            _follow, name="vitascope-people", label="the process that follows people"
        )

    def stages(self, write: Write) -> Sequence[Stage]:
        """Stages like those of ``FilmFollower``; they raise ``WorkerError`` if the process is gone."""
        return [
            Map("show", self._show, output=QueueLimits(items=_LOOKS_AHEAD)),
            Sink("follow", lambda eye: write(self._process.answer(), eye)),
        ]

    def _show(self, seen: tuple[SmallFrame, Picture, Sequence[SeenFace]]) -> Picture:
        frame, eye, faces = seen
        self._process.send((frame, faces))
        return eye

    def finish(self, write: Write) -> Sequence[Presence]:
        """Finish like ``FilmFollower``.

        Raises:
            WorkerError: The process is gone.
        """
        self._process.send(None)
        write(self._process.answer(), None)
        presences: Sequence[Presence] = self._process.answer()
        return presences

    def close(self) -> None:
        """End the process at once."""
        SpawnedProcess.end([self._process])


def _follow(connection: Connection) -> None:
    cv2.setNumThreads(1)
    follower = FilmFollower()
    with ThreadPoolExecutor(1) as settling:
        try:
            while (shown := connection.recv()) is not None:
                settling.submit(_answer, connection, follower.look(*shown))
            settling.submit(_answer, connection, follower.end_shot()).result()
            connection.send(follower.presences)
        except (EOFError, OSError):
            os._exit(1)  # the run is gone, so nobody needs the rest


def _answer(connection: Connection, steps: Sequence[Step]) -> None:
    try:
        connection.send(settle(steps))
    except Exception as error:
        connection.send(Failed.of(error))
