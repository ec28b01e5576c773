"""What each output kind makes of a frame and its matte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from vitascope.config import OutputKind, OutputSettings
from vitascope.frames import Frame
from vitascope.gpu.kernels.composite import (
    blur_background,
    clear_transparent,
    matte_frame,
    over_color,
    over_frame,
    tint,
)
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
        """Bytes held, for the queues."""
        return self.matte.alpha.nbytes + sum(picture.nbytes for picture in self.pictures)


class Renderer:
    """Draws every requested kind of one video. A context manager; used by one thread.

    Args:
        outputs: Kind and encoding of each output.
        settings: Colours, blur, background.
        regions: Where each eye lies.

    Raises:
        InputError: The background cannot be opened.
    """

    def __init__(
        self, outputs: list[tuple[OutputKind, Encoding]], *, settings: OutputSettings, regions: list[Region]
    ) -> None:
        self._settings = settings
        self._regions = regions
        self._background: Background | None = None
        if any(kind == "replace" for kind, _ in outputs):
            assert settings.background is not None  # the settings refuse replace without one
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
                return lambda matte: over_color(matte.foreground, matte.alpha, color)
            case "cutout":
                return lambda matte: over_color(matte.foreground, matte.alpha, _BLACK)
            case "alpha":
                return lambda matte: clear_transparent(matte.foreground, matte.alpha)
            case "blur":
                return self._blur
            case "replace":
                return self._replace
            case "overlay":
                color, opacity = settings.overlay_color.as_tuple(), settings.overlay_opacity
                return lambda matte: tint(matte.frame, matte.alpha, color, opacity=opacity)

    def _blur(self, matte: Matte) -> Frame:
        sigma = self._settings.blur_radius * matte.frame.height / _REFERENCE_LINES
        return blur_background(matte.foreground, matte.alpha, sigma=sigma, regions=self._regions)

    def _replace(self, matte: Matte) -> Frame:
        assert self._background is not None  # opened with the drawer
        return over_frame(matte.foreground, matte.alpha, self._background.behind(matte.frame, self._regions))


def mask_is_full_range(encoding: Encoding) -> bool:
    """True for lossless files, which keep every level; players want 16..235, which they show as black and white."""
    return encoding.codec in ("ffv1", "png")
