"""Profile host and GPU memory: timeline, peak, and leaks."""

from __future__ import annotations

import sys
import tracemalloc
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TextIO

from vitascope.device import select_device
from vitascope.errors import UsageError
from vitascope.file_lock import write_file
from vitascope.gpu.memory.growth import steady_growth
from vitascope.gpu.profiling.charts import Chart, curve_chart
from vitascope.gpu.profiling.document import write_document
from vitascope.gpu.profiling.intervals import AtIntervals, check_sampling
from vitascope.gpu.profiling.tables import html_page, megabytes, text_table
from vitascope.gpu.profiling.utilisation import resident_bytes

if TYPE_CHECKING:
    from vitascope.gpu.memory.vram_monitor import VRAMMonitor, VRAMStats

_LEAST_GROWTH_BYTES = 4 << 20
"""Growth to ignore over a run: the interpreter itself drifts by this much."""
_LEAST_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """A memory sample."""

    seconds: float
    """Seconds since the profiler started."""
    resident_bytes: int | None
    """Host memory of the process; None if the system does not report it."""
    gpu: VRAMStats | None
    """None without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """Peak of each figure over all samples; None if there was none."""

    resident_bytes: int | None
    gpu_used_bytes: int | None
    gpu_allocated_bytes: int | None
    gpu_reserved_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Memory that keeps growing."""

    what: Literal["host", "gpu"]
    bytes_per_second: float | None
    """None if counted by step."""
    bytes_per_step: float | None
    """None if the run had too few steps."""
    total_bytes: float
    """Growth over the last three quarters of the run."""
    score: float
    """Standard deviations from no trend (Mann-Kendall)."""

    def sentence(self) -> str:
        """Format for people."""
        place = "main memory" if self.what == "host" else "GPU memory held by this process"
        if self.bytes_per_step is not None:
            rate = f"{self.bytes_per_step / 1e3:.1f} kB a step"
        else:
            rate = f"{(self.bytes_per_second or 0) / 1e6:.2f} MB/s"
        return f"{place} keeps growing: {rate}, {self.total_bytes / 1e6:.1f} MB so far"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRow:
    """A line of Python, and its growth in memory since the start."""

    place: str
    """``file.py:12``."""
    size_bytes: int
    count: int


class MemoryProfiler:
    """Samples memory while a block runs: ``with MemoryProfiler() as memory: ...``.

    A thread, ``vitascope-memory``, takes the samples; it is joined on exit. Call ``step()`` after each item
    or batch to measure growth by step, which finds smaller leaks than growth over time.

    Args:
        device: ``auto`` includes the GPU if one is available; ``cuda`` requires one; ``cpu`` ignores GPUs.
        device_id: Number of the GPU.
        interval_seconds: Sampling interval, 0.005 or more.
        trace_python: Also record which Python lines allocate (``tracemalloc``); several times slower.
        keep_samples: Number of newest samples to keep.
        least_seconds: Shortest block to judge growth over time: just after the start queues and caches still
            fill.

    Raises:
        DeviceError: ``device="cuda"`` without a GPU.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        interval_seconds: float = 0.05,
        trace_python: bool = False,
        keep_samples: int = 100_000,
        least_seconds: float = 0.0,
    ) -> None:
        check_sampling(interval_seconds, least=0.005, keep_samples=keep_samples, device=device)
        self._least_seconds = least_seconds
        self._monitor = _open_monitor(device, device_id)
        self._samples: deque[MemorySample] = deque(maxlen=keep_samples)
        self._steps: deque[MemorySample] = deque(maxlen=keep_samples)
        self._marks: list[tuple[float, str]] = []
        self._began = 0.0
        self._trace_python = trace_python
        self._snapshot: tracemalloc.Snapshot | None = None
        self._allocations: list[AllocationRow] = []
        self._watch = AtIntervals(
            lambda: self._samples.append(self._look()), interval_seconds, name="vitascope-memory"
        )

    def __enter__(self) -> MemoryProfiler:
        """Start sampling.

        Raises:
            UsageError: The profiler was already used.
        """
        if self._samples:
            raise UsageError("a MemoryProfiler measures one block; create another one for the next")
        if self._trace_python:
            self._stop_tracing = not tracemalloc.is_tracing()
            tracemalloc.start()
            self._snapshot = tracemalloc.take_snapshot()
        self._began = perf_counter()
        self._samples.append(self._look())
        self._watch.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Take a last sample and stop the thread.

        Raises:
            Exception: Whatever the thread raised, unless the block itself failed.
        """
        self._watch.end()
        if self._snapshot is not None:
            self._allocations = _grown(self._snapshot, tracemalloc.take_snapshot())
            if self._stop_tracing:
                tracemalloc.stop()
        self._finish()
        if self._watch.failure is not None and error is None:
            raise self._watch.failure

    def _finish(self) -> None:
        """Take the last sample while the GPU can still be queried."""
        if self._watch.failure is None:
            self._samples.append(self._look())
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def step(self) -> None:
        """Record the memory after one item or batch."""
        sample = self._look()
        self._steps.append(sample)
        self._samples.append(sample)

    def mark(self, name: str) -> None:
        """Name this moment in tables and exports."""
        self._marks.append((perf_counter() - self._began, name))

    def timeline(self) -> list[MemorySample]:
        """The samples so far, in order; from any thread."""
        return sorted(self._samples, key=lambda sample: sample.seconds)

    def peak(self) -> MemoryPeak:
        """Peak of each figure. Peaks between two samples are missed."""
        samples = list(self._samples)
        gpu = [sample.gpu for sample in samples if sample.gpu is not None]
        return MemoryPeak(
            resident_bytes=_most(sample.resident_bytes for sample in samples),
            gpu_used_bytes=_most(look.allocated_bytes for look in gpu),
            gpu_allocated_bytes=_most(look.in_tensors_bytes for look in gpu),
            gpu_reserved_bytes=_most(look.reserved_bytes for look in gpu),
        )

    def leaks(self) -> list[Leak]:
        """Memory that keeps growing; empty if none does, or if the run was too short (see ``too_short``)."""
        by_step = len(self._steps) >= _LEAST_STEPS
        if self.too_short():
            return []
        samples = list(self._steps) if by_step else self.timeline()
        positions = (
            [float(n) for n in range(len(samples))] if by_step else [sample.seconds for sample in samples]
        )
        series: dict[Literal["host", "gpu"], list[int | None]] = {
            "host": [sample.resident_bytes for sample in samples],
            "gpu": [None if sample.gpu is None else sample.gpu.in_tensors_bytes for sample in samples],
        }
        found = []
        for what, values in series.items():
            known = [
                (position, value)
                for position, value in zip(positions, values, strict=True)
                if value is not None
            ]
            growth = steady_growth(
                [position for position, _ in known],
                [value for _, value in known],
                least=_LEAST_GROWTH_BYTES,
            )
            if growth is not None:
                found.append(
                    Leak(
                        what=what,
                        bytes_per_second=None if by_step else growth.slope,
                        bytes_per_step=growth.slope if by_step else None,
                        total_bytes=growth.total,
                        score=growth.score,
                    )
                )
        return found

    def too_short(self) -> str | None:
        """Say why growth over time is unknown; None if it is known, or was counted by step."""
        samples = self.timeline()
        seconds = samples[-1].seconds if samples else 0.0
        if len(self._steps) >= _LEAST_STEPS or seconds >= self._least_seconds:
            return None
        return (
            f"{seconds:.1f} s are too short to tell whether memory keeps growing: queues and caches fill meanwhile; "
            f"take {self._least_seconds:g} s or more"
        )

    def allocations(self, *, top: int = 20) -> list[AllocationRow]:
        """Python lines whose memory grew since the start, largest first; empty without ``trace_python``."""
        return self._allocations[:top]

    def summary(self) -> str:
        """Format first, last and peak figures and leaks as text."""
        samples = self.timeline()
        if not samples:
            return "memory: nothing was measured yet"
        first, last, peak = samples[0], samples[-1], self.peak()
        rows = [_row("main memory", first.resident_bytes, last.resident_bytes, peak.resident_bytes)]
        if first.gpu is not None and last.gpu is not None:
            before, after = first.gpu, last.gpu
            rows += [
                _row(
                    "GPU, all processes", before.allocated_bytes, after.allocated_bytes, peak.gpu_used_bytes
                ),
                _row(
                    "GPU, in use here",
                    before.in_tensors_bytes,
                    after.in_tensors_bytes,
                    peak.gpu_allocated_bytes,
                ),
                _row(
                    "GPU, reserved here", before.reserved_bytes, after.reserved_bytes, peak.gpu_reserved_bytes
                ),
            ]
        lines = [
            f"memory over {last.seconds:.2f} s, {len(samples)} samples",
            text_table(["", "first MB", "last MB", "peak MB"], rows),
            *([short] if (short := self.too_short()) else (leak.sentence() for leak in self.leaks())),
            *(f"{seconds:.2f} s: {name}" for seconds, name in self._marks),
        ]
        if self._allocations:
            grown = [
                [row.place, megabytes(row.size_bytes), str(row.count)] for row in self.allocations(top=10)
            ]
            lines.append(text_table(["grown in Python", "MB", "blocks"], grown))
        return "\n".join(lines)

    def print_summary(self, file: TextIO | None = None) -> None:
        """Print the summary.

        Args:
            file: Output file; standard output if omitted.
        """
        (file or sys.stdout).write(self.summary() + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; times in seconds since the start."""
        return {
            "schema": "vitascope.memory",
            "version": 1,
            "peak": asdict(self.peak()),
            "leaks": [asdict(leak) for leak in self.leaks()],
            "marks": [{"seconds": seconds, "name": name} for seconds, name in self._marks],
            "allocations": [asdict(row) for row in self._allocations[:100]],
            "step_seconds": [sample.seconds for sample in self._steps],
            "timeline": [asdict(sample) for sample in self.timeline()],
        }

    def chart(self) -> Chart:
        """The timeline in MB (10^6)."""
        curves: dict[str, list[tuple[float, float]]] = {}
        for sample in self.timeline():
            values = {"main memory": sample.resident_bytes}
            if sample.gpu is not None:
                values |= {
                    "GPU, all": sample.gpu.allocated_bytes,
                    "GPU, in use here": sample.gpu.in_tensors_bytes,
                    "GPU, reserved here": sample.gpu.reserved_bytes,
                }
            for name, value in values.items():
                if value is not None:
                    curves.setdefault(name, []).append((sample.seconds, value / 1e6))
        return curve_chart("memory", curves, unit="MB")

    def export_json(self, path: str | PathLike[str]) -> None:
        """Write everything as JSON.

        Raises:
            OutputError: The file is not writable.
        """
        write_document(self.to_dict(), Path(path))

    def export_png(self, path: str | PathLike[str]) -> None:
        """Draw the timeline.

        Raises:
            MissingDependencyError: matplotlib is not installed.
            OutputError: The file is not writable.
        """
        write_file(Path(path), self.chart().to_png())

    def export_html(self, path: str | PathLike[str]) -> None:
        """Write summary and timeline as a self-contained HTML page.

        Raises:
            MissingDependencyError: matplotlib is not installed.
            OutputError: The file is not writable.
        """
        body = f'<pre class="wide">{escape(self.summary())}</pre>\n<div class="wide">\n{self.chart().to_svg()}\n</div>'
        write_file(Path(path), html_page("memory", body).encode())

    def _look(self) -> MemorySample:
        return MemorySample(
            seconds=perf_counter() - self._began, resident_bytes=resident_bytes(), gpu=self._gpu_now()
        )

    def _gpu_now(self) -> VRAMStats | None:
        return None if self._monitor is None else self._monitor.get_stats()


def _open_monitor(device: Literal["auto", "cuda", "cpu"], device_id: int) -> VRAMMonitor | None:
    chosen = select_device(device, index=device_id)
    if chosen.kind == "cpu":
        return None
    from vitascope.gpu.memory.vram_monitor import VRAMMonitor  # useless without a GPU

    return VRAMMonitor(device=chosen)


def _most(values: Any) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _row(name: str, first: int | None, last: int | None, peak: int | None) -> list[str]:
    return [name, megabytes(first), megabytes(last), megabytes(peak)]


def _grown(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> list[AllocationRow]:
    own: Sequence[tracemalloc.Filter] = (tracemalloc.Filter(False, tracemalloc.__file__),)
    differences = after.filter_traces(own).compare_to(before.filter_traces(own), "lineno")
    return [
        AllocationRow(
            place=f"{row.traceback[0].filename}:{row.traceback[0].lineno}",
            size_bytes=row.size_diff,
            count=row.count_diff,
        )
        for row in differences
        if row.size_diff > 0
    ]
