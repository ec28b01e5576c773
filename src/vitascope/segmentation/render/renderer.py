"""What each output kind makes of a frame and its matte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType

from vitascope.config import OutputKind, OutputSettings
from vitascope.errors import UsageError
from vitascope.frames import Frame, Plane, Rotation
from vitascope.gpu.kernels.composite import (
    blur_background,
    clear_transparent,
    matte_frame,
    over_color,
    over_frame,
    tint,
)
from vitascope.gpu.kernels.eyes import cut, each_eye
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.shrink import shrink_frame
from vitascope.media.writing.encoding import Encoding
from vitascope.segmentation.matting.stream import Matte
from vitascope.segmentation.render.backgrounds import Background

__all__ = ["BLACK", "Rendered", "Renderer", "blur_sigma", "mask_is_full_range"]

BLACK = (0, 0, 0)
"""The background of ``cutout``."""
_REFERENCE_LINES = 1080


@dataclass(slots=True, eq=False)
class Rendered:
    """The pictures made of one frame, one for each output in order; in the host's memory."""

    index: int
    """Position of the frame, from 0."""
    pictures: list[Frame]
    alpha: Plane | None
    """uint8 or uint16 [H, W], full scale 255 or 65535; None where nobody asked for it."""
    source: Frame | None
    """The frame itself; None where nobody asked for it."""

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues; planes that several pictures share count once."""
        frames = self.pictures if self.source is None else [self.source, *self.pictures]
        planes = {id(plane): plane.nbytes for frame in frames for plane in frame.planes}
        return sum(planes.values()) + (0 if self.alpha is None else self.alpha.nbytes)


class Renderer:
    """Draws every requested kind of one video. A context manager; used by one thread.

    Args:
        outputs: Kind and encoding of each output.
        settings: Colours, blur, background.
        regions: Where each eye lies.
        rotation_degrees: Clockwise turn that makes the frames upright.
        mask_size: (height, width) of masks; None is the frame's.
        background_begin: See ``Background``.

    Raises:
        UsageError: ``replace`` without a background.
        InputError: The background cannot be opened.
    """

    def __init__(
        self,
        outputs: Sequence[tuple[OutputKind, Encoding]],
        *,
        settings: OutputSettings,
        regions: list[Region],
        rotation_degrees: Rotation = 0,
        mask_size: tuple[int, int] | None = None,
        background_begin: Fraction | None = None,
    ) -> None:
        self._settings = settings
        self._mask_size = mask_size
        self._rotation_degrees: Rotation = rotation_degrees
        self._regions = regions
        self._background: Background | None = None
        if any(kind == "replace" for kind, _ in outputs):
            if settings.background is None:
                raise UsageError("replace needs output.background, the path of an image or a video")
            self._background = Background(Path(settings.background), begin_seconds=background_begin)
        self._outputs = tuple(outputs)

    def __enter__(self) -> Renderer:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the background."""
        if self._background is not None:
            self._background.close()

    @property
    def draws_in_order(self) -> bool:
        """True when ``render`` must be called in the order of frames: a background moves. Else any thread may."""
        return self._background is not None and self._background.moves

    def render(self, matte: Matte) -> Rendered:
        """Draw the next frame's outputs."""
        pictures = [self._draw(kind, encoding, matte) for kind, encoding in self._outputs]
        return Rendered(matte.frame.index, pictures, matte.alpha, matte.frame)

    def _draw(self, kind: OutputKind, encoding: Encoding, matte: Matte) -> Frame:
        settings = self._settings
        match kind:
            case "mask":
                full_range = mask_is_full_range(encoding)
                depth = 8 if encoding.bit_depth == 8 else 10
                return self._shrunk(
                    matte_frame(matte.frame, matte.alpha, full_range=full_range, bit_depth=depth)
                )
            case "key":
                color = settings.key_color.as_tuple()
                return self._on_foreground(matte, lambda eye, alpha, _: over_color(eye, alpha, color))
            case "cutout":
                return self._on_foreground(matte, lambda eye, alpha, _: over_color(eye, alpha, BLACK))
            case "alpha":
                return self._on_foreground(matte, lambda eye, alpha, _: clear_transparent(eye, alpha))
            case "blur":
                return self._on_foreground(matte, self._blur)
            case "replace":
                return self._replace(matte)
            case "overlay":
                color, opacity = settings.overlay_color.as_tuple(), settings.overlay_opacity
                return each_eye(
                    matte.frame,
                    matte.alpha,
                    self._regions,
                    lambda eye, alpha, _: tint(eye, alpha, color, opacity=opacity),
                )

    def _on_foreground(self, matte: Matte, make: Callable[[Frame, Plane, Region], Frame]) -> Frame:
        return each_eye(matte.foreground, matte.alpha, self._regions, make)

    def _blur(self, eye: Frame, alpha: Plane, _: Region) -> Frame:
        sigma = blur_sigma(self._settings, self._rotation_degrees)
        return blur_background(eye, alpha, sigma=sigma(eye))

    def _shrunk(self, mask: Frame) -> Frame:
        if self._mask_size is None:
            return mask
        return shrink_frame(mask, regions=self._regions, size=self._mask_size)

    def _replace(self, matte: Matte) -> Frame:
        assert self._background is not None  # opened with the drawer
        behind = self._background.behind(matte.frame, self._regions, rotation_degrees=self._rotation_degrees)
        return each_eye(
            matte.foreground,
            matte.alpha,
            self._regions,
            lambda eye, alpha, region: over_frame(
                eye,
                alpha,
                behind if eye.width == behind.width and eye.height == behind.height else cut(behind, region),
            ),
        )


def blur_sigma(settings: OutputSettings, rotation_degrees: Rotation) -> Callable[[Frame], float]:
    """The Gaussian of ``blur`` in luma samples of an eye: the setting is for a picture of 1080 lines."""

    def sigma(eye: Frame) -> float:
        lines = eye.width if rotation_degrees in (90, 270) else eye.height
        return settings.blur_radius * lines / _REFERENCE_LINES

    return sigma


def mask_is_full_range(encoding: Encoding) -> bool:
    """True for lossless files, which keep every level; players want 16..235, which they show as black and white."""
    return encoding.codec in ("ffv1", "png")
