"""Several decoders on one film, and one stream of pictures out of them, in order and without a seam."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import av

from vitascope.errors import VitascopeError
from vitascope.gpu.pipeline.queues import BoundedQueue, Mark, QueueLimits
from vitascope.media._completeness import ReadingProgress, check_end
from vitascope.media._container import ContainerSource
from vitascope.media._opened_video import OpenedVideo
from vitascope.media._segment_decoder import LostPicture, SegmentDecoder, SegmentEnd, Stamp
from vitascope.media._source import DamageCounter, SourceFacts
from vitascope.media.gop_plan import GopPlan

__all__ = ["ParallelSource"]


@dataclass(frozen=True, slots=True)
class _Failed:
    """A session ended with an error."""

    error: BaseException


_Item = av.VideoFrame | LostPicture | SegmentEnd | _Failed
_Lane = BoundedQueue[_Item]
"""What one session has decoded and the reader has not taken yet."""
_ANY_NUMBER = 2**62


class ParallelSource:
    """The video stream of one container, decoded by several sessions at once.

    Session *k* of *S* decodes segments *k*, *k + S*, *k + 2S* ... on a thread of its own. The pictures come out one
    segment after the other, so that whoever reads them sees the film as one decoder would have given it. A session
    runs ahead until its share of the buffer is full, and at least by one picture: then, and where a segment is larger
    than that share, it waits for its turn, which costs speed and nothing else.

    Args:
        headers: The film, opened for its facts and its index; never decoded, closed with this source.
        video: The film, open for the first session; closed with this source.
        open_video: Opens the film for another session, in the session's own thread.
        plan: At least two segments.
        stamp: Which time of a packet the plan's stamps are.
        sessions: How many decoders; 1 or more.
        buffer_bytes: Pictures that wait, of all sessions together.
        decoder: For reports.
    """

    def __init__(
        self,
        headers: ContainerSource,
        video: OpenedVideo,
        *,
        open_video: Callable[[], OpenedVideo],
        plan: GopPlan,
        stamp: Stamp,
        sessions: int,
        buffer_bytes: int,
        decoder: str,
    ) -> None:
        self._headers = headers
        self._open_video = open_video
        self._idle = [video]
        self._plan = plan
        self._stamp: Stamp = stamp
        self._sessions = min(sessions, len(plan.segments))
        # In bytes alone: how many pictures that is depends on the film.
        lane_bytes = max(buffer_bytes // self._sessions, 1)
        self._lane_limits = QueueLimits(items=_ANY_NUMBER, nbytes=lane_bytes)
        self._first = 0
        self._running: Generator[av.VideoFrame, None, None] | None = None
        self.decoder = decoder

    @property
    def facts(self) -> SourceFacts:
        """See ``PictureSource``."""
        return self._headers.facts

    @property
    def damage(self) -> DamageCounter:
        """See ``PictureSource``."""
        return self._headers.damage

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Decode from the current position; see ``PictureSource``."""
        self._stop()
        self._running = self._merge(self._first)
        return self._running

    def seek(self, pts: int) -> None:
        """Go to the segment at or before ``pts``."""
        self._stop()
        self._first = self._plan.segment_at(pts)

    def rewind(self) -> None:
        """Go to the first segment."""
        self._stop()
        self._first = 0

    def close(self) -> None:
        """End the sessions, wait for their threads, free everything. Idempotent."""
        self._stop()
        for video in self._idle:
            video.close()
        self._headers.close()

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _merge(self, first: int) -> Generator[av.VideoFrame, None, None]:
        lanes = [_Lane(f"decode-{k} > reader", limits=self._lane_limits) for k in range(self._sessions)]
        threads = [
            threading.Thread(
                target=self._work,
                args=(lane, range(first + k, len(self._plan.segments), self._sessions)),
                name=f"decode-{k}",
                daemon=True,
            )
            for k, lane in enumerate(lanes)
        ]
        for thread in threads:
            thread.start()
        try:
            yield from self._in_order(lanes, first)
        finally:
            for lane in lanes:
                lane.stop()
            for thread in threads:
                thread.join()

    def _in_order(self, lanes: list[_Lane], first: int) -> Iterator[av.VideoFrame]:
        progress = ReadingProgress(from_start=first == 0)
        failure: Exception | None = None
        for number in range(first, len(self._plan.segments)):
            lane = lanes[(number - first) % self._sessions]
            while not isinstance(item := _oldest_of(lane), SegmentEnd):
                if isinstance(item, _Failed):
                    raise _told_where(item.error, self.facts.path, self.damage.decoded)
                if isinstance(item, LostPicture):
                    self.damage.add(item.cause)
                    continue
                progress.shown(item.pts, item.duration)
                self.damage.decoded += 1
                yield item
            progress.packets += item.packet_count
            if item.failure is not None:
                failure = item.failure
                break
        check_end(self._headers.video, progress, decoded=self.damage.decoded, failure=failure)

    def _work(self, lane: _Lane, numbers: range) -> None:
        try:
            video = self._take_idle() or self._open_video()
            try:
                decoder = SegmentDecoder(video, self._plan.segments, self._stamp)
                for number in numbers:
                    for item in decoder.decode(number):
                        if not lane.put(item, nbytes=_bytes_of(item)):
                            return
            finally:
                self._idle.append(video)
        except BaseException as error:  # it must reach the reader, whatever it is
            lane.put(_Failed(error))
        finally:
            lane.end()

    def _take_idle(self) -> OpenedVideo | None:
        """A film that an earlier run has left open: a GPU's decoder takes a tenth of a second to make."""
        try:
            return self._idle.pop()
        except IndexError:
            return None


def _oldest_of(lane: _Lane) -> _Item:
    """Waits for it."""
    taken = lane.get()
    assert not isinstance(taken, Mark), f"{lane.name}: no segment's end was put"
    return taken[1]


def _bytes_of(item: _Item) -> int:
    if not isinstance(item, av.VideoFrame):
        return 0
    return sum(plane.buffer_size for plane in item.planes)


def _told_where(error: BaseException, path: Path, decoded: int) -> BaseException:
    if not isinstance(error, VitascopeError):
        error.add_note(f"{path}: in a decoder session, after {decoded} frames")
    return error
