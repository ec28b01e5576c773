"""Figures and report of a live run: shown on the key R, and at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from vitascope.gpu.pipeline.report import Latency, LatencyHistogram, PipelineReport
from vitascope.gpu.profiling.utilisation import Utilisation
from vitascope.media.sinks.outlet import OutletReport

__all__ = ["LiveFigures", "LiveReport", "summarise_live", "verdict"]

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


# What the guide of the portrait animator calls good and poor.
_POOR_FPS = 30.0
_GOOD_LATENCY_MS, _POOR_LATENCY_MS = 15.0, 30.0
_IDLE_GPU_PERCENT, _FULL_GPU_PERCENT = 50.0, 98.0
_FULL_GPU_MEMORY = 0.9
_HOT_CELSIUS = 80.0
_FREQUENT_DROPS = 0.05
_CLOSE = 0.9
_OFTEN_LOST = 0.5
_ON_CPU = ("mesh",)
"""Animators to which a GPU that rests means nothing: it draws within a millisecond, if it draws at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """A live run, so far or whole."""

    seconds: float
    """Since the first picture."""
    animator: str
    size: tuple[int, int]
    """(width, height) of the pictures."""
    captured: int
    """Pictures that the camera gave."""
    shown: int
    """Pictures that were handed to the sinks."""
    repeated: int
    """Those of them that showed the last picture again, because the driver had barely moved."""
    lost: int
    """Those of them without a face."""
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
    def dropped(self) -> int:
        """Pictures of the camera that were replaced by newer ones before anybody looked at them."""
        return max(self.captured - self.shown, 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; times in seconds."""
        plain = asdict(self)
        plain["frames_per_second"] = self.frames_per_second
        plain["dropped"] = self.dropped
        plain["verdict"] = verdict(self)
        return plain


def verdict(report: LiveReport) -> list[str]:
    """Judge the run: good and poor, a line each; the reference is a 60 fps stream on a desktop GPU."""
    lines = []
    fps, latency_ms = report.frames_per_second, report.latency.p50_seconds * 1e3
    given = report.captured / report.seconds if report.seconds > 0 else 0.0
    if fps >= report.target_fps * _CLOSE:
        lines.append(f"good: {fps:.0f} fps")
    elif fps >= given * _CLOSE:
        lines.append(f"fair: {fps:.0f} fps of {report.target_fps:.0f} wanted; the driver gives no more")
    else:
        # Capturing is mostly waiting for the camera.
        working = [stage for stage in report.pipeline.stages if stage.name != "capture"]
        slowest = max(working, key=lambda stage: stage.load, default=None)
        where = f"; {slowest.name} is busiest ({slowest.load:.0%})" if slowest is not None else ""
        poor = "poor" if fps < _POOR_FPS else "fair"
        lines.append(f"{poor}: {fps:.0f} fps of {min(given, report.target_fps):.0f} possible{where}")
    if fps < given * _CLOSE and fps < report.target_fps * _CLOSE:
        lines.append(
            "late pictures fall out so that the delay does not grow; vitascope bench animate --auto-tune finds "
            "settings for this machine"
        )
    if report.shown and latency_ms < _GOOD_LATENCY_MS:
        lines.append(f"good: {latency_ms:.0f} ms from camera to picture")
    if report.shown and latency_ms > _POOR_LATENCY_MS:
        lines.append(
            f"poor: {latency_ms:.0f} ms from camera to picture (good is below {_GOOD_LATENCY_MS:.0f})"
        )
    most_ms, p95_ms = report.max_latency_ms, report.latency.p95_seconds * 1e3
    if report.shown and most_ms is not None and p95_ms > most_ms:
        lines.append(
            f"over the limit: 5 % of the pictures are later than {p95_ms:.0f} ms; wanted: {most_ms:.0f}"
        )
    if report.captured and report.dropped > _FREQUENT_DROPS * report.captured:
        lines.append(f"poor: {report.dropped} of {report.captured} pictures dropped")
    if report.lost > _OFTEN_LOST * max(report.shown, 1):
        lines.append(
            "poor: the driver's face is seldom found; more light, and a face that fills a third, help"
        )
    is_slow = fps < min(given, report.target_fps) * _CLOSE
    return lines + _verdict_on_gpu(report.utilisation, waits=is_slow and report.animator not in _ON_CPU)


def _verdict_on_gpu(used: Utilisation | None, *, waits: bool) -> list[str]:
    """Judge the use of the GPU.

    Args:
        used: What was measured; None, or one without a GPU, gives no lines.
        waits: True where an idle GPU means that something else holds it up.
    """
    if used is None or used.gpu_percent is None:
        return []
    lines = []
    if used.gpu_percent > _FULL_GPU_PERCENT:
        lines.append(f"poor: the GPU is full ({used.gpu_percent:.0f} %)")
    elif waits and used.gpu_percent < _IDLE_GPU_PERCENT:
        lines.append(f"poor: the GPU waits ({used.gpu_percent:.0f} % busy): the CPU feeds it too slowly")
    if (used.memory_share or 0) > _FULL_GPU_MEMORY:
        lines.append(f"warning: the GPU's memory is {used.memory_share:.0%} full")
    if (used.temperature_celsius_max or 0) > _HOT_CELSIUS:
        lines.append(
            f"warning: the GPU is at {used.temperature_celsius_max:.0f} °C; keep it below {_HOT_CELSIUS:.0f}"
        )
    return lines


def summarise_live(report: LiveReport) -> list[str]:
    """The report for a person, a line each."""
    latency = report.latency
    device = "" if report.device is None else f" on {report.device}"
    lines = [
        f"{report.shown} pictures in {report.seconds:.1f} s: {report.frames_per_second:.1f} fps; "
        f"{report.animator} at {report.size[0]}x{report.size[1]}{device}",
        f"latency {latency.p50_seconds * 1e3:.1f} ms p50, {latency.p95_seconds * 1e3:.1f} p95, "
        f"{latency.p99_seconds * 1e3:.1f} p99; {report.dropped} dropped, {report.repeated} shown again, "
        f"{report.lost} without a face",
        "stages: "
        + ", ".join(
            f"{stage.name} {stage.latency.p50_seconds * 1e3:.1f} ms"
            for stage in report.pipeline.stages
            if stage.latency.count
        ),
    ]
    for sink in report.sinks:
        state = f"failed: {sink.error}" if sink.state == "failed" else sink.state
        if sink.restarts:
            times = "once" if sink.restarts == 1 else f"{sink.restarts} times"
            state += f"; started again {times}, after: {sink.earlier_error}"
        lines.append(
            f"{sink.name}: {sink.sent} sent, {sink.dropped} dropped, {sink.send.p50_seconds * 1e3:.1f} ms each, "
            f"{sink.age.p50_seconds * 1e3:.1f} ms after capture; {state}"
        )
    used = report.utilisation
    if used is not None and used.gpu_percent is not None:
        memory = (used.memory_used_bytes_max or 0) / 2**30
        lines.append(
            f"GPU {used.gpu_percent:.0f} %, {memory:.1f} GiB, {used.temperature_celsius_max or 0:.0f} °C"
        )
    return lines + verdict(report)
