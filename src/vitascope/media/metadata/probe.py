"""What a video is, before it is processed: size, format, colour, time, rotation, eyes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from os import PathLike
from pathlib import Path

import av

from vitascope.errors import CorruptInputError, UsageError
from vitascope.frames import Rotation, VideoInfo
from vitascope.media.metadata.color_tags import color_spec, read_side_data
from vitascope.media.metadata.spherical import SphericalMetadata, read_spherical
from vitascope.media.reading.decoder_choice import open_film
from vitascope.media.reading.images import ImageSource, find_images, is_still_image
from vitascope.media.reading.opened_video import Decoding
from vitascope.media.reading.planes import layout_of, pixel_format_name
from vitascope.media.reading.source import PictureSource, SourceFacts

__all__ = ["DEFAULT_IMAGE_FRAME_RATE", "describe_video", "first_picture", "open_source", "probe"]

DEFAULT_IMAGE_FRAME_RATE = Fraction(25)
"""Images a second of an image sequence, as FFmpeg assumes."""
_QUARTER_TURNS: tuple[Rotation, ...] = (0, 90, 180, 270)


def probe(
    path: str | PathLike[str], *, image_frame_rate: Fraction | int = DEFAULT_IMAGE_FRAME_RATE
) -> VideoInfo:
    """Describe a video by its headers and its first picture, which is the only one decoded.

    Args:
        path: A video file, an image, a folder of images, a printf pattern or a glob of images.
        image_frame_rate: Images a second, for images.

    Raises:
        InputError: It cannot be read or holds no video; the message says why.
        CorruptInputError: No picture of it can be decoded.
    """
    # One thread: more would each want a packet before the first picture comes out.
    source = open_source(
        Path(path),
        image_frame_rate=Fraction(image_frame_rate),
        decoding=Decoding(threads=1),
        max_corrupt_frames=25,
    )
    try:
        return describe_video(source.facts, first_picture(source.facts.path, source.pictures()))
    finally:
        source.close()


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


def first_picture(path: Path, pictures: Iterator[av.VideoFrame]) -> av.VideoFrame:
    """The next picture.

    Raises:
        CorruptInputError: There is none.
    """
    frame = next(pictures, None)
    if frame is None:
        raise CorruptInputError(f"{path}: it has a video stream, but no picture of it can be decoded")
    return frame


def describe_video(facts: SourceFacts, frame: av.VideoFrame) -> VideoInfo:
    """Join what the headers say with what only a decoded picture shows (layout, tags, rotation, side data).

    Args:
        facts: From the source.
        frame: Its first decoded picture, in its native format, of the CPU or the GPU.

    Raises:
        InputError: The colour matrix is not supported.
    """
    side_data = read_side_data(frame)
    # FFmpeg hands Matroska's elements and most boxes out as side data; of MP4 we read what it does not know, too.
    boxes = (read_spherical(facts.path) if "mp4" in facts.container else None) or SphericalMetadata()
    color = color_spec(frame, path=facts.path, codec=facts.codec, chroma_location=facts.chroma_location)
    return VideoInfo(
        path=facts.path,
        width=frame.width,
        height=frame.height,
        format=layout_of(pixel_format_name(frame)).format,
        source_format=pixel_format_name(frame),
        color=color,
        codec=facts.codec,
        container=facts.container,
        time_base=facts.time_base,
        average_frame_rate=facts.average_frame_rate,
        frame_count_estimate=facts.frame_count_estimate,
        duration_seconds=facts.duration_seconds,
        # FFmpeg's angle is counter-clockwise, of the turn that the display matrix makes; flips are left out.
        rotation_degrees=_QUARTER_TURNS[round(-frame.rotation / 90) % 4],
        sample_aspect_ratio=facts.sample_aspect_ratio,
        interlaced=facts.interlaced or frame.interlaced_frame,
        stereo=boxes.stereo or side_data.stereo,
        projection=boxes.projection or side_data.projection,
        audio_stream_count=facts.audio_stream_count,
        subtitle_stream_count=facts.subtitle_stream_count,
        has_hdr_side_data=side_data.hdr is not None,
        metadata=dict(facts.metadata),
    )
