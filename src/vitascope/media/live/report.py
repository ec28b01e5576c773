"""Figures and report of a live run, whatever it makes of its pictures: shown on the key R, and at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from vitascope.gpu.pipeline.report import Latency, LatencyHistogram, PipelineReport
from vitascope.gpu.profiling.utilisation import Utilisation
from vitascope.media.sinks.outlet import OutletReport

__all__ = ["LiveFigures", "RunReport", "in_milliseconds"]

_WARM_UP_SECONDS = 10.0
"""Everything that was opened has settled by then; pictures may take 20 seconds each (LivePortrait on a CPU)."""


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
        """Time at which the first picture was captured, on ``time.monotonic``'s clock; None before."""
        self.shown = 0
        """Pictures that were handed to the sinks."""
        self.repeated = 0
        """Those of them that were shown again."""
        self.lost = 0
        """Those of them without a face."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """A live run, so far or whole."""

    seconds: float
    """Since the first picture."""
    size: tuple[int, int]
    """(width, height) of the pictures."""
    captured: int
    """Pictures that the camera gave."""
    shown: int
    """Pictures that were handed to the sinks."""
    repeated: int = 0
    """Those of them that showed the last picture again, because the driver had barely moved."""
    lost: int = 0
    """Those of them without a face, where one is looked for."""
    target_fps: float
    latency: Latency
    """From capture until the picture is handed to the sinks."""
    sinks: tuple[OutletReport, ...]
    pipeline: PipelineReport
    utilisation: Utilisation | None
    max_latency_ms: float | None = None
    """Limit that 95 % of the pictures should stay below, from capture until they are handed to the sinks."""
    device: str | None = None
    """The device that drew the pictures, for example ``CPU (2 cores)``."""

    @property
    def frames_per_second(self) -> float:
        """Pictures shown a second."""
        return self.shown / self.seconds if self.seconds > 0 else 0.0

    @property
    def captured_per_second(self) -> float:
        """Pictures that the camera gave a second."""
        return self.captured / self.seconds if self.seconds > 0 else 0.0

    @property
    def dropped(self) -> int:
        """Pictures of the camera that were replaced by newer ones before anybody looked at them."""
        return max(self.captured - self.shown, 0)

    @property
    def failure(self) -> str | None:
        """Which sinks failed, and why, in one line; None when none did."""
        return "; ".join(sink.failure for sink in self.sinks if sink.failure is not None) or None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; times in seconds."""
        return asdict(self) | {"frames_per_second": self.frames_per_second, "dropped": self.dropped}

    def over_limit(self) -> str | None:
        """That too many pictures are late, in one line; None when they are not, or nobody asked."""
        most_ms, p95_ms = self.max_latency_ms, self.latency.p95_seconds * 1e3
        if not self.shown or most_ms is None or p95_ms <= most_ms:
            return None
        return f"over the limit: 5 % of the pictures are later than {p95_ms:.0f} ms; wanted: {most_ms:.0f}"

    def where_it_went(self) -> list[str]:
        """Stages, sinks and GPU, a line each."""
        lines = [
            "stages: "
            + ", ".join(
                f"{stage.name} {stage.latency.p50_seconds * 1e3:.1f} ms"
                for stage in self.pipeline.stages
                if stage.latency.count
            ),
        ]
        for sink in self.sinks:
            state = f"failed: {sink.error}" if sink.state == "failed" else sink.state
            if sink.restarts:
                times = "once" if sink.restarts == 1 else f"{sink.restarts} times"
                state += f"; started again {times}, after: {sink.earlier_error}"
            lines.append(
                f"{sink.name}: {sink.sent} sent, {sink.dropped} dropped, {sink.send.p50_seconds * 1e3:.1f} ms each, "
                f"{sink.age.p50_seconds * 1e3:.1f} ms after capture; {state}"
            )
        used = self.utilisation
        if used is not None and used.gpu_percent is not None:
            memory = (used.memory_used_bytes_max or 0) / 2**30
            lines.append(
                f"GPU {used.gpu_percent:.0f} %, {memory:.1f} GiB, {used.temperature_celsius_max or 0:.0f} °C"
            )
        return lines


def in_milliseconds(latency: Latency) -> str:
    """Percentiles in words, for example ``12.3 ms p50, 14.0 p95, 15.1 p99``."""
    p50, p95, p99 = (
        seconds * 1e3 for seconds in (latency.p50_seconds, latency.p95_seconds, latency.p99_seconds)
    )
    return f"{p50:.1f} ms p50, {p95:.1f} p95, {p99:.1f} p99"
