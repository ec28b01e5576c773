"""Three ways of a stream's packets into another file: as they are, or decoded and encoded anew."""

from __future__ import annotations

from fractions import Fraction

import av
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.packet import Packet
from av.stream import Stream
from av.subtitles.stream import SubtitleStream

__all__ = ["CopiedStream", "ReencodedAudio", "ReencodedSubtitles"]


class CopiedStream:
    """A stream whose packets are copied as they are."""

    def __init__(self, source: Stream, target: Stream, container: OutputContainer) -> None:
        self.source = source
        self._target = target
        self._container = container
        self._last_dts: int | None = None
        self.shift = 0
        """Ticks of the source's time base that are taken off every time stamp."""

    @property
    def time_base(self) -> Fraction:
        """Of the source."""
        return self.source.time_base or Fraction(1, 1_000_000)

    def write(self, packet: Packet[Stream]) -> None:
        """Write one packet of the source."""
        pts = packet.pts if packet.pts is not None else packet.dts
        dts = packet.dts if packet.dts is not None else packet.pts
        if pts is None or dts is None:
            return
        pts, dts = pts - self.shift, dts - self.shift
        if self._last_dts is not None and dts <= self._last_dts:
            # Muxers refuse time that stands still, which damaged and joined files have.
            dts = self._last_dts + 1
        self._last_dts = dts
        packet.dts, packet.pts = dts, max(pts, dts)
        packet.stream = self._target
        self._container.mux(packet)

    def flush(self) -> None:
        """Write what an encoder still holds."""


class ReencodedAudio(CopiedStream):
    """A sound stream that is decoded and encoded anew."""

    def __init__(self, source: AudioStream, target: AudioStream, container: OutputContainer) -> None:
        super().__init__(source, target, container)
        self._decoder, self._encoder = source.codec_context, target

    def write(self, packet: Packet[Stream]) -> None:
        """Decode one packet of the source, and write what the encoder gives."""
        self._encode(self._decoder.decode(packet))

    def flush(self) -> None:
        """Write what decoder and encoder still hold."""
        self._encode(self._decoder.decode(None))
        self._container.mux(self._encoder.encode(None))

    def _encode(self, frames: list[av.AudioFrame]) -> None:
        for frame in frames:
            if frame.pts is not None and frame.time_base is not None:
                frame.pts -= round(self.shift * self.time_base / frame.time_base)
            self._container.mux(self._encoder.encode(frame))


class ReencodedSubtitles(CopiedStream):
    """A text subtitle stream that is put into another format."""

    def __init__(self, source: SubtitleStream, target: SubtitleStream, container: OutputContainer) -> None:
        super().__init__(source, target, container)
        self._decoder, self._encoder = source.codec_context, target.codec_context

    def write(self, packet: Packet[Stream]) -> None:
        """Write one packet of the source in the other format."""
        lines = self._decoder.decode2(packet)
        if lines is None:  # the gaps between two texts, which mov_text writes as empty packets
            return
        text = self._encoder.encode_subtitle(lines)
        text.time_base = packet.time_base
        text.pts = text.dts = packet.pts
        text.duration = packet.duration or 0
        super().write(text)
