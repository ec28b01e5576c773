"""A picture of each person of a video, where they were seen best: large, and nobody before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
"""[H, W, 3], red, green and blue."""

_HEIGHT = 192


@dataclass(frozen=True, slots=True)
class Sighting:
    """Somebody is seen better than ever before in the shot, in the frame that was looked at."""

    track: int
    worth: float
    """The more, the better they are seen."""
    rows: tuple[int, int]
    """The first and the last that show them, in cells."""
    columns: tuple[int, int]
    """Likewise."""
    grid: tuple[int, int]
    """Cells of the frame, (height, width)."""


class BestPictures:
    """Keeps a picture of each person, cut out of the frame that shows them best."""

    def __init__(self) -> None:
        self._tracks: dict[int, tuple[float, Picture]] = {}
        self._people: dict[int, tuple[float, Picture]] = {}

    def note(self, sighting: Sighting, eye: Picture) -> None:
        """Keep a picture.

        Args:
            sighting: Where somebody is seen.
            eye: The frame, uint8 [H, W, 3].
        """
        height, width = eye.shape[:2]
        first_row, last_row = (row * height // sighting.grid[0] for row in sighting.rows)
        first_column, last_column = (column * width // sighting.grid[1] for column in sighting.columns)
        top, left = max(first_row - height // 40, 0), max(first_column - width // 40, 0)
        right = min(last_column + width // 40, width)
        bottom = min(last_row + height // 40, top + round(1.5 * max(right - left, 8)), height)
        cut = eye[top:bottom, left:right]
        size = max(round(cut.shape[1] * _HEIGHT / cut.shape[0]), 1), _HEIGHT
        small = np.asarray(cv2.resize(cut, size, interpolation=cv2.INTER_AREA), np.uint8)
        self._tracks[sighting.track] = sighting.worth, small

    def end_shot(self, named: Mapping[int, int]) -> None:
        """Give the pictures of a shot's tracks to people: for a track's number, ``named`` has the person's."""
        for track, picture in self._tracks.items():
            if track in named:
                person = named[track]
                self._people[person] = max(self._people.get(person, picture), picture, key=lambda one: one[0])
        self._tracks.clear()

    def pngs(self) -> dict[int, bytes]:
        """For each person's number a PNG, 192 pixels high."""
        pictures = {}
        for number, (_, rgb) in sorted(self._people.items()):
            encoded, content = cv2.imencode(".png", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR))
            assert encoded
            pictures[number] = content.tobytes()
        return pictures
