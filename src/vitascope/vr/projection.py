"""Projections: maps between positions in an eye's picture and directions in the world, and between projections.

Directions are unit vectors (x, y, z): x to the right, y down, z straight ahead. Positions are fractions of the
picture's width and height, from (0, 0) in the top left corner to (1, 1) in the bottom right one, so squeezed eyes
(half side by side) need no special case. VR cameras and players use the equidistant fisheye: the distance from the
centre is proportional to the angle from the axis. A fisheye with a bend uses the tangent of a part of the angle; with
half the angle the picture is stereographic and small shapes keep their form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vitascope.device import available_cores
from vitascope.gpu.kernels.region import Region

Array = npt.NDArray[np.float64]

_BAND_ROWS = 32
"""Rows of maps that a thread makes at once, so that their values stay in the cache."""

OUTSIDE = -1e4
"""Value of a map where the source shows nothing: outside every picture."""


class Lens(Protocol):
    """A projection."""

    def unproject(self, x: Array, y: Array) -> Array:
        """Convert positions to the directions that they show.

        Args:
            x: float64, fractions of the width.
            y: float64, fractions of the height, of the same shape.

        Returns:
            float64 [3, ...], unit vectors; NaN where the picture shows nothing.
        """
        ...

    def project(self, rays: Array) -> tuple[Array, Array]:
        """Convert directions to the positions that show them.

        Args:
            rays: float64 [3, ...], of any length but 0.

        Returns:
            x and y, float64, fractions of width and height; NaN if the picture does not show the direction.
        """
        ...


@dataclass(frozen=True, slots=True)
class Equirectangular:
    """Longitude across, latitude down.

    Raises:
        ValueError: The field of view is impossible for this projection.
    """

    horizontal_fov_degrees: float = 180.0
    """180 for a VR180 eye, 360 for a whole sphere; above 0, at most 360."""
    vertical_fov_degrees: float = 180.0
    """Above 0, at most 180."""

    def __post_init__(self) -> None:
        """Check the fields of view."""
        _check_fov(self.horizontal_fov_degrees, 360.0)
        _check_fov(self.vertical_fov_degrees, 180.0)

    @property
    def wraps(self) -> bool:
        """True if the left and right borders meet."""
        return self.horizontal_fov_degrees == 360.0

    def row_areas(self, height: int) -> Array:
        """Area of the sphere shown by a sample of each row, relative to one at the horizon: float64 [height], 0..1.

        These are the weights of WS-PSNR (Sun, Lu and Yu, IEEE Signal Processing Letters 24(9), 2017).
        """
        latitude = (np.arange(height) + 0.5) / height - 0.5
        return np.cos(latitude * math.radians(self.vertical_fov_degrees))

    def unproject(self, x: Array, y: Array) -> Array:
        """See ``Lens``."""
        longitude = (x - 0.5) * math.radians(self.horizontal_fov_degrees)
        latitude = (y - 0.5) * math.radians(self.vertical_fov_degrees)
        across = np.cos(latitude)
        return np.stack([across * np.sin(longitude), np.sin(latitude), across * np.cos(longitude)])

    def project(self, rays: Array) -> tuple[Array, Array]:
        """See ``Lens``."""
        longitude = np.arctan2(rays[0], rays[2])
        latitude = np.arctan2(rays[1], np.hypot(rays[0], rays[2]))
        x = longitude / math.radians(self.horizontal_fov_degrees) + 0.5
        y = latitude / math.radians(self.vertical_fov_degrees) + 0.5
        return _inside(x, y, _within(x) & _within(y))


@dataclass(frozen=True, slots=True)
class Fisheye:
    """Fisheye: the distance from the centre grows with the angle from the axis.

    Raises:
        ValueError: An impossible field of view, a radius that is not positive, or a bend out of range.
    """

    fov_degrees: float = 180.0
    """Angle across the circle; above 0, at most 360."""
    center: tuple[float, float] = (0.5, 0.5)
    """(x, y) of the circle's centre, as fractions of the picture."""
    radius: tuple[float, float] = (0.5, 0.5)
    """(x, y) radius of the circle, as fractions of the picture's width and height."""
    bend: float = 0.0
    """The distance from the centre grows as tan(bend * angle): 0 is equidistant (the angle itself), 0.5
    stereographic; at least 0, below 180 / fov_degrees."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check_fov(self.fov_degrees, 360.0)
        if min(self.radius) <= 0:
            raise ValueError(f"a fisheye circle of radius {self.radius}: expected more than 0")
        if not 0 <= self.bend < 180 / self.fov_degrees:
            raise ValueError(
                f"a bend of {self.bend:g} at {self.fov_degrees:g} degrees: expected at least 0, below "
                f"{180 / self.fov_degrees:g}"
            )

    def unproject(self, x: Array, y: Array) -> Array:
        """See ``Lens``."""
        across, down = (x - self.center[0]) / self.radius[0], (y - self.center[1]) / self.radius[1]
        distance = np.hypot(across, down)
        # angle / distance, which is also defined at the centre
        if self.bend == 0:
            growth: Array | float = self._most_angle
        else:
            growth = np.full(distance.shape, self._most / self.bend)
            np.divide(
                np.arctan(distance * self._most) / self.bend, distance, out=growth, where=distance > 1e-9
            )
        angle = distance * growth
        # sin(angle) / distance
        spread = np.sinc(angle / math.pi) * growth
        rays = np.stack([across * spread, down * spread, np.cos(angle)])
        rays[:, distance > 1 + _EDGE] = np.nan
        return rays

    def project(self, rays: Array) -> tuple[Array, Array]:
        """See ``Lens``."""
        across = np.hypot(rays[0], rays[1])
        angle = np.arctan2(across, rays[2])
        if self.bend == 0:
            distance = angle / self._most_angle
        else:
            # beyond the circle the tangent has a pole, and nothing is shown
            seen = np.minimum(angle, self._most_angle * (1 + 2 * _EDGE))
            distance = np.tan(self.bend * seen) / self._most
        scale = distance / np.maximum(across, 1e-12)
        x = self.center[0] + rays[0] * scale * self.radius[0]
        y = self.center[1] + rays[1] * scale * self.radius[1]
        return _inside(x, y, angle <= self._most_angle * (1 + _EDGE))

    @property
    def _most_angle(self) -> float:
        """The angle from the axis at the circle's edge, in radians."""
        return math.radians(self.fov_degrees) / 2

    @property
    def _most(self) -> float:
        """The tangent at the circle's radius."""
        return math.tan(self.bend * self._most_angle)


@dataclass(frozen=True, slots=True)
class Rectilinear:
    """A flat picture, as from an ordinary camera.

    Raises:
        ValueError: The field of view is impossible for this projection.
    """

    horizontal_fov_degrees: float = 90.0
    """Above 0, below 180."""
    vertical_fov_degrees: float = 90.0
    """Above 0, below 180."""

    def __post_init__(self) -> None:
        """Check the fields of view."""
        for fov in (self.horizontal_fov_degrees, self.vertical_fov_degrees):
            _check_fov(fov, math.nextafter(180.0, 0.0))

    def unproject(self, x: Array, y: Array) -> Array:
        """See ``Lens``."""
        half_width, half_height = self._half_size
        rays = np.stack([(2 * x - 1) * half_width, (2 * y - 1) * half_height, np.ones_like(x)])
        return np.asarray(rays / np.linalg.norm(rays, axis=0))

    def project(self, rays: Array) -> tuple[Array, Array]:
        """See ``Lens``."""
        half_width, half_height = self._half_size
        depth = np.maximum(rays[2], 1e-12)
        x, y = (rays[0] / depth / half_width + 1) / 2, (rays[1] / depth / half_height + 1) / 2
        return _inside(x, y, (rays[2] > 0) & _within(x) & _within(y))

    @property
    def _half_size(self) -> tuple[float, float]:
        """Half the picture's width and height at distance 1."""
        return (
            math.tan(math.radians(self.horizontal_fov_degrees) / 2),
            math.tan(math.radians(self.vertical_fov_degrees) / 2),
        )


def turned(*, yaw_degrees: float = 0.0, pitch_degrees: float = 0.0) -> Array:
    """The rotation of a camera looking to the right by ``yaw_degrees`` and up by ``pitch_degrees``.

    Returns:
        float64 [3, 3], which turns the camera's directions into the world's.
    """
    yaw, pitch = math.radians(yaw_degrees), math.radians(pitch_degrees)
    aside = np.array(
        [[math.cos(yaw), 0.0, math.sin(yaw)], [0.0, 1.0, 0.0], [-math.sin(yaw), 0.0, math.cos(yaw)]]
    )
    up = np.array(
        [[1.0, 0.0, 0.0], [0.0, math.cos(pitch), -math.sin(pitch)], [0.0, math.sin(pitch), math.cos(pitch)]]
    )
    return np.asarray(aside @ up)


def reprojection_map(
    source: Lens,
    target: Lens,
    *,
    source_size: tuple[int, int],
    target_size: tuple[int, int],
    rotation: Array | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Make the maps that show a picture in another projection, for ``gpu.kernels.remap``.

    Args:
        source: Projection of the existing picture.
        target: Projection of the picture to make.
        source_size: (height, width) in samples.
        target_size: (height, width) in samples.
        rotation: Direction of the target's camera, see ``turned``; straight ahead when omitted.

    Returns:
        map_x and map_y, float32 [height, width] of the target: the source's samples to read, with centres at whole
        numbers; ``OUTSIDE`` where the source shows nothing.
    """
    height, width = target_size
    maps = np.empty((2, height, width), np.float32)

    def make(first: int) -> None:
        rows = np.arange(first, min(first + _BAND_ROWS, height))
        y, x = np.meshgrid((rows + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
        rays = target.unproject(x, y)
        if rotation is not None:
            rays = np.tensordot(rotation, rays, axes=1)
        with np.errstate(invalid="ignore"):
            places = source.project(rays)
        for made, place, size in zip(maps, places, reversed(source_size), strict=True):
            made[rows] = np.nan_to_num(place * size - 0.5, nan=OUTSIDE)

    # An 8K eye's maps would take seconds on one core, and gigabytes if made at once.
    with ThreadPoolExecutor(available_cores()) as threads:
        for _ in threads.map(make, range(0, height, _BAND_ROWS)):
            pass
    return maps[0], maps[1]


def frame_maps(
    sources: Sequence[Lens],
    target: Lens,
    regions: Sequence[Region],
    places: Sequence[Region],
    *,
    frame_size: tuple[int, int],
    made_size: tuple[int, int],
    margin: int,
) -> npt.NDArray[np.float32]:
    """Make the maps that show a frame's eyes in another projection, never mixing the eyes, not even in chroma.

    Args:
        sources: Projection of each eye.
        target: Projection of each eye to make.
        regions: Region of each eye in the frame.
        places: Region of each eye in the frame to make; together they cover it.
        frame_size: (height, width) in luma samples.
        made_size: (height, width) of the frame to make.
        margin: Positions nearer to an eye's border than this many luma samples are moved inwards to it: 1 for linear
            reading, 3 for cubic, which reads two samples of chroma, every other one of luma, on each side of a
            position.

    Returns:
        map_x and map_y as from ``reprojection_map``, in samples of the frame: float32 [2, *made_size].
    """
    made = np.empty((2, *made_size), np.float32)
    known: tuple[object, tuple[npt.NDArray[np.float32], ...]] | None = None
    for lens, region, place in zip(sources, regions, places, strict=True):
        if known is None or known[0] != (lens, region.size, place.size):  # eyes differ only in position
            maps = reprojection_map(lens, target, source_size=region.size, target_size=place.size)
            known = (lens, region.size, place.size), maps
        starts, lengths = (region.x, region.y), (region.width, region.height)
        for to_read, start, length, whole, axis in zip(
            known[1], starts, lengths, reversed(frame_size), made, strict=True
        ):
            # a chroma block divided by a seam at an odd position belongs to neither eye
            first, end = start + start % 2, start + length
            end -= end % 2 if end < whole else 0
            inwards = min(margin, (end - first - 1) // 2)
            kept = axis[place.rows, place.columns]
            np.clip(to_read + start, first + inwards, end - 1 - inwards, out=kept)
            kept[to_read == OUTSIDE] = OUTSIDE
    return made


_EDGE = 1e-9


def _within(place: Array) -> npt.NDArray[np.bool_]:
    return (place >= -_EDGE) & (place <= 1 + _EDGE)


def _inside(x: Array, y: Array, shown: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    return np.where(shown, x, np.nan), np.where(shown, y, np.nan)


def _check_fov(degrees: float, most: float) -> None:
    if not 0 < degrees <= most:
        raise ValueError(f"a field of view of {degrees:g} degrees: expected more than 0, at most {most:g}")
