"""Everything of a video file that is not its picture: sound, subtitles, fonts, chapters and tags, carried to another.

Packets are copied as they are, by a second demuxer that follows the video's clock, so an hour of sound is never held
in memory. Only what the target container cannot hold is re-encoded (AAC to Opus in WebM, subtitle formats into one
another), and what it cannot hold in any form is left out; both are reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Literal, cast

import av
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import AttachmentStream, Discard, Disposition, Stream
from av.subtitles.stream import SubtitleStream

from vitascope.errors import CorruptInputError
from vitascope.media.libav import (
    describe_av_error,
    fraction_or_none,
    open_input,
    wrap_input_error,
    wrap_output_error,
)

__all__ = [
    "CarriedStream",
    "CopiedStream",
    "ReencodedAudio",
    "ReencodedSubtitles",
    "StreamCopier",
    "carry_chapters",
    "carry_stream_tags",
    "film_tags",
]


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
        """The source's time base."""
        return fraction_or_none(self.source.time_base) or Fraction(1, 1_000_000)

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
            if frame.pts is not None and (time_base := fraction_or_none(frame.time_base)) is not None:
                frame.pts -= round(self.shift * self.time_base / time_base)
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


_AUDIO_FALLBACK = {"webm": "libopus"}
_AUDIO_DEFAULT = "aac"
_SUBTITLE_FALLBACK = {"mp4": "mov_text", "mov": "mov_text", "webm": "webvtt", "matroska": "srt"}
_BITRATE_OF_CHANNEL = 96_000
_LAYOUT_OF_CHANNELS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}
_PAST_END_SECONDS = 2
"""Demuxers give packets nearly in time order; this far behind the end no wanted one comes any more."""
_BRAND_TAGS = frozenset({"major_brand", "minor_version", "compatible_brands", "encoder"})
"""Tags that the muxer writes about the file, not about the video."""
_CODING_TAGS = frozenset(
    {
        "encoder",
        "vendor_id",
        "duration",
        "number_of_bytes",
        "number_of_frames",
        "bps",
        "alpha_mode",
        "stereo_mode",
    }
)
"""Tags that describe how a stream was coded; the new stream is coded otherwise."""


@dataclass(frozen=True, slots=True)
class CarriedStream:
    """The fate of one stream of the source."""

    index: int
    """Its index in the source."""
    kind: str
    """``audio``, ``subtitle`` or ``attachment``."""
    codec: str
    """Its codec in the source."""
    action: Literal["copied", "re-encoded", "dropped"]
    target_codec: str | None = None
    reason: str = ""
    """Why it was not copied."""


class StreamCopier:
    """Copies the sound and subtitle streams of one file into an output container.

    Streams are added to the container at once, so this must happen before its first packet.

    Args:
        source: The file to copy from.
        container: The output.
        muxer: FFmpeg's name of the output's format.
        target: The output's name, for messages.
        tolerant: Stop copying, with a note, where the source is damaged, instead of raising.

    Raises:
        InputError: The source cannot be opened.
        OutputError: The container refuses a stream in every form.
    """

    def __init__(
        self, source: Path, container: OutputContainer, *, muxer: str, target: Path, tolerant: bool = False
    ) -> None:
        self._path = source
        self._target = target
        self._container = container
        self._muxer = muxer
        self._tolerant = tolerant
        with wrap_input_error(source, "open it for its sound"):
            self._input: InputContainer = open_input(source)
        self.streams: list[CarriedStream] = []
        """One entry for each stream that is not the picture."""
        self.notes: list[str] = []
        self._routes: dict[int, CopiedStream] = {}
        self._start = Fraction(0)
        self._end: Fraction | None = None
        self._pending: Packet[Stream] | None = None
        self._packets: Iterator[Packet[Stream]] | None = None
        try:
            for stream in self._input.streams:
                self._add(stream)
        except BaseException:
            self._input.close()
            raise

    @property
    def input_container(self) -> InputContainer:
        """The source, open for its tags and chapters."""
        return self._input

    def begin(self, *, offset: Fraction, start: Fraction | None, end: Fraction | None) -> None:
        """Say which stretch of the source is wanted. Call once, before ``advance_to``.

        Args:
            offset: Seconds that are taken off every time stamp, as off the video's.
            start: Source time of the first wanted moment; None is the beginning.
            end: Source time behind the last wanted moment; None is the end.
        """
        self._start, self._end = start if start is not None else Fraction(-(1 << 40)), end
        for route in self._routes.values():
            route.shift = round(offset / route.time_base)
        if start is not None and self._routes:
            with wrap_input_error(self._path, "seek in it"):
                self._input.seek(max(int(start * 1_000_000) - 1_000_000, 0), backward=True)
        self._packets = self._demux()
        self._pending = next(self._packets, None)

    def advance_to(self, moment: Fraction) -> None:
        """Write all packets that belong before a source time, in seconds."""
        while self._pending is not None and _moment(self._pending) <= moment:
            self._write_pending(self._pending)

    def finish(self, until: Fraction | None = None) -> None:
        """Write what is left.

        Args:
            until: Source time behind which nothing is wanted (a video that was cut short); None is all.
        """
        if until is not None and (self._end is None or until < self._end):
            self._end = until
        while self._pending is not None:
            self._write_pending(self._pending)
        with wrap_output_error(self._target, "finish its sound"):
            for route in self._routes.values():
                route.flush()

    def close(self) -> None:
        """Close the source."""
        self._packets = self._pending = None
        self._input.close()

    def _add(self, stream: Stream) -> None:
        if isinstance(stream, AudioStream | SubtitleStream):
            route, entry = self._route(stream)
            self.streams.append(entry)
            if route is None:
                stream.discard = Discard.all
            else:
                self._routes[stream.index] = route
        elif isinstance(stream, AttachmentStream) and self._muxer == "matroska":
            with wrap_output_error(self._target, "add its attachments"):
                self._container.add_stream_from_template(stream)
            name = stream.name or "attachment"
            self.streams.append(CarriedStream(stream.index, "attachment", name, "copied", name))
        else:
            stream.discard = Discard.all
            self._note_left_out(stream)

    def _note_left_out(self, stream: Stream) -> None:
        """Say what does not come along: covers, further pictures, telemetry and time code tracks."""
        if stream.type == "video" and stream.disposition & Disposition.attached_pic:
            self.notes.append(f"{self._path.name}: its cover picture was left out")
        elif stream.type != "video":
            self.notes.append(f"{self._path.name}: its {stream.type} track {stream.index} was left out")
        elif stream.index != self._input.streams.video[0].index:
            self.notes.append(f"{self._path.name}: its second picture (track {stream.index}) was left out")

    def _route(self, stream: AudioStream | SubtitleStream) -> tuple[CopiedStream | None, CarriedStream]:
        """Add an output stream for a source stream: a copy, else a re-encoding, else none."""
        # PyAV's stubs do not say that a stream of an unknown codec has no context.
        if cast("object", stream.codec_context) is None:
            reason = "this FFmpeg build does not know its codec"
            return None, CarriedStream(stream.index, stream.type, "unknown", "dropped", reason=reason)
        name = stream.codec_context.name
        entry = CarriedStream(stream.index, stream.type, name, "copied", name)
        if not _muxer_takes(self._muxer, stream):
            return self._reencoding_route(stream, entry)
        with wrap_output_error(self._target, f"add its {stream.type}"):
            target = self._container.add_stream_from_template(stream)
        carry_stream_tags(stream, target)
        return CopiedStream(stream, target, self._container), entry

    def _reencoding_route(
        self, stream: AudioStream | SubtitleStream, entry: CarriedStream
    ) -> tuple[CopiedStream | None, CarriedStream]:
        reason = f"{self._muxer} cannot hold {entry.codec}"
        if isinstance(stream, AudioStream):
            codec = _AUDIO_FALLBACK.get(self._muxer, _AUDIO_DEFAULT)
            sound = self._open_audio_encoder(stream, codec)
            carry_stream_tags(stream, sound)
            changed = replace(entry, action="re-encoded", target_codec=codec, reason=reason)
            return ReencodedAudio(stream, sound, self._container), changed
        if not stream.codec_context.codec.text_sub:
            reason += ", and subtitles that are pictures cannot become text"
            return None, replace(entry, action="dropped", target_codec=None, reason=reason)
        codec = _SUBTITLE_FALLBACK[self._muxer]
        text = self._open_subtitle_encoder(stream, codec)
        carry_stream_tags(stream, text)
        changed = replace(entry, action="re-encoded", target_codec=codec, reason=reason)
        return ReencodedSubtitles(stream, text, self._container), changed

    def _open_audio_encoder(self, source: AudioStream, codec: str) -> AudioStream:
        channels = source.codec_context.layout.nb_channels
        with wrap_output_error(self._target, f"encode its sound as {codec}"):
            rate = 48_000 if codec == "libopus" else source.codec_context.sample_rate
            target = cast("AudioStream", self._container.add_stream(codec, rate=rate))
            context = target.codec_context
            context.layout = _LAYOUT_OF_CHANNELS.get(channels, "stereo")
            context.bit_rate = _BITRATE_OF_CHANNEL * min(channels, 8)
            context.time_base = Fraction(1, rate)
        return target

    def _open_subtitle_encoder(self, source: SubtitleStream, codec: str) -> SubtitleStream:
        with wrap_output_error(self._target, f"write its subtitles as {codec}"):
            target = cast("SubtitleStream", self._container.add_stream(codec))
            target.time_base = target.codec_context.time_base = Fraction(1, 1000)
            # Text passes through FFmpeg's ASS form; the encoder wants the styles that the decoder refers to.
            source.codec_context.open(strict=False)
            target.codec_context.subtitle_header = source.codec_context.subtitle_header
        return target

    def _demux(self) -> Iterator[Packet[Stream]]:
        sources = [route.source for route in self._routes.values()]
        if not sources:
            return
        try:
            for packet in self._input.demux(*sources):
                if packet.size and not (packet.pts is None and packet.dts is None):
                    if self._end is not None and _moment(packet) > self._end + _PAST_END_SECONDS:
                        return
                    yield packet
        except (av.FFmpegError, OSError) as error:
            reason = f"{self._path}: its sound ends early: {describe_av_error(error)}"
            if not self._tolerant:
                raise CorruptInputError(reason) from error
            self.notes.append(reason)

    def _write_pending(self, packet: Packet[Stream]) -> None:
        self._pending = None
        self._write(packet)
        self._pending = next(self._packets, None) if self._packets is not None else None

    def _write(self, packet: Packet[Stream]) -> None:
        route = self._routes[packet.stream_index]
        base = route.time_base
        pts = packet.pts if packet.pts is not None else packet.dts
        if pts is None or (self._end is not None and pts * base >= self._end):
            return
        if pts * base < self._start:
            cut = round(self._start / base) - pts
            if not isinstance(route.source, SubtitleStream) or (packet.duration or 0) <= cut:
                return
            # A subtitle that is on screen when the stretch begins shows from there on.
            packet.pts = packet.dts = pts + cut
            packet.duration = (packet.duration or 0) - cut
        with wrap_output_error(self._target, "write its sound and subtitles"):
            route.write(packet)


def carry_chapters(
    source: InputContainer,
    container: OutputContainer,
    *,
    offset: Fraction,
    start: Fraction | None,
    end: Fraction | None,
) -> None:
    """Carry chapters to an output, before its first packet.

    Args:
        source: Where they come from.
        container: The output.
        offset: Seconds that are taken off every time stamp.
        start: Source time where the wanted stretch begins; None is the beginning.
        end: Source time where it ends; None is the end. Chapters are cut to the stretch.
    """
    kept = []
    for chapter in source.chapters():
        base = fraction_or_none(chapter["time_base"]) or Fraction(1, 1_000_000)
        first, last = chapter["start"] * base, chapter["end"] * base
        first = max(first, start) if start is not None else first
        last = min(last, end) if end is not None else last
        if last <= first:
            continue
        chapter["start"], chapter["end"] = round((first - offset) / base), round((last - offset) / base)
        kept.append(chapter)
    if kept:
        container.set_chapters(kept)


def _muxer_takes(muxer: str, stream: AudioStream | SubtitleStream) -> bool:
    """True when a muxer takes a stream as it is, found out by writing a header to memory.

    FFmpeg's table of codecs is not enough: it lists Opus for QuickTime, whose muxer then refuses it.
    """
    trial = av.open(BytesIO(), "w", format=muxer)
    try:
        trial.add_stream_from_template(stream)
        trial.start_encoding()
    except (av.FFmpegError, ValueError):
        return False
    finally:
        with suppress(av.FFmpegError, ValueError):
            trial.close()  # a video without packets may have no valid trailer
    return True


def film_tags(tags: dict[str, str]) -> dict[str, str]:
    """The tags that are about the video rather than about the file."""
    return {name: value for name, value in tags.items() if name.lower() not in _BRAND_TAGS}


def carry_stream_tags(source: Stream, target: Stream) -> None:
    """Carry language, title, handler and disposition of a stream to its successor."""
    # Matroska's statistics ("BPS-eng") describe the old file.
    target.metadata.update(
        {
            name: value
            for name, value in source.metadata.items()
            if name.lower() not in _CODING_TAGS and not name.lower().startswith("_statistics")
        }
    )
    target.disposition = source.disposition


def _moment(packet: Packet[Stream]) -> Fraction:
    ticks = packet.dts if packet.dts is not None else packet.pts
    return (ticks or 0) * (fraction_or_none(packet.time_base) or Fraction(0))
