"""What goes from stage to stage of a job on the GPU: frames with their pictures, then results on their way down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vitascope.frames import Frame, Plane
from vitascope.gpu.download import Download
from vitascope.segmentation.gpu_keeping import KeptMatte, MatteKeeper
from vitascope.segmentation.gpu_rendering import GpuPictures
from vitascope.segmentation.rendering import Rendered

__all__ = ["PendingPictures", "PreparedBatch"]


@dataclass(slots=True, eq=False)
class PreparedBatch:
    """Consecutive frames, and what the network will see of them, on the GPU."""

    frames: list[Frame]
    images: Any
    """CuPy [T, E, 3, h, w] or [T, E, h, w, 3], as the network wants it; None where all mattes are known."""
    seen: Download | None
    """What tells cuts, float32 [T, 64], then what tells motion, float32 [T, 3 E, rows, columns], as far as they are
    wanted, on their way down; None when neither is."""
    prepared: Any
    """CUDA event: the images are there."""

    @property
    def nbytes(self) -> int:
        """Bytes held on the GPU, for the queues."""
        pictures = 0 if self.images is None else int(self.images.nbytes)
        return sum(frame.nbytes for frame in self.frames) + pictures


@dataclass(slots=True, eq=False)
class PendingPictures:
    """The pictures of one frame on their way to their encoders."""

    index: int
    drawn: GpuPictures
    source: Frame | None
    """The frame itself, where it comes down, too."""
    download: Download
    """The planes of every picture that does not stay on the GPU, then of the source, then alpha, then ``kept``'s."""
    keeper: MatteKeeper | None = None
    kept: KeptMatte | None = None
    """For the cache; None where it has the matte, or there is none."""

    @property
    def nbytes(self) -> int:
        """Bytes of page-locked memory, for the queues."""
        return self.download.nbytes

    def wait(self) -> Rendered:
        """The pictures in the host's memory (on the GPU for its own encoder), once they are there."""
        views: Iterator[Plane] = iter(self.download.wait())

        def on_host(frame: Frame) -> Frame:
            return replace(frame, planes=tuple(next(views) for _ in frame.planes), ready=None)

        drawn, source = self.drawn, self.source
        pictures = [
            picture if stays else on_host(picture)
            for picture, stays in zip(drawn.pictures, drawn.stays, strict=True)
        ]
        for picture, stays in zip(pictures, drawn.stays, strict=True):
            for plane in () if stays else picture.planes:
                plane.flags.writeable = False  # so that encoders need no copy of their own
        source = None if source is None else on_host(source)
        alpha = None if drawn.alpha is None else next(views)
        if self.keeper is not None and self.kept is not None:
            self.keeper.keep(self.kept, list(views))
        return Rendered(self.index, pictures, alpha, source)
