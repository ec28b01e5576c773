"""What goes from stage to stage of a job on the GPU: frames with their pictures, then results on their way down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitascope.frames import Frame, Plane
from vitascope.gpu.download import Download
from vitascope.gpu.kernels.cuda_module import nvtx_range
from vitascope.gpu.streams import JobStreams
from vitascope.segmentation.gpu_keeping import KeptMatte, MatteKeeper
from vitascope.segmentation.gpu_rendering import GpuPictures
from vitascope.segmentation.rendering import Rendered

__all__ = ["DrawnFrame", "PendingPictures", "PreparedBatch", "send_down"]


@dataclass(slots=True, eq=False)
class PreparedBatch:
    """Consecutive frames, and what the network will see of them, on the GPU."""

    frames: list[Frame]
    """Without events of their own: ``prepared`` stands for all of them."""
    images: Any
    """CuPy [T, E, 3, h, w] or [T, E, h, w, 3], as the network wants it; None where all mattes are known."""
    seen: Download | None
    """What tells cuts, float32 [T, 64], then what tells motion, float32 [T, 3 E, rows, columns], as far as they are
    wanted, on their way down; None when neither is."""
    prepared: Any
    """CUDA event: frames and images are there."""

    @property
    def nbytes(self) -> int:
        """Bytes held on the GPU, for the queues."""
        pictures = 0 if self.images is None else int(self.images.nbytes)
        return sum(frame.nbytes for frame in self.frames) + pictures


@dataclass(slots=True, eq=False)
class DrawnFrame:
    """What was made of one frame, still on the GPU."""

    index: int
    drawn: GpuPictures
    source: Frame | None
    """The frame itself, where it comes down, too."""
    kept: KeptMatte | None
    """For the cache; None where it has the matte, or there is none."""

    def coming(self) -> list[Any]:
        """What comes down, in dense arrays.

        The planes of every picture that does not stay on the GPU, then of the source, then alpha, then ``kept``'s.
        """
        drawn = self.drawn
        frames = [picture for picture, stays in zip(drawn.pictures, drawn.stays, strict=True) if not stays]
        if self.source is not None:
            frames.append(self.source)
        arrays = [_dense(plane) for frame in frames for plane in frame.planes]
        if drawn.alpha is not None:
            arrays.append(_dense(drawn.alpha))
        return arrays if self.kept is None else arrays + self.kept.arrays


@dataclass(slots=True, eq=False)
class PendingPictures:
    """The pictures of one frame on their way to their encoders."""

    frame: DrawnFrame
    download: Download
    """Of this frame, and of those that were drawn with it."""
    coming: slice
    """Which of its arrays are this frame's."""
    nbytes: int
    """Bytes of page-locked memory, for the queues."""
    keeper: MatteKeeper | None

    def wait(self) -> Rendered:
        """The pictures in the host's memory (on the GPU for its own encoder), once they are there."""
        views: Iterator[Plane] = iter(self.download.wait()[self.coming])

        def on_host(frame: Frame) -> Frame:
            return replace(frame, planes=tuple(next(views) for _ in frame.planes), ready=None)

        drawn, source, kept = self.frame.drawn, self.frame.source, self.frame.kept
        pictures = [
            picture if stays else on_host(picture)
            for picture, stays in zip(drawn.pictures, drawn.stays, strict=True)
        ]
        for picture, stays in zip(pictures, drawn.stays, strict=True):
            for plane in () if stays else picture.planes:
                plane.flags.writeable = False  # so that encoders need no copy of their own
        source = None if source is None else on_host(source)
        alpha = None if drawn.alpha is None else next(views)
        if self.keeper is not None and kept is not None:
            self.keeper.keep(kept, list(views))
        return Rendered(self.frame.index, pictures, alpha, source)


def send_down(
    frames: Sequence[DrawnFrame], *, streams: JobStreams, keeper: MatteKeeper | None, keep: object
) -> list[PendingPictures]:
    """Begin to bring frames down, with one pair of events for all of them.

    Args:
        frames: Drawn on the current stream.
        streams: Of the job.
        keeper: Takes the mattes that come down.
        keep: What must live until they are there.
    """
    arrays: list[Any] = []
    parts: list[tuple[slice, int]] = []
    for frame in frames:
        own = frame.coming()
        parts.append((slice(len(arrays), len(arrays) + len(own)), sum(array.nbytes for array in own)))
        arrays += own
    with nvtx_range("download"):
        download = Download(arrays, stream=streams.copying, pool=streams.host_memory, keep=keep)
    return [
        PendingPictures(frame, download, coming, nbytes, keeper)
        for frame, (coming, nbytes) in zip(frames, parts, strict=True)
    ]


def _dense(array: Any) -> Any:
    """Decoded planes have padded rows; only dense ones come down in one copy."""
    return array if array.flags.c_contiguous else array.copy()
