"""Sets up an encoder and a muxer before the first frame: size, clock, colour, options."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.container import OutputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from vitascope.device import available_cores
from vitascope.errors import OutputError
from vitascope.frames import ColorSpec, VideoInfo
from vitascope.media.libav import wrap_output_error
from vitascope.media.metadata import matroska_video
from vitascope.media.metadata.color_tags import HdrMetadata, hdr_encoder_parameters
from vitascope.media.planes import FramePacker
from vitascope.media.writing.encoding import X264_LOOKAHEAD_FRAMES, Encoding
from vitascope.media.writing.nvenc import NvencFramePacker, NvencStreamEncoder
from vitascope.media.writing.parallel_encoder import (
    ParallelEncoder,
    PictureEncoder,
    StreamEncoder,
    threads_of_each,
)
from vitascope.media.writing.stream_copy import film_tags

BOX_MUXERS = frozenset({"mp4", "mov"})
"""FFmpeg's muxers that write MP4 boxes, which can be patched."""
MATROSKA_MUXERS = frozenset({"matroska", "webm"})
"""FFmpeg's muxers that write EBML, whose video entry can be patched."""
_PARAMETER_OPTIONS = {"libx264": "x264-params", "libx265": "x265-params", "libsvtav1": "svtav1-params"}
_LIMITED_RANGE_CODECS = frozenset({"prores"})
"""Codecs that cannot signal full range."""
_MATRIX_CODES = {"bt601": 6, "bt709": 1, "bt2020": 9}
_TURNED_CHROMA = {(90, "left"): "top", (270, "left"): "bottom", (270, "topleft"): "bottomleft"}
"""Position of chroma after the pixels were rotated; combinations that codecs have no code for are unchanged."""
_DEFAULT_FRAME_RATE = Fraction(25)
_GLOBAL_HEADER = (
    1 << 22
)  # AV_CODEC_FLAG_GLOBAL_HEADER: parameter sets go into the container, not before each keyframe
_APPLE_HEVC_TAG = "hvc1"
"""H.265's tag in MP4 and MOV: Apple's players, including the Vision Pro's, do not play FFmpeg's own, ``hev1``."""
_KEYFRAMES_ON_DEMAND = {"forced-idr": "1"}
"""Makes pictures of type I start a closed group (libx264); without it, later pictures may refer across them."""
# Tags of the iTunes-style list that FFmpeg writes into MP4 by default; others need QuickTime's key list.
_MP4_TAGS = frozenset(
    """
    album album_artist artist comment compilation composer copyright creation_time date description disc episode_id
    episode_sort gapless_playback genre grouping hd_video keywords lyrics media_type network season_number show
    sort_album sort_album_artist sort_artist sort_composer sort_name sort_show synopsis timecode title track
    """.split()  # noqa: SIM905 - a list of 34 quoted names is not easier to read
)


@dataclass(frozen=True, slots=True)
class ColourTags:
    """H.273 code points, and FFmpeg's range: 0 unknown, 1 limited, 2 full."""

    primaries: int
    transfer: int
    matrix: int
    range: int

    def put_on(self, picture: av.VideoFrame) -> None:
        """Tag a frame: ProRes and PNG take the tags from there, not from the stream."""
        picture.color_primaries, picture.color_trc = self.primaries, self.transfer
        picture.colorspace, picture.color_range = self.matrix, self.range


class PictureSetup:
    """Settings for the encoder of one output.

    Containers without a display matrix get upright pixels instead of a rotation.

    Args:
        info: Description of the written frames.
        encoding: The chosen encoding; it is adapted to the frame size here.

    Raises:
        OutputError: The encoder does not support the size.
    """

    def __init__(self, info: VideoInfo, encoding: Encoding) -> None:
        self._info = info
        self.turned_degrees = 0 if encoding.muxer in BOX_MUXERS else info.rotation_degrees
        """Clockwise rotation that must be applied to the pixels, in degrees."""
        upright = self.turned_degrees % 180 == 0
        self.width, self.height = (info.width, info.height) if upright else (info.height, info.width)
        aspect = info.sample_aspect_ratio
        self.sample_aspect_ratio = aspect if upright else 1 / aspect
        try:
            self.encoding = encoding.for_size(self.width, self.height)
        except OutputError as error:
            raise OutputError(f"{info.path}: {error}") from error
        self.width, self.height = self.encoding.coded_size(self.width, self.height)
        self.frame_rate = info.average_frame_rate or _DEFAULT_FRAME_RATE
        self.full_range = encoding.codec == "png" or (
            info.color.full_range and encoding.codec not in _LIMITED_RANGE_CODECS
        )
        self.tags = self._colour_tags()

    def carries_hdr(self) -> bool:
        """True if bitstream or container can store HDR metadata."""
        return self.encoding.muxer in BOX_MUXERS or self.encoding.encoder in _PARAMETER_OPTIONS

    def _encoder_options(self, hdr: HdrMetadata | None) -> dict[str, str]:
        encoding = self.encoding
        options = dict(encoding.options)
        parameters = dict(encoding.parameters)
        if hdr is not None:
            parameters |= hdr_encoder_parameters(hdr, encoding.encoder)
        if parameters:
            options[_PARAMETER_OPTIONS[encoding.encoder]] = ":".join(
                f"{k}={v}" for k, v in parameters.items()
            )
        if "420" in encoding.pixel_format or encoding.pixel_format in ("nv12", "p010le"):
            site = self._info.color.chroma_location
            options["chroma_sample_location"] = _TURNED_CHROMA.get((self.turned_degrees, site), site)
        return options

    def open_packer(self) -> FramePacker | NvencFramePacker:
        """Create the converter from frames to the encoder's pictures."""
        packer = FramePacker(
            self.encoding.pixel_format,
            color=self._info.color,
            full_range=self.full_range,
            rotation_degrees=self.turned_degrees,
            size=(self.height, self.width),
        )
        if not self.encoding.is_nvenc:
            return packer
        return NvencFramePacker(packer, self.encoding.pixel_format, rotation_degrees=self.turned_degrees)

    def add_stream(
        self, container: OutputContainer, *, path: Path, hdr: HdrMetadata | None
    ) -> tuple[VideoStream, PictureEncoder]:
        """Add the video stream to an output container, and set up its encoder or encoders. Nothing is muxed yet.

        Args:
            container: The output, or a container that is never written.
            path: Name of the output for messages.
            hdr: HDR metadata for the bitstream.

        Raises:
            OutputError: The encoder refuses the picture format or an option.
        """
        encoding = self.encoding
        what = f"encode {self.width}x{self.height} {encoding.pixel_format} with {encoding.encoder}"
        with wrap_output_error(path, what):
            options = self._encoder_options(hdr)
            added = container.add_stream(encoding.encoder, rate=self.frame_rate, options=options)
            stream = cast("VideoStream", added)
            if encoding.codec == "h265" and encoding.muxer in BOX_MUXERS:
                stream.codec_context.codec_tag = _APPLE_HEVC_TAG
            return stream, self._open_encoder(stream, options, path)

    def _open_encoder(self, stream: VideoStream, options: dict[str, str], path: Path) -> PictureEncoder:
        count = self.encoding.parallel_encoders
        stream.time_base = self._info.time_base
        # With several encoders, the stream's own only writes the headers.
        self._configure(stream.codec_context, threads=self.encoding.threads if count == 1 else 1)
        if self.encoding.is_nvenc:
            return NvencStreamEncoder(stream, path=path)
        with tamed_svt():
            stream.codec_context.open()
        if count == 1:
            return StreamEncoder(stream)
        threads = max(self.encoding.threads // count, 1)
        if not self.encoding.threads:
            picture_bytes = self.width * self.height * 3 // 2
            threads = threads_of_each(count, cores=available_cores(), picture_bytes=picture_bytes)
        flags = stream.codec_context.flags & _GLOBAL_HEADER

        def open_one(chunk_frames: int) -> VideoCodecContext:
            context = cast("VideoCodecContext", av.CodecContext.create(self.encoding.encoder, "w"))
            self._configure(context, threads=threads)
            context.framerate = self.frame_rate
            context.options = options | _KEYFRAMES_ON_DEMAND
            if X264_LOOKAHEAD_FRAMES.get(options.get("preset", "medium"), 0) > chunk_frames:
                # Nothing refers beyond a chunk, and each lookahead picture takes several times its size in memory.
                context.options |= {"rc-lookahead": str(chunk_frames)}
            context.flags |= flags
            with tamed_svt():
                context.open()
            return context

        return ParallelEncoder(stream, open_one, encoders=count, frame_count=self._info.frame_count_estimate)

    def _configure(self, context: VideoCodecContext, *, threads: int) -> None:
        context.width, context.height = self.width, self.height
        context.pix_fmt = self.encoding.pixel_format
        context.time_base = self._info.time_base
        context.thread_count = threads
        # PyAV's default, slice threads, would divide H.264 pictures into slices and reduce quality.
        context.thread_type = "AUTO"
        context.sample_aspect_ratio = self.sample_aspect_ratio
        context.color_primaries, context.color_trc = self.tags.primaries, self.tags.transfer
        context.colorspace, context.color_range = self.tags.matrix, self.tags.range

    def _colour_tags(self) -> ColourTags:
        color = self._info.color
        matrix = color.matrix_code
        if matrix == 2 and color.matrix != ColorSpec.assumed_matrix(self.width, self.height):
            # Keep the matrix untagged, unless players would now assume another one than the frames have.
            matrix = _MATRIX_CODES[color.matrix]
        if self.encoding.codec == "png":
            matrix = 0  # RGB
        range_code = 2 if self.full_range else 1
        return ColourTags(
            color.primaries,
            color.transfer,
            matrix,
            range_code if color.range_tagged or color.full_range else 0,
        )


def muxer_options(muxer: str, *, time_base: Fraction, tags: dict[str, str]) -> dict[str, str]:
    """Options of FFmpeg's muxer that keep times and tags exact.

    Args:
        muxer: FFmpeg's name of the muxer.
        time_base: Time base of the video.
        tags: Tags of the container.
    """
    if muxer in BOX_MUXERS:
        # The track uses the source's ticks, and so does the edit list with the start offset, which is rounded to
        # milliseconds by default.
        scale = str(time_base.denominator)
        options = {"video_track_timescale": scale, "movie_timescale": scale}
        if muxer == "mp4" and any(name not in _MP4_TAGS for name in film_tags(tags)):
            options["movflags"] = "use_metadata_tags"
        return options
    # Otherwise audio that starts before zero (an encoder's priming) would delay everything else.
    return {"avoid_negative_ts": "disabled"} | matroska_video.MUXER_OPTIONS


@contextmanager
def tamed_svt() -> Iterator[None]:
    """Keep SVT-AV1 from printing and from raising its threads' priority when it is opened in this block.

    It prints a banner to stderr unless the environment variable that it reads when opened forbids it. For root, as in
    most containers, it makes the opening thread and all its own real-time (SCHED_FIFO, 99). Threads started later
    inherit that, and everything else on the machine waits for them.
    """
    before = _schedules()
    mine = before.get(threading.get_native_id())
    is_set = "SVT_LOG" in os.environ
    if not is_set:
        os.environ["SVT_LOG"] = "1"  # only errors
    try:
        yield
    finally:
        if not is_set:
            os.environ.pop("SVT_LOG", None)  # another thread that opens an encoder may have removed it
        for thread, (policy, _) in _schedules().items():
            usual = before.get(thread, mine)
            if usual is not None and policy == os.SCHED_FIFO != usual[0]:
                with suppress(ProcessLookupError):  # the thread has ended
                    os.sched_setscheduler(thread, *usual)


def _schedules() -> dict[int, tuple[int, os.sched_param]]:
    """Policy and priority of each thread of this process; empty if SVT-AV1 may not change them."""
    found = {}
    if sys.platform == "linux" and os.geteuid() == 0:
        for entry in Path("/proc/self/task").iterdir():
            thread = int(entry.name)
            with suppress(ProcessLookupError):
                found[thread] = os.sched_getscheduler(thread), os.sched_getparam(thread)
    return found
