"""Shows people at the rim of a VR180 eye in bent fisheye pictures, and those ahead in equidistant ones.

The choice is made at the start of a shot, and in a long one at intervals, as for close-ups. Both eyes are always shown
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.remap import remap
from vitascope.models.network import FloatArray, NetworkInput, SpatialState
from vitascope.segmentation.matting.fisheye import BENT_PICTURES, FisheyeViews
from vitascope.segmentation.matting.stereo_agreement import StereoAgreement
from vitascope.vr.projection import OUTSIDE, Fisheye, reprojection_map

RIM_DEGREES: Final = 65.0
"""Angle from the axis beyond which the rim lies."""
_SHARE: Final = 0.65
"""Share of people's area at the rim above which bent pictures are used. Above it, alpha's error falls nearly
everywhere, also in places not used for tuning; below it, with somebody ahead, it often grows."""
_STAYING_SHARE: Final = 0.55
"""Share above which bent pictures stay in use: a change disturbs the memory, and people move. With people who
walk along the rim, one bound makes the choice change more often than two. A lower second bound makes changes
rarer, but keeps bent pictures for shares far below the first; between 0.45 and 0.65, mattes are equally
good."""
_CELLS: Final = 96
"""Samples along each side of the small picture in which people's area is counted."""
_PERSON: Final = 0.5
RIM_RULES: Final = (RIM_DEGREES, _SHARE, _STAYING_SHARE, _CELLS, _PERSON, *BENT_PICTURES)
"""Constants that mattes of a network with bent pictures depend on."""


class RimPeople:
    """Chooses between two kinds of fisheye pictures for a stream: bent ones while people stand at the rim.

    Args:
        usual: The equidistant pictures, one of each eye.
        agreement: Makes the estimates of two eyes agree; None if each eye keeps its own.
    """

    def __init__(self, usual: FisheyeViews, agreement: StereoAgreement | None) -> None:
        self._usual = usual, agreement
        bent = usual.bent
        self._bent = bent, None if agreement is None else replace(agreement, lens=bent.as_pictures[0])
        self.are_seen = False
        """True while bent pictures are used."""

    @staticmethod
    def may_need(views: FisheyeViews) -> bool:
        """False if an eye is not equirectangular, or is shown as two pictures: nobody is at the rim of both."""
        return not isinstance(views.lens, Fisheye) and views.count == 1

    @property
    def views(self) -> FisheyeViews:
        """The fisheye pictures in use."""
        return (self._bent if self.are_seen else self._usual)[0]

    @property
    def agreement(self) -> StereoAgreement | None:
        """Makes the estimates of the pictures in use agree."""
        return (self._bent if self.are_seen else self._usual)[1]

    @property
    def shown(self) -> NetworkInput:
        """Format of the network's picture at present."""
        return self.views.as_pictures[1]

    def would_be_seen(self, alpha: FloatArray) -> bool:
        """True if bent pictures should be used after a frame.

        Args:
            alpha: float32 [E, h, w], 0..1, of the frame in the pictures in use, in the host's memory.
        """
        map_x, map_y, at_rim = _counted(self.views.as_pictures[0], (alpha.shape[1], alpha.shape[2]))
        people = np.stack([remap(eye, map_x, map_y) > _PERSON for eye in alpha]) & (map_x != OUTSIDE)
        share = _STAYING_SHARE if self.are_seen else _SHARE
        return int((people & at_rim).sum()) > share * int(people.sum())

    def change(self, state: SpatialState, *, are_seen: bool) -> None:
        """Switch to the other pictures, and convert the network's memory.

        The memory keeps the geometry of the other pictures until the network has seen some frames. Remapping or
        resetting it was no better in four places with a truth.
        """
        state.stretch(self.shown.size)
        self.are_seen = are_seen

    def with_choice(self, memory: list[FloatArray]) -> list[FloatArray]:
        """State for a run that continues: the memory, and which pictures are in use."""
        return [*memory, np.array([self.are_seen], np.float32)] if memory else []

    def go_on_from(self, memory: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Continue an earlier run.

        Args:
            memory: From ``with_choice``.

        Returns:
            The network's memory.
        """
        *remembered, choice = memory
        self.are_seen = bool(choice[0])
        return remembered


@lru_cache(maxsize=8)
def _counted(lens: Fisheye, size: tuple[int, int]) -> tuple[Any, Any, npt.NDArray[np.bool_]]:
    """Maps that show a picture (height, width) of a lens as a small equidistant one, and where its rim is.

    Returns:
        Columns and rows to read, float32 [96, 96] each, and the rim, bool [96, 96].
    """
    target = Fisheye(lens.fov_degrees)
    cells = _CELLS, _CELLS
    map_x, map_y = reprojection_map(lens, target, source_size=size, target_size=cells)
    y, x = np.meshgrid((np.arange(_CELLS) + 0.5) / _CELLS, (np.arange(_CELLS) + 0.5) / _CELLS, indexing="ij")
    angle = np.hypot(x - 0.5, y - 0.5) * lens.fov_degrees
    return map_x, map_y, angle > RIM_DEGREES
