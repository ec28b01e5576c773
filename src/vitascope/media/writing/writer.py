"""Writes a video: frames through an encoder, all other streams of the source beside them, completely or not at all.

Through PyAV, FFmpeg's muxers accept little of a container's metadata (rotation, aspect, stereo and projection, HDR).
The rest is patched into the finished file, box by box.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal, Self

import av
from av.packet import Packet
from av.video.stream import VideoStream

from vitascope.errors import CorruptInputError, OutputError
from vitascope.frames import Frame, Plane, Projection, VideoInfo
from vitascope.media.libav import fraction_or_none, silence_libav, wrap_output_error
from vitascope.media.metadata.color_tags import HdrMetadata, read_hdr, write_hdr_boxes
from vitascope.media.metadata.matroska_video import MATROSKA_PROJECTIONS, name_with_room, patch_video_entry
from vitascope.media.metadata.mp4_boxes import show_no_subtitles
from vitascope.media.metadata.spherical import (
    MATROSKA_STEREO_MODES,
    SphericalMetadata,
    read_spatial_sound,
    read_spherical,
    set_rotation,
    write_spatial_sound,
    write_spherical,
)
from vitascope.media.writing.encoder_setup import BOX_MUXERS, MATROSKA_MUXERS, PictureSetup, muxer_options
from vitascope.media.writing.encoding import Encoding
from vitascope.media.writing.output_clock import Moment, OutputClock, moved_timecode
from vitascope.media.writing.output_target import OutputTarget, refuse_inputs
from vitascope.media.writing.parallel_encoder import PictureEncoder
from vitascope.media.writing.stream_copy import (
    CLOCK_DEMUXERS,
    CarriedStream,
    StreamCopier,
    carry_chapters,
    carry_stream_tags,
    film_tags,
)

_LONGEST_PAUSE_SECONDS = 60
"""Longest pause at the start of an MP4 that counts as intended; a longer one is the clock of a live recording."""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The written file in numbers, for the summary."""

    path: Path
    codec: str
    encoder: str
    pixel_format: str
    container: str
    frame_count: int
    byte_count: int
    """Size of the finished output in bytes; 0 before that."""
    streams: tuple[CarriedStream, ...]
    """The source's audio, subtitles and attachments, and how each was handled."""
    notes: tuple[str, ...]
    """Losses, one line each."""


class VideoWriter:
    """Writes frames, and copies audio, subtitles and metadata of the source.

    Presentation times, time base, colour tags, sample aspect ratio, rotation, HDR and spherical metadata, chapters,
    tags, audio and subtitles are preserved, as far as the container allows; ``report.notes`` lists the rest. The
    output gets its name in ``finish``.

    As a context manager it finishes when the block ends normally. On an interrupt, and with ``keep_partial``
    on a corrupt input, it keeps the frames so far as ``<name>.part``; on any other error it removes them.

    Args:
        path: The output. For pictures: a folder, or a name with a number pattern such as ``frame_%05d.png``; a plain
            ``.png`` takes a single frame.
        info: Description of the written frames: size, colour, time base, rate, aspect, rotation, tags.
        encoding: From ``choose_encoding``.
        copy_from: The file whose audio, subtitles, chapters and stream tags are copied; None copies nothing.
        sound_codecs: See ``StreamCopier``: audio codecs to copy; None copies all that the container supports.
        start_seconds: Begin of the written part, counted from the first frame of ``copy_from``. The first frame
            written is taken as its beginning and gets time zero; all else is shifted with it. None puts what is
            played first at zero; an MP4's times stay, unless nothing is shown for more than a minute.
        end_seconds: End of the part, counted likewise; None for the end.
        spherical: Stereo and spherical metadata; ``"source"`` uses that of ``copy_from``, else what ``info`` says.
        hdr: HDR metadata; ``"source"`` uses that of ``copy_from``.
        keep_partial: Also keep the decodable part of a corrupt input.

    Raises:
        OutputError: The output cannot be created, or the encoder refuses the picture format.
        InputError: ``copy_from`` cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        info: VideoInfo,
        encoding: Encoding,
        copy_from: Path | None = None,
        sound_codecs: Collection[str] | None = None,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        spherical: SphericalMetadata | Literal["source"] | None = "source",
        hdr: HdrMetadata | Literal["source"] | None = "source",
        keep_partial: bool = False,
    ) -> None:
        silence_libav()
        refuse_inputs(path, {"the input": copy_from})
        self._path = path
        self._info = info
        self._copy_from, self._sound_codecs = copy_from, sound_codecs
        self._start_seconds = start_seconds
        self._end_seconds = end_seconds
        self._keep_partial = keep_partial
        self._setup = PictureSetup(info, encoding)
        self._encoding = self._setup.encoding
        self._notes = list(self._encoding.notes)
        self._metadata = ContainerMetadata(
            info, self._setup, copy_from=copy_from, spherical=spherical, hdr=hdr
        )
        self._notes += self._metadata.notes
        self._packer = self._setup.open_packer()
        self._clock = OutputClock(time_base=info.time_base, frame_rate=self._setup.frame_rate)
        self._frame_count = 0
        self._byte_count = 0
        self._is_open = True
        self._has_failed = False
        self._copier: StreamCopier | None = None
        self._container: av.container.OutputContainer | None = None
        self._encoder: PictureEncoder | None = None
        self._latest: Packet[VideoStream] | None = None
        self._target = OutputTarget(path, muxer=encoding.muxer)
        try:
            self._open()
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._is_open:
            return
        if error is None:
            self.finish()
        elif isinstance(error, KeyboardInterrupt) or (self._keep_partial and _is_corrupt_input(error)):
            self.keep_partial()
        else:
            self.discard()

    @property
    def frame_count(self) -> int:
        """Frames written so far."""
        return self._frame_count

    @property
    def report(self) -> WriteReport:
        """The report so far."""
        copier_notes = self._copier.notes if self._copier is not None else []
        return WriteReport(
            path=self._path,
            codec=self._encoding.codec,
            encoder=self._encoding.encoder,
            pixel_format=self._encoding.pixel_format,
            container=self._encoding.muxer,
            frame_count=self._frame_count,
            byte_count=self._byte_count,
            streams=tuple(self._copier.streams) if self._copier is not None else (),
            notes=(*self._notes, *copier_notes),
        )

    def write(self, frame: Frame) -> None:
        """Encode one frame; in an output with alpha it is opaque.

        Raises:
            OutputError: The frame's size differs from ``info``, or the disk or the encoder failed.
        """
        self._write(frame, None)

    def write_with_alpha(self, frame: Frame, alpha: Plane) -> None:
        """Encode one frame with its alpha plane, straight (not premultiplied).

        Args:
            frame: The colours of the frame.
            alpha: uint8 ``[H, W]`` with 255 opaque, or uint16 ``[H, W]`` with 65535 opaque.

        Raises:
            OutputError: As ``write``, or the encoding has no alpha.
        """
        self._write(frame, alpha)

    def finish(self) -> None:
        """Complete and publish the file: ``complete`` and ``publish``.

        Raises:
            OutputError: No frame was written, or the disk failed; nothing is left behind.
        """
        self.complete()
        self.publish()

    def complete(self) -> None:
        """Flush the encoder and the source's streams; the file is then complete, under its temporary name.

        Raises:
            OutputError: As ``finish``.
        """
        try:
            self._finalise(until=None)
        except BaseException:
            self.discard()
            raise

    def publish(self) -> None:
        """Rename the completed file to its final name.

        Raises:
            OutputError: The rename failed; nothing is left behind.
        """
        try:
            with wrap_output_error(self._path, "finish it"):
                self._target.partial.commit()
                self._byte_count = self._target.byte_count()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Discard all that was written. Does nothing after ``finish`` or ``keep_partial``."""
        self._close_quietly()
        self._target.partial.discard()

    def keep_partial(self) -> Path | None:
        """Complete what was written so far, so that it plays, and keep it beside the output's name.

        Returns:
            The path, ``<name>.part``; None if there was no frame to keep.

        Raises:
            OutputError: The disk failed; nothing is left behind.
        """
        if self._frame_count == 0:
            self.discard()
            return None
        try:
            if self._is_open:
                self._finalise(until=self._clock.end)
            return self._target.partial.keep()
        except BaseException:
            self.discard()
            raise

    def _write(self, frame: Frame, alpha: Plane | None) -> None:
        if not self._is_open:
            raise OutputError(f"{self._path}: is finished; no more frames can be written")
        if (frame.width, frame.height) != (self._info.width, self._info.height):
            raise OutputError(
                f"{self._path}: frame {frame.index} is {frame.width}x{frame.height}, "
                f"the video {self._info.width}x{self._info.height}"
            )
        if self._frame_count == 0:
            self._begin(frame)
        elif self._target.takes_one_frame:
            raise OutputError(
                f"{self._path}: one picture cannot hold a video; give a folder, or frame_%06d.png"
            )
        _, encoder = self._opened()
        picture = self._packer.pack(frame, alpha)
        picture.pts, picture.time_base = self._clock.stamp(frame), self._clock.time_base
        self._setup.tags.put_on(picture)
        with wrap_output_error(self._path, f"write frame {frame.index}"):
            for packet in encoder.encode(picture):
                self._mux(packet)
        self._frame_count += 1

    def _begin(self, first: Moment) -> None:
        """Set the output's clock from the first frame, and write what must precede the header."""
        clock, (container, _) = self._clock, self._opened()
        start: Fraction | None = None
        if self._start_seconds is not None:
            clock.offset = clock.ticks_of(first)
            start = clock.offset_seconds
        else:
            clock.offset = self._origin(first)
        container.metadata.update(film_tags(self._info.metadata))
        if start is not None:
            self._move_timecode(start, container)
        if self._copier is not None:
            end = self._end_of_stretch(self._copier)
            carry_chapters(
                self._copier.input_container, container, offset=clock.offset_seconds, start=start, end=end
            )
            self._copier.begin(offset=clock.offset_seconds, start=start, end=end)

    def _origin(self, first: Moment) -> int:
        """The source time, in ticks, that becomes zero in the output, where players begin.

        Containers without an edit list play from their first audio or picture on, whatever their clock says. An MP4's
        clock begins at zero; only a very long pause at the start is taken for the clock of a live recording.
        """
        clock, source = self._clock, self._info.container
        origin = clock.ticks_of(first)
        if self._copier is not None:
            copied = self._copier.input_container
            source = copied.format.name  # its own clock, even if the frames come from elsewhere
            if copied.start_time is not None:
                # At most the first frame's time, which must not become negative.
                origin = min(origin, round(Fraction(copied.start_time, 1_000_000) / clock.time_base))
        if source in CLOCK_DEMUXERS:
            return origin
        longest_pause = _LONGEST_PAUSE_SECONDS if "mp4" in source else 0
        return origin if origin * clock.time_base > longest_pause else 0

    def _end_of_stretch(self, copier: StreamCopier) -> Fraction | None:
        """``end_seconds`` on the source's clock, which may not begin at zero."""
        if self._end_seconds is None:
            return None
        return Fraction(self._end_seconds) + _first_picture_seconds(copier)

    def _move_timecode(self, start: Fraction, container: av.container.OutputContainer) -> None:
        """Set the time code, if there is one, to that of the frame with which the part begins."""
        if self._copier is None:
            return
        later = start - _first_picture_seconds(self._copier)
        for tags in (container.metadata, container.streams.video[0].metadata):
            for name in [name for name in tags if name.lower() == "timecode"]:
                moved = moved_timecode(tags[name], seconds=later, frame_rate=self._setup.frame_rate)
                if moved is None:
                    del tags[name]
                else:
                    tags[name] = moved

    def _mux(self, packet: Packet[VideoStream]) -> None:
        ticks = self._clock.complete(packet)
        if self._latest is None:
            with self._muxing() as container:
                container.start_encoding()
        if self._copier is not None:
            self._copier.advance_to(ticks * self._clock.time_base)
        before, self._latest = self._latest, packet  # held back: the last may be extended
        if before is not None:
            self._mux_stamped(before)

    def _mux_stamped(self, packet: Packet[VideoStream]) -> None:
        with self._muxing() as container:
            container.mux(packet)

    @contextmanager
    def _muxing(self) -> Iterator[av.container.OutputContainer]:
        try:
            yield self._opened()[0]
        except av.FFmpegError:
            self._has_failed = True
            raise

    def _finalise(self, *, until: Fraction | None) -> None:
        """Flush, close and patch the temporary file; it is complete after this."""
        if self._frame_count == 0:
            raise OutputError(f"{self._path}: nothing to write: there were no frames")
        if self._has_failed:  # after a failed header, libav's MP4 muxer would crash here
            raise OutputError(f"{self._path}: cannot finish it, because writing has failed")
        container, encoder = self._opened()
        with wrap_output_error(self._path, "finish it"):
            for packet in encoder.flush():
                self._mux(packet)
            if self._latest is not None:
                self._clock.reach_end(self._latest, muxer=self._encoding.muxer)
                self._mux_stamped(self._latest)
            if self._copier is not None:
                self._copier.finish(until)
                self._copier.close()
            container.close()
            self._container = None
            self._is_open = False
            carried = self._copier.streams if self._copier is not None else []
            self._metadata.patch(self._target.partial.path, carried)

    def _close_quietly(self) -> None:
        """Close after a failure, ignoring errors: the file is removed."""
        self._is_open = False
        if self._encoder is not None:
            self._encoder.close()
        if self._copier is not None:
            self._copier.close()
        container, self._container = self._container, None
        if container is not None:
            with suppress(av.FFmpegError, OSError, ValueError):
                container.close()

    def _opened(self) -> tuple[av.container.OutputContainer, PictureEncoder]:
        if self._container is None or self._encoder is None:
            raise OutputError(f"{self._path}: is finished; no more frames can be written")
        return self._container, self._encoder

    def _open(self) -> None:
        encoding = self._encoding
        with wrap_output_error(self._path, "create it"):
            options = self._target.muxer_options
            if encoding.muxer != "image2":
                options |= muxer_options(
                    encoding.muxer, time_base=self._info.time_base, tags=self._info.metadata
                )
            container = av.open(
                self._target.muxer_name, "w", format=encoding.muxer, container_options=options
            )
        self._container = container
        stream, self._encoder = self._setup.add_stream(container, path=self._path, hdr=self._metadata.hdr)
        if self._copy_from is not None and encoding.muxer != "image2":
            self._copier = StreamCopier(
                self._copy_from, container, muxer=encoding.muxer, sound_codecs=self._sound_codecs
            )
            source = self._copier.input_container.streams.video
            if source:
                carry_stream_tags(source[0], stream)
        elif self._copy_from is not None:
            self._notes.append("pictures cannot carry sound, subtitles or times")
        self._metadata.prepare(stream)


def _first_picture_seconds(copier: StreamCopier) -> Fraction:
    """Time of the source's first picture, on its own clock."""
    video = copier.input_container.streams.video
    base = fraction_or_none(video[0].time_base) if video else None
    return (video[0].start_time or 0) * base if base is not None else Fraction(0)


def _is_corrupt_input(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.split(CorruptInputError)[1] is None
    return isinstance(error, CorruptInputError)


class ContainerMetadata:
    """Decides on the metadata of an output, and writes it.

    Args:
        info: Description of the written frames.
        setup: Settings of their encoder.
        copy_from: The source; None for none.
        spherical: Stereo and spherical metadata; ``"source"`` uses the source's, else what ``info`` says.
        hdr: HDR metadata; ``"source"`` uses the source's.

    Raises:
        InputError: The source cannot be read.
    """

    def __init__(
        self,
        info: VideoInfo,
        setup: PictureSetup,
        *,
        copy_from: Path | None,
        spherical: SphericalMetadata | Literal["source"] | None,
        hdr: HdrMetadata | Literal["source"] | None,
    ) -> None:
        if spherical == "source":
            spherical = read_spherical(copy_from) if copy_from is not None else None
            if spherical is None and (info.stereo is not None or info.projection is not None):
                spherical = SphericalMetadata(
                    info.stereo,
                    info.projection,
                    right_eye_first=info.right_eye_first,
                    fov_degrees=info.fov_degrees,
                )
        if hdr == "source":
            hdr = read_hdr(copy_from) if copy_from is not None and info.has_hdr_side_data else None
        sounds = read_spatial_sound(copy_from) if copy_from is not None else []
        self._spatial_sound = sounds if setup.encoding.muxer in BOX_MUXERS else []
        self.spherical = spherical
        self.hdr = hdr
        self._muxer = setup.encoding.muxer
        self._rotation_degrees = info.rotation_degrees
        self._aspect = setup.sample_aspect_ratio
        self.notes: list[str] = []
        """Losses due to the output's format, one line each."""
        if spherical is not None and (spherical.stereo is not None or spherical.projection is not None):
            if self._muxer == "image2":
                self.notes.append("pictures cannot carry stereo layout and projection")
            elif self._muxer in MATROSKA_MUXERS and spherical.projection is Projection.FISHEYE:
                self.notes.append(f"{self._muxer} cannot describe a fisheye projection; .mp4 and .mov can")
        if any(sounds) and not self._spatial_sound:
            self.notes.append(
                f"{self._muxer} cannot store the orientation of ambisonic sound; .mp4 and .mov can"
            )
        if hdr is not None and not setup.carries_hdr():
            self.notes.append(f"{setup.encoding.codec} in {self._muxer} cannot carry HDR metadata")

    def prepare(self, stream: VideoStream) -> None:
        """Pass metadata to the muxer, before the first packet."""
        if self._muxer not in MATROSKA_MUXERS:
            return
        if self.spherical is not None and self.spherical.stereo is not None:
            modes = MATROSKA_STEREO_MODES[self.spherical.stereo]
            stream.metadata["stereo_mode"] = modes[self.spherical.right_eye_first]
        if self._patches_matroska():
            stream.metadata["title"] = name_with_room(stream.metadata.get("title", ""))

    def patch(self, path: Path, streams: Sequence[CarriedStream]) -> None:
        """Write the rest into the closed file.

        Args:
            path: The file.
            streams: How the source's streams were handled: re-encoded audio is no longer ambisonic, and
                FFmpeg makes players show the first subtitles even if none should be shown by default.

        Raises:
            OutputError: The file cannot be written.
        """
        if self._muxer in BOX_MUXERS:
            if self._rotation_degrees:
                set_rotation(path, self._rotation_degrees)
            if self.spherical is not None:
                write_spherical(path, self.spherical)
            if self.hdr is not None:
                write_hdr_boxes(path, self.hdr)
            texts = [one for one in streams if one.kind == "subtitle" and one.action != "dropped"]
            if texts and not any(one.is_default for one in texts):
                show_no_subtitles(path)
            sounds = sorted(
                (stream for stream in streams if stream.kind == "audio"), key=lambda one: one.index
            )
            written = [
                boxes if sound.action == "copied" else b""
                for sound, boxes in zip(sounds, self._spatial_sound, strict=False)
                if sound.action != "dropped"
            ]
            write_spatial_sound(path, written)
        elif self._patches_matroska():
            projection = self.spherical.projection if self.spherical is not None else None
            patch_video_entry(path, sample_aspect_ratio=self._aspect, projection=projection)

    def _patches_matroska(self) -> bool:
        projection = self.spherical.projection if self.spherical is not None else None
        return self._muxer in MATROSKA_MUXERS and (self._aspect != 1 or projection in MATROSKA_PROJECTIONS)
