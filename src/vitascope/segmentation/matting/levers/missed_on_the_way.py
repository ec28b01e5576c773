"""Finds people whom a network misses beside larger ones, in a single pass over a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from vitascope.frames import Frame
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch, JoinedPictures
from vitascope.segmentation.matting.close_ups import CLOSE_UP_SIDE, LOOK_EVERY_FRAMES
from vitascope.segmentation.matting.estimates import coarse
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.levers.fisheye_looks import FisheyePictures
from vitascope.segmentation.matting.levers.smaller_people import (
    CoarseLook,
    SmallerPeople,
    large_people,
    missed,
    with_missed,
)
from vitascope.segmentation.matting.shots import Answer, ShotInference, StreamNetwork, next_part
from vitascope.segmentation.report import Tally

_SMALLER = 2 / 3
"""Size of the smaller pictures relative to the usual ones."""
_FIRST_FRAMES, _FRAMES_BEFORE = 8, 8
"""Number of a shot's first frames that are judged together, if the look-ahead has that many; and number of
frames before a later frame with which it is judged."""
_FRAMES_OF_A_CALL = 8
"""Maximum frames per call: the network's output is larger than the part that is stored."""

ON_THE_WAY_RULES: Final = (
    "a shot's first frames are as many as are looked ahead to, shown in the same pictures",
    (_SMALLER, _FIRST_FRAMES, _FRAMES_BEFORE),
)
"""Constants that the mattes of a single pass depend on, in addition to ``SMALLER_PEOPLE_RULES``."""


class MissedOnTheWay:
    """Finds people whom a network misses beside larger ones, in a single pass over a video.

    At the start of a shot, and then every ``LOOK_EVERY_FRAMES`` frames, a frame with a large person in it is also run
    with that person shrunk, see ``SmallerPeople``. While this shows somebody who is missing in the mattes, all frames
    are also run this way: at 0.44 of the cost of the usual pictures, or at the cost of close-ups' pictures. A
    frame is judged with those before it, a shot's first frames all together; missed people are taken from the
    smaller pictures.

    Args:
        stream: The network, which takes pictures of any size, and how it is shown frames.
        shots: Makes the usual mattes.
    """

    def __init__(self, stream: StreamNetwork, shots: ShotInference) -> None:
        self._stream, self._shots = stream, shots
        # Not more: one batch may not have them, and mattes must not depend on batching.
        self._first_frames = min(_FIRST_FRAMES, max(stream.look_ahead_frames, 1))
        self._look_from(stream.fisheye)
        self._last_number: int | None = None
        """Number of the last frame; None before the first frame of a shot."""

    @staticmethod
    def may_help(wanted: NetworkInput) -> bool:
        """False if the usual pictures are so small that bodies look worse in smaller ones."""
        return max(wanted.size) > CLOSE_UP_SIDE

    def _look_from(self, fisheye: FisheyeViews | None) -> None:
        """Switch to the eyes, or to these fisheye pictures of them, and forget all people."""
        stream = self._stream
        views, wanted = stream.views, stream.wanted
        if fisheye is not None:
            views, wanted = FisheyePictures(views, fisheye), fisheye.as_pictures[1]
        height, width = (max(round(side * _SMALLER), 1) for side in wanted.size)
        self._fisheye = fisheye
        self._smaller = SmallerPeople(views, wanted, replace(wanted, size=(height, width)))
        self._end_looks()

    def _end_looks(self) -> None:
        self._looks: ShotInference | None = None
        """Runs the smaller pictures while somebody is missed."""
        self._seen: list[CoarseLook] = []
        """The last of its looks."""
        self._is_missed = False
        """True if somebody was missed since the last check."""

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames."""
        return self._shots.finish(self.begin(batch))

    def begin(self, batch: Batch) -> list[Answer]:
        """Like ``ShotInference.begin``, with missed people added."""
        answers, first = self._shots.begin(batch), 0
        completed: list[Answer] = []
        while first < len(batch):
            end = self._end_of_part(batch, answers, first)
            frames, part = batch.frames[first:end], answers[first:end]
            if batch.starts_shot[first]:
                self._last_number = None
            with memory_errors():
                completed += self._completed(frames, part, batch.images[first:end])
            self._last_number = frames[-1].index
            first = end
        return completed

    def _end_of_part(self, batch: Batch, answers: Sequence[Answer], first: int) -> int:
        """End of the frames that are judged together: at a shot's end, or where the next check is due."""
        is_first = self._last_number is None or batch.starts_shot[first]
        end = next_part(batch.starts_shot, first, self._first_frames if is_first else _FRAMES_OF_A_CALL)
        period = batch.frames[first].index // LOOK_EVERY_FRAMES

        def ends_before(at: int) -> bool:
            # The pictures may change within a shot's first frames.
            is_shown_otherwise = answers[at].fisheye is not answers[first].fisheye
            is_later_period = batch.frames[at].index // LOOK_EVERY_FRAMES != period
            return is_shown_otherwise or (is_later_period and not is_first)

        return next((at for at in range(first + 1, end) if ends_before(at)), end)

    def _completed(self, frames: Sequence[Frame], answers: Sequence[Answer], images: Any) -> Sequence[Answer]:
        """Add missed people to the answers about a part.

        Args:
            frames: Frames of the part.
            answers: Their answers.
            images: The eyes' pictures, from the batch.
        """
        period, last = frames[0].index // LOOK_EVERY_FRAMES, self._last_number
        is_first = last is None
        is_new_period = last is None or last // LOOK_EVERY_FRAMES != period
        if answers[0].fisheye is not self._fisheye:
            self._look_from(answers[0].fisheye)
        if is_first or (is_new_period and not self._is_missed):
            self._end_looks()
            asked = sorted({0, len(frames) - 1} if is_first else {0}, reverse=True)
            alphas = np.concatenate([self._alphas([answers[at].usual], images[at : at + 1]) for at in asked])
            if self._somebody_is_missed([frames[at] for at in asked], alphas):
                self._looks = self._stream.shots(looks_ahead=False)
        self._is_missed &= not is_new_period
        if self._looks is None:
            return answers
        estimates = [answer.usual for answer in answers]
        alphas = self._alphas(estimates, images)
        new = self._smaller.seen(self._looks, frames, alphas)
        known = [*self._seen, *(one.coarse for one in new)]
        self._seen = known[-_FRAMES_BEFORE:]
        wheres = (
            missed([one.coarse for one in new])
            if is_first
            else np.concatenate(
                [
                    missed(known[max(at - _FRAMES_BEFORE, 0) : at + 1], told=1)
                    for at in range(len(known) - len(new), len(known))
                ]
            )
        )
        completed = with_missed(estimates, new, wheres, alphas)
        self._is_missed |= bool(wheres.any())
        return [
            replace(answer, estimate=matte, usual_size=None) if where.any() else answer
            for answer, matte, where in zip(answers, completed, wheres, strict=True)
        ]

    def _alphas(self, estimates: Sequence[MatteEstimate], images: Any) -> Any:
        """Alpha of frames, as from ``SmallerPeople.alpha_of``, with the eyes' pictures that already exist."""
        if isinstance(images, JoinedPictures):
            images = images.together()
        shown = images if self._fisheye is None else self._fisheye.show(images)
        return self._smaller.alpha_of(estimates, shown)

    def _somebody_is_missed(self, frames: Sequence[Frame], alphas: Any) -> bool:
        """True if somebody beside a large person is missing in the mattes of some frames, ``alphas``."""
        if not any(large_people(alpha).any() for alpha in to_numpy(coarse(alphas))[:, 0]):
            return False
        # These looks do not count as samples that the network saw; in small pictures, one is enough to decide.
        warm_up = min(self._stream.warm_up_frames, 1)
        alone = replace(self._stream, warm_up_frames=warm_up, tally=Tally()).shots(looks_ahead=False)
        return any(missed([one.coarse]).any() for one in self._smaller.seen(alone, frames, alphas))

    def memory(self) -> list[FloatArray] | None:
        """The network's memory of the stream and of missed people; None if unavailable."""
        inner = self._shots.memory()
        if not inner or self._last_number is None:
            return inner
        looks = (None if self._looks is None else self._looks.memory()) or []
        planes = ((look.alpha, look.there, look.paint) for look in self._seen)
        seen = [np.stack(of_all).astype(np.float32) for of_all in zip(*planes, strict=True)]
        state = [self._last_number, self._looks is not None, self._is_missed, len(looks), len(seen)]
        return [*inner, *looks, *seen, np.array(state, np.float32)]

    def remember(self, memory: Sequence[FloatArray]) -> bool:
        """Restore the result of ``memory``; False if the network cannot."""
        if not memory:
            return self._shots.remember(memory)
        *arrays, state = memory
        number, is_looking, is_missed, looks, seen = map(int, state)
        inner = len(arrays) - looks - seen
        if not self._shots.remember(arrays[:inner]):
            return False
        self._look_from(self._shots.fisheye)
        self._last_number, self._is_missed = number, bool(is_missed)
        if is_looking:
            self._looks = self._stream.shots(looks_ahead=False)
            self._looks.remember(arrays[inner : inner + looks])
        if seen:
            alphas, theres, paints = arrays[inner + looks :]
            self._seen = [CoarseLook(*one) for one in zip(alphas, theres, paints > 0, strict=True)]
        return True
