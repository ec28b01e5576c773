"""Report of a live animation, shown on the key R and at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitascope.gpu.profiling.utilisation import Utilisation
from vitascope.media.live_loop import RunReport, in_milliseconds

# Limits from the guide of the portrait animator.
_POOR_FPS = 30.0
_GOOD_LATENCY_MS, _POOR_LATENCY_MS = 15.0, 30.0
_GOOD_BEHIND_MS, _POOR_BEHIND_MS = 150.0, 250.0
"""Delay of pictures behind sound: people notice it from 125 ms, and object from 185 (ITU-R BT.1359)."""
_IDLE_GPU_PERCENT, _FULL_GPU_PERCENT = 50.0, 98.0
_FULL_GPU_MEMORY = 0.9
_HOT_CELSIUS = 80.0
_FREQUENT_DROPS = 0.05
_CLOSE = 0.9
_OFTEN_LOST = 0.5
_ON_CPU = ("mesh",)
"""Animators for which an idle GPU means nothing: they draw on it within a millisecond, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport(RunReport):
    """A live animation, finished or so far."""

    animator: str
    listens: bool = False
    """True for a voice: the mouth shape of a moment is known only some time after it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; times in seconds."""
        return RunReport.to_dict(self) | {"verdict": verdict(self)}


def verdict(report: LiveReport) -> list[str]:
    """Judge the run, one line for each good or poor point; the reference is a 60 fps stream on a desktop GPU."""
    lines = []
    fps, latency_ms = report.frames_per_second, report.latency.p50_seconds * 1e3
    given = report.captured_per_second
    if fps >= report.target_fps * _CLOSE:
        lines.append(f"good: {fps:.0f} fps")
    elif fps >= given * _CLOSE:
        lines.append(f"fair: {fps:.0f} fps of {report.target_fps:.0f} wanted; the driver is no faster")
    else:
        # Capturing mostly waits for the camera.
        working = [stage for stage in report.pipeline.stages if stage.name != "capture"]
        slowest = max(working, key=lambda stage: stage.load, default=None)
        where = f"; {slowest.name} is busiest ({slowest.load:.0%})" if slowest is not None else ""
        poor = "poor" if fps < _POOR_FPS else "fair"
        lines.append(f"{poor}: {fps:.0f} fps of {min(given, report.target_fps):.0f} possible{where}")
    if fps < given * _CLOSE and fps < report.target_fps * _CLOSE:
        lines.append(
            "late pictures are dropped so that the delay does not grow; vitascope bench animate --auto-tune finds "
            "settings for this machine"
        )
    good_ms, poor_ms, way = _GOOD_LATENCY_MS, _POOR_LATENCY_MS, "from camera to picture"
    if report.listens:
        good_ms, poor_ms, way = _GOOD_BEHIND_MS, _POOR_BEHIND_MS, "from sound to picture"
    if report.shown and latency_ms < good_ms:
        lines.append(f"good: {latency_ms:.0f} ms {way}")
    if report.shown and latency_ms > poor_ms:
        lines.append(f"poor: {latency_ms:.0f} ms {way} (good is below {good_ms:.0f})")
    late = report.over_limit()
    if late is not None:
        lines.append(late)
    if report.captured and report.dropped > _FREQUENT_DROPS * report.captured:
        lines.append(f"poor: {report.dropped} of {report.captured} pictures dropped")
    if report.lost > _OFTEN_LOST * max(report.shown, 1):
        lines.append(
            "poor: the driver's face is rarely found; use more light, and let the face fill a third of the picture"
        )
    is_slow = fps < min(given, report.target_fps) * _CLOSE
    return lines + _verdict_on_gpu(report.utilisation, waits=is_slow and report.animator not in _ON_CPU)


def _verdict_on_gpu(used: Utilisation | None, *, waits: bool) -> list[str]:
    """Judge the use of the GPU.

    Args:
        used: The measurements; None, or those without a GPU, give no lines.
        waits: True if an idle GPU means that something else delays it.
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
    """Summarise a report for the user, in lines."""
    device = "" if report.device is None else f" on {report.device}"
    return [
        f"{report.shown} pictures in {report.seconds:.1f} s: {report.frames_per_second:.1f} fps; "
        f"{report.animator} at {report.size[0]}x{report.size[1]}{device}",
        f"latency {in_milliseconds(report.latency)}; {report.dropped} dropped, {report.repeated} shown again, "
        f"{report.lost} without a face",
        *report.where_it_went(),
        *verdict(report),
    ]
