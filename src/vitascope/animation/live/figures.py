"""What a live run counts while it runs."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from vitascope.gpu.pipeline.report import Latency, LatencyHistogram

__all__ = ["LiveFigures"]

_WARM_UP_SECONDS = 10.0
"""What was opened has settled by then; pictures may take 20 seconds each (LivePortrait on a processor)."""


class LiveFigures:
    """Pictures and delays of a live run.

    ``begin``, ``pause`` and ``go_on`` are the first stage's, ``hand_over`` is the last one's; all may read.

    Args:
        captured_count: Tells how many pictures the camera gave.
        warm_up_pictures: The first pictures, which figures leave out: networks open and memory is had for them.
        warm_up_seconds: After this long, the next picture is the last that they leave out.
    """

    def __init__(
        self,
        captured_count: Callable[[], int],
        *,
        warm_up_pictures: int = 0,
        warm_up_seconds: float = _WARM_UP_SECONDS,
    ) -> None:
        self._captured_count = captured_count
        self._captured_before = captured_count()
        self._warm_up_pictures, self._warm_up_seconds = warm_up_pictures, warm_up_seconds
        self._latency = LatencyHistogram()
        self._counted_from: float | None = None
        self._paused_at: tuple[float, int] | None = (
            None  # the time, and the pictures of the camera until then
        )
        self._paused_seconds = 0.0
        self.began: float | None = None
        """When the first picture was captured, on ``time.monotonic``'s clock; None before."""
        self.shown = 0
        """Pictures that were handed to the sinks."""
        self.repeated = 0
        """How many of these were shown again."""
        self.lost = 0
        """How many of these had no face."""

    @property
    def seconds(self) -> float:
        """Since the first picture that counts; 0 before."""
        return 0.0 if self._counted_from is None else monotonic() - self._counted_from

    @property
    def seconds_shown(self) -> float:
        """The same without pauses."""
        paused_at = self._paused_at
        now_paused = 0.0 if paused_at is None else monotonic() - paused_at[0]
        return max(self.seconds - self._paused_seconds - now_paused, 0.0)

    @property
    def captured(self) -> int:
        """Pictures of the camera in this time, pauses left out."""
        paused_at = self._paused_at
        count = self._captured_count() if paused_at is None else paused_at[1]
        return max(count - self._captured_before, 0)

    def latency(self) -> Latency:
        """From capture until a picture is handed to the sinks."""
        return LatencyHistogram.summary([self._latency])

    def begin(self, captured_seconds: float) -> None:
        """The first picture was captured; further calls do nothing."""
        if self.began is None:
            self.began = captured_seconds
            if not self._warm_up_pictures:
                self._counted_from = captured_seconds

    def pause(self) -> None:
        """Pictures are held from now on; further calls do nothing."""
        if self._paused_at is None and self._counted_from is not None:
            self._paused_at = monotonic(), self._captured_count()

    def go_on(self) -> None:
        """The pause is over; does nothing without one."""
        if self._paused_at is not None:
            since, count = self._paused_at
            self._captured_before += self._captured_count() - count
            self._paused_seconds += monotonic() - since
            self._paused_at = None

    def hand_over(self, captured_seconds: float, *, is_repeat: bool = False, is_lost: bool = False) -> None:
        """A picture was handed to the sinks."""
        if self._warm_up_pictures:
            now = monotonic()
            is_long = self.began is not None and now - self.began >= self._warm_up_seconds
            self._warm_up_pictures = 0 if is_long else self._warm_up_pictures - 1
            if not self._warm_up_pictures:
                self._captured_before = self._captured_count()
                self._counted_from = now
            return
        self.shown += 1
        self.repeated += is_repeat
        self.lost += is_lost
        self._latency.add(max(monotonic() - captured_seconds, 0.0))
