"""What each output kind makes of a frame and its matte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
from vitascope.media.encoding import Encoding
from vitascope.segmentation.backgrounds import Background
from vitascope.segmentation.matting import Matte

__all__ = ["Rendered", "Renderer", "mask_is_full_range"]

_BLACK = (0, 0, 0)
_REFERENCE_LINES = 1080


@dataclass(slots=True, eq=False)
class Rendered:
    """A matte and the pictures made from it, one for each output in order."""

    matte: Matte
    pictures: list[Frame]

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues; planes that several pictures share count once."""
        frames = (self.matte.frame, self.matte.foreground, *self.pictures)
        planes = {id(plane): plane.nbytes for frame in frames for plane in frame.planes}
        return int(self.matte.alpha.nbytes + sum(planes.values()))


class Renderer:
    """Draws every requested kind of one video. A context manager; used by one thread.

    Args:
        outputs: Kind and encoding of each output.
        settings: Colours, blur, background.
        regions: Where each eye lies.
        rotation_degrees: Clockwise turn that makes the frames upright.

    Raises:
        UsageError: ``replace`` without a background.
        InputError: The background cannot be opened.
    """

    def __init__(
        self,
        outputs: list[tuple[OutputKind, Encoding]],
        *,
        settings: OutputSettings,
        regions: list[Region],
        rotation_degrees: Rotation = 0,
    ) -> None:
        self._settings = settings
        self._rotation_degrees: Rotation = rotation_degrees
        self._regions = regions
        self._background: Background | None = None
        if any(kind == "replace" for kind, _ in outputs):
            if settings.background is None:
                raise UsageError("replace needs output.background, the path of an image or a video")
            self._background = Background(Path(settings.background))
        self._draw = [self._drawer(kind, encoding) for kind, encoding in outputs]

    def __enter__(self) -> Renderer:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the background."""
        if self._background is not None:
            self._background.close()

    def render(self, matte: Matte) -> Rendered:
        """Draw the next frame's outputs."""
        return Rendered(matte, [draw(matte) for draw in self._draw])

    def _drawer(self, kind: OutputKind, encoding: Encoding) -> Callable[[Matte], Frame]:
        settings = self._settings
        match kind:
            case "mask":
                full_range = mask_is_full_range(encoding)
                depth = 8 if encoding.bit_depth == 8 else 10
                return lambda matte: matte_frame(
                    matte.frame, matte.alpha, full_range=full_range, bit_depth=depth
                )
            case "key":
                color = settings.key_color.as_tuple()
                return self._on_foreground(lambda eye, alpha, _: over_color(eye, alpha, color))
            case "cutout":
                return self._on_foreground(lambda eye, alpha, _: over_color(eye, alpha, _BLACK))
            case "alpha":
                return self._on_foreground(lambda eye, alpha, _: clear_transparent(eye, alpha))
            case "blur":
                return self._on_foreground(self._blur)
            case "replace":
                return self._replace
            case "overlay":
                color, opacity = settings.overlay_color.as_tuple(), settings.overlay_opacity
                return lambda matte: each_eye(
                    matte.frame,
                    matte.alpha,
                    self._regions,
                    lambda eye, alpha, _: tint(eye, alpha, color, opacity=opacity),
                )

    def _on_foreground(self, make: Callable[[Frame, Plane, Region], Frame]) -> Callable[[Matte], Frame]:
        return lambda matte: each_eye(matte.foreground, matte.alpha, self._regions, make)

    def _blur(self, eye: Frame, alpha: Plane, _: Region) -> Frame:
        lines = eye.width if self._rotation_degrees in (90, 270) else eye.height
        return blur_background(eye, alpha, sigma=self._settings.blur_radius * lines / _REFERENCE_LINES)

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


def mask_is_full_range(encoding: Encoding) -> bool:
    """True for lossless files, which keep every level; players want 16..235, which they show as black and white."""
    return encoding.codec in ("ffv1", "png")
