"""What an encoder and a muxer are told before the first frame: size, clock, colour, options."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import av
from av.video.stream import VideoStream

from vitascope.frames import ColorSpec, VideoInfo
from vitascope.media import matroska_video
from vitascope.media.color_tags import HdrMetadata
from vitascope.media.encoding import Encoding
from vitascope.media.hdr import hdr_encoder_parameters
from vitascope.media.stream_copy import film_tags

__all__ = ["BOX_MUXERS", "MATROSKA_MUXERS", "ColourTags", "PictureSetup", "muxer_options", "quiet_svt"]

BOX_MUXERS = frozenset({"mp4", "mov"})
"""FFmpeg's muxers that write boxes, which can be patched."""
MATROSKA_MUXERS = frozenset({"matroska", "webm"})
"""FFmpeg's muxers that write EBML, whose video entry can be patched."""
_PARAMETER_OPTIONS = {"libx264": "x264-params", "libx265": "x265-params", "libsvtav1": "svtav1-params"}
_LIMITED_RANGE_CODECS = frozenset({"prores"})
"""These have no way to say that a picture is full range."""
_MATRIX_CODES = {"bt601": 6, "bt709": 1, "bt2020": 9}
_TURNED_CHROMA = {(90, "left"): "top", (270, "left"): "bottom", (270, "topleft"): "bottomleft"}
"""Where chroma sits after the pixels were turned; combinations that codecs have no word for keep their own."""
_DEFAULT_FRAME_RATE = Fraction(25)
# The iTunes-style list that FFmpeg writes into MP4 by default; other names need QuickTime's key list.
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
        """Tag a frame: ProRes and PNG take the tags from there rather than from the stream."""
        picture.color_primaries, picture.color_trc = self.primaries, self.transfer
        picture.colorspace, picture.color_range = self.matrix, self.range


class PictureSetup:
    """How the pictures of one output are encoded.

    Containers without a display matrix get upright pixels instead of a rotation.

    Args:
        info: What the written frames look like.
        encoding: The choice of encoder; made fit for the size here.

    Raises:
        OutputError: The encoder cannot take the size.
    """

    def __init__(self, info: VideoInfo, encoding: Encoding) -> None:
        self._info = info
        self.turned_degrees = 0 if encoding.muxer in BOX_MUXERS else info.rotation_degrees
        """Clockwise turn that must be applied to the pixels."""
        upright = self.turned_degrees % 180 == 0
        self.width, self.height = (info.width, info.height) if upright else (info.height, info.width)
        aspect = info.sample_aspect_ratio
        self.sample_aspect_ratio = aspect if upright else 1 / aspect
        self.encoding = encoding.for_size(self.width, self.height)
        self.frame_rate = info.average_frame_rate or _DEFAULT_FRAME_RATE
        self.full_range = encoding.codec == "png" or (
            info.color.full_range and encoding.codec not in _LIMITED_RANGE_CODECS
        )
        self.tags = self._colour_tags()

    def carries_hdr(self) -> bool:
        """True when bitstream or container can hold HDR metadata."""
        return self.encoding.muxer in BOX_MUXERS or self.encoding.encoder in _PARAMETER_OPTIONS

    def encoder_options(self, hdr: HdrMetadata | None) -> dict[str, str]:
        """Options for FFmpeg's encoder."""
        encoding = self.encoding
        options = dict(encoding.options)
        parameters = dict(encoding.parameters)
        if hdr is not None:
            parameters |= hdr_encoder_parameters(hdr, encoding.encoder)
        if parameters:
            options[_PARAMETER_OPTIONS[encoding.encoder]] = ":".join(
                f"{k}={v}" for k, v in parameters.items()
            )
        if "420" in encoding.pixel_format:
            site = self._info.color.chroma_location
            options["chroma_sample_location"] = _TURNED_CHROMA.get((self.turned_degrees, site), site)
        return options

    def configure(self, stream: VideoStream) -> None:
        """Set a new stream up; its encoder is opened after this."""
        context = stream.codec_context
        context.width, context.height = self.width, self.height
        context.pix_fmt = self.encoding.pixel_format
        stream.time_base = context.time_base = self._info.time_base
        context.thread_count = self.encoding.threads
        # PyAV's default, slice threads, would cut H.264 pictures into slices and cost quality.
        context.thread_type = "AUTO"
        context.sample_aspect_ratio = self.sample_aspect_ratio
        context.color_primaries, context.color_trc = self.tags.primaries, self.tags.transfer
        context.colorspace, context.color_range = self.tags.matrix, self.tags.range

    def _colour_tags(self) -> ColourTags:
        color = self._info.color
        matrix = color.matrix_code
        if matrix == 2 and color.matrix != ColorSpec.assumed_matrix(self.width, self.height):
            # Untagged stays untagged, unless players would now assume another matrix than the frames have.
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
        muxer: Its name.
        time_base: Of the video.
        tags: The container's.
    """
    if muxer in BOX_MUXERS:
        # The track counts in the source's ticks, and so does the edit list that holds the start offset, which by
        # default is rounded to milliseconds.
        scale = str(time_base.denominator)
        options = {"video_track_timescale": scale, "movie_timescale": scale}
        if muxer == "mp4" and any(name not in _MP4_TAGS for name in film_tags(tags)):
            options["movflags"] = "use_metadata_tags"
        return options
    # Sound that starts before zero (an encoder's priming) would otherwise push everything else back.
    return {"avoid_negative_ts": "disabled"} | matroska_video.MUXER_OPTIONS


@contextmanager
def quiet_svt() -> Iterator[None]:
    """Keep SVT-AV1 from writing its banner to stderr: it asks the environment, and only while it is being opened."""
    if "SVT_LOG" in os.environ:
        yield
        return
    os.environ["SVT_LOG"] = "1"  # errors
    try:
        yield
    finally:
        del os.environ["SVT_LOG"]
