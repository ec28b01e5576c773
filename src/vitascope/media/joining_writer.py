"""Writing a video whose segments were encoded elsewhere: their packets, in order, as if one encoder had made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from av.packet import Packet, PacketSideData, packet_sidedata_type_from_literal
from av.video.stream import VideoStream

from vitascope.errors import OutputError
from vitascope.media._av_errors import wrap_output_error
from vitascope.media.output_clock import FrameTime
from vitascope.media.segment_encoder import EncodedPacket
from vitascope.media.writer import VideoWriter

__all__ = ["JoiningWriter"]


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
        """Write what an encoder gave out.

        Args:
            times: Of the frames that it took since the last call, in presentation order.
            packets: In decoding order.

        Raises:
            OutputError: The disk failed, or a packet does not follow the one before.
        """
        if times and self._frame_count == 0:
            self._begin(times[0])
        elif times and self._target.takes_one_frame:
            raise OutputError(
                f"{self._path}: one picture cannot hold a video; name a folder, or frame_%06d.png"
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
