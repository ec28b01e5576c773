"""Encodes one video with several encoders: each gets closed chunks, whose packets are joined in order.

With small or simple pictures, one encoder cannot keep many cores busy: on 16 cores, four x264 with four threads each
wrote masks about twice as fast as one, and faster than more encoders with fewer threads. x265 became slower, so it is
not used here.

In an x264 with four threads, the busiest one does 20 to 25 % of the work at 1920x1080, and 25 to 40 % at 3840x2160,
most with the fastest presets and with grainy pictures (on 2 cores): four such encoders keep 10 to 16 cores busy
there. So large pictures get one encoder for every two cores, with four threads each: threads wait for rows of the
previous picture, and with only as many threads as cores, many cores were idle (``benchmarks/encode.py``).

Encoders that work in turn are at different places of their chunks. To keep all of them busy, half a chunk for each
must be waiting, not a whole one; with less, some wait for the writer. At the end, encoders that are done wait for the
last one, so if the number of pictures is known, the chunk length is chosen to give each the same number of chunks. In
a simulation with random cost per picture, 120 pictures keep four encoders busy 91 % of the time instead of 68, 480
pictures 95 instead of 89, and a long video of 7680x4320 eight encoders 93 instead of 84.

A chunk begins with a keyframe and refers to nothing outside, so the joined stream is what a single encoder with that
keyframe distance would write. With constant quality, chunks look alike; target bit rates, which span chunks, are not
supported.

Each encoder is opened once and used for many chunks: opening libx264 takes milliseconds, tens of them for large
pictures, and meanwhile PyAV blocks all Python threads. The packets that it holds back at a chunk's end are output
during its next chunk, or when it is flushed at the very end; libx264 accepts no picture after a flush. Encoders take
chunks in a fixed turn, so that a video is encoded identically every time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from math import ceil
from typing import NamedTuple, Protocol

import av
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.stream import VideoStream

from vitascope.errors import OutputError

_MAX_CHUNK_FRAMES = 60
_MIN_CHUNK_FRAMES = 15
"""Keyframes cost bits: at a shorter distance, they would dominate the stream."""
_PENDING_BYTES = 2 << 30
_LARGE_PICTURE_BYTES = 6_000_000
"""Bytes of an 8-bit 4:2:0 picture between 1920x1080 and 3840x2160, where the gain was measured."""
_THREADS_OF_LARGE = 2
"""Threads per core for large pictures."""
_PICTURES_HELD = 65
"""Memory of one x264 with a few threads, in pictures, plus two for each lookahead picture. Measured with four threads
at 3840x2160 and 7680x4320, including the lookahead: 23 with ``ultrafast``, 70 to 73 with ``veryfast``, 119 with
``medium``; with two threads 7 to 11 less."""
_UNKNOWN_MEMORY_BYTES = 8 << 30


def encoders_for(picture_bytes: int, *, threads: int, lookahead_frames: int, memory_bytes: int | None) -> int:
    """The number of encoders that keeps the threads busy and fits into memory.

    One for every four threads, within half of the machine's memory; for large pictures one for every two, within a
    quarter.

    Args:
        picture_bytes: Bytes of a picture in the encoder's format.
        threads: Number of threads of all encoders together.
        lookahead_frames: Number of pictures that an encoder looks ahead.
        memory_bytes: Memory of the machine; None assumes little.
    """
    pictures = _PICTURES_HELD + 2 * min(lookahead_frames, _MAX_CHUNK_FRAMES) + _MIN_CHUNK_FRAMES
    fitting = (memory_bytes or _UNKNOWN_MEMORY_BYTES) // (picture_bytes * pictures)
    many = min(threads // 2, fitting // 4) if picture_bytes > _LARGE_PICTURE_BYTES else 0
    return max(many, min(threads // 4, fitting // 2), 1)


def threads_of_each(encoders: int, *, cores: int, picture_bytes: int) -> int:
    """The number of threads of each of several encoders.

    Args:
        encoders: Number of encoders that work at the same time.
        cores: Number of cores of the machine.
        picture_bytes: Bytes of an 8-bit 4:2:0 picture.
    """
    of_core = _THREADS_OF_LARGE if picture_bytes > _LARGE_PICTURE_BYTES else 1
    return max(of_core * cores // encoders, 1)


def chunk_length(picture_bytes: int, *, encoders: int, pending_bytes: int, frame_count: int | None) -> int:
    """The number of pictures per chunk, 15 to 60, so that half a chunk for each encoder may wait.

    Args:
        picture_bytes: Bytes of a picture.
        encoders: Number of encoders that work at the same time.
        pending_bytes: Limit in bytes for all waiting pictures.
        frame_count: Number of frames, if known: then each encoder gets the same number of chunks, if these are not
            too short.
    """
    fair = 2 * pending_bytes // (encoders * max(picture_bytes, 1))
    longest = min(max(fair, _MIN_CHUNK_FRAMES), _MAX_CHUNK_FRAMES)
    if not frame_count:
        return longest
    rounds = ceil(frame_count / (encoders * longest))
    return max(ceil(frame_count / (encoders * rounds)), _MIN_CHUNK_FRAMES)


class PictureEncoder(Protocol):
    """Takes pictures and returns packets, in decoding order. Not thread-safe."""

    def encode(self, picture: av.VideoFrame) -> Iterable[Packet[VideoStream]]:
        """Encode one picture; returns the packets that are ready.

        Raises:
            FFmpegError: The encoder failed, perhaps on an earlier picture.
        """

    def flush(self) -> Iterable[Packet[VideoStream]]:
        """Return the remaining packets; no picture may follow."""

    def close(self) -> None:
        """Stop, and drop unfinished pictures. Idempotent."""


class StreamEncoder:
    """Wraps a stream's own encoder.

    Args:
        stream: A stream of an output container.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._stream = stream

    def encode(self, picture: av.VideoFrame) -> Iterable[Packet[VideoStream]]:
        """See ``PictureEncoder``."""
        return self._stream.encode(picture)

    def flush(self) -> Iterable[Packet[VideoStream]]:
        """See ``PictureEncoder``."""
        return self._stream.encode(None)

    def close(self) -> None:
        """Do nothing: the container owns the encoder."""


class ParallelEncoder:
    """Encoders on their own threads, each working on another chunk of the video.

    ``encode`` blocks while too many pictures are waiting.

    Args:
        stream: The stream of the packets; its own encoder only writes the headers.
        open_encoder: Opens an encoder with the stream's settings, given the maximum distance of keyframes; each
            picture of type I must start a closed group. Called at most once per encoder, on that encoder's thread.
        encoders: Number of encoders that work at the same time.
        frame_count: Number of pictures, if known.
        pending_bytes: Limit in bytes for all waiting pictures; None is 2 GiB, or more if half of the shortest chunk
            for each encoder needs it.
    """

    def __init__(
        self,
        stream: VideoStream,
        open_encoder: Callable[[int], VideoCodecContext],
        *,
        encoders: int,
        frame_count: int | None = None,
        pending_bytes: int | None = None,
    ) -> None:
        self._stream = stream
        self._open_encoder = open_encoder
        self._encoders = encoders
        self._frame_count = frame_count
        self._pending_limit = pending_bytes
        self._pending_bytes = 0
        self._chunk_frames: int | None = None
        self._chunk_count = 0
        # For each encoder, the chunks that it has not begun.
        self._waiting: list[deque[_Chunk]] = [deque() for _ in range(encoders)]
        self._unjoined: deque[_Chunk] = deque()  # chunks with packets left to output
        self._current: _Chunk | None = None
        self._decoding = _DecodingTimes()
        self._error: BaseException | None = None
        self._is_finished = False
        self._is_stopped = False
        # One lock, with a condition for each kind of event: every thread that wakes needs the interpreter lock, and
        # most would wake in vain.
        self._lock = threading.Lock()
        self._has_chunk = [threading.Condition(self._lock) for _ in range(encoders)]
        """For each encoder: a chunk is waiting."""
        self._has_progress = threading.Condition(self._lock)
        """For the writer: there is room, a packet is ready, or an encoder failed."""
        self._threads = [
            threading.Thread(target=self._work, args=(k,), name=f"encode-{k}", daemon=True)
            for k in range(encoders)
        ]
        for thread in self._threads:
            thread.start()

    def encode(self, picture: av.VideoFrame) -> Iterator[Packet[VideoStream]]:
        """See ``PictureEncoder``. Presentation times must increase."""
        nbytes = sum(plane.buffer_size for plane in picture.planes)
        limit = self._pending_limit
        if limit is None:
            limit = max(_PENDING_BYTES, self._encoders * _MIN_CHUNK_FRAMES * nbytes // 2)
        with self._lock:
            self._has_progress.wait_for(
                lambda: (
                    self._pending_bytes == 0
                    or self._pending_bytes + nbytes <= limit
                    or self._error is not None
                )
            )
            if self._error is not None:
                raise self._error
            if self._chunk_frames is None:
                self._chunk_frames = chunk_length(
                    nbytes, encoders=self._encoders, pending_bytes=limit, frame_count=self._frame_count
                )
            if self._current is None:
                self._current = _Chunk(self._lock)
                turn = self._chunk_count % self._encoders
                self._chunk_count += 1
                self._waiting[turn].append(self._current)
                self._unjoined.append(self._current)
                self._has_chunk[turn].notify()
            assert picture.pts is not None  # set by the writer
            step = self._decoding.present(picture.pts)
            self._current.pictures.append(_Pending(picture, nbytes, picture.pts, step))
            self._current.frame_count += 1
            self._pending_bytes += nbytes
            self._current.has_picture.notify()
            if self._current.frame_count == self._chunk_frames:
                self._current.is_complete = True
                self._current = None
        yield from self._joined()

    def flush(self) -> Iterator[Packet[VideoStream]]:
        """See ``PictureEncoder``."""
        with self._lock:
            self._is_finished = True
            for condition in self._has_chunk:
                condition.notify()
            if self._current is not None:
                self._current.is_complete = True
                self._current.has_picture.notify()
                self._current = None
        while self._unjoined:
            with self._lock:
                self._has_progress.wait_for(lambda: self._unjoined[0].has_news() or self._error is not None)
            yield from self._joined()
        self.close()

    def close(self) -> None:
        """See ``PictureEncoder``."""
        with self._lock:
            self._is_stopped = True
            for condition in self._has_chunk:
                condition.notify()
            self._has_progress.notify_all()
            for chunk in self._unjoined:
                chunk.has_picture.notify_all()
        for thread in self._threads:
            thread.join()

    def _joined(self) -> Iterator[Packet[VideoStream]]:
        """The packets that are ready, up to the first unfinished chunk."""
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                if not self._unjoined:
                    return
                head = self._unjoined[0]
                packets, head.packets = head.packets, []
                is_encoded = head.is_encoded()
                if is_encoded:
                    self._unjoined.popleft()
                for packet in packets:
                    self._decoding.settle(packet)
            for packet in packets:
                packet.stream = self._stream
                yield packet
            if not is_encoded:
                return

    def _work(self, turn: int) -> None:
        try:
            self._encode_chunks(turn)
        except BaseException as problem:  # any error must reach the writer
            with self._lock:
                self._error = self._error or problem
                self._has_progress.notify_all()

    def _encode_chunks(self, turn: int) -> None:
        """Open an encoder for this thread's first chunk, and use it for all its chunks."""
        encoder: VideoCodecContext | None = None
        inside: dict[int, tuple[_Chunk, int]] = {}
        """The encoder's time of a picture -> its chunk, and its time in the video."""
        ticks = 0
        while (chunk := self._next_chunk(turn)) is not None:
            if encoder is None:
                assert self._chunk_frames is not None  # set with the first chunk
                encoder = self._open_encoder(self._chunk_frames)
            is_first = True
            while (pending := self._next_picture(chunk)) is not None:
                # Skip the other encoders' chunks: rate control must not see a gap in time.
                ticks += pending.step
                inside[ticks] = chunk, pending.pts
                pending.picture.pts = ticks
                if is_first:
                    pending.picture.pict_type = PictureType.I
                    is_first = False
                self._hand_out(encoder.encode(pending.picture), inside)
        if encoder is not None and not self._is_stopped:
            self._hand_out(encoder.encode(None), inside)
            if inside:  # otherwise the writer would wait for them forever
                raise OutputError(f"the encoder gave nothing for {len(inside)} pictures")

    def _next_chunk(self, turn: int) -> _Chunk | None:
        """Wait for the thread's next chunk; None after the last."""
        waiting = self._waiting[turn]
        with self._lock:
            self._has_chunk[turn].wait_for(lambda: self._is_stopped or self._is_finished or bool(waiting))
            return waiting.popleft() if waiting and not self._is_stopped else None

    def _next_picture(self, chunk: _Chunk) -> _Pending | None:
        """Wait for the chunk's next picture; None at its end."""
        with self._lock:
            chunk.has_picture.wait_for(lambda: bool(chunk.pictures) or chunk.is_complete or self._is_stopped)
            if self._is_stopped or not chunk.pictures:
                return None
            pending = chunk.pictures.popleft()
            self._pending_bytes -= pending.nbytes
            self._has_progress.notify_all()
            return pending

    def _hand_out(self, packets: list[Packet[VideoStream]], inside: dict[int, tuple[_Chunk, int]]) -> None:
        """Assign packets to their chunks, with their times in the video."""
        if not packets:
            return
        with self._lock:
            for packet in packets:
                assert packet.pts is not None  # set above
                chunk, pts = inside.pop(packet.pts)
                if packet.dts is not None:
                    packet.dts += pts - packet.pts
                packet.pts = pts
                chunk.packets.append(packet)
                chunk.packet_count += 1
            self._has_progress.notify_all()


class _Pending(NamedTuple):
    """A picture waiting for its encoder."""

    picture: av.VideoFrame
    nbytes: int
    pts: int
    step: int
    """Ticks since the previous picture of the video."""


class _Chunk:
    """The pictures between two keyframes, on their way through one encoder.

    Args:
        lock: The lock shared by all chunks.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.has_picture = threading.Condition(lock)
        """For its encoder: a picture arrived, or the chunk is complete."""
        self.pictures: deque[_Pending] = deque()
        self.frame_count = 0
        self.is_complete = False
        self.packets: list[Packet[VideoStream]] = []
        self.packet_count = 0
        """Number of packets ever added to ``packets``."""

    def is_encoded(self) -> bool:
        """True if no more packets will come."""
        return self.is_complete and self.packet_count == self.frame_count

    def has_news(self) -> bool:
        """True if there are packets to join, or no more will come."""
        return self.is_encoded() or bool(self.packets)


class _DecodingTimes:
    """Decoding times of a joined stream as one encoder would give them: the presentation times in order, delayed.

    An encoder that reorders starts decoding early; the video's first packet tells how early.
    """

    def __init__(self) -> None:
        self._times: deque[int] = deque()  # presentation times not used yet
        self._early: deque[int] | None = None  # decoding times before the first presentation
        self._last: int | None = None

    def present(self, pts: int) -> int:
        """Add the presentation time of the video's next picture.

        Returns:
            Ticks since the previous one, at least 1; 0 for the first.
        """
        step = 0 if self._last is None else max(pts - self._last, 1)
        self._last = pts
        self._times.append(pts)
        return step

    def settle(self, packet: Packet[VideoStream]) -> None:
        """Set the decoding time of the video's next packet."""
        if self._early is None:
            first = packet.pts or 0
            lead = first - (first if packet.dts is None else packet.dts)
            self._early = deque(
                time - lead for time in takewhile(lambda time: time < first + lead, self._times)
            )
        packet.dts = self._early.popleft() if self._early else self._times.popleft()
