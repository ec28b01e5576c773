"""Several encoders on one film: each gets closed chunks of it, and their packets are joined in order.

One encoder of a small or simple picture cannot keep many cores busy. On 16 cores x264 ``ultrafast`` writes a mask of
1920x1080 at 837 frames/s, four encoders of four threads each at 1988, eight of two at 1611 and sixteen of one at 1260:
the more there are, the more pictures wait, and fresh memory for them costs more than the encoding. 3840x2160 gains
as much (257 and 451). x265 loses (407 and 309 frames/s), so it is left alone.

A chunk begins with a keyframe and refers to nothing outside itself, so the joined stream is what one encoder with that
distance of keyframes writes. Constant quality makes the chunks look alike; rates that span chunks (a target bit rate)
are not for this.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import av
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

__all__ = ["ParallelEncoder", "PictureEncoder", "StreamEncoder"]

_MAX_CHUNK_FRAMES = 60
_MIN_CHUNK_FRAMES = 15
"""Keyframes cost bits: nearer together than this they are most of the film."""
_PENDING_BYTES = 2 << 30


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
        """Stop, whatever is still in work. Idempotent."""


class StreamEncoder:
    """The encoder of a stream itself.

    Args:
        stream: Of an output container.
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
    """Encoders on threads of their own, each on another chunk of the film.

    ``encode`` waits while too many pictures are pending.

    Args:
        stream: What the packets are for; its own encoder only writes the headers.
        open_encoder: Makes one encoder, set up as the stream's; called once for each chunk.
        encoders: How many work at once.
        pending_bytes: Pictures that may wait, all together. A chunk has as many pictures as leave each encoder one to
            work on, between 15 and 60.
    """

    def __init__(
        self,
        stream: VideoStream,
        open_encoder: Callable[[], VideoCodecContext],
        *,
        encoders: int,
        pending_bytes: int = _PENDING_BYTES,
    ) -> None:
        self._stream = stream
        self._open_encoder = open_encoder
        self._encoders = encoders
        self._pending_limit = pending_bytes
        self._pending_bytes = 0
        self._chunk_frames: int | None = None
        self._waiting: deque[_Chunk] = deque()  # nobody works on these yet
        self._unjoined: deque[_Chunk] = deque()  # their packets are not all given out
        self._current: _Chunk | None = None
        self._is_stopped = False
        # One lock, and a condition for each thing that is waited for: every thread that wakes wants the interpreter,
        # and most would only find that what changed is another's affair.
        self._lock = threading.Lock()
        self._has_chunk = threading.Condition(self._lock)
        """For encoders without work."""
        self._has_progress = threading.Condition(self._lock)
        """For the writer: there is room, there are packets, or an encoder failed."""
        self._threads = [
            threading.Thread(target=self._work, name=f"encode-{k}", daemon=True) for k in range(encoders)
        ]
        for thread in self._threads:
            thread.start()

    def encode(self, picture: av.VideoFrame) -> Iterator[Packet[VideoStream]]:
        """See ``PictureEncoder``."""
        nbytes = sum(plane.buffer_size for plane in picture.planes)
        with self._lock:
            self._has_progress.wait_for(
                lambda: (
                    self._pending_bytes == 0
                    or self._pending_bytes + nbytes <= self._pending_limit
                    or self._failure() is not None
                )
            )
            if (failure := self._failure()) is not None:
                raise failure
            if self._chunk_frames is None:
                fair = self._pending_limit // (self._encoders * max(nbytes, 1))
                self._chunk_frames = min(max(fair, _MIN_CHUNK_FRAMES), _MAX_CHUNK_FRAMES)
            if self._current is None:
                self._current = _Chunk(self._lock)
                self._waiting.append(self._current)
                self._unjoined.append(self._current)
                self._has_chunk.notify()
            self._current.pictures.append((picture, nbytes))
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
            if self._current is not None:
                self._current.is_complete = True
                self._current.has_picture.notify()
                self._current = None
        while self._unjoined:
            with self._lock:
                self._has_progress.wait_for(self._unjoined[0].has_news)
            yield from self._joined()
        self.close()

    def close(self) -> None:
        """See ``PictureEncoder``."""
        with self._lock:
            self._is_stopped = True
            self._has_chunk.notify_all()
            self._has_progress.notify_all()
            for chunk in self._unjoined:
                chunk.has_picture.notify_all()
        for thread in self._threads:
            thread.join()

    def _failure(self) -> BaseException | None:
        return next((chunk.error for chunk in self._unjoined if chunk.error is not None), None)

    def _joined(self) -> Iterator[Packet[VideoStream]]:
        """The packets that are ready, up to the first chunk that is not done."""
        while True:
            with self._lock:
                if not self._unjoined:
                    return
                head = self._unjoined[0]
                packets, head.packets = head.packets, []
                is_encoded, error = head.is_encoded, head.error
                if is_encoded:
                    self._unjoined.popleft()
            for packet in packets:
                packet.stream = self._stream
                yield packet
            if error is not None:
                raise error
            if not is_encoded:
                return

    def _work(self) -> None:
        while True:
            with self._lock:
                self._has_chunk.wait_for(lambda: self._is_stopped or bool(self._waiting))
                if self._is_stopped:
                    return
                chunk = self._waiting.popleft()
            error: BaseException | None = None
            try:
                self._encode_chunk(chunk)
            except BaseException as problem:  # it must reach the writer, whatever it is
                error = problem
            with self._lock:
                chunk.error = error
                chunk.is_encoded = True
                self._has_progress.notify_all()

    def _encode_chunk(self, chunk: _Chunk) -> None:
        encoder = self._open_encoder()
        while (picture := self._next_picture(chunk)) is not None:
            self._add(chunk, encoder.encode(picture))
        if not self._is_stopped:
            self._add(chunk, encoder.encode(None))

    def _next_picture(self, chunk: _Chunk) -> av.VideoFrame | None:
        """The chunk's next picture, waited for; None at its end."""
        with self._lock:
            chunk.has_picture.wait_for(lambda: bool(chunk.pictures) or chunk.is_complete or self._is_stopped)
            if self._is_stopped or not chunk.pictures:
                return None
            picture, nbytes = chunk.pictures.popleft()
            self._pending_bytes -= nbytes
            self._has_progress.notify_all()
            return picture

    def _add(self, chunk: _Chunk, packets: list[Packet[VideoStream]]) -> None:
        with self._lock:
            chunk.packets += packets
            self._has_progress.notify_all()


class _Chunk:
    """A run of pictures between two keyframes, on its way through one encoder.

    Args:
        lock: Of all chunks.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.has_picture = threading.Condition(lock)
        """For its encoder: a picture came, or none comes any more."""
        self.pictures: deque[tuple[av.VideoFrame, int]] = deque()
        self.frame_count = 0
        self.is_complete = False
        self.packets: list[Packet[VideoStream]] = []
        self.is_encoded = False
        self.error: BaseException | None = None

    def has_news(self) -> bool:
        """True when there is something to join, or nothing more will come."""
        return self.is_encoded or bool(self.packets)
