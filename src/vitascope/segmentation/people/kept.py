"""The matte of some people only: a link around the network, the levers and the cache, on the CPU and on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.config import Settings
from vitascope.errors import UsageError
from vitascope.frames import Frame
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.batch import Around, Batch, Estimator, array_module, resized
from vitascope.segmentation.people.choice import Choice, chosen_people
from vitascope.segmentation.people.table import PeopleTable, known_people

__all__ = ["KeptPeople", "PeopleShares", "Shares", "keeping_people"]


_SOFTNESS = 0.8
"""Standard deviation, in cells, of how shares of people who touch go over into one another."""


class Shares(Protocol):
    """Says how much of the matte is kept where."""

    def share_at(self, frame: Frame) -> npt.NDArray[np.float32] | None:
        """float32 [E, rows, columns], 0..1, upright, of any size; None where all is kept."""
        ...


class PeopleShares:
    """The share of the people that are kept, by what a scan found.

    Shares of all people, and of nobody, add up to one everywhere: each cell of the scan's grid is one person's, and
    where two touch their shares go over into one another within a cell or two.

    Args:
        table: Whose each cell is.
        choice: Who is kept.
    """

    def __init__(self, table: PeopleTable, choice: Choice) -> None:
        self._table, self._choice = table, choice

    def share_at(self, frame: Frame) -> npt.NDArray[np.float32] | None:
        """As ``Shares``."""
        kept = self._choice.kept_at(frame.pts_seconds)
        if kept.all():
            return None
        labels = self._table.labels_at(frame.pts)
        if labels is None:
            return None if kept[0] else np.zeros((1, 1, 1), np.float32)
        return np.stack([cv2.GaussianBlur(eye, (0, 0), _SOFTNESS) for eye in kept[labels].astype(np.float32)])


class KeptPeople:
    """Multiplies mattes by the share of those who are kept; an ``Estimator``.

    A guided filter's coefficients are multiplied: alpha is linear in them, so the full-size alpha is the share of what
    it was, and edges stay where they are.

    Args:
        inner: Gives everybody's mattes.
        shares: How much of them is kept.
    """

    def __init__(self, inner: Estimator, shares: Shares) -> None:
        self._inner, self._shares = inner, shares

    def estimate(self, batch: Batch) -> list[MatteEstimate]:
        """Mattes of the next frames, of who is kept."""
        return [
            self._kept(frame, estimate)
            for frame, estimate in zip(batch.frames, self._inner.estimate(batch), strict=True)
        ]

    def _kept(self, frame: Frame, estimate: MatteEstimate) -> MatteEstimate:
        share = self._shares.share_at(frame)
        if share is None:
            return estimate
        planes: Any = estimate.alpha if estimate.gain is None else estimate.gain
        arrays = array_module(on_gpu=is_on_gpu(planes))
        small = arrays.ascontiguousarray(arrays.asarray(share)[:, None])
        # A share of one eye is that of both.
        full: Any = resized(small, estimate.size).astype(planes.dtype)
        if estimate.alpha is not None:
            return MatteEstimate(alpha=estimate.alpha * full[:, 0])
        assert estimate.gain is not None  # MatteEstimate holds either form
        assert estimate.offset is not None
        gain, offset = estimate.gain.copy(), estimate.offset.copy()  # the cache may have kept them
        gain[:, -1:] *= full
        offset[:, -1:] *= full
        return MatteEstimate(gain=gain, offset=offset)


def keeping_people(video: Path, settings: Settings) -> Around:
    """The link that keeps who is asked for, for ``StreamMatting``.

    Args:
        video: The input, which was scanned.
        settings: Say who is kept.

    Raises:
        UsageError: Somebody who is named is not in the video.
        InputError: What was found of the video is damaged.
    """
    table = known_people(video, settings.video)
    if table is None:
        raise UsageError(f"{video}: nobody looked who is in it; vitascope people does")
    choice = chosen_people(settings.people, table.people, video=video.name)

    def around(inner: Estimator, _: NetworkInput) -> Estimator:
        return KeptPeople(inner, PeopleShares(table, choice))

    return around
