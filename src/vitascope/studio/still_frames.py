"""Single frames from anywhere in a video, as upright pictures of one eye."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from vitascope.errors import InputError, UsageError
from vitascope.frames import Frame, VideoInfo
from vitascope.gpu.interchange import to_numpy
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.remap import remap
from vitascope.media.reading.reader import VideoReader
from vitascope.vr.detection import VrDescription
from vitascope.vr.projection import (
    OUTSIDE,
    Equirectangular,
    Fisheye,
    Rectilinear,
    reprojection_map,
    turned,
)
from vitascope.vr.stereo import eye_regions

EyeName = Literal["left", "right"]

_FORWARD_SECONDS: Final = 1.5
"""Up to this distance ahead, decoding on is faster than going back to a keyframe."""
_END_SECONDS = 2.0
_MOST_OPEN_FILMS = 2
_QUALITY = 85
_ASPECT = 16 / 9
_LOOKED_AT_SIDE = 1440
"""Maximum rows of the eye, and half its columns, used for a view; at 180 degrees, half of the eye is shown."""


class Look(NamedTuple):
    """A direction of view in a VR video, in degrees."""

    yaw: float
    pitch: float
    fov: float


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Pointed(BaseModel):
    """Points of a view, as sent by a program."""

    model_config = ConfigDict(extra="forbid")

    yaw: Annotated[float, Field(ge=-180, le=180)]
    pitch: Annotated[float, Field(ge=-90, le=90)]
    fov: Annotated[float, Field(ge=30, le=120)]
    eye: EyeName = "left"
    points: Annotated[list[tuple[Share, Share]], Field(min_length=1, max_length=20_000)]
    """x and y as shares of the view's width and height."""


class FilmFrames:
    """Frames of one open video. Use from one thread at a time.

    Args:
        reader: The video; closed with this object.
    """

    def __init__(self, reader: VideoReader) -> None:
        self.reader = reader
        self._last: Frame | None = None

    def close(self) -> None:
        """Close the video."""
        self.reader.close()

    def seconds_of(self, frame: Frame) -> float:
        """A frame's time, counted from the video's first picture."""
        return float((frame.pts - self.reader.origin_pts) * self.reader.info.time_base)

    def frame_at(self, seconds: float) -> Frame:
        """The frame nearest to a time; beyond the end, the last one.

        Raises:
            InputError: The video cannot be read there.
        """
        reader, info = self.reader, self.reader.info
        base, interval = float(info.time_base), 1 / float(info.average_frame_rate or 25)
        target = reader.origin_pts + round(max(seconds - interval / 2, 0.0) / base)
        last = self._last
        if last is not None and target <= last.pts < target + interval / base:
            return last
        if last is None or not 0 < target - last.pts < _FORWARD_SECONDS / base:
            reader.play(target, None)
        for frame in reader:
            if frame.pts >= target:
                self._last = frame
                return frame
        return self._last_frame(seconds)

    def _last_frame(self, seconds: float) -> Frame:
        """Return the last frame, which is the nearest for all times beyond it."""
        base = float(self.reader.info.time_base)
        end = self.reader.info.duration_seconds or seconds
        for margin in (_END_SECONDS, end):
            self.reader.play(self.reader.origin_pts + round(max(end - margin, 0.0) / base), None)
            frames = deque(self.reader, maxlen=1)
            if frames:
                self._last = frames[0]
                return frames[0]
        raise InputError(f"{self.reader.info.path}: none of its frames can be decoded")


class OpenFilms:
    """The most recently used videos, kept open. Use from one thread at a time.

    Args:
        opened: Opens a video.
    """

    def __init__(self, opened: Callable[[Path], VideoReader]) -> None:
        self._opened = opened
        self._films: OrderedDict[tuple[Path, str], FilmFrames] = OrderedDict()

    def get(self, path: Path, version: str) -> FilmFrames:
        """An open video in its current state.

        Args:
            path: The video.
            version: Version of the file; if it changed, the video is opened again.

        Raises:
            InputError: It cannot be opened.
        """
        key = path, version
        for other in [one for one in self._films if one[0] == path and one != key]:
            self._films.pop(other).close()
        if key not in self._films:
            while len(self._films) >= _MOST_OPEN_FILMS:
                self._films.popitem(last=False)[1].close()
            self._films[key] = FilmFrames(self._opened(path))
        self._films.move_to_end(key)
        return self._films[key]

    def close(self) -> None:
        """Close all videos."""
        while self._films:
            self._films.popitem()[1].close()


def upright_eye(
    frame: Frame,
    vr: VrDescription,
    *,
    eye: EyeName,
    longest_side: int,
    info: VideoInfo,
    look: Look | None = None,
) -> npt.NDArray[np.uint8]:
    """One eye of a frame, upright, in square pixels; or a view in a given direction.

    Args:
        frame: A frame on the CPU or a GPU.
        vr: Layout and projection of the video.
        eye: Which eye, if the video has two.
        longest_side: Limit of the longer side, in pixels.
        info: The video, for its rotation and pixel shape.
        look: Show a flat view in this direction.

    Returns:
        uint8 RGB [H, W, 3].

    Raises:
        UsageError: A view in a direction was requested, but the video's lens is unknown.
    """
    at = _number_of(vr, eye)
    region = eye_regions(frame.width, frame.height, vr.layout)[at]
    if look is not None:
        return _looked(frame, region, _known_lens(vr, at), look, longest_side)
    height, width = info.in_square_pixels(region.size)
    if info.rotation_degrees in (90, 270):
        height, width = width, height
    shrink = max(max(height, width) / longest_side, 1.0)
    size = max(round(height / shrink), 1), max(round(width / shrink), 1)
    rgb: Any = preprocess(
        frame, regions=[region], size=size, layout="NHWC", rotation_degrees=info.rotation_degrees
    )
    upright: npt.NDArray[np.uint8] = np.rint(to_numpy(rgb)[0].clip(0, 1) * 255).astype(np.uint8)
    return upright


def places_in_eye(
    points: Sequence[tuple[float, float]], vr: VrDescription, *, eye: EyeName, look: Look
) -> list[tuple[float, float] | None]:
    """Map points of a view to the eye's own picture.

    Args:
        points: x and y as shares of the view's width and height.
        vr: Layout and projection of the video.
        eye: The eye shown in the view.
        look: Direction of the view.

    Returns:
        For each point x and y as shares of the eye's picture; None if it shows nothing there.

    Raises:
        UsageError: The video's lens is unknown.
    """
    lens = _known_lens(vr, _number_of(vr, eye))
    x, y = np.array(points, np.float64).T
    rays = np.tensordot(_turn(look), _camera(look).unproject(x, y), axes=1)
    places = np.stack(lens.project(rays), axis=1)
    return [(float(one[0]), float(one[1])) if np.isfinite(one).all() else None for one in places]


def _number_of(vr: VrDescription, eye: EyeName) -> int:
    """Index of an eye's region in the frame."""
    return len(vr.lenses) - 1 if (eye == "right") != vr.right_eye_first else 0


def _known_lens(vr: VrDescription, at: int) -> Equirectangular | Fisheye:
    lens = vr.lenses[at]
    if vr.trusted_lens is None or not isinstance(lens, Equirectangular | Fisheye):
        raise UsageError("you cannot look around in this video: it is flat, or its lens is unknown")
    return lens


def _camera(look: Look) -> Rectilinear:
    across = np.tan(np.radians(look.fov / 2))
    return Rectilinear(look.fov, float(np.degrees(2 * np.arctan(across / _ASPECT))))


def _turn(look: Look) -> npt.NDArray[np.float64]:
    return turned(yaw_degrees=look.yaw, pitch_degrees=look.pitch)


def _looked(
    frame: Frame, region: Region, lens: Equirectangular | Fisheye, look: Look, longest_side: int
) -> npt.NDArray[np.uint8]:
    size = min(_LOOKED_AT_SIDE, region.height), min(2 * _LOOKED_AT_SIDE, region.width)
    rgb: Any = preprocess(frame, regions=[region], size=size, layout="NHWC")
    maps = reprojection_map(
        lens,
        _camera(look),
        source_size=size,
        target_size=(round(longest_side / _ASPECT), longest_side),
        rotation=_turn(look),
    )
    eye = np.ascontiguousarray(to_numpy(rgb)[0])
    picture: npt.NDArray[np.uint8] = np.rint(remap(eye, *maps).clip(0, 1) * 255).astype(np.uint8)
    picture[maps[0] <= OUTSIDE / 2] = 0
    return picture


def jpeg(rgb: npt.NDArray[np.uint8]) -> bytes:
    """Encode a picture for a browser.

    Args:
        rgb: uint8 [H, W, 3].
    """
    done, data = cv2.imencode(
        ".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
    )
    assert done  # any picture can be compressed
    return data.tobytes()
