"""Draws each output kind from a frame and its matte, on the CPU and on a GPU.

On a GPU, a kind that needs only the network's coefficients takes one launch of the composite kernel. Edge options,
smoothing, ``blur`` and ``alpha`` need the finished alpha plane, which is computed once for all kinds. The CPU always
does so, because that plane is the costly part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, assert_never

from vitascope.closing import Closing
from vitascope.config import OutputKind, OutputSettings
from vitascope.errors import UsageError
from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.composite import blur_background, clear_transparent, render, render_alpha
from vitascope.gpu.kernels.composite_launch import MatteOnly, OnColor, OnFrame, Paint, Tint
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.region import Region, each_eye
from vitascope.gpu.kernels.semi_planar import to_planar
from vitascope.gpu.kernels.shrink import shrink_frame, shrunk_regions
from vitascope.media.writing.encoding import Encoding
from vitascope.segmentation.matting.batch import Matted
from vitascope.segmentation.matting.stream import Matte, StreamMatting
from vitascope.segmentation.render.backgrounds import Background
from vitascope.vr.packing import AlphaPacker

WITHOUT_FOREGROUND: frozenset[OutputKind] = frozenset({"mask", "overlay"})
"""Kinds that do not show people without background colours: a mask, or the frame itself."""
_BLACK = (0, 0, 0)
"""The background of ``cutout``."""
_REFERENCE_LINES = 1080
"""Number of lines for which ``output.blur_radius`` is given."""


@dataclass(slots=True, eq=False)
class Rendered:
    """The pictures made from one frame, one for each output, in order."""

    index: int
    """Position of the frame, from 0."""
    pictures: list[Frame]
    """Empty if the frame was not drawn."""
    alpha: Plane | None
    """uint8 or uint16 [H, W], full scale 255 or 65535; None if not requested."""
    source: Frame | None
    """The frame itself; None if not requested."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory, for the queues; planes shared by several pictures count once."""
        frames = self.pictures if self.source is None else [self.source, *self.pictures]
        planes = {id(plane): plane.nbytes for frame in frames for plane in frame.planes}
        return sum(planes.values()) + (0 if self.alpha is None else self.alpha.nbytes)


class Renderer(Closing):
    """Draws every requested kind of one video. A context manager.

    Args:
        outputs: Kind and encoding of each output; none for a run that only wants alpha.
        matting: Finishes the video's mattes; the renderer uses its edge options, eyes and rotation.
        settings: Output settings: colours, blur, background.
        mask_size: (height, width) of masks; None means the frame's size.
        packer: Draws ``packed-alpha``; required for that kind.
        background_begin: See ``Background``.

    Raises:
        UsageError: ``replace`` without a background.
        InputError: The background cannot be opened.
    """

    def __init__(
        self,
        outputs: Sequence[tuple[OutputKind, Encoding]],
        matting: StreamMatting,
        *,
        settings: OutputSettings,
        mask_size: tuple[int, int] | None = None,
        packer: AlphaPacker | None = None,
        background_begin: Fraction | None = None,
    ) -> None:
        self._matting = matting
        self._settings = settings
        self._mask_size = mask_size
        self._packer = packer
        self._mask_regions: list[Region] | None = None
        self._background: Background | None = None
        kinds = [kind for kind, _ in outputs]
        if "replace" in kinds:
            if settings.background is None:
                raise UsageError("replace needs output.background, the path of an image or a video")
            self._background = Background(Path(settings.background), begin_seconds=background_begin)
        self._outputs = [_output(kind, encoding, settings) for kind, encoding in outputs]
        self.stays = tuple(encoding.is_nvenc for _, encoding in outputs)
        """For each output, True if its encoder takes pictures on the GPU."""
        self._needs_alpha = matting.options.alters_alpha or not {"blur", "alpha", "packed-alpha"}.isdisjoint(
            kinds
        )
        self._gives_alpha = "alpha" in kinds

    def close(self) -> None:
        """Close the background."""
        if self._background is not None:
            self._background.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how outputs are drawn, one line each."""
        if self._background is None or not self._background.is_transparent:
            return ()
        name = Path(str(self._settings.background)).name
        return (
            f"{name} has an alpha channel, which is ignored: its transparent areas are visible behind people, too",
        )

    @property
    def draws_in_order(self) -> bool:
        """True if ``render`` must be called in frame order, from one thread; otherwise any thread may call it."""
        moves = self._background is not None and self._background.moves
        return moves or self._matting.refines_in_order

    def render(self, matted: Matted, *, with_source: bool = True, draws: bool = True) -> Rendered:
        """Draw the outputs of the next frame, on its device; on a GPU, on the current stream.

        Args:
            matted: The frame and the network's answer.
            with_source: Return alpha and the frame, too.
            draws: False for a frame that later frames need, but that is not drawn itself.
        """
        frame = matted.frame
        if not draws:
            if self._matting.refines_in_order:  # the smoother must see every frame
                self._matting.refine(matted)
            return Rendered(frame.index, [], None, None)
        source = frame if with_source else None
        on_gpu = is_on_gpu(frame.planes[0])
        if not (self._outputs or with_source):  # the caller only reads mattes
            return Rendered(frame.index, [], None, None)
        if on_gpu and not self._needs_alpha and not with_source:
            pictures = [self._fused(matted, output) for output in self._outputs]
            return Rendered(frame.index, pictures, None, None)
        matte = self._matting.refine(matted)
        pictures = [
            # A shrunk mask is always drawn this way, whatever other kinds are drawn.
            self._fused(matted, output)
            if on_gpu and output.kind == "mask" and not self._matting.options.alters_alpha
            else self._on_alpha(matte, output, on_gpu=on_gpu)
            for output in self._outputs
        ]
        alpha = matte.alpha if with_source or self._gives_alpha else None
        return Rendered(frame.index, pictures, alpha, source)

    def _fused(self, matted: Matted, output: _Output) -> Frame:
        """Draw one output in one launch, from the network's coefficients."""
        matting, frame = self._matting, matted.frame
        estimate, regions = matting.settle(matted), matting.regions
        gain, offset = estimate.gain, estimate.offset
        assert gain is not None  # settle() returns coefficients
        assert offset is not None
        if output.kind == "mask" and self._mask_size is not None:
            if self._mask_regions is None:
                whole = (frame.height, frame.width)
                self._mask_regions = shrunk_regions(regions, frame_size=whole, size=self._mask_size)
            frame = shrink_frame(frame, regions=regions, size=self._mask_size)
            regions = self._mask_regions
        return render(
            frame,
            regions=regions,
            gain=gain,
            offset=offset,
            rotation_degrees=matting.rotation_degrees,
            paint=self._paint(frame, output),
            decontaminate=matting.options.decontaminate and output.kind not in WITHOUT_FOREGROUND,
            planar=output.is_planar,
        )

    def _on_alpha(self, matte: Matte, output: _Output, *, on_gpu: bool) -> Frame:
        """Draw one output from the finished alpha plane."""
        kind, regions = output.kind, self._matting.regions
        # CPU encoders take the decoded planes as they are; only a mask has planes of its own.
        planar = output.is_planar and (on_gpu or kind == "mask")
        if kind == "packed-alpha":
            assert self._packer is not None  # opened with the outputs
            packed = self._packer.pack(matte.foreground, matte.alpha)
            return to_planar(packed) if planar else packed
        make: Callable[[Frame, Any, Region], Frame] | None = None
        if kind == "alpha":
            make = lambda eye, alpha, _: clear_transparent(eye, alpha)  # noqa: E731 - a pair of short ones
        elif kind == "blur":
            make = lambda eye, alpha, _: blur_background(eye, alpha, sigma=self._blur_sigma(eye))  # noqa: E731
        if make is not None:
            picture = each_eye(matte.foreground, matte.alpha, regions, make)
            return to_planar(picture) if planar else picture
        shrinks = kind == "mask" and self._mask_size is not None
        picture = render_alpha(
            matte.frame if kind in WITHOUT_FOREGROUND else matte.foreground,
            matte.alpha,
            regions=regions,
            paint=self._paint(matte.frame, output),
            planar=planar and not (on_gpu and shrinks),
        )
        if kind == "mask" and self._mask_size is not None:
            picture = shrink_frame(picture, regions=regions, size=self._mask_size)
            return to_planar(picture) if on_gpu and planar else picture
        return picture

    def _paint(self, frame: Frame, output: _Output) -> Paint:
        if output.paint is not None:
            return output.paint
        assert self._background is not None  # opened with the outputs
        matting = self._matting
        behind = self._background.behind(frame, matting.regions, rotation_degrees=matting.rotation_degrees)
        return OnFrame(behind)

    def _blur_sigma(self, eye: Frame) -> float:
        """Sigma of ``blur``'s Gaussian, in luma samples of an eye."""
        lines = eye.width if self._matting.rotation_degrees in (90, 270) else eye.height
        return self._settings.blur_radius * lines / _REFERENCE_LINES


@dataclass(frozen=True, slots=True)
class _Output:
    """The values that are the same for all frames of an output."""

    kind: OutputKind
    is_planar: bool
    """True if its encoder is on the CPU."""
    paint: Paint | None
    """None for a moving background, and for kinds drawn in another way."""


def _output(kind: OutputKind, encoding: Encoding, settings: OutputSettings) -> _Output:
    paint: Paint | None
    match kind:
        case "mask":
            depth = 8 if encoding.bit_depth == 8 else 10
            paint = MatteOnly(full_range=mask_is_full_range(encoding), bit_depth=depth)
        case "overlay":
            paint = Tint(settings.overlay_color.as_tuple(), settings.overlay_opacity)
        case "cutout":
            paint = OnColor(_BLACK)
        case "key":
            paint = OnColor(settings.key_color.as_tuple())
        case "replace" | "alpha" | "blur" | "packed-alpha":
            paint = None
        case _:
            assert_never(kind)
    return _Output(kind, not encoding.is_nvenc, paint)


def mask_is_full_range(encoding: Encoding) -> bool:
    """True for lossless files, which keep all levels; players expect 16 to 235."""
    return encoding.codec in ("ffv1", "png")
