"""Shows people at the rim of a VR180 eye in bent fisheye pictures, and those ahead in equidistant ones.

Which is asked as a shot begins, and in a long one now and then, as for close-ups. One picture shows both eyes alike.
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
"""From the axis: beyond it lies the rim."""
_SHARE: Final = 0.65
"""The share of people's area that lies at the rim above which pictures are bent. Above it alpha's error falls nearly
everywhere, also in places that it was not chosen on; below it, with somebody ahead, it often grows."""
_STAYING_SHARE: Final = 0.55
"""The share above which they stay so: a change costs what was remembered, and people do not stand still. Of people who
walk along the rim the verdict changes more often with one bound than with two. A lower second bound makes changes
rarer, but keeps pictures bent of which much lies below the first; between 0.45 and 0.65 mattes are equally good."""
_CELLS: Final = 96
"""Along each side of the picture in which people are counted."""
_PERSON: Final = 0.5
RIM_RULES: Final = (RIM_DEGREES, _SHARE, _STAYING_SHARE, _CELLS, _PERSON, *BENT_PICTURES)
"""What mattes of a network that knows people at the rim depend on."""


class RimPeople:
    """Which of two fisheye pictures a stream's eyes are shown as: bent ones while people stand at the rim.

    Args:
        usual: Equidistant, one of each eye.
        agreement: Brings together the answers about two of them; None if each keeps its own.
    """

    def __init__(self, usual: FisheyeViews, agreement: StereoAgreement | None) -> None:
        self._usual = usual, agreement
        bent = usual.bent
        self._bent = bent, None if agreement is None else replace(agreement, lens=bent.as_pictures[0])
        self.are_seen = False
        """True while bent pictures are shown."""

    @staticmethod
    def may_need(views: FisheyeViews) -> bool:
        """False where an eye is no equirectangular one, or is shown as two pictures: nobody is at the rim of both."""
        return not isinstance(views.lens, Fisheye) and views.count == 1

    @property
    def views(self) -> FisheyeViews:
        """What eyes are shown as now."""
        return (self._bent if self.are_seen else self._usual)[0]

    @property
    def agreement(self) -> StereoAgreement | None:
        """Brings together the answers about these."""
        return (self._bent if self.are_seen else self._usual)[1]

    @property
    def shown(self) -> NetworkInput:
        """What the network is shown now."""
        return self.views.as_pictures[1]

    def would_be_seen(self, alpha: FloatArray) -> bool:
        """Whether bent pictures are right from a frame on.

        Args:
            alpha: float32 [E, h, w], 0..1, of the frame as it is shown now, in the host's memory.
        """
        map_x, map_y, at_rim = _counted(self.views.as_pictures[0], (alpha.shape[1], alpha.shape[2]))
        people = np.stack([remap(eye, map_x, map_y) > _PERSON for eye in alpha]) & (map_x != OUTSIDE)
        share = _STAYING_SHARE if self.are_seen else _SHARE
        return int((people & at_rim).sum()) > share * int(people.sum())

    def change(self, state: SpatialState, *, are_seen: bool) -> None:
        """Switch to the other pictures, and convert the network's memory.

        That lies at the places of the other picture until the network has seen some frames. Moving it, or beginning
        anew, was no better in four places with a truth.
        """
        state.stretch(self.shown.size)
        self.are_seen = are_seen

    def with_choice(self, memory: list[FloatArray]) -> list[FloatArray]:
        """What the network remembers, and which pictures are shown: what a run that goes on has to know."""
        return [*memory, np.array([self.are_seen], np.float32)] if memory else []

    def go_on_from(self, memory: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """Take over from an earlier run.

        Args:
            memory: As ``with_choice`` gives it.

        Returns:
            What the network remembers.
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
