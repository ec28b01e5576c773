"""Time kernels and operators with PyTorch's profiler, which uses CUPTI, and make plain tables.

CUPTI sees all kernels of the process, including CuPy's and TensorRT's. Sources:
https://docs.pytorch.org/docs/stable/profiler.html, https://docs.nvidia.com/cupti/
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TextIO

from vitascope.errors import DeviceError, MissingDependencyError, OutputError
from vitascope.gpu.current_stream import RECORDING
from vitascope.gpu.profiling.document import write_document
from vitascope.gpu.profiling.tables import megabytes, milliseconds, text_table

_SYNCHRONISING = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cuCtxSynchronize",
)
_COPY, _FILL = "Memcpy", "Memset"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All launches of a kernel."""

    name: str
    count: int
    total_seconds: float
    mean_seconds: float
    max_seconds: float
    share: float
    """Share of the time of all kernels, 0..1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """All calls of a PyTorch operator."""

    name: str
    count: int
    cpu_seconds: float
    """Time on the host, without the operators that it calls."""
    gpu_seconds: float
    """Time of the kernels that it launched itself."""
    memory_bytes: int
    """Memory allocated minus memory freed, on host and GPU together; may be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRow:
    """All copies of one kind, such as ``HtoD (Pinned -> Device)``."""

    kind: str
    count: int
    total_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimeline:
    """Activity of the GPU during the profiled time."""

    wall_seconds: float
    busy_seconds: float
    """Time with at least one kernel or copy running."""
    longest_gaps_seconds: tuple[float, ...]
    """The longest times without any, at most five."""
    launch_count: int
    sync_count: int
    """Number of times that the host waited for the GPU."""
    sync_seconds: float

    @property
    def idle_share(self) -> float:
        """Share of the wall time without any kernel or copy, 0..1."""
        return max(1 - self.busy_seconds / self.wall_seconds, 0.0) if self.wall_seconds else 0.0


class CUDAProfiler:
    """Records kernels, copies, operators and waits of a block: ``with CUDAProfiler() as profiler: ...``.

    On a CPU it only records operators, of all threads. Recording costs time and memory for every operator: use it for
    seconds, not hours.

    Args:
        device: ``auto`` records the GPU if PyTorch has one; ``cuda`` requires one; ``cpu`` only records operators.
        record_shapes: Record the shapes of operators' inputs, for the trace.
        profile_memory: Record the memory that operators allocate.
        with_stack: Record where operators were called, for the trace; slow.

    Raises:
        MissingDependencyError: PyTorch is not installed.
        DeviceError: ``device="cuda"``, but PyTorch has no GPU.
        ValueError: ``device`` is unknown.
    """

    def __init__(
        self,
        *,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        record_shapes: bool = False,
        profile_memory: bool = True,
        with_stack: bool = False,
    ) -> None:
        if device not in ("auto", "cuda", "cpu"):
            raise ValueError(f"device is 'auto', 'cuda' or 'cpu', not {device!r}")
        try:
            import torch
        except ImportError as error:
            raise MissingDependencyError(
                "kernels are recorded by PyTorch's profiler: pip install 'vitascope[torch]'"
            ) from error
        has_gpu = torch.cuda.is_available()
        if device == "cuda" and not has_gpu:
            raise DeviceError(
                "PyTorch finds no NVIDIA GPU to record; device='cpu' records operators on the CPU"
            )
        self._torch: Any = torch
        self.on_gpu = has_gpu and device != "cpu"
        """True if kernels are recorded."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile: Any = torch.profiler.profile(
            activities=activities,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            acc_events=True,
            experimental_config=_every_thread(torch),
        )
        self._began = self._wall_seconds = 0.0
        self._ended = False

    def __enter__(self) -> CUDAProfiler:
        """Start recording."""
        self._profile.start()
        self._began = perf_counter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait until the GPU is idle, and stop recording."""
        if self.on_gpu:
            with (
                RECORDING,
                suppress(*((RuntimeError,) if error else ())),
            ):  # the failure may have broken the GPU
                self._torch.cuda.synchronize()
        self._wall_seconds = perf_counter() - self._began
        self._profile.stop()
        self._ended = True

    def kernels(self) -> list[KernelRow]:
        """Kernels by time, longest first; empty on a CPU."""
        durations: dict[str, list[float]] = {}
        for event in self._device_events():
            if not event.name.startswith((_COPY, _FILL)):
                durations.setdefault(event.name, []).append(_seconds(event))
        total = sum(map(sum, durations.values()))
        rows = [
            KernelRow(
                name=name,
                count=len(times),
                total_seconds=sum(times),
                mean_seconds=sum(times) / len(times),
                max_seconds=max(times),
                share=sum(times) / total if total else 0.0,
            )
            for name, times in durations.items()
        ]
        return sorted(rows, key=lambda row: -row.total_seconds)

    def operators(self) -> list[OperatorRow]:
        """PyTorch operators by time on the GPU, longest first; without a GPU by time on the host."""
        self._check_ended()
        rows = [
            OperatorRow(
                name=row.key,
                count=int(row.count),
                cpu_seconds=row.self_cpu_time_total / 1e6,
                gpu_seconds=row.self_device_time_total / 1e6,
                memory_bytes=int(row.self_cpu_memory_usage + row.self_device_memory_usage),
            )
            for row in self._profile.key_averages()
            if row.device_type == self._torch.autograd.DeviceType.CPU
            and not row.key.startswith(("cuda", "cu", "[", "ProfilerStep"))
        ]
        return sorted(rows, key=lambda row: (-row.gpu_seconds, -row.cpu_seconds))

    def copies(self) -> list[CopyRow]:
        """Copies by kind, the longest first; empty on a CPU."""
        durations: dict[str, list[float]] = {}
        for event in self._device_events():
            if event.name.startswith(_COPY):
                durations.setdefault(event.name.removeprefix(_COPY).strip(), []).append(_seconds(event))
        rows = [
            CopyRow(kind=kind, count=len(times), total_seconds=sum(times))
            for kind, times in durations.items()
        ]
        return sorted(rows, key=lambda row: -row.total_seconds)

    def timeline(self) -> GpuTimeline:
        """Load of the GPU, and number of waits for it."""
        device = self._device_events()
        stretches = sorted((event.time_range.start / 1e6, event.time_range.end / 1e6) for event in device)
        busy, gaps = union_of(stretches)
        waits = [
            event
            for event in self._profile.events()
            if event.name in _SYNCHRONISING and event.device_type == self._torch.autograd.DeviceType.CPU
        ]
        return GpuTimeline(
            wall_seconds=self._wall_seconds,
            busy_seconds=busy,
            longest_gaps_seconds=tuple(sorted(gaps, reverse=True)[:5]),
            launch_count=len(device),
            sync_count=len(waits),
            sync_seconds=sum(map(_seconds, waits)),
        )

    def summary(self, *, top: int = 15) -> str:
        """Format tables as text: on a GPU kernels, copies and idle time, else operators.

        Args:
            top: Number of rows per table.
        """
        if not self.on_gpu:
            heads = ["operator", "count", "cpu ms", "memory MB"]
            rows = [
                [row.name, str(row.count), milliseconds(row.cpu_seconds), megabytes(row.memory_bytes)]
                for row in self.operators()[:top]
            ]
            return f"operators on the CPU, {self._wall_seconds:.3f} s\n{text_table(heads, rows)}"
        timeline = self.timeline()
        heads = ["kernel", "count", "total ms", "mean ms", "max ms", "share"]
        rows = [
            [
                row.name if len(row.name) <= 80 else row.name[:77] + "...",
                str(row.count),
                milliseconds(row.total_seconds),
                milliseconds(row.mean_seconds),
                milliseconds(row.max_seconds),
                f"{row.share:.1%}",
            ]
            for row in self.kernels()[:top]
        ]
        copies = [
            f"copies {row.kind}: {row.count}, {milliseconds(row.total_seconds)} ms" for row in self.copies()
        ]
        return "\n".join(
            [
                f"GPU busy {timeline.busy_seconds:.3f} s of {timeline.wall_seconds:.3f} s "
                f"(idle {timeline.idle_share:.0%}); the host waited for it {timeline.sync_count} times, "
                f"{milliseconds(timeline.sync_seconds)} ms",
                *copies,
                text_table(heads, rows),
            ]
        )

    def print_summary(self, file: TextIO | None = None, *, top: int = 15) -> None:
        """Print the tables.

        Args:
            file: Output file; standard output if omitted.
            top: Number of rows per table.
        """
        (file or sys.stdout).write(self.summary(top=top) + "\n")

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        timeline = self.timeline()
        return {
            "schema": "vitascope.kernels",
            "version": 1,
            "on_gpu": self.on_gpu,
            "timeline": {**asdict(timeline), "idle_share": timeline.idle_share},
            "kernels": [asdict(row) for row in self.kernels()],
            "copies": [asdict(row) for row in self.copies()],
            "operators": [asdict(row) for row in self.operators()],
        }

    def export_json(self, path: str | PathLike[str]) -> None:
        """Write the tables as JSON.

        Raises:
            OutputError: The file is not writable.
        """
        write_document(self.to_dict(), Path(path))

    def export_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write PyTorch's own trace, with all operators, launches and kernels, for Chrome and Perfetto.

        Raises:
            OutputError: The file is not writable.
        """
        self._check_ended()
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._profile.export_chrome_trace(str(path))
            json.loads(path.read_bytes())  # PyTorch does not report a full disk or a read-only folder
        except (OSError, RuntimeError, ValueError) as error:
            raise OutputError(f"{path} cannot be written: {error}") from error

    def _device_events(self) -> list[Any]:
        self._check_ended()
        cpu = self._torch.autograd.DeviceType.CPU
        return [
            event
            for event in self._profile.events()
            # Ranges opened on the host (record_function, NVTX) are mirrored to the device.
            if event.device_type != cpu and not getattr(event, "is_user_annotation", False)
        ]

    def _check_ended(self) -> None:
        if not self._ended:
            raise RuntimeError("nothing is recorded before the 'with' block has ended")


def _every_thread(torch: Any) -> Any:
    """Record operators of all threads: a pipeline's stages have their own. Old releases only record the caller's."""
    config = torch._C._profiler._ExperimentalConfig
    try:
        return config(profile_all_threads=True)
    except TypeError:  # before 2.7
        return config()


def _seconds(event: Any) -> float:
    return float(event.time_range.end - event.time_range.start) / 1e6


def union_of(stretches: Iterable[tuple[float, float]]) -> tuple[float, list[float]]:
    """Total length covered by sorted intervals, and the gaps between them."""
    covered, gaps, reached = 0.0, [], None
    for start, end in stretches:
        if reached is not None and start > reached:
            gaps.append(start - reached)
        covered += max(end - max(start, reached if reached is not None else start), 0.0)
        reached = end if reached is None else max(reached, end)
    return covered, gaps
