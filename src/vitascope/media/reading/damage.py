"""Damage: why a file cannot be opened, and how much was read compared with header and index.

FFmpeg itself only reports "invalid data", or nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import av
from av.packet import Packet
from av.video.stream import VideoStream

from vitascope.errors import CorruptInputError
from vitascope.media.libav import describe_av_error, fraction_or_none
from vitascope.media.metadata.matroska_video import SEGMENT, read_element_header
from vitascope.media.metadata.mp4_boxes import declared_boxes, read_moov, scan_file, shown_share
from vitascope.media.reading.structure import broken_at

if TYPE_CHECKING:
    from vitascope.media.reading.container import OpenedVideo

_HEAD_BYTES, _TAIL_BYTES = 4096, 64
_MP4_FIRST_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"})
_SIGNATURES = {
    b"\x1a\x45\xdf\xa3": "Matroska or WebM",
    b"RIFF": "AVI",
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF8": "GIF",
}


def explain_unreadable(path: Path) -> str | None:
    """Explain in one line, without the file name, why a file cannot be opened; None if FFmpeg's message is as good."""
    if path.is_dir():
        return "it is a folder; name a video, or a folder of images"
    if not path.exists():
        return "no such file or folder"
    if not path.is_file():
        return "it is a pipe or a device; save the video to a file first"
    try:
        with path.open("rb") as file:
            head = file.read(512)
            if not head:
                return "the file is empty"
            if head[4:8] in _MP4_FIRST_BOXES:
                if any(box.kind == b"moov" for box in scan_file(file)):
                    return None
                return (
                    "truncated or not finished: the index of the video (its moov box) is missing; "
                    "copy the file again, or let the recorder finish it"
                )
    except PermissionError:
        return "no permission to read it"
    except OSError:
        return None
    for signature, name in _SIGNATURES.items():
        if head.startswith(signature):
            return f"it begins like {name}, but is damaged"
    if _is_text(head):
        return "it is text, not a video"
    return "not a media file that FFmpeg knows, or damaged from its first bytes on"


def cut_off(path: Path, container: str) -> str | None:
    """Explain how a file is cut off; None if it is not, or was removed meanwhile.

    Args:
        path: The file.
        container: FFmpeg's name of the format.
    """
    if not path.exists():
        return None
    size = path.stat().st_size
    if "mp4" in container:
        with path.open("rb") as file:
            lacking = max((box.end - size for box in declared_boxes(file)), default=0)
        return f"its last box is short of {lacking} bytes" if lacking > 0 else None
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        file.seek(max(size - _TAIL_BYTES, 0))
        tail = file.read()
        if container == "flv":
            return None if _ends_with_tag(file, size, tail) else "its last tag is cut"
    if "matroska" in container:
        lacking = _segment_end(head) - size
        return f"its segment is short of {lacking} bytes" if lacking > 0 else None
    if container == "avi":
        return "its list of frames is cut" if broken_at(path, container) == size else None
    if container == "gif":  # the trailer (GIF89a, 27); some writers pad after it
        return None if tail.rstrip(b"\0").endswith(b";") else "its trailer is missing"
    if container == "mpegts":
        packet = next((length for length in (188, 192, 204) if _repeats_sync(head, length)), None)
        return "its last packet is cut" if packet and size % packet else None
    return None


def _segment_end(head: bytes) -> int:
    """The end of a Matroska file's segment according to its header; 0 if unknown."""
    offset = 0
    for _ in range(4):  # the EBML header, perhaps a void element, then the segment
        header = read_element_header(head[offset : offset + 12])
        if header is None:
            return 0
        identifier, size, length = header
        if identifier == SEGMENT:
            return 0 if size is None else offset + length + size
        offset += length + (size or 0)
    return 0


def _repeats_sync(head: bytes, packet: int) -> bool:
    begin = packet - 188 if packet == 192 else 0  # M2TS: four bytes of timestamp come first
    return len(head) >= 4 * packet and all(head[begin + n * packet] == 0x47 for n in range(4))


def _ends_with_tag(file: IO[bytes], size: int, tail: bytes) -> bool:
    """True if an FLV ends with a complete tag: each is followed by its length (Adobe's specification 10.1, annex E)."""
    length = int.from_bytes(tail[-4:], "big")
    if not 11 <= length <= size - 4:
        return False
    file.seek(size - 4 - length)
    tag = file.read(11)
    return tag[0] & 31 in (8, 9, 18) and int.from_bytes(tag[1:4], "big") == length - 11


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # more than a character cut at the end
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\r\n\t\f" for character in text)


ONE_PICTURE_A_PACKET = frozenset(
    {"h264", "hevc", "vp9", "av1", "libdav1d", "prores", "dnxhd", "mjpeg", "ffv1"}
)
"""Decoders of progressive video that output one picture for every packet, so that a missing picture was lost.

VP8 and MPEG-4 have packets that show no picture, and interlaced video may have one field per packet.
"""
_PLACEHOLDER_FRAMES = 1 << 30
"""Frame count that FFmpeg writes into an AVI's header if it cannot seek back, as in a pipe."""
_GAP_FRAMES, _GAP_SHARE = 4, 0.5
"""A jump in time counts as a gap from this many frames on, if the skipped bytes are this share of what that time
usually takes."""
_DEFAULT_FRAME_RATE = Fraction(25)
_MAX_SANE_FRAME_RATE = 1000  # some demuxers report their clock (90000) if they know no rate


class DamageCounter:
    """Counts frames that could not be decoded, and raises when there are too many.

    Args:
        path: Name of the file for the error.
        limit: Maximum number of damaged packets and pictures.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        self._path = path
        self._limit = limit
        self.count = 0
        """Number of packets and pictures left out."""
        self.decoded = 0
        """Number of complete pictures."""

    def start_over(self) -> None:
        """Reset the counts."""
        self.count = self.decoded = 0

    def add(self, cause: BaseException | None = None, *, count: int = 1) -> None:
        """Count packets or pictures that were left out.

        Raises:
            CorruptInputError: The limit is exceeded.
        """
        self.count += count
        if self.count > self._limit:
            raise CorruptInputError(
                f"{self._path}: too much damage: {self.count} frames could not be decoded "
                f"(video.max_corrupt_frames allows {self._limit}), {self.decoded} could"
            ) from cause


class ReadingProgress:
    """Tracks the progress of one pass over the packets.

    Args:
        from_start: True if reading began with the video's first packet.
    """

    def __init__(self, *, from_start: bool) -> None:
        self.from_start = from_start
        self.packets = 0
        self.pictures = 0
        self.keyframe_seen = False
        self.end_pts: int | None = None
        self.time_count = 0
        """Number of packets with a time that differs from the previous packet's."""
        self._last_pts: int | None = None

    def came(self, packet: Packet[VideoStream]) -> None:
        """Count a packet that was read."""
        self.packets += 1
        self.keyframe_seen |= packet.is_keyframe
        if packet.pts is not None and packet.pts != self._last_pts:
            self.time_count += 1
            self._last_pts = packet.pts

    def shown(self, pts: int | None, duration: int) -> None:
        """Count a picture that is shown."""
        self.pictures += 1
        self.passed(pts, duration)

    def passed(self, pts: int | None, duration: int) -> None:
        """Record the end of a complete picture that is not shown."""
        if pts is not None:
            self.end_pts = max(self.end_pts or pts, pts + duration)


class MissingPictures:
    """Detects pictures that a decoder received but did not output, with or without an error.

    Pictures arrive in presentation order: if one arrives before an earlier one, the earlier one is lost. If the
    packets' times jump back, only the total number tells, at the end.

    Args:
        is_exact: True if every packet shows one picture. False counts nothing.
        from_start: True if the first packet is the video's and can be decoded; else counting starts at a keyframe.
        may_begin_late: True for a recording of a broadcast, which may begin anywhere: pictures missing before its
            first one are not damage, unless it begins with a keyframe.
    """

    def __init__(self, *, is_exact: bool, from_start: bool, may_begin_late: bool) -> None:
        self.is_exact = is_exact
        """False if packets do not map to pictures: fields, packets without times, times that jump back."""
        self.cause: Exception | None = None
        """The decoder's last error."""
        self._from_start = from_start
        self._may_begin_late = may_begin_late
        self._begin: int | None = None
        self._latest: int | None = None
        self._latest_before_keyframe: int | None = None
        self._awaited: list[int] = []
        self._lost: set[int] = set()
        self._shows_all = is_exact and from_start
        self._owed = 0

    @property
    def counts(self) -> bool:
        """True if missing pictures are counted: when a later picture arrives, or at the end."""
        return self.is_exact or self._shows_all

    @property
    def has_failed(self) -> bool:
        """True if the decoder reported an error for a video that it was given from the start."""
        return self.cause is not None and self._from_start

    def sent(self, packet: Packet[VideoStream]) -> None:
        """Record a packet that goes to the decoder."""
        pts, latest = packet.pts, self._latest
        if packet.is_keyframe:
            if latest is None:
                self._may_begin_late = (
                    False  # it begins with a whole keyframe: FFmpeg skips the rest of a cut packet
                )
            self._latest_before_keyframe = latest
        # Pictures before a keyframe in the file are shown before it and before those that follow it. Decoding times
        # are no help: if a container has none, FFmpeg derives them from a header that may be damaged.
        floor = self._latest_before_keyframe
        self._owed += not packet.is_discard
        if pts is None or (floor is not None and pts <= floor):
            self._give_up()
        elif self._begin is None and (packet.is_keyframe or self._from_start):
            self._begin = pts
        if pts is not None:
            self._latest = pts if latest is None else max(latest, pts)
        # Pictures shown before the first keyframe that was read lack their references, and may never be output.
        if not self.is_exact or pts is None or self._begin is None or packet.is_discard:
            return
        if pts >= self._begin:
            heappush(self._awaited, pts)

    def before(self, picture: av.VideoFrame) -> int:
        """Record a picture, complete or not; returns the number of lost pictures before it.

        After damage, pictures may arrive out of order: one that was counted as lost is subtracted.
        """
        pts = picture.pts
        self._owed -= 1
        if picture.interlaced_frame:
            self._shows_all = False
        if pts is None or picture.interlaced_frame:
            self._give_up()
            return 0
        lost = -1 if pts in self._lost else 0
        self._lost.discard(pts)
        while self.is_exact and self._awaited and self._awaited[0] <= pts:
            earlier = heappop(self._awaited)
            if earlier < pts:
                self._lost.add(earlier)
                lost += 1
        self._owed -= lost
        if self._may_begin_late:
            self._may_begin_late = False
            return 0
        return lost

    def at_end(self) -> int:
        """Count the pictures that are still missing after the decoder was flushed."""
        lost, self._awaited = len(self._awaited), []
        if not self.is_exact and self._shows_all:
            lost = max(self._owed, 0)
        return 0 if self._may_begin_late else lost

    def _give_up(self) -> None:
        self.is_exact, self._awaited = False, []


class BrokenGroups:
    """Detects pictures that depend on a damaged or lost keyframe, which decoders do not report.

    Pictures are assigned to keyframes by time, in presentation order.

    Args:
        has_begun: True if a complete keyframe came before; otherwise pictures before the first may belong to a cut
            group.
    """

    def __init__(self, *, has_begun: bool = False) -> None:
        self._keyframes: list[int] = []
        self._passed: set[int] = set()
        self._is_broken = False
        self._has_begun = has_begun

    def sent(self, packet: Packet[VideoStream]) -> None:
        """Record a packet that goes to the decoder."""
        if packet.is_keyframe and packet.pts is not None and not packet.is_discard:
            heappush(self._keyframes, packet.pts)

    def hold(self, picture: av.VideoFrame) -> bool:
        """Record a picture; True if its keyframe is missing or damaged. After damage, some arrive out of order."""
        pts = picture.pts
        if pts is None:
            return False
        while self._keyframes and self._keyframes[0] < pts:
            self._passed.add(heappop(self._keyframes))
            self._is_broken = self._has_begun
        if self._keyframes and self._keyframes[0] == pts:
            self._passed.add(heappop(self._keyframes))
        if pts in self._passed:
            self._passed.clear()
            self._has_begun |= not picture.is_corrupt
            self._is_broken = self._has_begun and picture.is_corrupt
        return self._is_broken


class DataGaps:
    """Detects unreadable parts of a video, which demuxers of containers without an index skip silently.

    There the packets jump in time and also in the file, by about the bytes that this time usually takes. If only the
    time jumps, the video pauses.

    Args:
        frame_rate: Frames per second.
        time_base: The time base of the video's packets.
    """

    def __init__(self, *, frame_rate: Fraction, time_base: Fraction) -> None:
        self._interval = max(1 / (frame_rate * time_base), Fraction(1))
        self._first_dts: int | None = None
        self._last_dts = 0
        self._begin: int | None = None
        self._read_to = 0
        self._unread = 0.0

    def passed(self, packet: Packet[Any]) -> None:
        """Record a packet that was read; bytes before it that belong to no packet were skipped."""
        if packet.pos is None or packet.pos < 0:
            return
        if self._begin is None:
            self._begin = packet.pos
        else:
            self._unread += max(packet.pos - self._read_to, 0)
        self._read_to = max(self._read_to, packet.pos + packet.size)

    def before(self, packet: Packet[VideoStream]) -> int:
        """Count the pictures that are missing before a packet of the video."""
        read_to_before, unread_before = self._read_to, self._unread
        self.passed(packet)
        if packet.dts is None or self._begin is None:
            return 0
        if self._first_dts is None:
            self._first_dts = self._last_dts = packet.dts
            return 0
        ticks, seen_ticks = packet.dts - self._last_dts, self._last_dts - self._first_dts
        self._last_dts = packet.dts
        if seen_ticks <= 0:
            return 0
        # After such a part, times may wrongly continue for a while until the container gives a new one. Up to half of
        # a video's bytes may be outside packets without harm: headers, stuffing, discarded streams.
        usual_bytes = (read_to_before - self._begin - unread_before) / seen_ticks * ticks
        self._unread -= _GAP_SHARE * usual_bytes
        is_lost = ticks > _GAP_FRAMES * self._interval and self._unread > 0
        if is_lost or self._unread < 0:
            self._unread = 0.0
        return round(ticks / self._interval) - 1 if is_lost else 0


def check_end(
    video: OpenedVideo,
    progress: ReadingProgress,
    damage: DamageCounter,
    *,
    failure: Exception | None,
    missing: MissingPictures | None = None,
) -> None:
    """Compare what was read with the header, and count pictures that are missing without an error.

    MP4 and MOV list the position of each packet: one beyond the end of the file means that the file is truncated.
    They and AVI also list all packets; fewer than listed, by more than 1 % and 2 packets (headers of intact files are
    off by that much), mean the same. Fragmented MP4 gives no counts in advance; its last box must be complete, as
    must be the last piece of Matroska, AVI, FLV, GIF and MPEG-TS. Matroska, and AVI after a seek, compare the end of
    the last picture with the duration in the same way, with a tolerance of at least 0.5 s. If nothing seems to be
    missing, but the file's structure is broken or the decoder reported an error, an unknown amount is missing, which
    counts as one.

    Args:
        video: The video, still open.
        progress: Progress of the reading.
        damage: The counter to continue.
        failure: The error that stopped the reading before the end; None without one.
        missing: Detects pictures that the decoder still owes; None if that was already counted.

    Raises:
        CorruptInputError: The file is shorter than its header says, could not be read to its end, or exceeds the
            damage limit.
    """
    problem = _shortfall(video, progress, damage.decoded)
    if problem is not None or failure is not None:
        problem = problem or f"reading failed after {damage.decoded} decoded frames"
        why = f" ({describe_av_error(failure)})" if failure is not None else ""
        raise CorruptInputError(f"{video.path}: {problem}{why}") from failure
    if missing is not None and (lost := missing.at_end()):
        damage.add(missing.cause, count=lost)
    if not progress.from_start:
        return
    with suppress(FileNotFoundError):  # the file was removed meanwhile, but read to its end
        if lost := left_out_of_table(video)[1] or _passed_over(video, progress):
            damage.add(count=lost)
        if damage.count:
            return
        container, pid = video.container.format.name, video.stream.id
        came: int | None = progress.packets
        if container == "mpegts":
            came = progress.time_count if missing is not None and missing.is_exact else None
        has_failed = missing is not None and missing.has_failed
        if has_failed or broken_at(video.path, container, stream_id=pid, came=came) is not None:
            damage.add(None if missing is None else missing.cause)


def promised_frames(stream: VideoStream) -> int | None:
    """The number of frames according to the header."""
    return stream.frames if 0 < stream.frames < _PLACEHOLDER_FRAMES else None


def promised_end_seconds(stream: VideoStream) -> float | None:
    """The length according to the header: the stream's duration, or Matroska's DURATION tag."""
    if stream.frames >= _PLACEHOLDER_FRAMES:
        return None
    time_base = fraction_or_none(stream.time_base)
    if stream.duration and time_base:
        return float(stream.duration * time_base)
    return _parse_duration(stream.metadata.get("DURATION", ""))


def frame_rate_of(stream: VideoStream) -> Fraction:
    """Frames per second, if the file states it."""
    for rate in map(fraction_or_none, (stream.average_rate, stream.guessed_rate)):
        if rate and 0 < rate <= _MAX_SANE_FRAME_RATE:
            return rate
    return _DEFAULT_FRAME_RATE


def left_out_of_table(video: OpenedVideo) -> tuple[int, int]:
    """Numbers of an MP4's samples that are not shown: because of its edit list, and because a table is wrong.

    In the latter case the edit list shows everything, so a table of times or sizes must be wrong.
    """
    stream = video.stream
    if "mp4" not in video.container.format.name or not stream.frames:
        return 0, 0
    left_out = max(stream.frames - sum(not entry.is_discard for entry in stream.index_entries), 0)
    if not left_out or stream.duration is None:  # its header is damaged
        return 0, left_out
    moov = read_moov(video.path)
    shown = None if moov is None else shown_share(moov, stream.id)
    is_lost = shown is None or shown >= 1 - 0.5 / stream.frames
    return (0, left_out) if is_lost else (left_out, 0)


def _shortfall(video: OpenedVideo, progress: ReadingProgress, decoded: int) -> str | None:
    container = video.container.format.name
    promised = _promised_packets(video)
    beyond_end = _packets_beyond_end(video)
    if promised and progress.from_start:
        came = min(progress.packets, promised - beyond_end)
        if beyond_end or promised - came > max(2, promised // 100):
            return (
                f"truncated or damaged: it should have {promised} frames, and ends after {came}, "
                f"of which {decoded} could be decoded"
            )
    elif beyond_end:
        return f"truncated: its last {beyond_end} frames lie beyond the end of the file; {decoded} could be decoded"
    elif problem := _early_end(video.stream, progress, decoded):
        return problem
    if sign := cut_off(video.path, container):
        return f"truncated: {sign}; {decoded} frames could be decoded"
    return None


def _early_end(stream: VideoStream, progress: ReadingProgress, decoded: int) -> str | None:
    """Compare the end of the last picture with the header's duration."""
    promised_end = promised_end_seconds(stream)
    time_base = fraction_or_none(stream.time_base)
    if promised_end is None or progress.end_pts is None or time_base is None:
        return None
    # Matroska's tag is a length or an end time, depending on the writer: these differ if a video does not begin at 0.
    begin = min(stream.start_time or 0, 0) if stream.duration is None else stream.start_time or 0
    end = float((progress.end_pts - begin) * time_base)
    if promised_end - end <= max(0.5, promised_end / 100, 3 / float(frame_rate_of(stream))):
        return None
    return (
        f"truncated or damaged: it should end at {promised_end:.2f} s, and ends at {end:.2f} s, "
        f"after {decoded} decoded frames"
    )


def _packets_beyond_end(video: OpenedVideo) -> int:
    """Number of packets that the index of an MP4 or MOV places, at least partly, after the end of the file."""
    if "mp4" not in video.container.format.name or not video.stream.frames:
        return 0
    return sum(entry.pos + entry.size > video.byte_count for entry in video.stream.index_entries)


def _promised_packets(video: OpenedVideo) -> int | None:
    """The number of packets in the index; an index that FFmpeg builds while reading lists no more than were read."""
    listed, container = len(video.stream.index_entries), video.container.format.name
    if "mp4" in container:
        # An edit list may leave out samples of the sample table; the index, complete once moov is read, lists those
        # to be demuxed.
        return min(video.stream.frames, listed) or None
    # An AVI's header also counts empty chunks: frames that were dropped on purpose.
    return listed or None if container == "avi" else promised_frames(video.stream)


def _passed_over(video: OpenedVideo, progress: ReadingProgress) -> int:
    """Number of packets in an AVI's index that were not read."""
    listed = _promised_packets(video) if video.container.format.name == "avi" else None
    return max((listed or 0) - progress.packets, 0)


def _parse_duration(tag: str) -> float | None:
    """Parse Matroska's ``HH:MM:SS.nnnnnnnnn`` into seconds."""
    match = re.fullmatch(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)", tag.strip())
    if match is None:
        return None
    hours, minutes, seconds = match.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
