"""Opens a path with what can read it: as images or a container, with the best decoder that takes the video.

The decoder is the GPU's or the CPU's, in one session or several.
"""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

from vitascope.errors import CorruptInputError, InputError, UsageError
from vitascope.media.planes import is_cuda_picture
from vitascope.media.reading.container import ContainerSource, Decoding, OpenedVideo, on_cuda_device
from vitascope.media.reading.damage import ONE_PICTURE_A_PACKET
from vitascope.media.reading.film_index import GopPlan, index_of, plan_segments
from vitascope.media.reading.images import ImageSource, find_images, is_still_image
from vitascope.media.reading.sessions import ParallelSource
from vitascope.media.reading.source import PictureSource

__all__ = ["open_film", "open_source"]

_GPU_FORMATS = frozenset({"nv12", "p010le"})
"""NVDEC's formats that the kernels read; 12 bits and 4:4:4 come as others."""
_SEGMENT_SECONDS = 0.5
"""The least length of a segment; every cut costs a seek and the draining of a decoder."""
_HOST_BUFFER_BYTES = 2 << 30
_DEVICE_BUFFER_BYTES = 16 << 30
"""Enough for four sessions to run a whole segment of 60 pictures of 7680x4320 ahead."""


def open_source(
    path: Path,
    *,
    image_frame_rate: Fraction,
    decoding: Decoding,
    max_corrupt_frames: int,
    sessions: int = 1,
    session_buffer_bytes: int | None = None,
) -> PictureSource:
    """Open whatever ``path`` names; the last three arguments are those of ``open_film``, and not for images.

    Raises:
        UsageError: The image frame rate is not above 0.
        InputError: It cannot be opened or holds no video.
    """
    if image_frame_rate <= 0:
        raise UsageError(
            f"{path}: an image frame rate of {image_frame_rate} is not possible; give one above 0"
        )
    images = find_images(path)
    if images is None and path.is_file() and is_still_image(path):
        images = [path]
    if images is not None:
        source = ImageSource(
            path, files=images, frame_rate=image_frame_rate, max_corrupt_frames=max_corrupt_frames
        )
        if decoding.cuda_device is not None:
            source.decoder += ": images are decoded on the CPU"
        return source
    return open_film(
        path,
        decoding=decoding,
        max_corrupt_frames=max_corrupt_frames,
        sessions=sessions,
        session_buffer_bytes=session_buffer_bytes,
    )


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
    is decoded on the CPU, and the source's ``decoder`` says why. A video that neither decodes raises the CPU's error.

    Args:
        path: The file.
        decoding: Where to try to decode.
        max_corrupt_frames: Damage that is tolerated.
        sessions: Decoders that share the video.
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
        plan = _cut(headers)
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
        sessions=count,
        buffer_bytes=session_buffer_bytes or _default_buffer_bytes(decoding.cuda_device),
        decoder=f"{source.decoder}; {count} sessions",
    )


def _open_for(path: Path, decoding: Decoding, max_corrupt_frames: int) -> tuple[ContainerSource, str | None]:
    """A source for the GPU if it takes the video, else for the CPU, with the reason."""
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
    """Why the GPU's pictures of this video cannot be used; None when they can. Decodes the first one."""
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


def _cut(headers: ContainerSource) -> GopPlan:
    """Segments of a video, from its container's index."""
    facts = headers.facts
    if facts.codec not in ONE_PICTURE_A_PACKET:
        return GopPlan(why_whole=f"{facts.codec} may have packets that show no picture")
    if facts.interlaced:
        return GopPlan(why_whole="it is interlaced")
    return plan_segments(index_of(headers), min_ticks=max(round(_SEGMENT_SECONDS / facts.time_base), 1))


def _default_buffer_bytes(cuda_device: int | None) -> int:
    if cuda_device is None:
        return _HOST_BUFFER_BYTES
    import cupy

    with on_cuda_device(cuda_device):
        free_bytes, _ = cupy.cuda.runtime.memGetInfo()
    return min(int(free_bytes) // 4, _DEVICE_BUFFER_BYTES)
