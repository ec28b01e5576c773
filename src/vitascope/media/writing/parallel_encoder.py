"""Encode one video with several encoders: each gets closed chunks, and their packets are joined in order.

One encoder of a small or simple picture cannot keep many cores busy: on 16 of them, four x264 of four threads wrote
masks about twice as fast as one, and faster than more of fewer threads. x265 lost by it, so it is left alone.

The busiest thread of an x264 of four threads does a fifth to a quarter of its work at 1920x1080, and a quarter to two
fifths at 3840x2160, most with the fastest presets and with grainy pictures (on 2 cores): four such encoders keep 10 to
16 cores busy there. So large pictures get an encoder for every two cores, and each of these four threads: threads wait
for rows of the picture before theirs, and with no more of them than cores, many cores stood still
(``benchmarks/encode.py``).

Encoders that work in turn are at different places of their chunks. For all of them to have work, half a chunk for each
must wait, not a whole one; with less, some wait for the writer. At the end those that are done wait for the last one:
where the number of pictures is known, chunks are as long as makes their number a multiple of the encoders'. Simulated
with pictures of random cost, 120 pictures keep four encoders busy 91 % of the time instead of 68, 480 pictures 95
instead of 89, and a long video of 7680x4320 eight encoders 93 instead of 84.

A chunk begins with a keyframe and refers to nothing outside itself, so the joined stream is what one encoder with that
distance of keyframes writes. Constant quality makes the chunks look alike; rates that span chunks (a target bit rate)
are not for this.

An encoder is opened once and goes from chunk to chunk: opening one takes libx264 milliseconds, tens of them for large
pictures, and meanwhile PyAV lets no other thread run Python. What it holds back at a chunk's end comes out during its
next chunk, or when it is flushed at the end; it cannot be flushed before, because libx264 takes no picture after that.
Encoders take chunks in turn, whoever is done first, so that a video is encoded the same every time.
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
"""Keyframes cost bits: nearer together than this they are most of the video."""
_PENDING_BYTES = 2 << 30
_LARGE_PICTURE_BYTES = 6_000_000
"""Bytes of a 4:2:0 picture in 8 bits between 1920x1080 and 3840x2160, where the gain was measured."""
_THREADS_OF_LARGE = 2
"""Threads for each core where pictures are large."""
_PICTURES_HELD = 65
"""The memory of one x264 of a few threads, in pictures; to which come two for each that it looks ahead. Measured with
four threads at 3840x2160 and 7680x4320, both together: 23 with ``ultrafast``, 70 to 73 with ``veryfast``, 119 with
``medium``; of two threads 7 to 11 less."""
_UNKNOWN_MEMORY_BYTES = 8 << 30


def encoders_for(picture_bytes: int, *, threads: int, lookahead_frames: int, memory_bytes: int | None) -> int:
    """The number of encoders that keep the threads busy, and fit into memory.

    One for every four threads, in half of the machine's memory at most; one for every two where pictures are large and
    a quarter of it is enough.

    Args:
        picture_bytes: Bytes of a picture in the encoder's format.
        threads: Threads of all encoders together.
        lookahead_frames: Pictures that an encoder looks ahead.
        memory_bytes: Memory of the machine; None counts as little.
    """
    pictures = _PICTURES_HELD + 2 * min(lookahead_frames, _MAX_CHUNK_FRAMES) + _MIN_CHUNK_FRAMES
    fitting = (memory_bytes or _UNKNOWN_MEMORY_BYTES) // (picture_bytes * pictures)
    many = min(threads // 2, fitting // 4) if picture_bytes > _LARGE_PICTURE_BYTES else 0
    return max(many, min(threads // 4, fitting // 2), 1)


def threads_of_each(encoders: int, *, cores: int, picture_bytes: int) -> int:
    """The threads of one of several encoders.

    Args:
        encoders: The number that work at once.
        cores: Cores of the machine.
        picture_bytes: Bytes of a 4:2:0 picture in 8 bits.
    """
    of_core = _THREADS_OF_LARGE if picture_bytes > _LARGE_PICTURE_BYTES else 1
    return max(of_core * cores // encoders, 1)


def chunk_length(picture_bytes: int, *, encoders: int, pending_bytes: int, frame_count: int | None) -> int:
    """The pictures of a chunk: 15 to 60, as many as half a chunk for each encoder may wait.

    Args:
        picture_bytes: Bytes of a picture.
        encoders: The number that work at once.
        pending_bytes: Pictures that may wait, all together.
        frame_count: Frames of the video, where known: then all encoders get as many chunks, if they are not too short.
    """
    fair = 2 * pending_bytes // (encoders * max(picture_bytes, 1))
    longest = min(max(fair, _MIN_CHUNK_FRAMES), _MAX_CHUNK_FRAMES)
    if not frame_count:
        return longest
    rounds = ceil(frame_count / (encoders * longest))
    return max(ceil(frame_count / (encoders * rounds)), _MIN_CHUNK_FRAMES)


class PictureEncoder(Protocol):
    """Pictures in, packets out, in decoding order. Not thread-safe."""

    def encode(self, picture: av.VideoFrame) -> Iterable[Packet[VideoStream]]:
        """Take one picture; give the packets that are ready.

        Raises:
            FFmpegError: The encoder failed, perhaps on an earlier picture.
        """

    def flush(self) -> Iterable[Packet[VideoStream]]:
        """Give the rest of the packets; no picture may follow."""

    def close(self) -> None:
        """Stop, and drop what is still being encoded. Idempotent."""


class StreamEncoder:
    """The encoder of a stream itself.

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
        """The container owns the encoder."""


class ParallelEncoder:
    """Encoders on threads of their own, each on another chunk of the video.

    ``encode`` waits while too many pictures are pending.

    Args:
        stream: The stream that the packets are for; its own encoder only writes the headers.
        open_encoder: Makes one encoder, set up as the stream's, which starts a closed group of pictures at each picture
            of type I, at most so many pictures apart as it is told; called at most once for each of ``encoders``, on
            that one's thread.
        encoders: The number that work at once.
        frame_count: The number of pictures, where known.
        pending_bytes: Pictures that may wait, all together; None is 2 GiB, or half a shortest chunk for each encoder.
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
        # For each encoder the chunks that it has not begun.
        self._waiting: list[deque[_Chunk]] = [deque() for _ in range(encoders)]
        self._unjoined: deque[_Chunk] = deque()  # their packets are not all given out
        self._current: _Chunk | None = None
        self._decoding = _DecodingTimes()
        self._error: BaseException | None = None
        self._is_finished = False
        self._is_stopped = False
        # One lock, and a condition for each thing that is waited for: every thread that wakes wants the interpreter,
        # and most would only find that what changed is another's affair.
        self._lock = threading.Lock()
        self._has_chunk = [threading.Condition(self._lock) for _ in range(encoders)]
        """For each encoder, when it has no work."""
        self._has_progress = threading.Condition(self._lock)
        """For the writer: there is room, there are packets, or an encoder failed."""
        self._threads = [
            threading.Thread(target=self._work, args=(k,), name=f"encode-{k}", daemon=True)
            for k in range(encoders)
        ]
        for thread in self._threads:
            thread.start()

    def encode(self, picture: av.VideoFrame) -> Iterator[Packet[VideoStream]]:
        """See ``PictureEncoder``. Presentation times must grow."""
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
            assert picture.pts is not None  # the writer gave it
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
        """The packets that are ready, up to the first chunk that is not done."""
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
        except BaseException as problem:  # it must reach the writer, whatever it is
            with self._lock:
                self._error = self._error or problem
                self._has_progress.notify_all()

    def _encode_chunks(self, turn: int) -> None:
        """Open an encoder for the first chunk of this thread, and give it this one and all further ones."""
        encoder: VideoCodecContext | None = None
        inside: dict[int, tuple[_Chunk, int]] = {}
        """The encoder's time of a picture -> whose it is, and its time in the video."""
        ticks = 0
        while (chunk := self._next_chunk(turn)) is not None:
            if encoder is None:
                assert self._chunk_frames is not None  # there is a chunk
                encoder = self._open_encoder(self._chunk_frames)
            is_first = True
            while (pending := self._next_picture(chunk)) is not None:
                # The chunks in between are another's: to rate control, time must not seem to stand still meanwhile.
                ticks += pending.step
                inside[ticks] = chunk, pending.pts
                pending.picture.pts = ticks
                if is_first:
                    pending.picture.pict_type = PictureType.I
                    is_first = False
                self._hand_out(encoder.encode(pending.picture), inside)
        if encoder is not None and not self._is_stopped:
            self._hand_out(encoder.encode(None), inside)
            if inside:  # or the writer would wait for them for ever
                raise OutputError(f"the encoder gave nothing for {len(inside)} pictures")

    def _next_chunk(self, turn: int) -> _Chunk | None:
        """The thread's next chunk, waited for; None after the last."""
        waiting = self._waiting[turn]
        with self._lock:
            self._has_chunk[turn].wait_for(lambda: self._is_stopped or self._is_finished or bool(waiting))
            return waiting.popleft() if waiting and not self._is_stopped else None

    def _next_picture(self, chunk: _Chunk) -> _Pending | None:
        """The chunk's next picture, waited for; None at its end."""
        with self._lock:
            chunk.has_picture.wait_for(lambda: bool(chunk.pictures) or chunk.is_complete or self._is_stopped)
            if self._is_stopped or not chunk.pictures:
                return None
            pending = chunk.pictures.popleft()
            self._pending_bytes -= pending.nbytes
            self._has_progress.notify_all()
            return pending

    def _hand_out(self, packets: list[Packet[VideoStream]], inside: dict[int, tuple[_Chunk, int]]) -> None:
        """Give packets to the chunks they are of, with their time in the video."""
        if not packets:
            return
        with self._lock:
            for packet in packets:
                assert packet.pts is not None  # we gave it
                chunk, pts = inside.pop(packet.pts)
                if packet.dts is not None:
                    packet.dts += pts - packet.pts
                packet.pts = pts
                chunk.packets.append(packet)
                chunk.packet_count += 1
            self._has_progress.notify_all()


class _Pending(NamedTuple):
    """A picture that waits for its encoder."""

    picture: av.VideoFrame
    nbytes: int
    pts: int
    step: int
    """Ticks since the picture before it in the video."""


class _Chunk:
    """A run of pictures between two keyframes, on its way through one encoder.

    Args:
        lock: The lock of all chunks.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.has_picture = threading.Condition(lock)
        """For its encoder: a picture came, or none comes any more."""
        self.pictures: deque[_Pending] = deque()
        self.frame_count = 0
        self.is_complete = False
        self.packets: list[Packet[VideoStream]] = []
        self.packet_count = 0
        """The number that were ever in ``packets``."""

    def is_encoded(self) -> bool:
        """True when nothing more will come."""
        return self.is_complete and self.packet_count == self.frame_count

    def has_news(self) -> bool:
        """True when there is something to join, or nothing more will come."""
        return self.is_encoded() or bool(self.packets)


class _DecodingTimes:
    """Decoding times of a joined stream, as one encoder gives them: presentation times in order, as late as it needs.

    An encoder that reorders lets decoding begin early. How early is what the video's first packet says.
    """

    def __init__(self) -> None:
        self._times: deque[int] = deque()  # of presentation, not yet used
        self._early: deque[int] | None = None  # of decoding, before the first presentation
        self._last: int | None = None

    def present(self, pts: int) -> int:
        """Take the presentation time of the next picture of the video.

        Returns:
            Ticks since the one before, at least 1; 0 for the first.
        """
        step = 0 if self._last is None else max(pts - self._last, 1)
        self._last = pts
        self._times.append(pts)
        return step

    def settle(self, packet: Packet[VideoStream]) -> None:
        """Give the video's next packet its decoding time."""
        if self._early is None:
            first = packet.pts or 0
            lead = first - (first if packet.dts is None else packet.dts)
            self._early = deque(
                time - lead for time in takewhile(lambda time: time < first + lead, self._times)
            )
        packet.dts = self._early.popleft() if self._early else self._times.popleft()
