"""Finds the layout and projection of a video: from the settings, the file, its name, or else its frames."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vitascope.config import VideoSettings
from vitascope.frames import Plane, Projection, StereoLayout, VideoInfo
from vitascope.media.reading.reader import keyframe_lumas
from vitascope.vr.detection import NO_SIGN, VrDescription, describe_vr, possible_layout

_PICTURES, _LONGEST_SIDE = 5, 512


def vr_of(
    info: VideoInfo, wanted: VideoSettings, *, luma: Plane | None = None, always_looks: bool = False
) -> VrDescription:
    """Find the layout and projection of a video.

    Args:
        info: The video.
        wanted: Requested ``stereo``, ``projection`` and ``fov_degrees``.
        luma: A picture to inspect, uint8 [H, W], if there is no file: a camera's.
        always_looks: Inspect frames even if file or user give the layout, because frames may contradict it.

    Raises:
        UsageError: The projection does not allow this field of view.
    """
    said_of_it = _Said(
        None if wanted.stereo == "auto" else wanted.stereo,
        None if wanted.projection == "auto" else wanted.projection,
        wanted.fov_degrees,
    )
    if luma is not None:
        return said_of_it.describe(info, (luma,))
    # A field of view is checked against the projection that frames show, so it must not fail this first check.
    is_open = always_looks or _leaves_open(said_of_it._replace(fov_degrees=None).describe(info, ()), info)
    if info.container != "images" and is_open:
        with suppress(OSError):  # the file was removed in the meantime
            return _seen(_Video(info, info.path.stat().st_mtime_ns), said_of_it)
    return said_of_it.describe(info, ())


def vr_of_run(info: VideoInfo, wanted: VideoSettings) -> VrDescription:
    """Find the layout and projection of a video for a full run, which also compares the two eyes.

    Args:
        info: The video.
        wanted: As for ``vr_of``.

    Raises:
        UsageError: The projection does not allow this field of view.
    """
    said = vr_of(info, wanted)
    return said if said.layout is StereoLayout.MONO else vr_of(info, wanted, always_looks=True)


class _Said(NamedTuple):
    """Return what the user says about a video; None for values to detect."""

    layout: StereoLayout | None
    projection: Projection | None
    fov_degrees: float | None

    def describe(self, info: VideoInfo, pictures: Sequence[Plane]) -> VrDescription:
        return describe_vr(
            info, pictures, layout=self.layout, projection=self.projection, fov_degrees=self.fov_degrees
        )


@dataclass(frozen=True, slots=True)
class _Video:
    info: VideoInfo
    written_ns: int

    def __hash__(self) -> int:  # info's tags are a dict, which is not hashable
        return hash((self.info.path, self.written_ns))


def _leaves_open(said: VrDescription, info: VideoInfo) -> bool:
    """True if decoding some frames would tell more; that takes longer than opening a file."""
    if said.projection is Projection.FISHEYE:
        return True  # for the position of its circle
    if said.layout_reason.how == NO_SIGN and possible_layout(info.width, info.height) is not None:
        return True
    if said.layout_reason.sureness == "a guess" and said.layout is not StereoLayout.MONO:
        return True  # to decide between two words in its name
    is_guess = said.projection_reason.sureness == "a guess"
    return is_guess and (said.projection is not Projection.FLAT or said.layout is not StereoLayout.MONO)


@lru_cache(maxsize=64)
def _seen(video: _Video, said: _Said) -> VrDescription:
    """Describe a video by its frames; cached, because every part of a run asks, and comparing eyes takes long."""
    return said.describe(video.info, _keyframes(video.info.path, video.written_ns))


@lru_cache(maxsize=64)
def _keyframes(video: Path, _written_ns: int) -> tuple[npt.NDArray[np.uint8], ...]:
    return tuple(keyframe_lumas(video, _PICTURES, longest_side=_LONGEST_SIDE))
