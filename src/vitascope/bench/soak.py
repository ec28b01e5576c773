"""Segment one video repeatedly for a given time, to see whether memory grows, frames slow down or frames get lost."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np

from vitascope.bench.limited_run import stopping_after
from vitascope.config import LoadedSettings
from vitascope.errors import CorruptInputError, InputError, UsageError
from vitascope.gpu.memory.growth import Growth, steady_growth
from vitascope.gpu.memory.vram_monitor import VRAMMonitor
from vitascope.gpu.pipeline.report import Measured
from vitascope.gpu.profiling.intervals import AtIntervals
from vitascope.observe.job_counts import JobCounts
from vitascope.segmentation.segmenter import Segmenter, Started

_SHORTEST_SECONDS, _LONGEST_SECONDS = 5.0, 30 * 86_400.0
_LOOKS = 1000
_SHORTEST_INTERVAL_SECONDS, _LONGEST_INTERVAL_SECONDS = 0.05, 60.0
_FEWEST_PASSES, _LONG_SECONDS = 64, 3600.0
"""A trend needs this many passes, or a time beside which a pass is short: with a small video allocators go on growing
for 40 passes (seen with 24 frames of 320x180 on two cores)."""
_LEAST_GROWTH_BYTES, _LEAST_GROWTH = 4 << 20, 0.02
"""Growth that is ignored, in bytes and as a share: allocators vary by this much."""
_SLOTS = 16
"""Number of parts of a soak in which frames are timed; the first quarter of them is warm-up."""
_DRIFT = 0.1
"""Share by which frames may become later or slower before that is reported."""

Where = Literal["host", "gpu"]
"""The memory meant: the host's or the GPU's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakLook:
    """One sample; frames and latencies are summed from the beginning."""

    seconds: float
    """Seconds since the soak began."""
    frames: float
    latency_seconds: float
    resident_bytes: float | None
    """Main memory of the process; None if the system does not report it."""
    gpu_bytes: int | None
    """GPU memory that arrays and tensors of this process hold; None without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """The result of a soak."""

    seconds: float
    pass_frames: tuple[int, ...]
    """Frames of each pass that reached the end of the video."""
    damaged_count: int
    """Number of packets and pictures that could not be decoded, over all passes."""
    dropped_count: int
    """Frames that queues dropped."""
    looks: tuple[SoakLook, ...]
    """Samples at equal intervals."""
    rests: tuple[SoakLook, ...]
    """Samples after each whole pass, when everything made for it is gone."""

    @property
    def frame_count(self) -> int:
        """Frames over all passes, including the interrupted one."""
        return int(self.looks[-1].frames) if self.looks else 0

    @property
    def lost_count(self) -> int:
        """Number of frames that passes lacked compared with the fullest one."""
        return sum(max(self.pass_frames) - count for count in self.pass_frames) if self.pass_frames else 0

    @property
    def too_short(self) -> str | None:
        """Why trends cannot be measured; None if they can."""
        if len(self.rests) >= _FEWEST_PASSES or self.seconds >= _LONG_SECONDS:
            return None
        done = f"{len(self.rests)} passes over the video in {self.seconds:.0f} s"
        return f"{done}; a trend needs {_FEWEST_PASSES}, or an hour"

    def memory(self, where: Where) -> tuple[float, float] | None:
        """Median bytes in the second quarter of the soak and in the last; None if unknown."""
        return _ends([size for _, size in self._sizes(where)])

    def memory_growth(self, where: Where) -> Growth | None:
        """Continuing growth of memory, over the whole soak and also over its second half; None if it stops."""
        sizes = self._sizes(where)
        if not sizes:
            return None
        least = max(_LEAST_GROWTH * float(np.median([size for _, size in sizes])), _LEAST_GROWTH_BYTES)
        latest = _trend(sizes[len(sizes) // 2 :], least=least)
        return None if latest is None else _trend(sizes, least=least)

    def latency(self) -> tuple[float, float] | None:
        """Mean seconds from decoder to encoder, in the second quarter and in the last; None without frames."""
        return _ends([value for _, value in self._latencies()])

    def latency_growth(self) -> Growth | None:
        """Growth of a frame's mean time from decoder to encoder, in seconds; None if it does not grow."""
        return _drift(self._latencies())

    def pace_growth(self) -> Growth | None:
        """Growth of the seconds per frame; None if they do not grow."""
        return _drift(
            [
                (
                    (one.seconds + other.seconds) / 2,
                    (other.seconds - one.seconds) / (other.frames - one.frames),
                )
                for one, other in self._slots()
            ]
        )

    def _latencies(self) -> list[tuple[float, float]]:
        return [
            (
                (one.seconds + other.seconds) / 2,
                (other.latency_seconds - one.latency_seconds) / (other.frames - one.frames),
            )
            for one, other in self._slots()
        ]

    def _slots(self) -> list[tuple[SoakLook, SoakLook]]:
        """First and last samples of equal parts of the time; parts without frames are left out."""
        if len(self.looks) < 2:
            return []
        chosen = np.unique(np.linspace(0, len(self.looks) - 1, _SLOTS + 1).astype(int))
        edges = [self.looks[n] for n in chosen]
        return [(one, other) for one, other in pairwise(edges) if other.frames > one.frames]

    def _sizes(self, where: Where) -> list[tuple[float, float]]:
        """(seconds, bytes): after passes if there are enough of them, otherwise at all samples."""
        looks = self.rests if len(self.rests) >= _FEWEST_PASSES else self.looks
        found = [(look.seconds, look.resident_bytes if where == "host" else look.gpu_bytes) for look in looks]
        return [(seconds, float(size)) for seconds, size in found if size is not None]


def soak(loaded: LoadedSettings, video: Path, *, seconds: float) -> Soak:
    """Segment a video repeatedly for a given time, in one process and with one network; outputs are deleted.

    Args:
        loaded: Settings that keep the work in this process.
        video: The video.
        seconds: Duration of the soak.

    Raises:
        UsageError: The time is out of range.
        VitascopeError: As ``Segmenter``.
    """
    check_soak_seconds(seconds)
    interval = min(max(seconds / _LOOKS, _SHORTEST_INTERVAL_SECONDS), _LONGEST_INTERVAL_SECONDS)
    passes: list[int] = []
    rests: list[SoakLook] = []
    damaged_count = 0
    with Segmenter(loaded=loaded) as segmenter, JobCounts() as counts:
        on_gpu = segmenter.device.kind == "cuda"
        monitor = VRAMMonitor(device=segmenter.device) if on_gpu else None
        look = _Look(counts, monitor)
        looks = [look()]
        with AtIntervals(lambda: looks.append(look()), interval, name="vitascope-soak"):
            while (left := seconds - look.elapsed()) > 0:
                frame_count, damaged, whole = _pass(segmenter, video, counts, seconds=left)
                damaged_count += damaged
                if whole:
                    passes.append(frame_count)
                    gc.collect()  # uncollected garbage is not a leak
                    rests.append(look())
        looks.append(look())
        elapsed = look.elapsed()
        if monitor is not None:
            monitor.close()
        dropped = [
            values[0]
            for (name, _), values in counts.look().counts.items()
            if name == "vitascope_dropped_frames_total"
        ]
    return Soak(
        seconds=elapsed,
        pass_frames=tuple(passes),
        damaged_count=damaged_count,
        dropped_count=int(sum(dropped)),
        looks=tuple(looks),
        rests=tuple(rests),
    )


def check_soak_seconds(seconds: float) -> None:
    """Check the duration of a soak.

    Raises:
        UsageError: It is out of range.
    """
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        raise UsageError(
            f"a soak must take {_SHORTEST_SECONDS:g} s to 30 days ({_LONGEST_SECONDS:.0f} s), not {seconds:g} s"
        )


def _pass(segmenter: Segmenter, video: Path, counts: JobCounts, *, seconds: float) -> tuple[int, int, bool]:
    """Return frames, damage, and whether the pass reached the end of the video.

    Raises:
        VitascopeError: As ``Segmenter.write``; if the time is over before the first frame, there is just no frame.
    """
    kind = segmenter.settings.output.kinds[0]
    runs: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="vitascope-soak-") as folder, stopping_after(seconds) as limit:

        def begin(started: Started) -> None:
            runs.append(started.pipeline)
            counts.follow(started.pipeline)
            limit(started)

        def ended_before_its_first_frame() -> bool:
            found = runs[0].snapshot() if runs else None
            return found is not None and found.stopped and not found.stages[0].items

        try:
            report = segmenter.write(video, [(kind, Path(folder) / "soak.mp4")], on_start=begin)
        except InputError as error:
            if isinstance(error, CorruptInputError) or not ended_before_its_first_frame():
                raise
            counts.job_ended("stopped")
            return 0, 0, False
    whole = not report.pipeline.stopped
    counts.job_ended("done" if whole else "stopped", damaged_frames=report.corrupt_count)
    return report.frame_count, report.corrupt_count, whole


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    quarter = len(values) // 4
    if not quarter:
        return None
    return float(np.median(values[quarter : 2 * quarter])), float(np.median(values[-quarter:]))


def _trend(points: Sequence[tuple[float, float]], *, least: float) -> Growth | None:
    return steady_growth([at for at, _ in points], [value for _, value in points], least=least)


def _drift(points: Sequence[tuple[float, float]]) -> Growth | None:
    if not points:
        return None
    return _trend(points, least=_DRIFT * float(np.median([value for _, value in points])))


class _Look:
    """Samples counters and memory; callable from any thread."""

    def __init__(self, counts: JobCounts, monitor: VRAMMonitor | None) -> None:
        self._counts, self._monitor = counts, monitor
        self._began = perf_counter()

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return perf_counter() - self._began

    def __call__(self) -> SoakLook:
        """Take a sample."""
        found = self._counts.look()
        frames = found.counts.get(("vitascope_frames_total", ()))
        latency = found.counts.get(("vitascope_frame_latency_seconds", ()))
        return SoakLook(
            seconds=self.elapsed(),
            frames=0.0 if frames is None else float(frames[0]),
            latency_seconds=0.0 if latency is None else float(latency[0]),
            resident_bytes=found.gauges.get(("vitascope_resident_memory_bytes", ())),
            gpu_bytes=None if self._monitor is None else self._monitor.get_stats().in_tensors_bytes,
        )
