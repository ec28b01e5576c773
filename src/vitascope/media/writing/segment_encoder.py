"""Encoding a stretch of a video apart from its container: pictures become packets that another process can mux.

Every segment gets an encoder of its own, so that it begins with a keyframe and refers to nothing outside itself. The
encoder is opened exactly as the writer of the whole video opens its own, so its parameter sets are the video's.
``JoiningWriter`` puts the packets together.
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
    """In ticks of the video's time base, as all times here, and on the source's clock."""
    dts: int | None
    is_keyframe: bool
    side_data: tuple[tuple[str, bytes], ...] = ()
    """FFmpeg's name and content of what travels beside the picture."""


class SegmentEncoder:
    """Encodes the frames of one segment of one output.

    Args:
        path: The output's name, for messages.
        info: What the frames look like; its time base is that of the packets.
        encoding: As the output's writer has it.
        hdr: HDR metadata for the bitstream.

    Raises:
        OutputError: The encoder refuses the picture.
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
        # A container that is never begun: it says whether parameter sets go before the packets or into them.
        is_pictures = encoding.muxer == "image2"
        self._container = av.open("never-%d.png" if is_pictures else BytesIO(), "w", format=encoding.muxer)
        try:
            self._stream, self._encoder = self._setup.add_stream(self._container, path=path, hdr=hdr)
        except BaseException:
            self._close_container()
            raise

    @property
    def parameter_sets(self) -> bytes:
        """The codec's part of the container's header; empty for codecs that need none."""
        return bytes(self._stream.codec_context.extradata or b"")

    def encode(self, frame: Frame, alpha: Plane | None = None) -> list[EncodedPacket]:
        """Encode the next frame.

        Args:
            frame: The colours.
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
        """The packets that the encoder still holds; no frame may follow."""
        with wrap_output_error(self._path, "finish it"):
            return self._portable(self._encoder.flush())

    def close(self) -> None:
        """Stop the encoder, and drop what is still being encoded. Idempotent."""
        self._encoder.close()
        self._close_container()

    def _portable(self, packets: Iterable[Packet[VideoStream]]) -> list[EncodedPacket]:
        return [portable(packet) for packet in packets if packet.size]

    def _close_container(self) -> None:
        with suppress(av.FFmpegError, OSError, ValueError):
            self._container.close()


def portable(packet: Packet[VideoStream]) -> EncodedPacket:
    """An encoder's packet as plain values.

    Raises:
        OutputError: The encoder gave it no time.
    """
    if packet.pts is None:
        raise OutputError("the encoder gave a packet without a presentation time")
    side_data = tuple(
        (kind, bytes(packet.get_sidedata(kind))) for kind in _CARRIED_SIDE_DATA if packet.has_sidedata(kind)
    )
    return EncodedPacket(bytes(packet), packet.pts, packet.dts, bool(packet.is_keyframe), side_data)


def plain(encoding: Encoding) -> Encoding:
    """The same encoding, fit to be sent to another process: read-only views of options cannot be."""
    return replace(encoding, options=dict(encoding.options), parameters=dict(encoding.parameters))


class JoiningWriter(VideoWriter):
    """A ``VideoWriter`` that takes packets instead of frames.

    Everything but the pictures (sound, subtitles, chapters, tags, HDR and spherical metadata, the name that appears
    only when the file is whole) is done here, once. Its own encoder writes the stream's headers and no picture, so
    every segment's encoder must have been opened the same way: by ``SegmentEncoder`` with the same arguments.

    Decoding times go on across a seam, because an encoder's first ones lie before its first picture by as much as the
    ones of the segment before stop short of its last.
    """

    def begin_segment(self, parameter_sets: bytes) -> None:
        """Check that the next segment's packets belong under this file's header.

        Args:
            parameter_sets: ``SegmentEncoder.parameter_sets``.

        Raises:
            OutputError: The encoder described its stream otherwise: players would show the segment wrongly or not
                at all. Encoders of different GPUs may.
        """
        context = self._stream().codec_context
        if not context.is_open:  # NVENC's opens with the first picture, which never comes here; has never run
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
            times: The times of the frames that it took since the last call, in presentation order.
            packets: In decoding order.

        Raises:
            OutputError: The disk failed, or a packet does not follow the one before.
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
        # Not from the bytes themselves: parsers read a little beyond a packet, and only an allocated one is padded.
        packet = cast("Packet[VideoStream]", Packet(len(encoded.data)))
        packet.update(encoded.data)
        packet.time_base = self._clock.time_base
        packet.pts = encoded.pts - self._clock.offset
        packet.dts = None if encoded.dts is None else encoded.dts - self._clock.offset
        packet.is_keyframe = encoded.is_keyframe
        for kind, content in encoded.side_data:
            # PyAV's stubs leave the constructor out.
            side_data = PacketSideData(packet_sidedata_type_from_literal(kind), len(content))  # type: ignore[call-arg,arg-type]
            side_data.update(content)
            packet.set_sidedata(side_data)
        packet.stream = self._stream()
        return packet

    def _stream(self) -> VideoStream:
        return self._opened()[0].streams.video[0]
