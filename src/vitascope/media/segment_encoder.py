"""Encoding a stretch of a film apart from its container: pictures become packets that another process can mux.

Every segment gets an encoder of its own, so that it begins with a keyframe and refers to nothing outside itself. The
encoder is opened exactly as the writer of the whole film opens its own, so its parameter sets are the film's.
``JoiningWriter`` puts the packets together.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import cast

import av
from av.packet import Packet, PktSideDataT
from av.video.stream import VideoStream

from vitascope.errors import OutputError
from vitascope.frames import Frame, Plane, VideoInfo
from vitascope.media._av_errors import silence_libav, wrap_output_error
from vitascope.media.color_tags import HdrMetadata
from vitascope.media.encoder_setup import PictureSetup
from vitascope.media.encoding import Encoding

__all__ = ["EncodedPacket", "SegmentEncoder", "portable"]

_CARRIED_SIDE_DATA: tuple[PktSideDataT, ...] = ("matroska_block_additional",)
"""What belongs to a packet's picture: VP9's alpha."""


@dataclass(frozen=True, slots=True)
class EncodedPacket:
    """A packet as plain values."""

    data: bytes
    pts: int
    """In ticks of the film's time base, as all times here, and on the source's clock."""
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
        hdr: HDR metadata that the bitstream shall carry.

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
            what = (
                f"encode {self._setup.width}x{self._setup.height} {encoding.pixel_format} "
                f"with {encoding.encoder}"
            )
            with wrap_output_error(path, what):
                options = self._setup.encoder_options(hdr)
                self._stream = cast(
                    "VideoStream",
                    self._container.add_stream(
                        encoding.encoder, rate=self._setup.frame_rate, options=options
                    ),
                )
                self._encoder = self._setup.open_encoder(self._stream, options)
        except BaseException:
            self._close_container()
            raise

    @property
    def parameter_sets(self) -> bytes:
        """What the container's header says of the stream; empty for codecs that need nothing there."""
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
        """Stop the encoder, whatever is still in work. Idempotent."""
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
