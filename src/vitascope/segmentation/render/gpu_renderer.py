"""What each output kind makes of a frame on the GPU: one fused kernel where it can, alpha in between where it must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

from vitascope.config import OutputKind, OutputSettings
from vitascope.frames import Frame, Rotation
from vitascope.gpu.kernels.composite import blur_background, clear_transparent
from vitascope.gpu.kernels.edges import adjust_edges
from vitascope.gpu.kernels.eyes import each_eye
from vitascope.gpu.kernels.foreground import decontaminate
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.render import MatteOnly, OnColor, OnFrame, Paint, Tint, render, render_alpha
from vitascope.gpu.kernels.semi_planar import to_planar
from vitascope.gpu.kernels.shrink import shrink_frame, shrunk_regions
from vitascope.gpu.kernels.steady import AlphaSmoother
from vitascope.media.writing.encoding import Encoding
from vitascope.segmentation.matting.stream import MattingOptions
from vitascope.segmentation.render.backgrounds import Background
from vitascope.segmentation.render.renderer import BLACK, blur_sigma, mask_is_full_range

__all__ = ["Coefficients", "GpuPictures", "GpuRenderer"]


@dataclass(slots=True, eq=False)
class Coefficients:
    """A guided filter at the network's size, on the GPU."""

    gain: Any
    """CuPy float16 or float32 [E, 4, h, w] (foreground residual R, G, B, then alpha), or [E, 1, h, w]: alpha alone."""
    offset: Any
    """As ``gain``."""


@dataclass(slots=True, eq=False)
class GpuPictures:
    """The pictures made of one frame, still on the GPU."""

    pictures: list[Frame]
    alpha: Any
    """CuPy uint8 or uint16 [H, W]; None where nobody asked for it."""
    stays: tuple[bool, ...]
    """For each picture, True where its encoder takes it on the GPU."""


class GpuRenderer:
    """Draws every requested kind of one video on the GPU. A context manager; used by one thread.

    Kinds whose alpha needs nothing but the coefficients are one launch of the composite kernel each; edge options,
    smoothing, ``blur`` and ``alpha`` need the finished alpha plane, which is made once for all of them.

    Args:
        outputs: Kind and encoding of each output.
        settings: Colours, blur, background.
        options: Edges, smoothing, decontamination.
        regions: Where each eye lies.
        rotation_degrees: Clockwise turn that makes the frames upright.
        mask_size: (height, width) of masks; None is the frame's.
        background_begin: See ``Background``.

    Raises:
        InputError: The background cannot be opened.
    """

    def __init__(
        self,
        outputs: Sequence[tuple[OutputKind, Encoding]],
        *,
        settings: OutputSettings,
        options: MattingOptions,
        regions: list[Region],
        rotation_degrees: Rotation = 0,
        mask_size: tuple[int, int] | None = None,
        background_begin: Fraction | None = None,
    ) -> None:
        self._settings = settings
        self._options = options
        self._regions = regions
        self._rotation: Rotation = rotation_degrees
        self._mask_size = mask_size
        self._smoother = AlphaSmoother(options.temporal_smoothing)
        self._background: Background | None = None
        if any(kind == "replace" for kind, _ in outputs):
            assert settings.background is not None  # check_kinds saw to it
            self._background = Background(Path(settings.background), begin_seconds=background_begin)
        self._outputs = [_output(kind, encoding, settings) for kind, encoding in outputs]
        self._mask_regions: list[Region] | None = None
        self._stays = tuple(encoding.is_nvenc for _, encoding in outputs)
        alters_alpha = options.edges.active or options.temporal_smoothing > 0
        self._alters_alpha = alters_alpha
        self._needs_alpha = alters_alpha or any(kind in ("blur", "alpha") for kind, _ in outputs)
        self._gives_alpha = any(kind == "alpha" for kind, _ in outputs)

    def __enter__(self) -> GpuRenderer:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the background."""
        if self._background is not None:
            self._background.close()

    def start_shot(self) -> None:
        """Forget the mattes before: the next frame begins a new shot."""
        self._smoother.reset()

    def render(self, frame: Frame, coefficients: Coefficients, *, with_alpha: bool = False) -> GpuPictures:
        """Draw the next frame's outputs on the current stream.

        Args:
            frame: NV12 or P010 on the GPU.
            coefficients: The network's answer.
            with_alpha: Give the alpha plane, too.
        """
        if not self._needs_alpha and not with_alpha:
            fused = [self._fused(frame, coefficients, output) for output in self._outputs]
            return GpuPictures(fused, None, self._stays)
        alpha = self.alpha(frame, coefficients)
        person = frame
        if self._options.decontaminate and coefficients.gain.shape[1] == 4:
            person = decontaminate(
                frame,
                refine_alpha(frame, **self._guide(coefficients)),
                regions=self._regions,
                gain=coefficients.gain[:, :3],
                offset=coefficients.offset[:, :3],
                rotation_degrees=self._rotation,
            )
        pictures = [
            # A narrow mask is drawn in one way throughout, whatever else is drawn beside it.
            self._fused(frame, coefficients, output)
            if output.kind == "mask" and not self._alters_alpha
            else self._on_alpha(frame, person, alpha, output)
            for output in self._outputs
        ]
        return GpuPictures(pictures, alpha if with_alpha or self._gives_alpha else None, self._stays)

    def alpha(self, frame: Frame, coefficients: Coefficients) -> Any:
        """The finished alpha plane of the next frame: CuPy uint8 or uint16 [H, W]."""
        alpha = refine_alpha(frame, **self._guide(coefficients))
        if self._options.temporal_smoothing > 0:
            alpha = self._smoother.smooth(frame, alpha)
        if self._options.edges.active:
            alpha = adjust_edges(alpha, self._options.edges, regions=self._regions)
        return alpha

    def _guide(self, coefficients: Coefficients) -> dict[str, Any]:
        return {
            "regions": self._regions,
            "gain": coefficients.gain[:, -1],
            "offset": coefficients.offset[:, -1],
            "rotation_degrees": self._rotation,
        }

    def _fused(self, frame: Frame, coefficients: Coefficients, output: _Output) -> Frame:
        regions = self._regions
        if output.kind == "mask" and self._mask_size is not None:
            if self._mask_regions is None:
                whole = (frame.height, frame.width)
                self._mask_regions = shrunk_regions(regions, frame_size=whole, size=self._mask_size)
            frame = shrink_frame(frame, regions=regions, size=self._mask_size)
            regions = self._mask_regions
        return render(
            frame,
            regions=regions,
            gain=coefficients.gain,
            offset=coefficients.offset,
            rotation_degrees=self._rotation,
            paint=self._paint(frame, output),
            decontaminate=(
                self._options.decontaminate
                and coefficients.gain.shape[1] == 4
                and output.kind not in ("mask", "overlay")
            ),
            planar=output.is_planar,
        )

    def _on_alpha(self, frame: Frame, person: Frame, alpha: Any, output: _Output) -> Frame:
        kind = output.kind
        make: Callable[[Frame, Any, Region], Frame] | None = None
        if kind == "alpha":
            make = lambda eye, matte, _: clear_transparent(eye, matte)  # noqa: E731 - a pair of short ones
        elif kind == "blur":
            sigma = blur_sigma(self._settings, self._rotation)
            make = lambda eye, matte, _: blur_background(eye, matte, sigma=sigma(eye))  # noqa: E731
        if make is not None:
            picture = each_eye(person, alpha, self._regions, make)
            return to_planar(picture) if output.is_planar else picture
        picture = render_alpha(
            frame if kind in ("mask", "overlay") else person,
            alpha,
            regions=self._regions,
            paint=self._paint(frame, output),
            planar=output.is_planar and (self._mask_size is None or kind != "mask"),
        )
        if kind == "mask" and self._mask_size is not None:
            picture = shrink_frame(picture, regions=self._regions, size=self._mask_size)
            return to_planar(picture) if output.is_planar else picture
        return picture

    def _paint(self, frame: Frame, output: _Output) -> Paint:
        if output.paint is not None:
            return output.paint
        assert self._background is not None  # opened with the outputs
        return OnFrame(self._background.behind(frame, self._regions, rotation_degrees=self._rotation))


@dataclass(frozen=True, slots=True)
class _Output:
    """What all frames of an output have in common."""

    kind: OutputKind
    is_planar: bool
    """True where its encoder is on the processor."""
    paint: Paint | None
    """None for a background, which moves."""


def _output(kind: OutputKind, encoding: Encoding, settings: OutputSettings) -> _Output:
    paint: Paint | None
    match kind:
        case "mask":
            depth = 8 if encoding.bit_depth == 8 else 10
            paint = MatteOnly(full_range=mask_is_full_range(encoding), bit_depth=depth)
        case "overlay":
            paint = Tint(settings.overlay_color.as_tuple(), settings.overlay_opacity)
        case "replace":
            paint = None
        case "cutout":
            paint = OnColor(BLACK)
        case _:
            paint = OnColor(settings.key_color.as_tuple())
    return _Output(kind, not encoding.is_nvenc, paint)
