"""Synthetic VR video with exact truth: flat figures in front of a surround, seen by one eye or two through any lens.

A figure is a picture that stands somewhere in the world and faces the viewer's head. Rays are cast from each sample
of an eye to the figures' planes and the surround, so alpha and depth are known. Directions and lenses are those of
``projection``; lengths are in metres.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import StereoLayout
from vitascope.gpu.kernels.region import Region
from vitascope.vr.projection import OUTSIDE, Equirectangular, Lens, turned
from vitascope.vr.stereo import eye_regions

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a figure's centre, seen from the point between the eyes.

    Raises:
        ValueError: The distance is not positive.
    """

    azimuth_degrees: float = 0.0
    """Degrees to the right of straight ahead."""
    elevation_degrees: float = 0.0
    """Degrees above the horizon."""
    distance_m: float = 2.0

    def __post_init__(self) -> None:
        """Check the distance."""
        if self.distance_m <= 0:
            raise ValueError(f"a figure at a distance of {self.distance_m:g} m: expected more than 0")


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A flat picture that faces the viewer.

    Raises:
        ValueError: The picture is not RGBA, or not exactly one height is given.
    """

    rgba: Array
    """[h, w, 4], straight alpha; uint8, or floats 0..1."""
    place: Place | Callable[[float], Place] = Place()
    """Its position, or a function of the time in seconds."""
    height_m: float | None = None
    """Height of the whole picture; the width follows from its shape."""
    height_degrees: float | None = None
    """Angle spanned by the picture's height, at any distance; instead of ``height_m``."""

    def __post_init__(self) -> None:
        """Check picture and height."""
        if self.rgba.ndim != 3 or self.rgba.shape[2] != 4:
            raise ValueError(
                f"a figure's picture has the shape {self.rgba.shape}: expected [height, width, 4]"
            )
        if (self.height_m is None) == (self.height_degrees is None):
            raise ValueError("a figure must have one height: height_m or height_degrees")

    def place_at(self, time_seconds: float) -> Place:
        """Its position at a time."""
        return self.place(time_seconds) if callable(self.place) else self.place

    def height_m_at(self, distance_m: float) -> float:
        """Its height when it stands at this distance."""
        if self.height_m is not None:
            return self.height_m
        assert self.height_degrees is not None  # __post_init__ ensures one of them
        return 2 * distance_m * math.tan(math.radians(self.height_degrees) / 2)


def drift(
    start: Place,
    *,
    azimuth_degrees_per_second: float = 0.0,
    elevation_degrees_per_second: float = 0.0,
    distance_m_per_second: float = 0.0,
) -> Callable[[float], Place]:
    """A path of constant speed, for ``Figure.place``."""

    def place(time_seconds: float) -> Place:
        return Place(
            start.azimuth_degrees + time_seconds * azimuth_degrees_per_second,
            start.elevation_degrees + time_seconds * elevation_degrees_per_second,
            start.distance_m + time_seconds * distance_m_per_second,
        )

    return place


@dataclass(frozen=True, slots=True, eq=False)
class Surround:
    """The background behind all figures.

    Raises:
        ValueError: The picture is not RGB.
    """

    rgb: npt.NDArray[np.uint8]
    """uint8 [h, w, 3]: the whole sphere, equirectangular, straight ahead in the middle."""
    radius_m: float = math.inf
    """Radius of the sphere that carries the picture, around the viewer's head."""

    def __post_init__(self) -> None:
        """Check the picture."""
        if self.rgb.ndim != 3 or self.rgb.shape[2] != 3 or self.rgb.dtype != np.uint8:
            raise ValueError(
                f"a surround is {self.rgb.dtype} {self.rgb.shape}: expected uint8 [height, width, 3]"
            )


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera in a scene."""

    lens: Lens = field(default_factory=Equirectangular)
    size: tuple[int, int] = (512, 1024)
    """(height, width) of the frame, both eyes together."""
    layout: StereoLayout = StereoLayout.SIDE_BY_SIDE
    eye_distance_m: float = 0.064
    samples: int = 2
    """Rays along each side of a pixel; the pixel is their mean."""

    @property
    def regions(self) -> list[Region]:
        """The eyes' regions in the frame, the left one first."""
        return eye_regions(self.size[1], self.size[0], self.layout)

    @property
    def eyes(self) -> list[npt.NDArray[np.float64]]:
        """The eyes' positions, float64 [3] in metres, the left one first; a mono camera is between them."""
        if self.layout is StereoLayout.MONO:
            return [np.zeros(3)]
        return [np.array([side * self.eye_distance_m / 2, 0.0, 0.0]) for side in (-1, 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Figures, their surround, and the camera."""

    figures: tuple[Figure, ...]
    surround: Surround | None = None
    """Black when omitted."""
    camera: Camera = Camera()


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A frame and its truth; all 0 where the lens shows nothing."""

    rgb: npt.NDArray[np.uint8]
    """[H, W, 3]."""
    alpha: npt.NDArray[np.float32]
    """[H, W], 0..1: of all figures together."""
    depth_m: npt.NDArray[np.float32]
    """[H, W]: distance from the eye to the nearest figure visible in the pixel, otherwise to the surround
    (infinity)."""


def render(scene: Scene, time_seconds: float = 0.0) -> View:
    """Render a frame and its truth.

    Figures cover each other in the order of their centres' distances; intersecting planes are not resolved.

    Args:
        scene: The scene to render, with its camera.
        time_seconds: Time in the scene.
    """
    camera = scene.camera
    view = View(
        np.zeros((*camera.size, 3), np.uint8),
        np.zeros(camera.size, np.float32),
        np.zeros(camera.size, np.float32),
    )
    standing = [(figure, figure.place_at(time_seconds)) for figure in scene.figures]
    standing.sort(key=lambda one: one[1].distance_m, reverse=True)
    for region, eye in zip(camera.regions, camera.eyes, strict=True):
        density = _samples_per_radian(camera, region)
        layers: list[_Layer] = [_standing_layer(figure, place, eye, density) for figure, place in standing]
        if scene.surround is not None:
            layers.insert(0, _surround_layer(scene.surround, eye, density))
        for top in range(0, region.height, _BAND_ROWS):
            rows = range(top, min(top + _BAND_ROWS, region.height))
            band = slice(region.y + rows.start, region.y + rows.stop), region.columns
            view.rgb[band], view.alpha[band], view.depth_m[band] = _paint(
                layers, _rays(camera.lens, region.size, rows, camera.samples), camera.samples
            )
    return view


def clip(scene: Scene, *, frame_rate: Fraction, frame_count: int) -> Iterator[View]:
    """Render the frames of a video of the scene, from time 0 on."""
    for index in range(frame_count):
        yield render(scene, float(index / frame_rate))


def stereo_map(
    camera: Camera, depth_m: npt.NDArray[np.float32], *, eye: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """For each sample of one eye, its position in the other eye.

    Args:
        camera: A camera with two eyes.
        depth_m: float32 [h, w] of this eye.
        eye: 0 for the left eye, 1 for the right one.

    Returns:
        map_x and map_y, float32 [h, w], in the other eye's samples, for ``gpu.kernels.remap``; ``OUTSIDE`` where that
        eye does not look.
    """
    height, width = depth_m.shape
    rays = _rays(camera.lens, (height, width), range(height), 1)
    here, there = camera.eyes[eye], camera.eyes[1 - eye]
    # per metre of depth, so that infinity is a direction like any other
    seen = rays + ((here - there)[:, None, None] / np.maximum(depth_m, 1e-6))
    with np.errstate(invalid="ignore"):
        places = camera.lens.project(seen)
    region = camera.regions[1 - eye]
    map_x, map_y = (
        np.nan_to_num(place * side - 0.5, nan=OUTSIDE).astype(np.float32)
        for place, side in zip(places, (region.width, region.height), strict=True)
    )
    return map_x, map_y


def eye_disagreement(alpha: npt.NDArray[np.float32], truth: View, camera: Camera) -> float:
    """Measure how the eyes' mattes differ along the figures' outlines, after aligning the outlines.

    It is the mean absolute difference between one eye's alpha and the other eye's, read where it shows the same part
    of the figure. Only edges count, since elsewhere any two mattes agree. Samples of equirectangular eyes are
    weighted by the area that they show: a row at a pole shows a single point. Even the truth does not reach 0,
    because interpolation blurs, so measure it as well.

    Args:
        alpha: float32 [H, W], 0..1: mattes of both eyes, in place.
        truth: The frame that was matted.
        camera: The camera that rendered it.

    Returns:
        0..1; NaN if no outline is visible to both eyes.
    """
    parts, eyes = camera.regions, camera.eyes
    reach = max(round(parts[0].height / 100), 1)  # number of samples on either side of the outline that count
    window = np.ones((2 * reach + 1, 2 * reach + 1), np.uint8)
    # Just outside its outline, too, a figure's matte is at the figure's depth.
    depths = [
        _carried_outwards(truth.depth_m[part.rows, part.columns], truth.alpha[part.rows, part.columns] > 0)
        for part in parts
    ]
    apart: list[Array] = []
    weights: list[Array] = []
    areas = np.ones(parts[0].size)
    if isinstance(camera.lens, Equirectangular):
        areas *= camera.lens.row_areas(parts[0].height)[:, None]
    for eye, (here, there) in enumerate(zip(parts, reversed(parts), strict=True)):
        own = truth.alpha[here.rows, here.columns]
        band = cv2.dilate(own, window) - cv2.erode(own, window) > 0.5
        map_x, map_y = stereo_map(camera, depths[eye], eye=eye)
        other = cv2.remap(alpha[there.rows, there.columns], map_x, map_y, cv2.INTER_LINEAR)
        inside = (map_x >= 0) & (map_x <= there.width - 1) & (map_y >= 0) & (map_y <= there.height - 1)
        # Where another figure hides an outline from one eye, the eyes see two different things.
        rays = _rays(camera.lens, here.size, range(here.height), 1)
        expected = np.linalg.norm(rays * depths[eye] + (eyes[eye] - eyes[1 - eye])[:, None, None], axis=0)
        met = cv2.remap(depths[1 - eye], map_x, map_y, cv2.INTER_NEAREST)
        same = np.abs(met - expected) <= _SAME_DEPTH * expected
        counted = band & inside & same
        apart.append(np.abs(alpha[here.rows, here.columns] - other)[counted])
        weights.append(areas[counted])
    every, weight = np.concatenate(apart), np.concatenate(weights)
    return float(np.average(every, weights=weight)) if every.size else math.nan


def _carried_outwards(depth: npt.NDArray[np.float32], of_figures: npt.NDArray[np.bool_]) -> Array:
    """Depth [h, w] in which samples outside figures have the depth of the nearest sample of one; 0 if there is none."""
    if not of_figures.any():
        return np.zeros_like(depth)
    _, nearest = cv2.distanceTransformWithLabels(
        (~of_figures).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )
    by_label = np.zeros(int(nearest.max()) + 1, np.float32)
    by_label[nearest[of_figures]] = depth[of_figures]
    return np.asarray(by_label[nearest])


def person_picture(height: int = 512, *, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Draw a figure of ellipses with striped clothes and soft hair.

    Returns:
        uint8 [height, height // 2, 4], straight alpha; the same for the same seed.
    """
    random = np.random.default_rng(seed)
    width = height // 2
    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / height, indexing="ij")
    noise = _noise(random, x, y, cells=24)[..., 0]
    shirt, trousers = random.integers(40, 216, (2, 3))
    skin = np.array([216, 166, 136])
    rgb = np.broadcast_to(skin.astype(np.float64), (height, width, 3)).copy()
    rgb += 60 * noise[..., None]
    stripes = 0.75 + 0.25 * np.sign(np.sin(y * 160))
    clothed = {(0.19, 0.53): shirt, (0.53, 0.94): trousers}
    for (first, last), colour in clothed.items():
        rows = (y >= first) & (y < last)
        rgb[rows] = (colour * stripes[..., None] * (1 + 0.6 * noise[..., None]))[rows]
    outline = np.full((height, width), -1.0)
    for center_x, center_y, radius_x, radius_y in _BODY:
        distance = np.hypot((x - center_x) / radius_x, (y - center_y) / radius_y)
        outline = np.maximum(outline, (1 - distance) * min(radius_x, radius_y) * height)
    alpha = np.clip(outline + 0.5, 0, 1)
    # hair: ever fewer strands outwards from the crown, each a separate ray
    head_x, head_y, radius_x, radius_y = _BODY[0]
    angle = np.arctan2(y - head_y, x - head_x)
    outward = np.hypot((x - head_x) / radius_x, (y - head_y) / radius_y)
    strands = 0.5 + 0.5 * np.sin(angle * 90 + 6 * noise)
    hair = np.clip((1.3 - outward) / 0.4, 0, 1) * np.where(outward > 1, strands, 1) * (y < head_y)
    rgb[(outward > 0.8) & (y < head_y)] = (62, 42, 30)
    picture = np.dstack([rgb, 255 * np.maximum(alpha, hair)])
    return np.asarray(np.clip(np.rint(picture), 0, 255), np.uint8)


def noise_surround(height: int = 1024) -> npt.NDArray[np.uint8]:
    """Draw a surround of soft coloured blots with fine texture, without seam or poles.

    Returns:
        uint8 [height, 2 * height, 3]; the same each time.
    """
    random = np.random.default_rng(0)
    rays = _rays(Equirectangular(360, 180), (height, 2 * height), range(height), 1)
    weights = rays**2 / np.sqrt((rays**4).sum(axis=0))
    rgb = np.zeros((height, 2 * height, 3), np.float32)
    for cells in _OCTAVES:
        # Noise on three planes, each read where the sphere faces it.
        for axis in range(3):
            across, down = (rays[other] / 2 + 0.5 for other in range(3) if other != axis)
            rgb += _noise(random, across, down, cells=cells) * weights[axis, ..., None] / cells**0.3
    return np.asarray(np.clip(np.rint(118 + 130 * rgb), 0, 255), np.uint8)


_SAME_DEPTH = 0.05
"""Share by which two eyes' depths of one object may differ; samples of a slanted figure differ by less."""

_BAND_ROWS = 64
"""Rows rendered together, so that their rays stay in a core's cache."""

_BODY = (
    (0.25, 0.095, 0.055, 0.075),  # head, then neck, trunk, hips, arms, legs, feet: centre and radii
    (0.25, 0.175, 0.030, 0.050),
    (0.25, 0.345, 0.095, 0.180),
    (0.25, 0.520, 0.080, 0.090),
    (0.14, 0.370, 0.032, 0.180),
    (0.36, 0.370, 0.032, 0.180),
    (0.20, 0.730, 0.045, 0.230),
    (0.30, 0.730, 0.045, 0.230),
    (0.19, 0.955, 0.055, 0.025),
    (0.31, 0.955, 0.055, 0.025),
)

_OCTAVES = (3, 12, 48, 192)
"""Cells of noise across a diameter of the sphere."""


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Something visible from one eye."""

    picture: npt.NDArray[np.float32]
    """[h, w, 4], 0..1, premultiplied."""
    meet: Callable[[Array], tuple[Array, Array, Array]]
    """Turns rays [3, ...] into x and y, in fractions of the picture, and the depth."""
    is_figure: bool


def _standing_layer(figure: Figure, place: Place, eye: Array, density: tuple[float, float]) -> _Layer:
    # The columns of the rotation are the figure's right, its down, and the way to it.
    axes = turned(yaw_degrees=place.azimuth_degrees, pitch_degrees=place.elevation_degrees)
    own_eye = axes.T @ eye
    height = figure.height_m_at(place.distance_m)
    width = height * figure.rgba.shape[1] / figure.rgba.shape[0]

    def meet(rays: Array) -> tuple[Array, Array, Array]:
        right, down, ahead = np.tensordot(axes.T.astype(np.float32), rays, axes=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            depth = np.float32(place.distance_m - own_eye[2]) / ahead
        depth = np.where((ahead > 0) & (depth > 0), depth, np.float32(np.nan))
        return (
            (float(own_eye[0]) + depth * right) / width + 0.5,
            (float(own_eye[1]) + depth * down) / height + 0.5,
            depth,
        )

    picture = figure.rgba.astype(np.float32)
    if figure.rgba.dtype == np.uint8:
        picture /= 255
    picture[..., :3] *= picture[..., 3:]
    size = density[0] * height / place.distance_m, density[1] * width / place.distance_m
    return _Layer(_shrunk(picture, size), meet, is_figure=True)


def _surround_layer(surround: Surround, eye: Array, density: tuple[float, float]) -> _Layer:
    sphere = Equirectangular(360, 180)

    def meet(rays: Array) -> tuple[Array, Array, Array]:
        if math.isinf(surround.radius_m):
            return (*sphere.project(rays), np.full(rays.shape[1:], np.inf, np.float32))
        along = np.tensordot(eye, rays, axes=1)
        depth = np.sqrt(along**2 + surround.radius_m**2 - eye @ eye) - along
        return (*sphere.project(eye[:, None, None] + depth * rays), depth)

    opaque = np.dstack([surround.rgb, np.full(surround.rgb.shape[:2], 255, np.uint8)]).astype(np.float32)
    size = density[0] * math.pi, density[1] * 2 * math.pi
    return _Layer(_shrunk(opaque / np.float32(255), size), meet, is_figure=False)


def _paint(layers: list[_Layer], rays: Array, samples: int) -> tuple[Array, Array, Array]:
    """RGB, alpha and depth of a band, from the layers, the farthest first."""
    _, rows, columns = rays.shape
    painted: Array = np.zeros((rows, columns, 4), np.float32)  # the last plane is the figures' alpha
    depth = np.full((rows, columns), np.inf, np.float32)
    for layer in layers:
        x, y, distance = layer.meet(rays)
        height, width = layer.picture.shape[:2]
        map_x, map_y = (
            np.nan_to_num(place * side - 0.5, nan=OUTSIDE, posinf=OUTSIDE, neginf=OUTSIDE).astype(np.float32)
            for place, side in ((x, width), (y, height))
        )
        if layer.is_figure and not ((map_x > -1) & (map_x < width) & (map_y > -1) & (map_y < height)).any():
            continue
        border = cv2.BORDER_CONSTANT
        if not layer.is_figure:
            # Only longitude goes on at the other border; one pole is not the other's neighbour.
            border, map_y = cv2.BORDER_WRAP, np.clip(map_y, 0, height - 1)
        read = cv2.remap(layer.picture, map_x, map_y, cv2.INTER_LINEAR, borderMode=border)
        if layer.is_figure:
            painted = read + painted * (1 - read[..., 3:])
            depth = np.where(read[..., 3] > 0, distance, depth)
        else:
            painted[..., :3] = read[..., :3]
            depth = distance
    shown = np.isfinite(rays[2])
    painted[~shown], depth[~shown] = 0, 0
    size = rows // samples, columns // samples
    painted = cv2.resize(painted, size[::-1], interpolation=cv2.INTER_AREA)
    nearest = depth[::samples, ::samples]
    for row, column in np.ndindex(samples, samples):
        nearest = np.minimum(nearest, depth[row::samples, column::samples])
    return np.rint(painted[..., :3] * 255), painted[..., 3], nearest


def _rays(lens: Lens, size: tuple[int, int], rows: range, samples: int) -> Array:
    """Directions of some rows' samples, float32 [3, rows * samples, width * samples]."""
    height, width = size
    across = (np.arange(width * samples) + 0.5) / (width * samples)
    down = (np.arange(rows.start * samples, rows.stop * samples) + 0.5) / (height * samples)
    y, x = np.meshgrid(down, across, indexing="ij")
    return lens.unproject(x, y).astype(np.float32)


def _samples_per_radian(camera: Camera, region: Region) -> tuple[float, float]:
    """(down, across) straight ahead, where every lens is at its coarsest."""
    step = 1e-3
    x, y = camera.lens.project(np.array([[0.0, step, 0.0], [0.0, 0.0, step], [1.0, 1.0, 1.0]]))
    rays = camera.samples / math.atan(step)
    return float(y[2] - y[0]) * region.height * rays, float(x[1] - x[0]) * region.width * rays


def _shrunk(picture: npt.NDArray[np.float32], size: tuple[float, float]) -> npt.NDArray[np.float32]:
    """The picture with no more texels than (height, width) samples will read: more would alias."""
    height, width = (
        max(min(side, math.ceil(wanted)), 1) for side, wanted in zip(picture.shape[:2], size, strict=True)
    )
    return np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA), np.float32)


def _noise(random: np.random.Generator, x: Array, y: Array, *, cells: int) -> npt.NDArray[np.float32]:
    """Smooth noise of three channels, about -0.5..0.5, at places 0..1 of a square with so many cells a side."""
    grid = random.random((cells, cells, 3), np.float32) - np.float32(0.5)
    map_x, map_y = ((place * cells - 0.5).astype(np.float32) for place in (x, y))
    read = cv2.remap(grid, map_x, map_y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(read, np.float32)
