"""Packed alpha: a fisheye video's matte in the corners around its circles, as read by DeoVR and HereSphere.

The picture has two fisheye eyes side by side, each E x E samples. Each eye's matte is a fisheye picture too, at 0.4
of the size and clipped to its circle. The left eye's disc is centred in the middle of the upper border, the right
eye's in the upper left corner. Parts beyond one side of the picture wrap around to the opposite side, so that both
discs lie in halves and quarters in the free corners::

    upper border:  right, lower right quarter | left, lower half | right, lower left quarter
    lower border:  right, upper right quarter | left, upper half | right, upper left quarter

Players read alpha as R - max(G, B). Source: three public implementations agree on this layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vitascope.errors import UsageError
from vitascope.frames import Frame, Plane, VideoInfo
from vitascope.gpu.kernels.color import alpha_peak
from vitascope.gpu.kernels.cuda_module import array_module, current_device, is_on_gpu
from vitascope.gpu.kernels.paint_alpha import PaintedColor, PaintedPart, paint_alpha
from vitascope.gpu.kernels.region import Region, cut
from vitascope.gpu.kernels.remap import EyePlaces, eye_places, remap_eyes, remap_stack
from vitascope.gpu.kernels.resize_normalize import resize_normalize
from vitascope.vr.projection import (
    OUTSIDE,
    Equirectangular,
    Fisheye,
    Lens,
    Rectilinear,
    frame_maps,
    reprojection_map,
)

PackedColor = PaintedColor

DISC_SCALE: Final = 0.4
"""A disc's diameter over an eye's side. The free corner of a circle is 0.2071 of the side deep, a disc's radius 0.2."""

_LEAST_SIDE: Final = 16
"""Smallest side of an eye, in samples, that leaves a disc any."""


def tile_size(side: int) -> tuple[int, int]:
    """(height, width) of the square around a disc, for eyes of ``side`` samples: even, and a multiple of 4."""
    exact = int(side * DISC_SCALE)
    return exact & ~1, exact & ~3


@lru_cache(maxsize=4)
def _parts(side: int) -> tuple[PaintedPart, ...]:
    """The parts of the discs' tiles, and their positions in the picture."""
    height, width = tile_size(side)
    half_height, half_width = height // 2, width // 2
    # (first column of the tile, first column of the picture, columns) of the parts from left to right.
    left_eye = [(0, side - half_width, width)]
    right_eye = [(0, 2 * side - half_width, half_width), (half_width, 0, half_width)]
    return tuple(
        PaintedPart(eye, Region(column, row, count, half_height), Region(x, y, count, half_height))
        for eye, columns in enumerate((left_eye, right_eye))
        for column, x, count in columns
        for row, y in ((0, side - half_height), (half_height, 0))
    )


def disc_area(side: int) -> npt.NDArray[np.bool_]:
    """Bool [*tile_size(side)]: True inside the circle of a tile."""
    height, width = tile_size(side)
    down = (np.arange(height) + 0.5) / height * 2 - 1
    across = (np.arange(width) + 0.5) / width * 2 - 1
    return np.hypot(down[:, None], across[None]) <= 1


@lru_cache(maxsize=4)
def _disc_area_on(side: int, device: int | None) -> Any:
    """``disc_area`` on a GPU or in host memory; made once."""
    if device is None:
        return disc_area(side)
    import cupy

    with cupy.cuda.Device(device):
        return cupy.asarray(disc_area(side))


def pack_discs(frame: Frame, tiles: npt.NDArray[np.float32], *, color: PackedColor = "red") -> None:
    """Write mattes into the free corners of a fisheye picture, in place.

    ``paint_alpha`` defines how alpha becomes a colour.

    Args:
        frame: 2E x E luma samples, E even, of any of ``PIXEL_FORMATS``; NumPy or CuPy, its planes are changed.
        tiles: float32 [2, *tile_size(E)], 0..1, on the same device: left eye, right eye. Values outside the circle
            are ignored.
        color: ``red``, which players read, or ``grey``.

    Raises:
        ValueError: The sizes do not fit.
    """
    side = _side(frame)
    if tiles.shape != (2, *tile_size(side)):
        raise ValueError(f"tiles are {tiles.shape}, expected {(2, *tile_size(side))}")
    inside = _disc_area_on(side, current_device() if is_on_gpu(frame.planes[0]) else None)
    paint_alpha(frame, tiles, inside, _parts(side), color=color)


def unpack_discs(frame: Frame) -> npt.NDArray[np.float32]:
    """Read mattes from the corners of a packed picture, as players do.

    Args:
        frame: 2E x E luma samples in host memory.

    Returns:
        float32 [2, *tile_size(E)], 0..1: left eye, right eye; 0 outside the circle. Red discs give R - max(G, B),
        grey ones their grey; the colour is that of the larger sum.

    Raises:
        ValueError: The picture cannot be packed.
    """
    best: npt.NDArray[np.float32] = max(_discs_by_color(frame).values(), key=np.sum)
    return best


def disc_color(frame: Frame) -> PackedColor:
    """The colour of the mattes in the discs of a packed picture: the one with the larger sum.

    Args:
        frame: 2E x E luma samples in host memory.

    Raises:
        ValueError: The picture cannot be packed.
    """
    found = _discs_by_color(frame)
    return max(found, key=lambda color: float(found[color].sum()))


def _discs_by_color(frame: Frame) -> dict[PackedColor, npt.NDArray[np.float32]]:
    """For each colour, both discs as found by a player that reads it."""
    side = _side(frame)
    half = tile_size(side)[0] // 2
    deep = (half + 3) & ~1  # whole chroma blocks, plus one for reading the last
    strips = [cut(frame, Region(0, y, 2 * side, deep)) for y in (0, side - deep)]
    rgb = np.concatenate([strip.to_rgb(dtype="float32") for strip in strips])
    red = np.clip(rgb[..., 0] - np.maximum(rgb[..., 1], rgb[..., 2]), 0, 1)
    grey = rgb.min(axis=-1)
    inside = disc_area(side)
    planes: dict[PackedColor, npt.NDArray[np.float32]] = {"red": red, "grey": grey}
    found: dict[PackedColor, npt.NDArray[np.float32]] = {}
    for color, plane in planes.items():
        tiles = np.zeros((2, *tile_size(side)), np.float32)
        for part in _parts(side):
            place = part.source.rows, part.source.columns
            row = part.target.y and part.target.y - side + 2 * deep
            tiles[part.number][place] = plane[row : row + half, part.target.columns]
        found[color] = tiles * inside
    return found


# 8-bit luma, full or limited range; shares of the area examined
_GAP_LUMA, _DISC_LUMA, _ONE_LEVEL_LUMA = 10, 20, 10
_LEAST_DARK_SHARE, _LEAST_PERSON_SHARE, _LEAST_LEVEL_SHARE, _LEAST_SHARED = 0.98, 0.01, 0.5, 0.4
_RIM = 0.05
"""Share of a circle's radius blurred by compression and shrinking."""
_STILL = 0.98
"""If frames share this much of everything that any of them shows in the discs, it is a logo. Compressed logos share
0.987 or more; the mattes of somebody who sits still for three seconds 0.965."""


def shows_discs(pictures: Sequence[npt.NDArray[np.uint8]]) -> bool:
    """Whether frames of a video contain mattes in their free corners.

    The corners must be dark except for the discs, and in most frames that show somebody both discs must have much the
    same shape, mostly of one level, as a person's matte does. Unlike a logo in the corners, it must change.

    Args:
        pictures: Luma of some frames of one video, uint8 [h, w], all of one size, however small.
    """
    if not pictures or pictures[0].shape[0] < _LEAST_SIDE or pictures[0].shape[1] != 2 * pictures[0].shape[0]:
        return False
    side = pictures[0].shape[0]
    rows, columns = (np.arange(count) + 0.5 for count in (side, 2 * side))
    # Distances from the centres of the eyes, and from those of the discs, which are on the borders, in radii.
    middle = np.hypot(rows[:, None] - side / 2, (columns % side)[None] - side / 2) / (side / 2)
    down = np.minimum(rows, side - rows)[:, None]
    across = np.minimum(columns % side, side - columns % side)[None]
    disc = np.hypot(down, across) / (side * DISC_SCALE / 2)
    gap = (middle > 1 + _RIM) & (disc > 1 + _RIM)
    dark = float(np.median([picture[gap] for picture in pictures]))
    if any((picture[gap] <= dark + _GAP_LUMA).mean() < _LEAST_DARK_SHARE for picture in pictures):
        return False
    votes: list[bool] = []
    shapes: list[npt.NDArray[np.bool_]] = []
    for picture in {picture.tobytes(): picture for picture in pictures}.values():  # one may come twice
        shown = (picture > dark + _DISC_LUMA) & (disc < 1 - _RIM)
        # cut and moved so that each disc is in one piece
        whole = np.roll(shown, (side // 2, side // 2), axis=(0, 1))
        left, right = whole[:, side:], whole[:, :side]
        area = (disc < 1).sum() / 2
        if max(left.sum(), right.sum()) < _LEAST_PERSON_SHARE * area:
            continue
        levels = picture[shown]
        is_one = np.abs(levels - np.median(levels)) <= _ONE_LEVEL_LUMA
        shared = (left & right).sum() / (left | right).sum()
        votes.append(bool(shared >= _LEAST_SHARED and is_one.mean() >= _LEAST_LEVEL_SHARE))
        shapes.append(shown)
    if sum(votes) * 2 <= len(votes):
        return False
    in_all, in_any = (combine.reduce(shapes).sum() for combine in (np.logical_and, np.logical_or))
    return len(shapes) == 1 or bool(in_all < _STILL * in_any)


USUAL_FOV_DEGREES: Final = 190.0
"""Field of view of packed pictures that all players know."""


def packed_fov(lenses: Sequence[Lens], fov_degrees: float | None) -> float:
    """The field of view of packed pictures, in degrees: the requested one, a fisheye video's own, or the default."""
    own = lenses[0].fov_degrees if isinstance(lenses[0], Fisheye) else USUAL_FOV_DEGREES
    return own if fov_degrees is None else fov_degrees


def packed_size(regions: Sequence[Region]) -> tuple[int, int]:
    """(height, width) of packed pictures of a video with these eye regions: as high as an eye."""
    side = max(min(region.height for region in regions) & ~1, _LEAST_SIDE)
    return side, 2 * side


def refuse_other_than_packed(info: VideoInfo) -> None:
    """Refuse a video whose shape leaves no room for discs.

    Raises:
        UsageError: It is not 2E x E samples, E even.
    """
    if info.width != 2 * info.height or info.height % 2 or info.height < _LEAST_SIDE:
        raise UsageError(
            f"{info.path}: {info.width}x{info.height} cannot be two fisheye eyes side by side, nor packed alpha"
        )


def refuse_unpackable(info: VideoInfo, lenses: Sequence[Lens]) -> None:
    """Refuse a video that cannot be made into packed alpha.

    Args:
        info: The video.
        lenses: The lens of each eye.

    Raises:
        UsageError: It does not have two eyes of a projection that a fisheye picture can show, or is displayed
            rotated.
    """
    reasons = (
        (info.rotation_degrees != 0, "it has a rotation, which packed alpha never has"),
        (
            len(lenses) != 2,
            "packed-alpha needs a video of two eyes; if it has them, give --layout sbs or --layout tb, else use "
            "--type key",
        ),
        (
            any(isinstance(lens, Rectilinear) for lens in lenses),
            "packed-alpha needs VR180 or fisheye video; if it is one, give --projection equirect180 or "
            "--projection fisheye",
        ),
        (
            any(isinstance(lens, Equirectangular) and lens.wraps for lens in lenses),
            "packed-alpha covers 180 degrees, and this video covers 360; use --type key",
        ),
    )
    for is_met, why in reasons:
        if is_met:
            raise UsageError(f"{info.path}: {why}")


class AlphaPacker:
    """Makes packed-alpha pictures from the frames of one video.

    Args:
        regions: Region of each of the two eyes in a frame.
        lenses: The eyes' projections, in the same order, accepted by ``refuse_unpackable``.
        right_eye_first: True if the right eye is first; the packed pictures have the left eye first.
        fov_degrees: Field of view of the packed fisheye eyes; None means 190, which all players know, or that of a
            fisheye video, whose pictures then stay as they are.
        color: See ``pack_discs``.
        side: Side of the packed eyes, in samples, even; that of ``packed_size`` when omitted.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        lenses: Sequence[Lens],
        *,
        right_eye_first: bool = False,
        fov_degrees: float | None = None,
        color: PackedColor = "red",
        side: int | None = None,
    ) -> None:
        order = slice(None, None, -1 if right_eye_first else 1)
        self._lenses = tuple(lenses[order])
        self._regions, self._color = tuple(regions[order]), color
        self._fov_degrees = packed_fov(lenses, fov_degrees)
        self._side = packed_size(regions)[0] if side is None else side
        # made here because several threads pack frames
        self._target = Fisheye(self._fov_degrees)
        self._alike, self._frame_maps = self._made_frame_maps()
        self._tile_maps = self._made_tile_maps()
        self._uploaded: dict[tuple[int, int], Any] = {}
        self._places: dict[tuple[str, str], EyePlaces] = {}

    def pack(self, frame: Frame, alpha: Plane) -> Frame:
        """Make one packed picture.

        Args:
            frame: The picture, or its foreground; NumPy planes, or CuPy planes of NV12 or P010.
            alpha: uint8 or uint16 [H, W], on the same device.

        Returns:
            A frame of the same format, colour and moment, of ``packed_size``.
        """
        maps = _on_device(self._frame_maps, frame.planes[0], self._uploaded)
        eyes = [cut(frame, region) for region in self._alike] or [frame]
        picture = remap_eyes(eyes, *maps, border="constant", places=self._places_of(eyes[0]))
        pack_discs(picture, self.tiles(alpha), color=self._color)
        return picture

    def _places_of(self, eye: Frame) -> EyePlaces | None:
        """Read positions for planes of an eye's shape, made once; None on a GPU, whose kernel reads the maps itself."""
        if is_on_gpu(eye.planes[0]):
            return None
        key = eye.format.name, eye.color.chroma_location
        if key not in self._places:
            self._places[key] = eye_places(eye, *self._frame_maps)
        return self._places[key]

    def tiles(self, alpha: Plane) -> Any:
        """Each eye's matte as a tile of its disc.

        Args:
            alpha: uint8 or uint16 [H, W], NumPy or CuPy.

        Returns:
            float32 [2, *tile_size(side)], 0..1, on the same device, left eye first.
        """
        size = tile_size(self._side)
        arrays: Any = array_module(on_gpu=is_on_gpu(alpha))
        # Averaged down before the conversion to fisheye, so that source and result have the same resolution.
        small = arrays.empty((2, 1, *size), "float32")
        for first, eyes in enumerate(_eyes(alpha, self._regions)):
            resize_normalize(
                eyes[..., None],
                size=size,
                mean=(0.0,),
                std=(1.0,),
                scale=1 / alpha_peak(alpha),
                layout_out="NCHW",
                out=small[first : first + len(eyes)],
            )
        made = []
        for eyes, maps in self._tile_maps:
            map_x, map_y, shown = _on_device(maps, alpha, self._uploaded)
            made.append(remap_stack(small[eyes, 0], map_x, map_y, weight=shown))
        return made[0] if len(made) == 1 else arrays.concatenate(made)

    def _made_frame_maps(self) -> tuple[tuple[Region, ...], tuple[npt.NDArray[np.float32], ...]]:
        """The eyes that are read through the same maps, none if the frame is read as a whole; and those maps."""
        side, (first, second) = self._side, self._regions
        square, beside = Region(0, 0, side, side), Region(side, 0, side, side)
        # a seam at an odd position divides a chroma sample
        edges = (first.x, first.y, *first.size, second.x, second.y, *second.size)
        if (
            self._lenses[0] == self._lenses[1]
            and first.size == second.size
            and not any(at % 2 for at in edges)
        ):
            alike, regions, places = self._regions, [Region(0, 0, *reversed(first.size))], [square]
        else:
            alike, regions, places = (), list(self._regions), [square, beside]
        made = frame_maps(
            self._lenses[: len(regions)],
            self._target,
            regions,
            places,
            frame_size=(
                max(region.y + region.height for region in regions),
                max(region.x + region.width for region in regions),
            ),
            made_size=(side, side * len(places)),
            margin=1,
        )
        return alike, tuple(made)

    def _made_tile_maps(self) -> list[tuple[slice, tuple[npt.NDArray[np.float32], ...]]]:
        """For each lens's eyes, the samples to read for a disc's, and 1, or 0 where the lens shows nothing."""
        size = tile_size(self._side)
        made: list[tuple[slice, tuple[npt.NDArray[np.float32], ...]]] = []
        first, second = self._lenses
        alike = [(slice(0, 2), first)] if first == second else [(slice(0, 1), first), (slice(1, 2), second)]
        for eyes, lens in alike:
            map_x, map_y = reprojection_map(lens, self._target, source_size=size, target_size=size)
            made.append((eyes, (map_x, map_y, (map_x != OUTSIDE).astype(np.float32))))
        return made


def _eyes(alpha: Plane, regions: Sequence[Region]) -> list[Any]:
    """Views of both eyes' alpha: one [2, h, w] if their sizes are equal, otherwise two [1, h, w]."""
    first, second = (alpha[region.rows, region.columns] for region in regions)
    if first.shape != second.shape:
        return [first[None], second[None]]
    arrays: Any = array_module(on_gpu=is_on_gpu(alpha))
    apart = (regions[1].y - regions[0].y) * alpha.strides[0] + (regions[1].x - regions[0].x) * alpha.strides[
        1
    ]
    return [arrays.lib.stride_tricks.as_strided(first, (2, *first.shape), (apart, *alpha.strides))]


def _on_device(
    maps: Sequence[npt.NDArray[np.float32]], plane: Any, uploaded: dict[tuple[int, int], Any]
) -> Any:
    """Put maps on a plane's device; on a GPU they are uploaded once."""
    if not is_on_gpu(plane):
        return maps
    key = id(maps), int(plane.device.id)
    if key not in uploaded:
        arrays: Any = array_module(on_gpu=is_on_gpu(plane))
        uploaded[key] = [arrays.asarray(places) for places in maps]
    return uploaded[key]


def _side(frame: Frame) -> int:
    if frame.width != 2 * frame.height or frame.height % 2 or frame.height < _LEAST_SIDE:
        raise ValueError(
            f"a picture of {frame.width}x{frame.height} holds no two fisheye eyes side by side: expected 2E x E"
        )
    return frame.height
