"""Shows the eyes of VR video to the network as fisheye pictures without a black surround.

Towards the poles of an equirectangular picture, people are stretched sideways until no network recognises them. A
fisheye picture of the same eye keeps their shape. So each eye's small picture is mapped to one fisheye picture (VR180)
or to two that look ahead and back and overlap (360 degrees), and the network's output is mapped back before any other
stage sees it: those that read the full frame use the eye's own projection, and no frame is reprojected at full size.
These pictures are equidistant: the distance from the centre is proportional to the angle from the axis. This widens
people at the rim; bent pictures (``FisheyeViews.bent``) are stereographic, which keeps everybody's shape.

Eyes that are fisheye pictures already are cropped to their circle, and its rim is repeated outside. A network without a
memory takes the circle in its black surround for a person; for one with a memory, these eyes are left as they are
(``FisheyeViews.suit``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Self, TypeGuard

import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.remap import remap, remap_stack
from vitascope.gpu.memory.host_arrays import RecycledArrays
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.vr.projection import OUTSIDE, Equirectangular, Fisheye, Lens, reprojection_map, turned

_LARGEST_FOV_DEGREES = 200.0
"""Maximum field of view of an eye for one fisheye picture. Wider eyes get two, each with this field of view: they
overlap by 20 degrees, so that a person at the seam of one is whole in the other."""

_BEND: Final = 0.5
"""Bend of the pictures for people at the rim, who become up to 1.6 times as wide in equidistant pictures.
People ahead get a fifth fewer samples along each side: even with 0.35, alpha's error in four stereo scenes
grew by 3 to 20 percent."""
_REPEATED_SAMPLES: Final = 4
"""Samples of the rim repeated around the circle of bent pictures, because people continue beyond the picture.
8, in pictures of 784 samples instead of 768, was no better."""
_FRAMES_TOGETHER: Final = 4
"""Frames whose estimates a GPU maps back in one launch."""
BENT_PICTURES: Final = (_BEND, _REPEATED_SAMPLES)
"""Constants that bent pictures depend on."""


@dataclass(frozen=True, slots=True)
class FisheyeViews:
    """The fisheye pictures of an eye."""

    lens: Equirectangular | Fisheye
    """The eye's projection."""
    eye: NetworkInput
    """Format of the eye's own small picture."""
    size: tuple[int, int]
    """(height, width) of each fisheye picture."""
    bend: float = 0.0
    """Bend, as in ``Fisheye``."""
    radius: float = 0.5
    """Radius of the circle, as a share of a picture's side; bent pictures also repeat the rim at their borders."""

    @staticmethod
    def suit(lens: Lens | None, network: MattingNetwork) -> TypeGuard[Equirectangular | Fisheye]:
        """True if the network works better on fisheye pictures of the eye than on the eye itself."""
        return isinstance(lens, Equirectangular) or (isinstance(lens, Fisheye) and not network.recurrent)

    @classmethod
    def of_network(
        cls, lens: Equirectangular | Fisheye, network: MattingNetwork, eye_size: tuple[int, int]
    ) -> Self:
        """Choose the fisheye pictures in a network's format, and an eye's own picture of the same resolution.

        Args:
            lens: The eye's projection.
            network: The network that sees the fisheye pictures.
            eye_size: (height, width) of an eye, upright, in luma samples.
        """
        if isinstance(lens, Fisheye):
            across, down = (2 * radius for radius in lens.radius)
        else:
            fov = _fov_degrees(lens)
            across, down = fov / lens.horizontal_fov_degrees, fov / lens.vertical_fov_degrees
        side = max(round(eye_size[0] * down), 1)
        wanted = network.input_for((side, side))
        height, width = max(round(wanted.size[0] / down), 1), max(round(wanted.size[1] / across), 1)
        return cls(lens, replace(wanted, size=(height, width)), wanted.size)

    @property
    def count(self) -> int:
        """Number of fisheye pictures of each eye."""
        return _count(self.lens)

    @property
    def as_pictures(self) -> tuple[Fisheye, NetworkInput]:
        """Lens and format of each fisheye picture."""
        return _picture_lens(self), replace(self.eye, size=self.size)

    @property
    def bent(self) -> Self:
        """Bent pictures, of the same size and from the same eye: people at the rim keep their shape in them."""
        return replace(self, bend=_BEND, radius=0.5 - _REPEATED_SAMPLES / min(self.size))

    def resized(self, size: tuple[int, int]) -> Self:
        """The same with pictures of another size (height, width), and the eye's own in proportion."""
        height, width = (
            max(round(own * new / old), 1)
            for own, new, old in zip(self.eye.size, size, self.size, strict=True)
        )
        return replace(self, eye=replace(self.eye, size=(height, width)), size=size)

    def samples(self, steps: int, eyes: int) -> int:
        """Count the samples in the fisheye pictures of some frames."""
        return steps * eyes * self.count * math.prod(self.size)

    def show(self, images: Any, *, memory: RecycledArrays | None = None) -> Any:
        """Make the fisheye pictures of eyes; outside their circles they repeat the rim.

        Args:
            images: [T, E, ...] as ``eye`` says, NumPy or CuPy.
            memory: Provides the array for the pictures, if images are NumPy arrays.

        Returns:
            [T, E * count, ...] of the same dtype, on the same device; each eye's pictures are consecutive.
        """
        is_planar = self.eye.layout == "NCHW"
        steps, eyes = images.shape[:2]
        shape = replace(self.eye, size=self.size).picture_shape()
        all_maps = _maps_there(self, _device_of(images))
        if is_planar and self.count == 1:
            eye_planes = images.reshape(-1, *images.shape[-2:])
            out = None if memory is None else memory.empty((len(eye_planes), *self.size), images.dtype)
            return remap_stack(eye_planes, *all_maps[0], out=out).reshape(steps, eyes, *shape)
        arrays: Any = array_module(on_gpu=is_on_gpu(images)) if memory is None else memory
        shown = arrays.empty((steps, eyes * self.count, *shape), images.dtype)
        pictures = shown.reshape(steps * eyes, self.count, *shape)
        for number, maps in enumerate(all_maps):
            if is_planar:
                planes = remap_stack(images.reshape(-1, *images.shape[-2:]), *maps)
                pictures[:, number] = planes.reshape(steps * eyes, *shape)
                continue
            for picture, image in zip(
                pictures[:, number], images.reshape(-1, *images.shape[2:]), strict=True
            ):
                picture[...] = remap(image, *maps)
        return shown

    def take_back(self, estimates: Sequence[MatteEstimate]) -> list[MatteEstimate]:
        """Map the network's estimates of the fisheye pictures back to the eyes, at the size of the eyes' own pictures.

        Coefficients of a guided filter are mapped like alpha, as they apply to a place in the picture. Those of a
        network's foreground, which nothing needs, are dropped.

        Args:
            estimates: Estimates of one frame each, all of one form and size.
        """
        together = _FRAMES_TOGETHER if estimates and is_on_gpu(estimates[0].planes[0]) else 1
        back: list[MatteEstimate] = []
        for at in range(0, len(estimates), together):
            part = estimates[at : at + together]
            joined = self._taken_back(MatteEstimate.joined(part))
            eyes = joined.eye_count // len(part)
            back += [joined.of_eyes(slice(eye, eye + eyes)) for eye in range(0, joined.eye_count, eyes)]
        return back

    def _taken_back(self, estimate: MatteEstimate) -> MatteEstimate:
        if estimate.gain is None or estimate.offset is None:
            return MatteEstimate(alpha=self._planes_back(estimate.alpha))
        gain, offset = (self._planes_back(planes[:, -1:]) for planes in (estimate.gain, estimate.offset))
        return MatteEstimate(gain=gain, offset=offset)

    def _planes_back(self, planes: Any) -> Any:
        """[E * count, ..., h, w] as float32 [E, ..., h', w']."""
        eyes, made = planes.shape[0] // self.count, None
        sources = planes.reshape(eyes, self.count, -1, *planes.shape[-2:])
        maps = _maps_back(self, (planes.shape[-2], planes.shape[-1]), _device_of(planes))
        for number, (map_x, map_y, weight) in enumerate(maps):
            read = sources[:, number].reshape(-1, *planes.shape[-2:]).astype("float32", copy=False)
            made = remap_stack(read, map_x, map_y, weight=weight, add_to=made)
        assert made is not None
        return made.reshape(eyes, *planes.shape[1:-2], *self.eye.size)


_Maps = Sequence[tuple[Any, ...]]
_SPHERE = Equirectangular(360.0, 180.0)


def _count(lens: Equirectangular | Fisheye) -> int:
    return 1 if isinstance(lens, Fisheye) or lens.horizontal_fov_degrees <= _LARGEST_FOV_DEGREES else 2


def _fov_degrees(lens: Equirectangular | Fisheye) -> float:
    """Return the field of view with which the fisheye pictures show all of an eye."""
    if isinstance(lens, Fisheye):
        return lens.fov_degrees
    if _count(lens) == 2:
        return _LARGEST_FOV_DEGREES
    across, down = lens.horizontal_fov_degrees, lens.vertical_fov_degrees
    corner = math.acos(math.cos(math.radians(across / 2)) * math.cos(math.radians(down / 2)))
    return max(2 * math.degrees(corner), across, down)


def _picture_lens(views: FisheyeViews) -> Fisheye:
    """Make the lens of each fisheye picture: its circle, with the repeated rim around it."""
    return Fisheye(_fov_degrees(views.lens), radius=(views.radius, views.radius), bend=views.bend)


def _cameras(lens: Equirectangular | Fisheye) -> list[npt.NDArray[np.float64]]:
    """Return the rotations of the fisheye pictures: ahead, and back."""
    return [turned(yaw_degrees=180.0 * number) for number in range(_count(lens))]


@lru_cache(maxsize=16)
def _maps_there(views: FisheyeViews, device: int | None) -> _Maps:
    """Compute the samples of the eye to read, for each fisheye picture."""
    lens, shown = views.lens, _picture_lens(views)
    across, down = _grid(views.size)
    # The rim is repeated: with a black surround, the whole circle looks like an object, and people who reach it are cut
    # off. In an eye that has one, interpolation and the averaging before it read across the rim.
    rim = shown.radius[0] - (_RIM_SAMPLES / min(views.size) if isinstance(lens, Fisheye) else 0)
    inwards = rim / np.maximum(np.hypot(across - 0.5, down - 0.5), rim)
    across, down = 0.5 + (across - 0.5) * inwards, 0.5 + (down - 0.5) * inwards
    if isinstance(lens, Fisheye):
        x, y = (
            center + (2 * place - 1) * radius
            for center, radius, place in zip(lens.center, lens.radius, (across, down), strict=True)
        )
        return _on_device([_read_at((x, y), views.eye.size)], device)
    ahead = shown.unproject(across, down)
    maps = []
    for camera in _cameras(lens):
        x, y = _SPHERE.project(np.tensordot(camera, ahead, axes=1))
        places = (
            (x - 0.5) * _SPHERE.horizontal_fov_degrees / lens.horizontal_fov_degrees + 0.5,
            (y - 0.5) * _SPHERE.vertical_fov_degrees / lens.vertical_fov_degrees + 0.5,
        )
        maps.append(_read_at(places, views.eye.size))
    return _on_device(maps, device)


_RIM_SAMPLES = 1.5


def _read_at(places: Sequence[npt.NDArray[np.float64]], size: tuple[int, int]) -> tuple[Any, ...]:
    """Convert places in fractions of a picture (height, width) to those that ``remap`` reads."""
    return tuple(
        (place.clip(0, 1) * count - 0.5).astype(np.float32)
        for place, count in zip(places, reversed(size), strict=True)
    )


@lru_cache(maxsize=16)
def _maps_back(views: FisheyeViews, size: tuple[int, int], device: int | None) -> _Maps:
    """For each fisheye picture, the samples to read at an eye's places, and their weights there; None is 1."""
    lens = views.lens
    fisheye = _picture_lens(views)
    if isinstance(lens, Fisheye):
        places = reprojection_map(fisheye, lens, source_size=size, target_size=views.eye.size)
        inside = (places[0] != OUTSIDE).astype(np.float32)  # nobody is outside the eye's circle
        return _on_device([(*_inside_circle(*places, size), inside)], device)
    angle = np.degrees(np.arccos(np.clip(lens.unproject(*_grid(views.eye.size))[2], -1, 1)))
    # Where two pictures overlap, one fades into the other.
    overlap = _LARGEST_FOV_DEGREES - 180
    ahead = np.clip(0.5 + (90 - angle) / overlap, 0, 1)
    maps: list[tuple[Any, ...]] = []
    for camera, weight in zip(_cameras(lens), (ahead, 1 - ahead), strict=False):
        places = reprojection_map(
            fisheye, lens, source_size=size, target_size=views.eye.size, rotation=camera.T
        )
        shares = weight.astype(np.float32) if views.count == 2 else None
        maps.append((*_inside_circle(*places, size), shares))
    return _on_device(maps, device)


def _grid(size: tuple[int, int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return x and y of each sample's centre, as fractions of width and height."""
    height, width = size
    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    return x, y


def _inside_circle(
    map_x: npt.NDArray[np.float32], map_y: npt.NDArray[np.float32], size: tuple[int, int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Move positions at the circle's border inwards by the reach of bilinear interpolation."""
    (height, width), moved = size, []
    across, down = (map_x + 0.5) / width * 2 - 1, (map_y + 0.5) / height * 2 - 1
    scale = np.minimum(1, (1 - 3 / min(size)) / np.maximum(np.hypot(across, down), 1e-6))
    for place, count in ((across, width), (down, height)):
        moved.append(((place * scale + 1) / 2 * count - 0.5).astype(np.float32))
    return moved[0], moved[1]


def _device_of(array: Any) -> int | None:
    """Return the GPU's number; None on the CPU."""
    return int(array.device.id) if is_on_gpu(array) else None


def _on_device(maps: _Maps, device: int | None) -> _Maps:
    if device is None:
        return maps
    arrays = array_module(on_gpu=True)
    with arrays.cuda.Device(device):
        return [tuple(each if each is None else arrays.asarray(each) for each in one) for one in maps]
