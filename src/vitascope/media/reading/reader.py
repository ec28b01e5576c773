"""Reads a video as a stream of ``Frame`` objects in native planes, with exact times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from itertools import chain, pairwise
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Any, Self

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.stream import VideoStream

from vitascope.closing import Closing
from vitascope.errors import CorruptInputError, InputError, UsageError
from vitascope.frames import ColorSpec, DeviceEvent, Frame, Plane, Rotation, VideoHeaders, VideoInfo
from vitascope.media.libav import open_input
from vitascope.media.metadata.color_tags import HdrMetadata, color_spec, read_side_data
from vitascope.media.metadata.spherical import SphericalMetadata, read_spherical
from vitascope.media.planes import (
    PlaneReader,
    ReadyEvents,
    is_cuda_picture,
    layout_of,
    pixel_format_name,
    planes_on_gpu,
    upload,
)
from vitascope.media.reading.container import Decoding
from vitascope.media.reading.images import find_images, refuse_by_header
from vitascope.media.reading.sessions import open_source
from vitascope.media.reading.source import LONGEST_PAUSE_SECONDS, PictureSource, SourceFacts
from vitascope.media.remote import path_of

DEFAULT_IMAGE_FRAME_RATE = Fraction(25)
"""Frames per second of an image sequence; FFmpeg's default."""
_QUARTER_TURNS: tuple[Rotation, ...] = (0, 90, 180, 270)
_MICROSECOND = Fraction(1, 1_000_000)
_MOST_OUT_OF_ORDER = 16
"""Maximum number of pictures that decoders reorder (ITU-T H.264, A.3): after damage, that many may arrive out of
order."""
_STEADY_COUNT = 3
"""Number of pictures that identify a new recording."""
_SEEK_MARGINS_SECONDS = (0, 2, 10, 60)
"""Seconds before the target to seek to, tried in turn until a picture at or before the target arrives."""


def open_video(
    path: str | PathLike[str],
    *,
    start_seconds: float | None = None,
    end_seconds: float | None = None,
    max_corrupt_frames: int = 250,
    threads: int = 0,
    image_frame_rate: Fraction | int = DEFAULT_IMAGE_FRAME_RATE,
    cuda_device: int | None = None,
    decoder_sessions: int = 1,
    session_buffer_bytes: int | None = None,
    grey_behind_alpha: bool = False,
) -> VideoReader:
    """Open a video for reading.

    Args:
        path: A video file of any container that FFmpeg knows, an image, a folder of images (natural order), a
            printf pattern (``img_%04d.png``) or a glob (``img_*.png``).
        start_seconds: Leave out frames before this time, counted from the first one. The first frame returned is the
            first whose pts is at or after it.
        end_seconds: Leave out frames from this time on, counted from the first one.
        max_corrupt_frames: Maximum number of damaged or missing frames.
        threads: Decoder threads on the CPU, of all sessions together; 0 means one per core. Each thread but the first
            may delay a picture; the GPU's decoder only delays pictures to reorder them.
        image_frame_rate: Frames per second, for images.
        cuda_device: The CUDA device whose decoder (NVDEC) is used; its frames stay there, as CuPy arrays in NV12 or
            P010. What it cannot decode is decoded on the CPU, into NumPy arrays; ``reader.decoder`` says why. None
            for the CPU.
        decoder_sessions: Number of decoders that work on the video at the same time, each on other groups of
            pictures. The frames and their order are the same. Videos that cannot be divided exactly get one;
            ``reader.decoder`` says why.
        session_buffer_bytes: Limit in bytes for decoded pictures that wait in several sessions, all together; None
            sets a default. Sessions only help if each can hold most of a group of pictures.
        grey_behind_alpha: Blend pictures that have alpha with grey, instead of dropping the alpha. CPU only.

    Returns:
        A reader that has decoded its first frame, so that ``info`` is complete.

    Raises:
        UsageError: The times are negative or in the wrong order, a count is too small, or the CUDA device does not
            exist.
        MissingDependencyError: A CUDA device is requested without CuPy.
        InputError: The file cannot be opened, or has no video; the message says why.
        CorruptInputError: No frame can be decoded, or more than ``max_corrupt_frames`` cannot.
    """
    start, end = _checked_range(path, start_seconds, end_seconds)
    if max_corrupt_frames < 0 or threads < 0:
        raise UsageError(
            f"{path}: max_corrupt_frames={max_corrupt_frames}, threads={threads}: both must be 0 or more"
        )
    if decoder_sessions < 1 or (session_buffer_bytes is not None and session_buffer_bytes < 1):
        raise UsageError(
            f"{path}: decoder_sessions={decoder_sessions}, session_buffer_bytes={session_buffer_bytes}: "
            "both must be 1 or more"
        )
    source = open_source(
        path_of(path),
        image_frame_rate=Fraction(image_frame_rate),
        decoding=Decoding(threads, cuda_device),
        max_corrupt_frames=max_corrupt_frames,
        sessions=decoder_sessions,
        session_buffer_bytes=session_buffer_bytes,
    )
    try:
        return VideoReader(
            source, start=start, end=end, cuda_device=cuda_device, grey_behind_alpha=grey_behind_alpha
        )
    except BaseException:
        source.close()
        raise


def read_headers(path: str | PathLike[str]) -> SourceFacts:
    """Describe a video from its headers, without decoding a frame, which is slow at 4K and above.

    Args:
        path: As for ``probe``.

    Raises:
        InputError: The file cannot be opened, or has no video; the message says why.
    """
    source = open_source(
        path_of(path),
        image_frame_rate=DEFAULT_IMAGE_FRAME_RATE,
        decoding=Decoding(threads=1),
        max_corrupt_frames=0,
    )
    source.close()
    return source.facts


def probe(
    path: str | PathLike[str], *, image_frame_rate: Fraction | int = DEFAULT_IMAGE_FRAME_RATE
) -> VideoInfo:
    """Describe a video from its headers and its first frame; no other frame is decoded.

    Args:
        path: A video file, an image, a folder of images, a printf pattern or a glob of images.
        image_frame_rate: Frames per second, for images.

    Raises:
        InputError: The file cannot be read, or has no video; the message says why.
        CorruptInputError: No frame can be decoded.
    """
    # One thread: each further one would need another packet before the first frame is output.
    source = open_source(
        path_of(path),
        image_frame_rate=Fraction(image_frame_rate),
        decoding=Decoding(threads=1),
        max_corrupt_frames=25,
    )
    try:
        return describe_video(source.facts, first_picture(source.facts.path, source.pictures()))
    finally:
        source.close()


class VideoReader(Closing):
    """The frames of one video, once, in presentation order. A context manager; created by ``open_video``.

    - Planes are read-only. If the file's layout is one of ours, they are views onto the decoder's memory, which lives
    as long as the frame, even after the reader is closed.
    - Frames on the GPU carry ``ready``: a stream must wait for it before reading them. The decoder may overwrite a
    frame's memory as soon as nobody holds the frame, so hold it until the GPU has finished reading. FFmpeg copies
    pictures on the legacy default stream. Use streams created with ``non_blocking=True``, because ordinary streams
    and that one wait for each other (1080p on an H200: 82 instead of 1143 frames/s beside a busy ordinary stream).
    - pts and time base are the file's own. A frame without pts follows the previous one after that one's duration,
    else after the average frame interval. A repeated pts becomes the previous one plus a tick. A pts that jumps back
    (joined recordings), or ahead by more than six hours, is shifted so that time continues, together with all that
    follow, unless some frames are merely out of order. ``adjusted_pts_count`` counts all of these.
    - Frames are not rotated: ``info.rotation_degrees`` says how players rotate them.
    - Damaged frames are skipped and counted, and so are those that the decoder drops silently, and those in parts
    that cannot be read at all. If the file is shorter than its header says, ``CorruptInputError`` is raised at the
    end of the stream; all frames before it were returned, and the caller decides whether to keep them.

    Not thread-safe, but may be used from another thread than the one that opened it.
    """

    def __init__(
        self,
        source: PictureSource,
        *,
        start: Fraction | None,
        end: Fraction | None,
        cuda_device: int | None = None,
        grey_behind_alpha: bool = False,
    ) -> None:
        self._source: PictureSource | None = source
        self._damage = source.damage
        self._decoder = source.decoder
        self._planes = PlaneReader(grey_behind_alpha=grey_behind_alpha)
        self._colors: dict[tuple[object, ...], ColorSpec] = {}
        self._next_index = 0
        pictures = source.pictures()
        picture = first_picture(source.facts.path, pictures)
        self._cuda_device = cuda_device if is_cuda_picture(picture) else None
        self._ready = None if self._cuda_device is None else ReadyEvents(self._cuda_device)
        self.info: VideoInfo = describe_video(source.facts, picture)
        """Description of the whole file, regardless of trimming."""
        self.hidden_count: int = source.facts.hidden_count
        """Number of frames that the file's edit list leaves out."""
        self.hdr: HdrMetadata | None = read_side_data(picture, codec=source.facts.codec).hdr
        """Mastering display and content light level of the first frame; None if it has neither."""
        clock = PresentationClock(self.info.time_base, self.info.average_frame_rate)
        self.origin_pts: int = clock.stamp(picture.pts, picture.duration)
        """pts of the file's first frame, from which ``start_seconds`` and ``end_seconds`` are counted."""
        self.start_pts: int | None = self._ticks_at(start)
        """First pts to return; None without a start. Copied audio starts here, times ``info.time_base``."""
        self.end_pts: int | None = self._ticks_at(end)
        """First pts that is left out; None without an end."""
        self.first_pts: int | None = None
        """pts of the first frame returned; None before that."""
        self._clock = PresentationClock(self.info.time_base, self.info.average_frame_rate)
        self._pictures: Iterator[av.VideoFrame] = chain([picture], pictures)
        if self.start_pts is not None and self.start_pts > self.origin_pts:
            self._seek(source, self.start_pts)

    def close(self) -> None:
        """Free the decoder and its threads. Idempotent; earlier frames stay valid."""
        source, self._source = self._source, None
        self._pictures = iter(())
        if source is not None:
            source.close()

    def play(self, start_pts: int | None, end_pts: int | None) -> None:
        """Continue with another part of the video, with all counts reset.

        Exact if the video's timestamps increase; ``film_index`` tells for which containers this can be known.

        Args:
            start_pts: First pts to return; None for the video's first frame.
            end_pts: First pts to leave out; None for the video's end.

        Raises:
            ValueError: The reader is closed.
        """
        if self._source is None:
            raise ValueError(f"the reader of {self.info.path} is closed")
        self.start_pts, self.end_pts, self.first_pts = start_pts, end_pts, None
        self._next_index = 0
        self._clock.start_over()
        self._damage.start_over()
        if start_pts is not None and start_pts > self.origin_pts:
            self._seek(self._source, start_pts)
        else:
            self._source.rewind()
            self._pictures = self._source.pictures()

    @property
    def decoder(self) -> str:
        """The decoder, such as ``nvdec (hevc); 4 sessions``, and why it is not the requested one."""
        return self._decoder

    @property
    def decoded_count(self) -> int:
        """Frames yielded so far."""
        return self._next_index

    @property
    def corrupt_count(self) -> int:
        """Number of damaged or missing frames so far."""
        return self._damage.count

    @property
    def adjusted_pts_count(self) -> int:
        """Number of frames with a missing or non-increasing pts so far."""
        return self._clock.adjusted_count

    @property
    def repeated_pts_count(self) -> int:
        """Number of adjusted frames that repeated the previous pts or were out of order."""
        return self._clock.repeated_count

    @property
    def clock_jump_count(self) -> int:
        """Number of times that the video's clock was reset, so far."""
        return self._clock.jump_count

    @property
    def expected_frame_count(self) -> int | None:
        """Number of frames according to the header and the trim; None if the header does not say."""
        count, duration = self.info.frame_count_estimate, self.info.duration_seconds
        if count is None or (self.start_pts is None and self.end_pts is None):
            return count
        if not duration:
            return None
        begin = 0 if self.start_pts is None else self.start_pts - self.origin_pts
        length = (
            duration
            if self.end_pts is None
            else float((self.end_pts - self.origin_pts) * self.info.time_base)
        )
        shown = min(length, duration) - float(begin * self.info.time_base)
        return max(min(round(shown * count / duration), count), 0)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Frame:
        """Return the next frame.

        Raises:
            InputError: The frame size changes.
            CorruptInputError: The damage limit is exceeded, or the file ends early.
            ValueError: The reader is closed.
        """
        if self._source is None:
            raise ValueError(f"the reader of {self.info.path} is closed")
        for picture in self._pictures:
            pts = self._clock.stamp(picture.pts, picture.duration)
            if self.start_pts is not None and pts < self.start_pts:
                continue
            if self.end_pts is not None and pts >= self.end_pts:
                # Further decoding would only find damage beyond the requested part.
                self._pictures = iter(())
                break
            frame = self._to_frame(picture, pts)
            if self.first_pts is None:
                self.first_pts = pts
            self._next_index += 1
            return frame
        raise StopIteration

    def _to_frame(self, picture: av.VideoFrame, pts: int) -> Frame:
        info = self.info
        if (picture.width, picture.height) != (info.width, info.height):
            seconds = float((pts - self.origin_pts) * info.time_base)
            is_folder = info.container == "images"
            advice = (
                "leave those of other sizes out" if is_folder else "cut the file there and process the parts"
            )
            raise InputError(
                f"{info.path}: the frame size changes from {info.width}x{info.height} to "
                f"{picture.width}x{picture.height} at {seconds:.2f} s; {advice}"
            )
        planes, ready = self._planes_of(picture)
        return Frame(
            planes=planes,
            ready=ready,
            format=info.format,
            color=self._color_of(picture),
            index=self._next_index,
            pts=pts,
            time_base=info.time_base,
            duration=picture.duration,
            keyframe=picture.key_frame,
        )

    def _planes_of(self, picture: av.VideoFrame) -> tuple[tuple[Plane, ...], DeviceEvent | None]:
        target, device = self.info.format, self._cuda_device
        if device is not None and self._ready is not None and is_cuda_picture(picture):
            return planes_on_gpu(picture, target, device=device), self._ready.record()
        planes = self._planes.read(picture, target=target)
        # A stream may change to a format that the GPU cannot decode; its frames still go to the GPU.
        return (planes if device is None else upload(planes, device=device)), None

    def _color_of(self, picture: av.VideoFrame) -> ColorSpec:
        tags = (
            pixel_format_name(picture),
            picture.colorspace,
            picture.color_range,
            picture.color_primaries,
            picture.color_trc,
        )
        if tags not in self._colors:
            self._colors[tags] = color_spec(
                picture,
                path=self.info.path,
                codec=self.info.codec,
                chroma_location=self.info.color.chroma_location,
            )
        return self._colors[tags]

    def _ticks_at(self, seconds: Fraction | None) -> int | None:
        """The first pts at or after a time; a microsecond early is accepted, for decimal times such as 0.04."""
        if seconds is None:
            return None
        return self.origin_pts + ceil((seconds - _MICROSECOND) / self.info.time_base)

    def _seek(self, source: PictureSource, target: int) -> None:
        """Continue from a frame at or before ``target``; ``__next__`` drops those before it.

        In containers without an index, and streams whose leading pictures need earlier references, the first seek may
        land too late; then seek further back, and finally read from the beginning.
        """
        for margin in _SEEK_MARGINS_SECONDS:
            aim = target - round(margin / self.info.time_base)
            if aim <= self.origin_pts:
                break
            source.seek(aim)
            pictures = source.pictures()
            picture = next(pictures, None)
            if picture is not None and picture.pts is not None and picture.pts <= target:
                self._pictures = chain([picture], pictures)
                return
        source.rewind()
        self._pictures = source.pictures()


def first_picture(path: Path, pictures: Iterator[av.VideoFrame]) -> av.VideoFrame:
    """Return the next picture.

    Raises:
        CorruptInputError: No picture can be decoded.
        InputError: The picture is too large.
    """
    frame = next(pictures, None)
    if frame is None:
        for file in (find_images(path) or [path])[:1]:
            refuse_by_header(file)
        raise CorruptInputError(f"{path}: it has a video stream, but no frame of it can be decoded")
    return frame


def describe_video(facts: SourceFacts, frame: av.VideoFrame) -> VideoInfo:
    """Combine the headers with what only a decoded frame shows: layout, tags, rotation, side data.

    Args:
        facts: Facts from the source.
        frame: Its first decoded frame, in its native format, on the CPU or the GPU.

    Raises:
        InputError: The colour matrix is not supported.
    """
    side_data = read_side_data(frame, codec=facts.codec)
    # FFmpeg returns Matroska's elements and most boxes as side data; the boxes that it does not know are read here.
    boxes = (read_spherical(facts.path) if "mp4" in facts.container else None) or SphericalMetadata()
    color = color_spec(frame, path=facts.path, codec=facts.codec, chroma_location=facts.chroma_location)
    headers = {one.name: getattr(facts, one.name) for one in fields(VideoHeaders)}
    headers["interlaced"] = facts.interlaced or frame.interlaced_frame
    return VideoInfo(
        **headers,
        width=frame.width,
        height=frame.height,
        format=layout_of(pixel_format_name(frame)).format,
        source_format=pixel_format_name(frame),
        color=color,
        # FFmpeg's angle is counter-clockwise, as rotated by the display matrix; flips are ignored.
        rotation_degrees=_QUARTER_TURNS[round(-frame.rotation / 90) % 4],
        stereo=boxes.stereo or side_data.stereo,
        projection=boxes.projection or side_data.projection,
        right_eye_first=boxes.right_eye_first or side_data.right_eye_first,
        fov_degrees=boxes.fov_degrees or side_data.fov_degrees,
        has_layered_eyes=boxes.has_layered_eyes,
        has_hdr_side_data=side_data.hdr is not None,
        dynamic_hdr=side_data.dynamic_hdr,
    )


class PresentationClock:
    """Gives every frame an increasing pts, keeping the file's own if possible.

    A pts that goes back, or jumps far ahead, starts a new recording, and time continues without a gap. If a later pts
    is nearer to where the old recording would have continued, the frames in between were only out of order. Three
    frames in a row at regular spacing, at times that the old recording has already shown, are a new recording in any
    case, because frames that are out of order fill a gap.

    Args:
        time_base: Seconds per tick.
        average_frame_rate: Used if neither pts nor duration is known.
    """

    def __init__(self, time_base: Fraction, average_frame_rate: Fraction) -> None:
        self.shift = 0
        """Ticks to add to the file's pts since it last jumped."""
        self._interval = max(round(1 / (average_frame_rate * time_base)), 1)
        self._longest_pause = LONGEST_PAUSE_SECONDS * max(round(1 / time_base), 1)
        self._last: int | None = None
        self._last_pts = 0
        self._last_duration = 0
        self._left: _LeftClock | None = None
        self._shown = _last_shown()
        self.adjusted_count = 0
        """Number of frames that did not keep the file's pts."""
        self.repeated_count = 0
        """Number of frames that repeated the previous pts or were out of order; they are moved after it."""
        self.jump_count = 0
        """Number of times that ``shift`` changed for good, as far as is known."""

    def start_over(self) -> None:
        """Restart at another position in the file."""
        self.shift = self._last_duration = 0
        self._last = self._left = None
        self._shown = _last_shown()
        self.adjusted_count = self.repeated_count = self.jump_count = 0

    def stamp(self, pts: int | None, duration: int) -> int:
        """Return the pts of the next frame, in ticks.

        Args:
            pts: The file's pts; None if it has none.
            duration: Duration of the frame in ticks; 0 if unknown.
        """
        result = self._place(pts)
        if result != pts:
            self.adjusted_count += 1
        self._last, self._last_duration = result, duration
        if pts is not None:
            self._last_pts = pts
            self._shown.append(pts)
        return result

    def _place(self, pts: int | None) -> int:
        if self._last is None:
            return 0 if pts is None else pts
        length = self._last_duration or self._interval
        if pts is None:
            return self._last + length
        if self._left is not None:
            self._decide(self._left, pts, length)
        if not 0 <= pts - self._last_pts <= self._longest_pause:
            self._leave(self._last + length - pts, length)
        elif pts + self.shift <= self._last and self._left is None:
            self.repeated_count += 1
        if self._left is not None:
            self._left.picture_count += 1
        return max(pts + self.shift, self._last + 1)

    def _leave(self, shift: int, length: int) -> None:
        self._left = _LeftClock(self._last_pts, self.shift, length, self._shown)
        self._shown = _last_shown()
        self.shift = shift
        self.jump_count += 1

    def _decide(self, left: _LeftClock, pts: int, length: int) -> None:
        """Return to the earlier clock if this frame belongs to it; forget that clock once it cannot come back."""
        if self._is_another_take(left, pts, length):
            self._left = None
        elif left.last_pts < pts < left.last_pts + length + abs(pts - self._last_pts - length):
            self.shift, self._last_pts = left.shift, left.last_pts
            self.jump_count -= 1
            self.repeated_count += left.picture_count
            left.shown.extend(self._shown)
            self._shown = left.shown
            self._left = None
        elif left.picture_count > _MOST_OUT_OF_ORDER:
            self._left = None

    def _is_another_take(self, left: _LeftClock, pts: int, length: int) -> bool:
        """True if this and the previous frames have regular spacing and times that were already shown."""
        reach = max(length, left.length) / 2
        run = [*self._shown, pts][-_STEADY_COUNT:]
        is_steady = all(4 * abs(after - before - length) <= length for before, after in pairwise(run))
        return (
            len(run) == _STEADY_COUNT
            and is_steady
            and all(any(abs(time - shown) <= reach for shown in left.shown) for time in run)
        )


def _last_shown() -> deque[int]:
    return deque(maxlen=_MOST_OUT_OF_ORDER + 1)


@dataclass(slots=True)
class _LeftClock:
    """The file's clock before it jumped."""

    last_pts: int
    shift: int
    length: int
    """Duration of its last frame in ticks."""
    shown: deque[int]
    """Its last pts values."""
    picture_count: int = 0
    """Number of frames since the jump."""


def _checked_range(
    path: str | PathLike[str], start: float | None, end: float | None
) -> tuple[Fraction | None, Fraction | None]:
    for name, seconds in (("start", start), ("end", end)):
        if seconds is not None and not 0 <= seconds < float("inf"):
            raise UsageError(
                f"{path}: {name} time of {seconds} s; expected seconds from the first frame, 0 or more"
            )
    if end is not None and end <= (start or 0):
        raise UsageError(f"{path}: the end time ({end} s) is not after the start time ({start or 0} s)")
    return (None if start is None else _exact(start), None if end is None else _exact(end))


def _exact(seconds: Any) -> Fraction:
    # Fraction does not accept NumPy's numbers, or keeps their 64 bits.
    return seconds if isinstance(seconds, Fraction) else Fraction(float(seconds))


def keyframe_lumas(path: Path, count: int, *, longest_side: int) -> list[npt.NDArray[np.uint8]]:
    """Decode and shrink some keyframes, on the CPU.

    Args:
        path: The video.
        count: Number of keyframes to look for; in a video with few, one may serve several places.
        longest_side: Length of the longer side of the results, in samples.

    Returns:
        Luma, uint8 [h, w], all of the first one's size, with the aspect kept; fewer than ``count``, or none, if the
        video cannot be read or its frame size changes.
    """
    found: list[npt.NDArray[np.uint8]] = []
    try:
        with open_input(path) as container:
            stream = container.streams.video[0]
            stream.codec_context.skip_frame = "NONKEY"
            for place in range(count):
                frame = _keyframe_at(container, stream, (place + 0.5) / count)
                if frame is None:
                    break
                shrink = max(frame.width, frame.height) / longest_side
                size = [max(round(side / shrink), 1) for side in (frame.width, frame.height)]
                grey = frame.reformat(width=size[0], height=size[1], format="gray", interpolation="AREA")
                luma = np.asarray(grey.to_ndarray(), np.uint8)
                if not found or luma.shape == found[0].shape:
                    found.append(luma)
    except (av.FFmpegError, OSError, IndexError):
        return found
    return found


def _keyframe_at(container: InputContainer, stream: VideoStream, share: float) -> av.VideoFrame | None:
    if stream.duration:
        container.seek((stream.start_time or 0) + int(stream.duration * share), stream=stream)
    elif container.duration:
        container.seek((container.start_time or 0) + int(container.duration * share))
    return next(container.decode(stream), None)
