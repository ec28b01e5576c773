"""Decoding in a thread of its own, which can be left behind where it never comes back.

Of damaged H.265, the threads that FFmpeg decodes frames in may wait for each other for ever, and nothing can wake them
or end them. Who waits for a thread of Python instead gives up after a while, and hears Ctrl-C meanwhile.
"""

from __future__ import annotations

import weakref
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeAlias

import av
from av.packet import Packet
from av.video.stream import VideoStream

__all__ = ["DecoderHangsError", "PatientDecoder"]

_PATIENCE_SECONDS = 30
"""For one packet: what takes a slow machine less than a second."""
_LAST_SECONDS = 5
"""For what was being decoded when nobody wanted it any more."""

_Order: TypeAlias = "tuple[Packet[VideoStream] | None] | None"
_Answer: TypeAlias = "list[av.VideoFrame] | BaseException"


class DecoderHangsError(Exception):
    """The decoder did not answer for so long that it never will; its thread and memory are lost."""


class PatientDecoder:
    """Decodes what ``VideoStream.decode`` would, and is waited for.

    Used by one thread at a time.

    Args:
        stream: The stream; used by nobody else until ``end``.
    """

    def __init__(self, stream: VideoStream) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._thread = Thread(
            target=_serve, args=(stream, self._orders, self._answers), name="patient-decoder", daemon=True
        )
        self._thread.start()
        weakref.finalize(
            self, self._orders.put, None
        )  # where nobody closes the video, the thread ends all the same

    def decode(self, packet: Packet[VideoStream] | None) -> list[av.VideoFrame]:
        """Decode one packet; None flushes.

        Raises:
            DecoderHangsError: It took longer than the patience lasts.
        """
        self._orders.put((packet,))
        # Many short waits: a process that is stopped for an hour has spent one of them.
        for _ in range(_PATIENCE_SECONDS):
            try:
                answer = self._answers.get(timeout=1)
            except Empty:
                continue
            if isinstance(answer, BaseException):
                raise answer
            return answer
        raise DecoderHangsError

    def end(self) -> bool:
        """End the thread; False where it hangs, and the stream must not be closed."""
        self._orders.put(None)
        self._thread.join(_LAST_SECONDS)
        return not self._thread.is_alive()


def _serve(stream: VideoStream, orders: SimpleQueue[_Order], answers: SimpleQueue[_Answer]) -> None:
    while (order := orders.get()) is not None:
        try:
            answers.put(stream.decode(order[0]))
        except BaseException as error:  # whoever waits shall have it, whatever it is
            answers.put(error)
        del order  # whose packet may be large, while the next is awaited
