"""Encodes a stretch of a video without a container: frames become packets that another process can mux.

Every segment has its own encoder, so it begins with a keyframe and refers to nothing outside. The encoder is opened
exactly as the writer of the whole video opens its own, so the parameter sets are the same. ``JoiningWriter`` joins
the packets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import cast

import av
from av.packet import Packet, PacketSideData, PktSideDataT, packet_sidedata_type_from_literal
from av.video.stream import VideoStream

from vitascope.errors import OutputError
from vitascope.frames import Frame, Plane, VideoInfo
from vitascope.media.libav import silence_libav, wrap_output_error
from vitascope.media.metadata.color_tags import HdrMetadata
from vitascope.media.writing.encoder_setup import PictureSetup
from vitascope.media.writing.encoding import Encoding
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.writer import VideoWriter

_CARRIED_SIDE_DATA: tuple[PktSideDataT, ...] = ("matroska_block_additional",)
"""Side data that belongs to a packet's picture: VP9's alpha."""


@dataclass(frozen=True, slots=True)
class EncodedPacket:
    """A packet as plain values."""

    data: bytes
    pts: int
    """In ticks of the video's time base, like all times here, on the source's clock."""
    dts: int | None
    is_keyframe: bool
    side_data: tuple[tuple[str, bytes], ...] = ()
    """FFmpeg's name and content of the side data."""


class SegmentEncoder:
    """Encodes the frames of one segment of one output.

    Args:
        path: Name of the output for messages.
        info: Description of the frames; the packets use its time base.
        encoding: The encoding of the output's writer.
        hdr: HDR metadata for the bitstream.

    Raises:
        OutputError: The encoder refuses the picture format.
    """

    def __init__(
        self, path: Path, *, info: VideoInfo, encoding: Encoding, hdr: HdrMetadata | None = None
    ) -> None:
        silence_libav()
        self._path = path
        self._info = info
        self._setup = PictureSetup(info, encoding)
        encoding = self._setup.encoding
        self._packer = self._setup.open_packer()
        # A container that is never written; its format decides whether parameter sets go into packets.
        is_pictures = encoding.muxer == "image2"
        self._container = av.open("never-%d.png" if is_pictures else BytesIO(), "w", format=encoding.muxer)
        try:
            self._stream, self._encoder = self._setup.add_stream(self._container, path=path, hdr=hdr)
        except BaseException:
            self._close_container()
            raise

    @property
    def parameter_sets(self) -> bytes:
        """The codec's part of the container's header; empty for codecs without one."""
        return bytes(self._stream.codec_context.extradata or b"")

    def encode(self, frame: Frame, alpha: Plane | None = None) -> list[EncodedPacket]:
        """Encode the next frame.

        Args:
            frame: The colours of the frame.
            alpha: uint8 or uint16 ``[H, W]``, straight; None is opaque.

        Raises:
            OutputError: The frame has another size, or the encoder failed.
        """
        if (frame.width, frame.height) != (self._info.width, self._info.height):
            raise OutputError(
                f"{self._path}: frame {frame.index} is {frame.width}x{frame.height}, "
                f"the video {self._info.width}x{self._info.height}"
            )
        picture = self._packer.pack(frame, alpha)
        picture.pts, picture.time_base = frame.pts, frame.time_base
        self._setup.tags.put_on(picture)
        with wrap_output_error(self._path, f"write frame {frame.index}"):
            return self._portable(self._encoder.encode(picture))

    def flush(self) -> list[EncodedPacket]:
        """Return the packets that the encoder still holds; no frame may follow."""
        with wrap_output_error(self._path, "finish it"):
            return self._portable(self._encoder.flush())

    def close(self) -> None:
        """Stop the encoder, and drop unfinished frames. Idempotent."""
        self._encoder.close()
        self._close_container()

    def _portable(self, packets: Iterable[Packet[VideoStream]]) -> list[EncodedPacket]:
        return [portable(packet) for packet in packets if packet.size]

    def _close_container(self) -> None:
        with suppress(av.FFmpegError, OSError, ValueError):
            self._container.close()


def portable(packet: Packet[VideoStream]) -> EncodedPacket:
    """Convert an encoder's packet to plain values.

    Raises:
        OutputError: The packet has no time.
    """
    if packet.pts is None:
        raise OutputError("the encoder gave a packet without a presentation time")
    side_data = tuple(
        (kind, bytes(packet.get_sidedata(kind))) for kind in _CARRIED_SIDE_DATA if packet.has_sidedata(kind)
    )
    return EncodedPacket(bytes(packet), packet.pts, packet.dts, bool(packet.is_keyframe), side_data)


def plain(encoding: Encoding) -> Encoding:
    """The same encoding with options that can be pickled: read-only views cannot."""
    return replace(encoding, options=dict(encoding.options), parameters=dict(encoding.parameters))


class JoiningWriter(VideoWriter):
    """A ``VideoWriter`` that takes packets instead of frames.

    Everything but the frames (audio, subtitles, chapters, tags, HDR and spherical metadata, and publishing the
    complete file) is done here, once. Its own encoder only writes the stream's headers, so every segment's encoder
    must have been opened the same way: by ``SegmentEncoder`` with the same arguments.

    Decoding times continue across a seam: an encoder's first decoding times precede its first frame by as much as the
    last ones of the previous segment precede its last frame.
    """

    def begin_segment(self, parameter_sets: bytes) -> None:
        """Check that the next segment fits this file's header.

        Args:
            parameter_sets: ``SegmentEncoder.parameter_sets``.

        Raises:
            OutputError: The segment's stream headers differ: players would show the segment wrongly or not at all.
                This may happen with encoders of different GPUs.
        """
        context = self._stream().codec_context
        if not context.is_open:  # NVENC opens with the first frame, which never comes here; has never run
            with wrap_output_error(self._path, f"open {self._encoding.encoder}"):
                context.open()
        ours = bytes(context.extradata or b"")
        if parameter_sets != ours:
            raise OutputError(
                f"{self._path}: the segments of this film cannot be joined: {self._encoding.encoder} describes its "
                "stream otherwise in another process; write it in one process, or with another codec"
            )

    def write_encoded(self, times: Sequence[FrameTime], packets: Sequence[EncodedPacket]) -> None:
        """Write the packets of an encoder.

        Args:
            times: Times of the frames encoded since the last call, in presentation order.
            packets: The packets, in decoding order.

        Raises:
            OutputError: Writing failed, or a packet does not follow the previous one.
        """
        if times and self._frame_count == 0:
            self._begin(times[0])
        elif times and self._target.takes_one_frame:
            raise OutputError(
                f"{self._path}: one picture cannot hold a video; give a folder, or frame_%06d.png"
            )
        with wrap_output_error(self._path, f"write frame {self._frame_count}"):
            for time in times:
                self._clock.stamp(time)
                self._frame_count += 1
            for packet in packets:
                self._mux(self._muxable(packet))

    def _muxable(self, encoded: EncodedPacket) -> Packet[VideoStream]:
        # Copy the bytes: parsers read a little beyond a packet, and only allocated packets are padded.
        packet = cast("Packet[VideoStream]", Packet(len(encoded.data)))
        packet.update(encoded.data)
        packet.time_base = self._clock.time_base
        packet.pts = encoded.pts - self._clock.offset
        packet.dts = None if encoded.dts is None else encoded.dts - self._clock.offset
        packet.is_keyframe = encoded.is_keyframe
        for kind, content in encoded.side_data:
            # PyAV's stubs lack this constructor.
            side_data = PacketSideData(packet_sidedata_type_from_literal(kind), len(content))  # type: ignore[call-arg,arg-type]
            side_data.update(content)
            packet.set_sidedata(side_data)
        packet.stream = self._stream()
        return packet

    def _stream(self) -> VideoStream:
        return self._opened()[0].streams.video[0]
