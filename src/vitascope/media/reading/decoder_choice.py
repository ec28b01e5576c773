"""Which decoder a film gets, found out by trying: the GPU's or the CPU's, one session or several."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from vitascope.errors import CorruptInputError, InputError
from vitascope.media.reading.container import ContainerSource
from vitascope.media.reading.cuda_pictures import is_cuda_picture
from vitascope.media.reading.damage import ONE_PICTURE_A_PACKET
from vitascope.media.reading.film_index import index_of
from vitascope.media.reading.gop_plan import GopPlan, plan_segments
from vitascope.media.reading.opened_video import Decoding, OpenedVideo, on_cuda_device
from vitascope.media.reading.sessions import ParallelSource, Stamp
from vitascope.media.reading.source import PictureSource

__all__ = ["open_film"]

_GPU_FORMATS = frozenset({"nv12", "p010le"})
"""What the kernels read of what NVDEC writes; 12 bits and 4:4:4 come as other formats."""
_SEGMENT_SECONDS = 0.5
"""The least length of a segment; every cut costs a seek and the draining of a decoder."""
_HOST_BUFFER_BYTES = 2 << 30
_DEVICE_BUFFER_BYTES = 16 << 30
"""Enough for four sessions to run a whole segment of 60 pictures of 7680x4320 ahead."""


def open_film(
    path: Path,
    *,
    decoding: Decoding,
    max_corrupt_frames: int,
    sessions: int = 1,
    session_buffer_bytes: int | None = None,
) -> PictureSource:
    """Open the video of a container with the best decoder that takes it.

    The GPU's decoder is tried on the first picture. What it does not take (a codec, a chroma format, a depth, a size)
    is decoded on the CPU, and the source's ``decoder`` says why. A film that neither decodes raises the CPU's error.

    Args:
        path: The file.
        decoding: Where to try to decode.
        max_corrupt_frames: Damage that is tolerated.
        sessions: Decoders that share the film.
        session_buffer_bytes: Pictures that may wait to be read, of all sessions together; None takes a quarter of the
            GPU's free memory and at most 16 GiB, or 2 GiB of host memory.

    Raises:
        InputError: The file cannot be opened or holds no video that this FFmpeg can decode.
        MissingDependencyError: A CUDA device is asked for without CuPy.
        UsageError: There is no such CUDA device.
    """
    source, reason = _open_for(path, decoding, max_corrupt_frames)
    if reason is not None:
        decoding = replace(decoding, cuda_device=None)
    name = "libavcodec" if decoding.cuda_device is None else "nvdec"
    label = f"{name} ({source.facts.codec})"
    source.decoder = f"{label}: {reason}" if reason else label
    if sessions == 1:
        return source
    try:
        headers = ContainerSource(path, decoding=Decoding(threads=1), max_corrupt_frames=max_corrupt_frames)
        plan, stamp = _cut(headers)
    except BaseException:
        source.close()
        raise
    if not plan.segments:
        headers.close()
        source.decoder += f"; one session: {plan.why_whole}"
        return source
    count = min(sessions, len(plan.segments))
    if decoding.cuda_device is None:
        source.close()  # it has the threads of all sessions
        decoding = replace(decoding, threads=max((decoding.threads or os.cpu_count() or 1) // count, 1))
    return ParallelSource(
        headers,
        OpenedVideo(path, decoding) if decoding.cuda_device is None else source.hand_over(),
        open_video=partial(OpenedVideo, path, decoding),
        plan=plan,
        stamp=stamp,
        sessions=count,
        buffer_bytes=session_buffer_bytes or _default_buffer_bytes(decoding.cuda_device),
        decoder=f"{source.decoder}; {count} sessions",
    )


def _open_for(path: Path, decoding: Decoding, max_corrupt_frames: int) -> tuple[ContainerSource, str | None]:
    """A source for the GPU if it takes the film, else for the CPU, with the reason."""
    reason = None
    if decoding.cuda_device is not None:
        with on_cuda_device(decoding.cuda_device):
            pass  # what was asked for and cannot be had is an error, not a reason
        try:
            source = ContainerSource(path, decoding=decoding, max_corrupt_frames=max_corrupt_frames)
        except (InputError, NotImplementedError) as error:
            # If the file is to blame, the CPU's attempt says so; else no decoder could be had (driver, memory).
            reason = f"NVDEC cannot be opened ({error})"
        else:
            reason = _why_not(source)
            if reason is None:
                return source, None
            source.close()
        decoding = replace(decoding, cuda_device=None)
    return ContainerSource(path, decoding=decoding, max_corrupt_frames=max_corrupt_frames), reason


def _why_not(source: ContainerSource) -> str | None:
    """Why the GPU's pictures of this film cannot be used; None when they can. Decodes the first one."""
    codec, context = source.facts.codec, source.video.stream.codec_context
    if not context.is_hwaccel:
        return f"FFmpeg has no way from {codec} to NVDEC"
    try:
        picture = source.peek()
    except CorruptInputError as error:
        return f"NVDEC failed ({error})"
    if picture is None:
        return "NVDEC gave no picture"
    what = f"{picture.format.name} at {picture.width}x{picture.height}"
    if not is_cuda_picture(picture):
        return f"this GPU does not decode {codec} in {what}"
    layout = picture.sw_format.name if picture.sw_format is not None else "an unknown format"
    if layout not in _GPU_FORMATS:
        return f"NVDEC gives {layout}, which the kernels do not read"
    if (picture.width, picture.height) != (context.width, context.height):
        # Odd sizes come rounded up, and a crop at the left or top is left to the player.
        return f"NVDEC gives {picture.width}x{picture.height} of {context.width}x{context.height}"
    return None


def _cut(headers: ContainerSource) -> tuple[GopPlan, Stamp]:
    """Segments of a film, from its container's index, and which time of a packet that lists."""
    facts = headers.facts
    if facts.codec not in ONE_PICTURE_A_PACKET:
        return GopPlan((), f"{facts.codec} may have packets that show no picture"), "dts"
    if facts.interlaced:
        return GopPlan((), "it is interlaced"), "dts"
    index = index_of(headers)
    if index.why_none is not None:
        return GopPlan((), index.why_none), index.stamp
    min_ticks = max(round(_SEGMENT_SECONDS / facts.time_base), 1)
    return plan_segments(index.keyframes, min_ticks=min_ticks), index.stamp


def _default_buffer_bytes(cuda_device: int | None) -> int:
    if cuda_device is None:
        return _HOST_BUFFER_BYTES
    import cupy

    with on_cuda_device(cuda_device):
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    return min(int(free_bytes) // 4, _DEVICE_BUFFER_BYTES)
