"""Finds people whom a network misses beside larger ones, in windows of a shot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame
from vitascope.gpu.interchange import on_its_way
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Batch
from vitascope.segmentation.matting.estimates import coarse, small_alpha
from vitascope.segmentation.matting.levers.smaller_people import (
    Seen,
    SmallerPeople,
    large_people,
    missed,
    shown_smaller,
    with_missed,
)
from vitascope.segmentation.matting.shots import StreamNetwork

_FRAMES_OF_A_CALL = 8
"""Frames of a window shown in one call: the network's output is larger than what is kept of it."""


class MissedPeople:
    """Finds people whom a network missed in a window of a shot, beside larger ones.

    A network that sees the whole picture judges people by their size relative to others: it misses a standing man
    beside a face that fills the picture, but sees him once the face is no larger than he is. So large people are shrunk
    in the window's last and first frame, or in the middle frame if these show nobody large; the rest of their place is
    painted with their surroundings. If this shows somebody who is missing in the mattes, the whole window is run this
    way, from its last frame back. All this uses the smaller, mirrored pictures, in which a feature covers more of a
    body. People who are seen with confidence, in several frames and outside the paint, count as missed; where the
    pictures are no smaller, as in small videos, a second look must see them, too. Then the window is run in the larger
    pictures, and missed people are taken from these, with their edges; or from the smaller pictures where the larger
    ones lose them.

    Args:
        stream: The network, which takes pictures of any size.
        wanted: The pictures that have the size of the mattes.
        smaller: The smaller pictures.
    """

    def __init__(self, stream: StreamNetwork, wanted: NetworkInput, smaller: NetworkInput) -> None:
        self._stream, self._wanted = stream, wanted
        self._smaller = SmallerPeople(stream.views, wanted, smaller)

    def judge(self, batch: Batch, estimates: Sequence[MatteEstimate]) -> Callable[[], FloatArray]:
        """Start copying the data that ``complete`` needs to the host.

        Args:
            batch: Frames of one shot, and their usual pictures.
            estimates: Alpha's coefficients, of the size of ``wanted``.
        """
        alphas = [
            small_alpha(estimates[at], batch.images[at], self._stream.wanted) for at in _judged_at(len(batch))
        ]
        return on_its_way(coarse(np.concatenate(alphas)[:, None])[:, 0])

    def complete(
        self, batch: Batch, estimates: list[MatteEstimate], judged: FloatArray
    ) -> list[MatteEstimate]:
        """The mattes of a window with missed people added; the same list if nobody was missed.

        Args:
            batch: As in ``judge``.
            estimates: Likewise.
            judged: The result of ``judge``.
        """
        at_frames = _judged_at(len(batch))
        is_large = np.reshape([large_people(alpha).any() for alpha in judged], (len(at_frames), -1))
        large = {at for at, eyes in zip(at_frames, is_large, strict=True) if eyes.any()}
        if not large:
            return estimates
        ends = {at_frames[0], at_frames[-1]}
        first = sorted(ends if ends & large else large, reverse=True)
        alone = self._seen([batch.frames[at] for at in first], [estimates[at] for at in first])
        if not any(missed([one.coarse]).any() for one in alone):
            return estimates
        frames, mattes = batch.frames[::-1], estimates[::-1]
        seen = self._seen(frames, mattes)
        if not self._smaller.are_small:
            # This look sees no more of a body than the usual one, so two must agree.
            again = self._seen(frames, mattes, is_mirrored=False)
            seen = [
                replace(one, coarse=one.coarse.agreed(other.coarse))
                for one, other in zip(seen, again, strict=True)
            ]
        wheres = missed([one.coarse for one in seen])
        if not wheres.any():
            return estimates
        return self._with_missed(frames, mattes, seen, wheres)[::-1]

    def _seen(
        self, frames: Sequence[Frame], estimates: Sequence[MatteEstimate], *, is_mirrored: bool = True
    ) -> list[Seen]:
        """Run frames with large people shrunk, in the smaller pictures.

        Args:
            frames: From the last to the first.
            estimates: Their mattes.
            is_mirrored: Whether the pictures are mirrored.
        """
        seen = list[Seen]()
        shots = self._stream.shots(looks_ahead=False)
        for at in range(0, len(frames), _FRAMES_OF_A_CALL):
            part = slice(at, at + _FRAMES_OF_A_CALL)
            alphas = self._smaller.alpha_of(
                estimates[part], self._stream.views.make(frames[part], self._wanted)
            )
            seen += self._smaller.seen(shots, frames[part], alphas, is_mirrored=is_mirrored)
        return seen

    def _with_missed(
        self,
        frames: Sequence[Frame],
        estimates: Sequence[MatteEstimate],
        seen: Sequence[Seen],
        wheres: npt.NDArray[np.bool_],
    ) -> list[MatteEstimate]:
        """Mattes of frames with missed people added.

        Args:
            frames: From the last to the first.
            estimates: Their mattes.
            seen: The looks at the smaller pictures.
            wheres: Where people are missed, from ``missed``.
        """
        views, completed = self._stream.views, list[MatteEstimate]()
        shots = self._stream.shots(looks_ahead=False)
        count = int(np.flatnonzero(wheres.any(axis=(1, 2, 3)))[-1]) + 1  # nobody is missed before these
        for at in range(0, count, _FRAMES_OF_A_CALL):
            part = slice(at, min(at + _FRAMES_OF_A_CALL, count))
            images = views.make(frames[part], self._wanted)
            there = self._smaller.alpha_of(estimates[part], images)
            large = np.concatenate([one.large for one in seen[part]])
            paint = np.concatenate([one.coarse.paint for one in seen[part]])
            larger = shown_smaller(shots, frames[part], images, self._wanted, there, large, paint)
            completed += with_missed(estimates[part], seen[part], wheres[part], there, larger)
        return [*completed, *estimates[count:]]


def _judged_at(count: int) -> list[int]:
    """Indices of the frames in which large people are looked for, in a window of ``count``."""
    return sorted({0, count // 2, count - 1})
