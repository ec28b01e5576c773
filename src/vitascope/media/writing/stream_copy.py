"""Copies everything but the picture from one video file to another: audio, subtitles, fonts, chapters and tags.

Packets are copied unchanged by a second demuxer that follows the video's clock, so that long audio is never held in
memory. What the target container cannot store is re-encoded (AAC to Opus in WebM, subtitle formats into each other)
or, if that is impossible, left out. Damaged packets are left out, too: audio never costs the picture. All of this is
reported.

MP4 stores uncompressed audio by a standard of 2020 (ISO/IEC 23003-5), which older players do not know. There it
becomes AAC if AAC can keep its channels and sample rate; otherwise it is copied, with a note. MOV and Matroska get a
copy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import Literal, cast

import av
from av.audio.stream import AudioStream
from av.container import InputContainer, OutputContainer
from av.packet import Packet
from av.stream import AttachmentStream, Discard, Disposition, Stream
from av.subtitles.stream import SubtitleStream
from av.video.stream import VideoStream

from vitascope.media.libav import describe_av_error, fraction_or_none, open_input, wrap_input_error
from vitascope.media.reading.damage import frame_rate_of
from vitascope.media.reading.reader import PresentationClock
from vitascope.media.reading.structure import is_joined

CLOCK_DEMUXERS = frozenset({"mpegts", "mpeg"})
"""Broadcast formats start at an arbitrary time, and start again where recordings were joined."""

_EDIT_LIST_MUXERS = frozenset({"mp4", "mov"})
"""FFmpeg's names of formats that can contain packets which are not played."""


class CopiedStream:
    """A stream whose packets are copied unchanged."""

    def __init__(self, source: Stream, target: Stream, container: OutputContainer) -> None:
        self.source = source
        self._target = target
        self._container = container
        self._last_dts: int | None = None
        self.shift = 0
        """Ticks of the source's time base subtracted from all timestamps."""
        self.sound_time = _SoundTime(self.time_base)
        self.is_adts = False
        """True if each packet begins with its own header (ISO/IEC 13818-7), as only in broadcast formats."""
        self.damaged_count = 0
        """Number of packets that a decoder or the muxer refused."""
        self.is_playing = False
        """True once a packet has come that the source's edit list does not hide."""
        self.primer: Packet[Stream] | None = None
        """The last hidden packet before that, not written yet."""

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
        if self.is_adts and memoryview(packet)[0] != 0xFF:
            # Muxers only look at the first packet: if that is damaged, all headers would stay in the audio.
            raise ValueError("no header of AAC")
        pts, dts = pts - self.shift, dts - self.shift
        if self._last_dts is not None and dts <= self._last_dts:
            # Muxers refuse repeated times on their own clock, which damaged and joined files have.
            dts = self._last_dts + max(
                ceil((fraction_or_none(self._target.time_base) or 0) / self.time_base), 1
            )
        self._last_dts = dts
        packet.dts, packet.pts = dts, max(pts, dts)
        packet.stream = self._target
        self._container.mux(packet)

    def flush(self) -> None:
        """Write what an encoder still holds."""


class ReencodedAudio(CopiedStream):
    """An audio stream that is decoded and re-encoded."""

    def __init__(self, source: AudioStream, target: AudioStream, container: OutputContainer) -> None:
        super().__init__(source, target, container)
        self._decoder, self._encoder = source.codec_context, target
        self._resampler: av.AudioResampler | None = None
        self._shape: tuple[object, ...] = ()

    def write(self, packet: Packet[Stream]) -> None:
        """Decode one packet of the source, and write the encoder's packets."""
        self._encode(self._decoder.decode(packet))

    def flush(self) -> None:
        """Write what decoder and encoder still hold."""
        self._encode(self._decoder.decode(None))
        self._drain()
        self._container.mux(self._encoder.encode(None))

    def _encode(self, frames: list[av.AudioFrame]) -> None:
        for frame in frames:
            if frame.pts is not None and (time_base := fraction_or_none(frame.time_base)) is not None:
                frame.pts -= round(self.shift * self.time_base / time_base)
            shape = (frame.format.name, frame.layout.name, frame.sample_rate)
            if self._resampler is None or shape != self._shape:  # joined recordings may change it
                self._drain()
                wanted = self._encoder.codec_context
                self._resampler = av.AudioResampler(wanted.format, wanted.layout, wanted.sample_rate)
                self._shape = shape
            for part in self._resampler.resample(frame):
                self._container.mux(self._encoder.encode(part))

    def _drain(self) -> None:
        for part in [] if self._resampler is None else self._resampler.resample(None):
            self._container.mux(self._encoder.encode(part))
        self._resampler = None


class ReencodedSubtitles(CopiedStream):
    """A text subtitle stream that is converted to another format."""

    def __init__(self, source: SubtitleStream, target: SubtitleStream, container: OutputContainer) -> None:
        super().__init__(source, target, container)
        self._decoder, self._encoder = source.codec_context, target.codec_context

    def write(self, packet: Packet[Stream]) -> None:
        """Write one packet of the source in the other format."""
        lines = self._decoder.decode2(packet)
        if lines is None:  # a gap between two texts, which mov_text writes as an empty packet
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
_PCM_IN_MP4 = "players from before 2020 may not play PCM in MP4"
_VORBIS = frozenset({"vorbis", "libvorbis"})
_VORBIS_IN_MP4 = "few players play Vorbis in MP4"
_LAYOUTS = dict(enumerate(("mono", "stereo", "2.1", "4.0", "5.0", "5.1", "6.1", "7.1"), start=1))
"""FFmpeg's default layout for a number of channels, for sources without one, such as PCM in Matroska and AVI."""
_ENCODED_LAYOUTS = frozenset({"mono", "stereo", "5.1", "7.1"})
"""Layouts that AAC and Opus support; others become stereo."""
_PLAIN_ASS_HEADER = b"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, \
StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,16,&Hffffff,&Hffffff,&H0,&H0,0,0,0,0,100,100,0,0,1,1,0,2,10,10,10,1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
"""For text without a header of its own: one style with white letters."""
_LANGUAGES_OF_MOV = {
    "bod": "tib",
    "cym": "wel",
    "cze": "ces",
    "deu": "ger",
    "ell": "gre",
    "eus": "baq",
    "fao": "fo ",
    "fas": "per",
    "fre": "fra",
    "gle": "iri",
    "hrv": "hr ",
    "hye": "arm",
    "isl": "ice",
    "kat": "geo",
    "mkd": "mac",
    "msa": "may",
    "mya": "bur",
    "nld": "dut",
    "nno": "nor",
    "nob": "nor",
    "pan": "pa ",
    "rum": "ron",
    "slo": "slk",
    "sqi": "alb",
    "srp": "sr ",
    "swe": "sve",
    "zho": "chi",
}
"""FFmpeg's name of a MOV language whose name in ISO 639-2 differs: it drops names that it does not know."""
_LANGUAGES_OF_MOV_ALONE = {
    theirs: name
    for name, theirs in _LANGUAGES_OF_MOV.items()
    if theirs in ("fo ", "hr ", "iri", "pa ", "sr ", "sve")
}
"""ISO 639-2's names of languages for which FFmpeg has another name in MOV only."""
_PAST_END_SECONDS = 2
"""Demuxers return packets nearly in time order; this far behind the end, no wanted packet follows."""
_BESIDE_SECONDS = 3
"""If audio jumps and is then further than this from the picture beside it in the file, its time is damaged or belongs
to another clock."""
_OVERLAP_SECONDS = Fraction(1, 20)
"""Audio that goes back further than this, while the picture does not, starts a new recording."""
_ROUNDING_SECONDS = Fraction(1, 500)
"""Tolerance for containers with times in milliseconds."""
_LATE_SECONDS = 60
"""Longest time by which audio may begin after the picture, wherever it lies in the file."""
_BRAND_TAGS = frozenset({"major_brand", "minor_version", "compatible_brands", "encoder"})
"""Tags that the muxer writes about the file, not the video."""
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
"""Tags about the coding of a stream, which changes."""


@dataclass(frozen=True, slots=True)
class CarriedStream:
    """How one stream of the source was handled."""

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
    is_default: bool = False
    """True if players should play or show it by default."""

    def in_words(self) -> str:
        """Tell in one line how the stream was handled."""
        target = f" to {self.target_codec}" if self.action == "re-encoded" else ""
        return f"{self.kind} ({self.codec}) {self.action}{target}{f': {self.reason}' if self.reason else ''}"


class StreamCopier:
    """Copies the audio and subtitle streams of one file into an output container.

    Adds streams to the container at once, so it must be created before the container's first packet.

    Args:
        source: The file to copy from.
        container: The output.
        muxer: FFmpeg's name of the output's muxer.
        sound_codecs: Audio codecs to copy, by FFmpeg's decoder names; others are re-encoded. None copies all that the
            container supports.

    Raises:
        InputError: The source cannot be opened.
    """

    def __init__(
        self,
        source: Path,
        container: OutputContainer,
        *,
        muxer: str,
        sound_codecs: Collection[str] | None = None,
    ) -> None:
        self._path = source
        self._container = container
        self._muxer = muxer
        self._sound_codecs = sound_codecs
        with wrap_input_error(source, "open it for its sound"):
            self._input: InputContainer = open_input(source)
        self.streams: list[CarriedStream] = []
        """One entry for each stream other than the picture."""
        self.notes: list[str] = []
        self._routes: dict[int, CopiedStream] = {}
        self._start = Fraction(0)
        self._end: Fraction | None = None
        self._has_sought = False
        self._pending: Packet[Stream] | None = None
        self._packets: Iterator[Packet[Stream]] | None = None
        pictures = [s for s in self._input.streams.video if not s.disposition & Disposition.attached_pic]
        # The times of an MP4 are in a table and cannot jump, so its picture need not be read along.
        self._pictures = pictures[0] if pictures and "mp4" not in self._input.format.name else None
        try:
            for stream in self._input.streams:
                self._add(stream)
        except BaseException:
            self._input.close()
            raise

    @property
    def input_container(self) -> InputContainer:
        """The open source, for its tags and chapters."""
        return self._input

    def begin(self, *, offset: Fraction, start: Fraction | None, end: Fraction | None) -> None:
        """Set the part of the source to copy. Call once, before ``advance_to``.

        Args:
            offset: Seconds subtracted from all timestamps, as from the video's.
            start: Source time of the part's beginning; None for the file's.
            end: Source time of the part's end; None for the file's.
        """
        self._start, self._end = start if start is not None else Fraction(-(1 << 40)), end
        self._text_start = start if start is not None else offset
        for route in self._routes.values():
            route.shift = round(offset / route.time_base)
        if start is not None and self._routes and not self._is_joined():
            with suppress(av.FFmpegError, OSError):  # sources that cannot seek are read through
                self._input.seek(max(int(start * 1_000_000) - 1_000_000, 0), backward=True)
                self._has_sought = True
        self._packets = self._demux()
        self._pending = next(self._packets, None)

    def advance_to(self, moment: Fraction) -> None:
        """Write all packets before a source time, in seconds."""
        while self._pending is not None and _moment(self._pending) <= moment:
            self._write_pending(self._pending)

    def finish(self, until: Fraction | None = None) -> None:
        """Write the remaining packets.

        Args:
            until: Source time at which a video that was cut short ends; None writes all.
        """
        if until is not None and (self._end is None or until < self._end):
            self._end = until
        while self._pending is not None:
            self._write_pending(self._pending)
        for index, route in self._routes.items():
            with self._leaving_out_damage(route):
                route.flush()
            if route.damaged_count:
                self.notes.append(
                    f"{self._path.name}: damaged packets of its {route.source.type} track {index} that were left "
                    f"out: {route.damaged_count}"
                )

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
        elif (
            isinstance(stream, AttachmentStream)
            and self._muxer == "matroska"
            and self._takes(partial(_add_copy, stream))
        ):
            _add_copy(stream, self._container)
            name = stream.name or "attachment"
            self.streams.append(CarriedStream(stream.index, "attachment", name, "copied", name))
        elif stream is not self._pictures:
            stream.discard = Discard.all
            self._note_left_out(stream)

    def _note_left_out(self, stream: Stream) -> None:
        """Note what is left out: covers, further pictures, telemetry, and a time code that exists nowhere else."""
        if stream.type == "video" and stream.disposition & Disposition.attached_pic:
            self.notes.append(f"{self._path.name}: its cover picture was left out")
        elif stream.type == "data" and "timecode" in stream.metadata and self._has_timecode():
            pass  # the picture's tag has it, too, and is copied
        elif stream.type != "video":
            self.notes.append(f"{self._path.name}: its {stream.type} track {stream.index} was left out")
        elif stream.index != self._input.streams.video[0].index:
            self.notes.append(f"{self._path.name}: its second picture (track {stream.index}) was left out")

    def _has_timecode(self) -> bool:
        return any("timecode" in stream.metadata for stream in self._input.streams.video[:1])

    def _route(self, stream: AudioStream | SubtitleStream) -> tuple[CopiedStream | None, CarriedStream]:
        """Add an output stream for a source stream: copied, re-encoded or none."""
        # PyAV's stubs do not say that a stream of an unknown codec has no context.
        if cast("object", stream.codec_context) is None:
            reason = "this FFmpeg build does not know its codec"
            return None, CarriedStream(stream.index, stream.type, "unknown", "dropped", reason=reason)
        name = stream.codec_context.name
        is_default = bool(stream.disposition & Disposition.default)
        entry = CarriedStream(stream.index, stream.type, name, "copied", name, is_default=is_default)
        if isinstance(stream, AudioStream) and not (
            stream.codec_context.sample_rate and stream.codec_context.layout.nb_channels
        ):
            reason = "it is announced, but not described"
            return None, replace(entry, action="dropped", target_codec=None, reason=reason)
        is_wanted = (
            self._sound_codecs is None or not isinstance(stream, AudioStream) or name in self._sound_codecs
        )
        if isinstance(stream, AudioStream) and (reason := self._why_aac_is_better(stream)):
            return self._reencoding_route(stream, entry, reason=reason)
        if is_wanted and self._takes(partial(_add_copy, stream)):
            target = _add_copy(stream, self._container)
            carry_stream_tags(stream, target)
            copied = CopiedStream(stream, target, self._container)
            copied.is_adts = name == "aac" and self._input.format.name in CLOCK_DEMUXERS
            if self._muxer == "mp4" and name.startswith("pcm_"):
                self.notes.append(
                    f"{stream.type} ({name}) copied, because AAC cannot keep its channels and rate: {_PCM_IN_MP4}; MOV "
                    "is safer"
                )
            return copied, entry
        what = f"{self._muxer} cannot hold" if is_wanted else "those who play it do not decode"
        return self._reencoding_route(stream, entry, reason=f"{what} {name}")

    def _why_aac_is_better(self, stream: AudioStream) -> str:
        """Why audio that MP4 supports, but players do not, is better stored as AAC; empty if it is copied.

        AAC must keep every channel. Channels without names come from a recorder, and AAC would treat the fourth of
        six as low frequencies only.
        """
        name = stream.codec_context.name
        reason = f"{_PCM_IN_MP4}; MOV keeps it" if name.startswith("pcm_") else ""
        reason = f"{_VORBIS_IN_MP4}; MKV and WebM keep it" if name in _VORBIS else reason
        if self._muxer != "mp4" or not reason:
            return ""
        layout = stream.codec_context.layout
        keeps_all = layout.nb_channels <= 2 or layout.name in (*_ENCODED_LAYOUTS, "5.1(side)")
        is_kept = keeps_all and self._takes(partial(_add_sound, stream, codec=_AUDIO_DEFAULT))
        return reason if is_kept else ""

    def _reencoding_route(
        self, stream: AudioStream | SubtitleStream, entry: CarriedStream, *, reason: str
    ) -> tuple[CopiedStream | None, CarriedStream]:
        dropped = replace(entry, action="dropped", target_codec=None)
        if isinstance(stream, AudioStream):
            codec = _AUDIO_FALLBACK.get(self._muxer, _AUDIO_DEFAULT)
            if not self._takes(partial(_add_sound, stream, codec=codec)):
                return None, replace(dropped, reason=f"{reason}, and it cannot be encoded as {codec}")
            sound = _add_sound(stream, self._container, codec=codec)
            carry_stream_tags(stream, sound)
            channels, kept = stream.codec_context.layout.nb_channels, sound.codec_context.layout.nb_channels
            if kept != channels:
                reason += f"; its {channels} channels become {kept}"
            changed = replace(entry, action="re-encoded", target_codec=codec, reason=reason)
            return ReencodedAudio(stream, sound, self._container), changed
        if not stream.codec_context.codec.text_sub:
            reason += ", and picture subtitles cannot become text"
            return None, replace(dropped, reason=reason)
        codec = _SUBTITLE_FALLBACK[self._muxer]
        if not self._takes(partial(_add_text, stream, codec=codec)):
            return None, replace(dropped, reason=f"{reason}, and it cannot be encoded as {codec}")
        text = _add_text(stream, self._container, codec=codec)
        carry_stream_tags(stream, text)
        changed = replace(entry, action="re-encoded", target_codec=codec, reason=reason)
        return ReencodedSubtitles(stream, text, self._container), changed

    def _takes(self, add: Callable[[OutputContainer], object]) -> bool:
        """True if the muxer accepts a stream, tested by writing a header to memory.

        FFmpeg's table of codecs is not enough: it lists Opus for QuickTime, whose muxer then refuses it. And a stream
        that was added to the output cannot be removed.
        """
        trial = av.open(BytesIO(), "w", format=self._muxer)
        try:
            add(trial)
            trial.start_encoding()
        except (av.FFmpegError, ValueError):
            return False
        finally:
            with suppress(av.FFmpegError, ValueError):
                trial.close()  # a video without packets may have no valid trailer
        return True

    def _demux(self) -> Iterator[Packet[Stream]]:
        followed = [route.source for route in self._routes.values()]
        if not followed and self._input.format.name != "concat":  # a later file may bring audio
            return
        picture = None
        if self._pictures is not None:
            followed.append(self._pictures)
            picture = _PictureTime(self._pictures, from_start=not self._has_sought)
        try:
            for packet in self._input.demux(*followed):
                if not packet.size or (packet.pts is None and packet.dts is None):
                    continue
                if picture is not None:
                    if packet.stream is self._pictures:
                        picture.see(packet)
                        continue
                    self._follow(packet, picture)
                if self._end is not None and _moment(packet) > self._end + _PAST_END_SECONDS:
                    return
                yield packet
        except IndexError:
            # PyAV's own error after the last packet, if more streams appeared while reading.
            self.notes.append(f"{self._path.name}: streams that begin later in the file were left out")
        except (av.FFmpegError, OSError) as error:
            self.notes.append(f"{self._path.name}: its sound ends early: {describe_av_error(error)}")

    def _is_joined(self) -> bool:
        """True if times may be repeated in the file, so that the picture may be shifted."""
        picture, name = self._pictures, self._input.format.name
        return picture is not None and is_joined(self._path, name, stream_id=picture.id)

    def _follow(self, packet: Packet[Stream], picture: _PictureTime) -> None:
        """Shift a packet with the picture, whose clock continues where the file's jumps."""
        route = self._routes[packet.stream_index]
        if isinstance(route.source, AudioStream):
            # Audio is never reordered, whatever damaged times say.
            packet.pts = packet.dts = route.sound_time.place(packet, picture)
            return
        shift = round(picture.jump / route.time_base)
        packet.pts = None if packet.pts is None else packet.pts + shift
        packet.dts = None if packet.dts is None else packet.dts + shift

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
        # Audio may begin a little before zero, with samples that prime its decoder; text may not.
        start = self._text_start if isinstance(route.source, SubtitleStream) else self._start
        if pts * base < start:
            cut = ceil(start / base) - pts
            if not isinstance(route.source, SubtitleStream) or (packet.duration or 0) <= cut:
                return
            # A subtitle already on screen when the part begins is shown from there on.
            packet.pts = packet.dts = pts + cut
            packet.duration = (packet.duration or 0) - cut
        for wanted in self._played(packet, route):
            with self._leaving_out_damage(route):
                route.write(wanted)

    def _played(self, packet: Packet[Stream], route: CopiedStream) -> list[Packet[Stream]]:
        """The packets to write for a packet, without those that the source hides and the output would play.

        Before each part of a track are up to a second of packets that are not played; they prime the decoder. MP4 and
        MOV hide those before zero themselves. In other formats, only the last one before the first part is kept, as
        encoders do. When re-encoding, the decoder drops hidden packets itself.
        """
        if isinstance(route, ReencodedAudio):
            return [packet]
        if not packet.is_discard:
            primer, route.primer, route.is_playing = route.primer, None, True
            return [packet] if primer is None else [primer, packet]
        if route.is_playing:
            return []
        if isinstance(route.source, SubtitleStream):
            return [packet]
        end = (packet.pts if packet.pts is not None else packet.dts or 0) + (packet.duration or 0)
        after_zero, rounding = end - route.shift, _ROUNDING_SECONDS / route.time_base
        if self._muxer in _EDIT_LIST_MUXERS and after_zero <= rounding:
            return [packet]
        # If one ends before zero, the next one reaches beyond it and also primes the decoder.
        route.primer = packet if after_zero >= -rounding else None
        return []

    @contextmanager
    def _leaving_out_damage(self, route: CopiedStream) -> Iterator[None]:
        """Count packets that a decoder or the muxer refuses. On a full disk all fail, including the pictures."""
        try:
            yield
        except (av.FFmpegError, ValueError):
            route.damaged_count += 1


class _PictureTime:
    """Follows the time of the picture packet by packet, on a clock that continues where the file's own jumps.

    Args:
        stream: The stream of the picture.
        from_start: True if the first packet is the file's first.
    """

    def __init__(self, stream: VideoStream, *, from_start: bool) -> None:
        self._base = fraction_or_none(stream.time_base) or Fraction(1, 90_000)
        self._clock = PresentationClock(self._base, frame_rate_of(stream))
        self.begin = (stream.start_time or 0) * self._base if from_start else None
        """Begin in seconds; None in the middle of the file."""
        self.now = self.begin
        """Current time in seconds."""

    @property
    def jump(self) -> Fraction:
        """Seconds added to the file's times at this point."""
        return self._clock.shift * self._base

    def see(self, packet: Packet[Stream]) -> None:
        """Record the picture's next packet. Decoding times are in order, so if they go back, the clock has jumped."""
        if packet.dts is not None:
            self.now = self._clock.stamp(packet.dts, packet.duration or 0) * self._base


class _SoundTime:
    """The times of one audio track, shifted with the picture.

    Continuous times are kept, however far from the picture they lie in the file. At a jump, a clock was reset or a
    packet is damaged. Audio that is then neither near the picture nor where the audio should be simply continues,
    until times fit again.

    Args:
        time_base: Time base of the track.
    """

    def __init__(self, time_base: Fraction) -> None:
        self._base = time_base
        self._jump = 0
        self._fits = False
        """True if ``_jump`` is the picture's jump."""
        self._fitted_jump = 0
        """The picture's jump when ``_fits`` was last true."""
        self._read_begin = 0
        self._read_end: int | None = None
        self._end = Fraction(0)
        """End of the last packet as placed, in seconds; ``_read_begin`` and ``_read_end`` are in the file's own
        ticks."""

    def place(self, packet: Packet[Stream], picture: _PictureTime) -> int:
        """Compute the time of the next packet, in ticks."""
        ticks = packet.dts if packet.dts is not None else packet.pts
        assert ticks is not None  # packets without a time are left out earlier
        jump = round(picture.jump / self._base)
        moved = (ticks + jump) * self._base
        is_beside = picture.now is None or abs(moved - picture.now) <= _BESIDE_SECONDS
        if self._read_end is None:
            self._end = moved if picture.begin is None else picture.begin
            is_steady, fits = False, is_beside or abs(moved - self._end) <= _LATE_SECONDS
        else:
            is_steady = self._read_begin <= ticks <= self._read_end + 1 / self._base
            # If audio starts a new recording before the picture does, the picture's jump still belongs to the old
            # one.
            least = self._end - (_OVERLAP_SECONDS if jump == self._fitted_jump else 1)
            fits = least <= moved <= self._end + 1 or (is_beside and moved > self._end)
        if not (is_steady and self._fits):
            if fits:
                self._jump = self._fitted_jump = jump
            elif not is_steady:
                self._jump = round(self._end / self._base) - ticks
            self._fits = fits
        self._read_begin, self._read_end = ticks, ticks + (packet.duration or 0)
        self._end = (self._read_end + self._jump) * self._base
        return ticks + self._jump


def _add_copy(source: Stream, container: OutputContainer) -> Stream:
    target = container.add_stream_from_template(source)
    layout_name = target.codec_context.layout.name if isinstance(target, AudioStream) else ""
    if isinstance(target, AudioStream) and re.search(r"^ambisonic| channels$", layout_name):
        # With the layout unchanged, MP4's muxer fails at the very end. Boxes tell that the audio is ambisonic.
        if (layout := _LAYOUTS.get(target.codec_context.layout.nb_channels)) is None:
            raise ValueError("the order of its channels is unknown")
        target.codec_context.layout = layout
    return target


def _add_sound(source: AudioStream, container: OutputContainer, *, codec: str) -> AudioStream:
    channels = source.codec_context.layout.nb_channels
    layout = _LAYOUTS.get(channels, "")
    rate = 48_000 if codec == "libopus" else source.codec_context.sample_rate
    target = cast("AudioStream", container.add_stream(codec, rate=rate))
    context = target.codec_context
    context.layout = layout if layout in _ENCODED_LAYOUTS else "stereo"
    context.bit_rate = _BITRATE_OF_CHANNEL * min(channels, 8)
    context.time_base = Fraction(1, rate)
    return target


def _add_text(source: SubtitleStream, container: OutputContainer, *, codec: str) -> SubtitleStream:
    target = cast("SubtitleStream", container.add_stream(codec))
    target.time_base = target.codec_context.time_base = Fraction(1, 1000)
    # Text passes through FFmpeg's ASS form; the encoder needs the styles that the decoder refers to.
    source.codec_context.open(strict=False)
    target.codec_context.subtitle_header = source.codec_context.subtitle_header or _PLAIN_ASS_HEADER
    return target


def carry_chapters(
    source: InputContainer,
    container: OutputContainer,
    *,
    offset: Fraction,
    start: Fraction | None,
    end: Fraction | None,
) -> None:
    """Copy chapters to an output, before its first packet.

    Args:
        source: The file to copy from.
        container: The output.
        offset: Seconds subtracted from all timestamps; the output begins there, unless ``start`` is given.
        start: Source time of the part's beginning; None for the file's.
        end: Source time of the part's end; None for the file's. Chapters are cut to the part.
    """
    begin = start if start is not None else offset  # a chapter may begin before picture and audio
    kept = []
    for chapter in source.chapters():
        base = fraction_or_none(chapter["time_base"]) or Fraction(1, 1_000_000)
        first, last = chapter["start"] * base, chapter["end"] * base
        first = max(first, begin)
        last = min(last, end) if end is not None else last
        if last <= first:
            continue
        chapter["start"], chapter["end"] = round((first - offset) / base), round((last - offset) / base)
        kept.append(chapter)
    if kept:
        container.set_chapters(kept)


def film_tags(tags: dict[str, str]) -> dict[str, str]:
    """The tags about the video rather than the file."""
    return {name: value for name, value in tags.items() if name.lower() not in _BRAND_TAGS}


def carry_stream_tags(source: Stream, target: Stream) -> None:
    """Copy language, title, handler and disposition of a stream to the output's."""
    # Matroska's statistics ("BPS-eng") describe the old file.
    target.metadata.update(
        {
            name: value
            for name, value in source.metadata.items()
            if name.lower() not in _CODING_TAGS and not name.lower().startswith("_statistics")
        }
    )
    if language := source.metadata.get("language"):
        name = _LANGUAGES_OF_MOV_ALONE.get(language, language)
        is_mov = target.container.format.name == "mov"
        target.metadata["language"] = _LANGUAGES_OF_MOV.get(name, name) if is_mov else name
    target.disposition = source.disposition


def _moment(packet: Packet[Stream]) -> Fraction:
    ticks = packet.dts if packet.dts is not None else packet.pts
    return (ticks or 0) * (fraction_or_none(packet.time_base) or Fraction(0))
