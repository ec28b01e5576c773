"""The default video for measuring: a person moving over a moving texture, the same at every size.

Texture and noise come from a generator with a fixed seed: no frame equals another, nothing is all zeros, and every
run gets the same bytes. The person is the portrait that ships with Vitascope, so that mattes can be checked.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

from vitascope.animation import find_example
from vitascope.animation.face import RgbPicture
from vitascope.errors import InputError
from vitascope.frames import PIXEL_FORMATS, Frame, VideoInfo
from vitascope.media.planes import RGB_VIDEO_COLOR, planes_of
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter

FRAME_RATE = Fraction(60)
_FORMAT = PIXEL_FORMATS["yuv420p"]
_PORTRAIT = Path("examples/astronaut.jpg")
_MOST_H264 = 4096
"""Hardware decoders take no wider H.264 (NVIDIA's support matrix); wider videos are H.265, as usual in practice."""
_PORTRAIT_SHARE = 0.8
"""The portrait's share of the picture's height."""
_STEP_SHARE = 0.005
"""Share of the picture's width by which the texture moves from frame to frame."""
_SEED = 20_251_006
_USUAL_SIZE, _USUAL_FRAMES = (1920, 1080), 240
"""Default size and number of frames."""


def make_clip(path: Path, *, width: int, height: int, frame_count: int, stereo: bool = False) -> Path:
    """Write the video.

    Args:
        path: Ends in ``.mp4``.
        width: Luma samples per row; even.
        height: Luma rows; even.
        frame_count: Number of pictures.
        stereo: Two eyes side by side, each half as wide; the second sees everything slightly shifted.

    Raises:
        OutputError: It cannot be written.
    """
    painter = _Painter(width // 2 if stereo else width, height, seed=_SEED)
    info = VideoInfo(
        path=path,
        width=width,
        height=height,
        format=_FORMAT,
        source_format=_FORMAT.name,
        color=RGB_VIDEO_COLOR,
        time_base=1 / FRAME_RATE,
        average_frame_rate=FRAME_RATE,
        frame_count_estimate=frame_count,
        duration_seconds=float(frame_count / FRAME_RATE),
    )
    encoding = choose_encoding(
        path,
        codec="h264" if width <= _MOST_H264 else "h265",
        source_format=_FORMAT,
        preset="ultrafast",
    )
    with VideoWriter(path, info=info, encoding=encoding, spherical=None, hdr=None) as writer:
        for n in range(frame_count):
            rgb = painter.paint(n)
            if stereo:
                rgb = np.concatenate((rgb, painter.paint(n, shift=max(width // 200, 1))), axis=1)
            writer.write(Frame(planes_of(rgb), _FORMAT, RGB_VIDEO_COLOR, n, n, 1 / FRAME_RATE, duration=1))
    return path


def synthetic_or(video: Path | None, folder: Path) -> tuple[Path, str]:
    """Return the given clip, or make one in a folder.

    Returns:
        The clip, and a name for messages.
    """
    if video is not None:
        return video, str(video.absolute())
    width, height = _USUAL_SIZE
    clip = make_clip(folder / "synthetic.mp4", width=width, height=height, frame_count=_USUAL_FRAMES)
    return clip, f"a synthetic clip of {width}x{height}"


class _Painter:
    """Paints pictures of one size; frame n depends on n alone."""

    def __init__(self, width: int, height: int, *, seed: int) -> None:
        self._width, self._height = width, height
        noise = np.random.default_rng(seed)
        # Twice as wide as the picture, so that it can move: coarse patches with fine grain on top.
        coarse = noise.integers(0, 256, (max(height // 40, 4), max(width // 20, 8), 3), np.uint8)
        texture = cv2.resize(coarse, (2 * width, height), interpolation=cv2.INTER_CUBIC)
        grain = noise.integers(-12, 13, (height, 2 * width, 1), np.int16)
        self._texture = np.clip(texture.astype(np.int16) // 2 + 40 + grain, 0, 255).astype(np.uint8)
        self._portrait, self._mask = _cut_out(round(height * _PORTRAIT_SHARE), most_width=width)

    def paint(self, n: int, *, shift: int = 0) -> RgbPicture:
        """Paint frame n: uint8 [height, width, 3], RGB."""
        step = max(round(self._width * _STEP_SHARE), 1)
        begin = (n * step + shift) % self._width
        picture: RgbPicture = self._texture[:, begin : begin + self._width].copy()
        high, wide = self._mask.shape[:2]
        room = self._width - wide
        # Back and forth once in four seconds.
        left = round(room * (0.5 + 0.3 * np.sin(2 * np.pi * n / (4 * float(FRAME_RATE))))) - shift
        left = min(max(left, 0), room)
        below = picture[self._height - high :, left : left + wide]
        below[:] = cv2.convertScaleAbs(below * (1 - self._mask) + self._portrait * self._mask)
        return picture


def _cut_out(height: int, *, most_width: int) -> tuple[np.ndarray, np.ndarray]:
    """The portrait, float32 [h, w, 3] 0..255, and its coverage, float32 [h, w, 1] 0..1, soft at the sides."""
    path = find_example(_PORTRAIT)
    bgr = cv2.imread(str(path))
    if bgr is None:
        raise InputError(f"{path} cannot be read: it ships with Vitascope; reinstall Vitascope")
    size = max(min(height, most_width), 2)
    portrait = cv2.resize(bgr, (size, size), interpolation=cv2.INTER_AREA)[..., ::-1].astype(np.float32)
    across = np.linspace(-1, 1, size, dtype=np.float32)
    mask = np.clip((1 - np.abs(across)) * 8, 0, 1)[None, :, None]
    return portrait, np.repeat(mask, size, axis=0)
