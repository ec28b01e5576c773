"""Monitor memory: current figures, history, thresholds with callbacks, leaks, and a block's peak.

The figures come from the driver, the allocators of CuPy and PyTorch, or the host's operating system.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from vitascope.device import Device, select_device
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.memory.growth import LeakSlope, leak_slope
from vitascope.gpu.memory.host_memory import host_memory
from vitascope.gpu.number_checks import check_count, check_number
from vitascope.gpu.profiling.intervals import AtIntervals

if TYPE_CHECKING:
    from vitascope.gpu.profiling.utilisation import NvmlGpu

_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class VRAMStats:
    """A sample of a GPU's memory, or of the host's if there is no GPU. Gigabytes are 10^9 bytes."""

    taken_seconds: float
    """Time of the sample, on ``time.perf_counter``."""
    total_bytes: int
    allocated_bytes: int
    """Memory in use by all processes, including this one's idle pools and the driver."""
    process_bytes: int | None
    """This process's share of ``allocated_bytes``; None if the driver does not report it, as in most containers."""
    reserved_bytes: int
    """Memory held by this process's allocators (CuPy, PyTorch), lent or idle; on a host, its resident memory."""
    in_tensors_bytes: int
    """Part of ``reserved_bytes`` lent to arrays and tensors; on a host, the same as ``reserved_bytes``."""
    driver_bytes: int | None
    """Memory kept by driver and firmware; None if unknown."""
    gpu_percent: float | None
    """Share of the driver's last period (1/6 to 1 s) with a running kernel, 0 to 100; None without NVML."""
    processes: Mapping[int, int] = field(default_factory=dict)
    """Bytes in use per process id, as far as the driver reports them."""

    @property
    def allocated_vram_gb(self) -> float:
        """Memory in use by all processes."""
        return self.allocated_bytes / _GB

    @property
    def total_vram_gb(self) -> float:
        """Total memory."""
        return self.total_bytes / _GB

    @property
    def free_vram_gb(self) -> float:
        """Free memory."""
        return (self.total_bytes - self.allocated_bytes) / _GB

    @property
    def reserved_vram_gb(self) -> float:
        """Memory held by this process's allocators."""
        return self.reserved_bytes / _GB

    @property
    def process_vram_gb(self) -> float | None:
        """Memory in use by this process; None if the driver does not report it."""
        return None if self.process_bytes is None else self.process_bytes / _GB

    @property
    def utilization(self) -> float:
        """Share of the memory in use, 0 to 1."""
        return self.allocated_bytes / self.total_bytes


class MemoryFigures:
    """A source of samples; this one reads the host's memory.

    Raises:
        MissingDependencyError: Nothing on this system reports memory in use.
    """

    note: str | None = None
    """Missing figures, and what to install for them."""

    def __init__(self) -> None:
        host_memory()  # raises here rather than in a thread

    def look(self) -> VRAMStats:
        """Take a sample."""
        memory = host_memory()
        return VRAMStats(
            taken_seconds=time.perf_counter(),
            total_bytes=memory.total_bytes,
            allocated_bytes=memory.used_bytes,
            process_bytes=memory.process_bytes,
            reserved_bytes=memory.process_bytes,
            in_tensors_bytes=memory.process_bytes,
            driver_bytes=None,
            gpu_percent=None,
        )

    def close(self) -> None:
        """Release the source; does nothing here."""


class VramFigures(MemoryFigures):
    """A GPU's memory, from NVML and the allocators of the libraries that this process has loaded.

    Without NVML the CUDA runtime reports free memory, which creates a CUDA context (some hundred megabytes)
    if this process has none.

    Args:
        device_id: Number of the GPU.

    Raises:
        DeviceError: The GPU does not respond.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._nvml: NvmlGpu | None = None
        try:
            # Imported here: useless without a GPU.
            from vitascope.gpu.profiling.utilisation import NvmlGpu

            self._nvml = NvmlGpu(device_id)
        except (MissingDependencyError, DeviceError) as error:
            self.note = f"figures of single processes and of the GPU's load are missing: {error}"
        self.look()

    def look(self) -> VRAMStats:
        """Take a sample."""
        reserved, in_tensors = _allocators(self._device_id)
        process = driver = percent = None
        processes: dict[int, int] = {}
        if self._nvml is not None:
            memory = self._nvml.memory()
            total, used = memory.total_bytes, memory.used_bytes
            processes, driver = memory.process_bytes, memory.reserved_bytes
            process = processes.get(os.getpid())
            percent = self._nvml.gpu_percent()
        else:
            total, used = _by_runtime(self._device_id)
        return VRAMStats(
            taken_seconds=time.perf_counter(),
            total_bytes=total,
            allocated_bytes=used,
            process_bytes=process,
            reserved_bytes=reserved,
            in_tensors_bytes=in_tensors,
            driver_bytes=driver,
            gpu_percent=percent,
            processes=processes,
        )

    def close(self) -> None:
        """Release NVML."""
        if self._nvml is not None:
            self._nvml.close()


def _figures_of(device: Device) -> MemoryFigures:
    """Make the source for a device.

    Raises:
        DeviceError: The GPU does not respond.
        MissingDependencyError: Nothing on this system reports memory in use.
    """
    return MemoryFigures() if device.kind == "cpu" else VramFigures(device.index)


def _by_runtime(device_id: int) -> tuple[int, int]:
    import cupy

    try:
        with cupy.cuda.Device(device_id):
            free, total = cupy.cuda.runtime.memGetInfo()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"GPU {device_id} does not report its memory: {error}") from error
    return int(total), int(total - free)


def _allocators(device_id: int) -> tuple[int, int]:
    """Sum (held, lent) bytes of CuPy's and PyTorch's allocators, without loading either library."""
    held = lent = 0
    cupy: Any = sys.modules.get("cupy")
    if cupy is not None:
        with cupy.cuda.Device(device_id):
            pool = cupy.get_default_memory_pool()
            held += int(pool.total_bytes())
            lent += int(pool.used_bytes())
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        held += int(torch.cuda.memory_reserved(device_id))
        lent += int(torch.cuda.memory_allocated(device_id))
    return held, lent


Series = Literal["allocated", "process", "reserved", "in_tensors"]
"""A figure of ``VRAMStats``: of all processes, this process, its allocators, or their lent part."""

_INTERVAL_SECONDS = 0.5
_BLOCK_INTERVAL_SECONDS = 0.005
_HISTORY = 7200  # an hour at two a second: under 2 MB
# A threshold only fires again after memory fell below it by this share, not at every fluctuation.
_REARM_SHARE = 0.02


class Threshold:
    """A threshold on the share of memory in use; see ``VRAMMonitor.on_usage_above``."""

    def __init__(self, share: float, callback: Callable[[VRAMStats], object]) -> None:
        self.share = share
        self.callback = callback
        self.passed_count = 0
        """Number of times that memory rose above the threshold."""
        self._armed = True

    def passes(self, stats: VRAMStats) -> bool:
        """Whether a sample is the first above the threshold."""
        if self._armed and stats.utilization >= self.share:
            self._armed = False
            self.passed_count += 1
            return True
        if stats.utilization < self.share - _REARM_SHARE:
            self._armed = True
        return False


class VRAMMonitor:
    """Monitors the memory of one GPU, or of the host if there is none.

    ``get_stats`` takes a sample at once. Between ``start`` and ``stop``, or as a context manager, a thread
    also samples at fixed intervals. Every sample enters the history and is checked against the thresholds.
    Thread-safe.

    Args:
        device_id: Number of the GPU, from 0; ignored on a CPU.
        device: ``auto`` uses the GPU if one is available; or a ``Device``.
        interval_s: Sampling interval of the thread, in seconds.
        history_length: Number of latest samples to keep.

    Raises:
        ValueError: The interval or the length is not positive.
        DeviceError: ``cuda`` was requested and is not available, or the GPU does not respond.
        MissingDependencyError: Nothing on this system reports memory in use.
    """

    def __init__(
        self,
        device_id: int = 0,
        *,
        device: Device | Literal["auto", "cuda", "cpu"] = "auto",
        interval_s: float = _INTERVAL_SECONDS,
        history_length: int = _HISTORY,
    ) -> None:
        check_number("interval_s", interval_s, above=0)
        check_count("history_length", history_length)
        self.device = device if isinstance(device, Device) else select_device(device, index=device_id)
        self.interval_s = interval_s
        self._figures: MemoryFigures = _figures_of(self.device)
        self._lock = threading.Lock()
        self._history: deque[VRAMStats] = deque(maxlen=history_length)
        self._thresholds: tuple[Threshold, ...] = ()
        self._watch: AtIntervals | None = None

    @property
    def note(self) -> str | None:
        """Missing figures, and what to install for them."""
        return self._figures.note

    def __enter__(self) -> VRAMMonitor:
        """Start sampling at intervals."""
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop; raises what a callback raised in the thread, unless another error is propagating."""
        try:
            self.stop()
        except BaseException:
            if error is None:
                raise

    def start(self) -> None:
        """Start a thread that samples at intervals; a second call does nothing."""
        with self._lock:
            if self._watch is None:
                self._watch = AtIntervals(
                    self.get_stats, self.interval_s, name="vitascope-vram-monitor", at_start=True
                )
                self._watch.start()

    def stop(self) -> None:
        """Stop the thread and join it. The history stays.

        Raises:
            Exception: Whatever a callback, or the driver, raised in the thread; sampling ended then.
        """
        with self._lock:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()
            if watch.failure is not None:
                raise watch.failure

    def close(self) -> None:
        """Stop, and release the driver."""
        try:
            self.stop()
        finally:
            self._figures.close()

    def get_stats(self) -> VRAMStats:
        """Take a sample.

        Raises:
            DeviceError: The driver no longer responds.
            Exception: Whatever a threshold's callback raised.
        """
        stats = self._figures.look()
        with self._lock:
            self._history.append(stats)
            passed = [one for one in self._thresholds if one.passes(stats)]
        for threshold in passed:
            threshold.callback(stats)
        return stats

    def history(self) -> tuple[VRAMStats, ...]:
        """Latest samples, oldest first."""
        with self._lock:
            return tuple(self._history)

    def peak(self) -> VRAMStats | None:
        """Sample with most memory in use; None before the first."""
        return max(self.history(), key=lambda stats: stats.allocated_bytes, default=None)

    def on_usage_above(self, share: float, callback: Callable[[VRAMStats], object]) -> Threshold:
        """Call back when the share of memory in use rises above a threshold.

        The callback fires once, and again only after memory fell two percentage points below the threshold.

        Args:
            share: Threshold, above 0 up to 1.
            callback: Called with the sample, in the sampling thread; it should be quick.

        Raises:
            ValueError: The share is out of range.
        """
        check_number("the share of memory", share, above=0, most=1)
        threshold = Threshold(share, callback)
        with self._lock:
            self._thresholds = (*self._thresholds, threshold)
        return threshold

    def remove(self, threshold: Threshold) -> None:
        """Remove a threshold."""
        with self._lock:
            self._thresholds = tuple(one for one in self._thresholds if one is not threshold)

    def leak(self, *, last_s: float | None = None, of: Series = "allocated") -> LeakSlope:
        """Measure how fast memory grew, by a line fitted to the history.

        Args:
            last_s: Use the last seconds only, to leave out the warm-up, where growth is not a leak.
            of: Figure to use. ``allocated`` counts all processes; ``in_tensors`` shows leaked arrays even
                while an allocator still has room.

        Raises:
            ValueError: The figure is unknown, or the time invalid.
        """
        _require_series(of)
        check_number("last_s", last_s, above=0, optional=True)
        looks = self.history()
        if last_s is not None and looks:
            since = looks[-1].taken_seconds - last_s
            looks = tuple(look for look in looks if look.taken_seconds >= since)
        known = [(look.taken_seconds, size) for look in looks if (size := _size_of(look, of)) is not None]
        return leak_slope([seconds for seconds, _ in known], [size for _, size in known])

    def measure(self, *, interval_s: float = _BLOCK_INTERVAL_SECONDS) -> MeasuredBlock:
        """Measure a block: ``with monitor.measure() as block: …``, then ``block.peak_bytes()``.

        Args:
            interval_s: Sampling interval, in seconds.

        Raises:
            ValueError: The interval is not positive.
        """
        check_number("interval_s", interval_s, above=0)
        return MeasuredBlock(self._figures, interval_s=interval_s)


class MeasuredBlock:
    """Memory of a block of work: before, after, and the peak between.

    A thread samples during the block. Peaks between two samples are missed, except in pools: those of CuPy
    and PyTorch free nothing by themselves, so their peak stays in ``allocated`` and ``reserved`` until
    sampled.

    Args:
        figures: Source of samples.
        interval_s: Sampling interval, in seconds.
    """

    def __init__(self, figures: MemoryFigures, *, interval_s: float) -> None:
        self._figures = figures
        self._looks: list[VRAMStats] = []
        self._most: dict[Series, int] = {}
        self.count = 0
        """Number of samples."""
        self._watch = AtIntervals(self._look, interval_s, name="vitascope-vram-block")
        self.seconds = 0.0
        """Duration of the finished block."""

    def __enter__(self) -> MeasuredBlock:
        """Take the first sample and start sampling."""
        self._look()
        self._watch.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Take the last sample."""
        self._watch.end()
        self._look()
        self.seconds = self.after.taken_seconds - self.before.taken_seconds
        if self._watch.failure is not None and error is None:
            raise self._watch.failure

    @property
    def before(self) -> VRAMStats:
        """The first sample."""
        return self._looks[0]

    @property
    def after(self) -> VRAMStats:
        """The last sample."""
        return self._looks[-1]

    def peak_bytes(self, of: Series = "allocated") -> int | None:
        """Highest bytes in use of any sample; None if the figure is not reported."""
        return self._most.get(of)

    def growth_bytes(self, of: Series = "allocated") -> int | None:
        """Growth in bytes from before the block to after it; None if the figure is not reported.

        Raises:
            ValueError: The figure is unknown.
        """
        _require_series(of)
        before, after = _size_of(self.before, of), _size_of(self.after, of)
        return None if before is None or after is None else after - before

    def _look(self) -> None:
        stats = self._figures.look()
        self._looks = [*self._looks[:1], stats]
        self.count += 1
        for series in get_args(Series):
            size = _size_of(stats, series)
            if size is not None:
                self._most[series] = max(self._most.get(series, size), size)


def _require_series(of: str) -> None:
    if of not in get_args(Series):
        raise ValueError(f"of is {of!r}, expected one of {', '.join(get_args(Series))}")


def _size_of(stats: VRAMStats, series: Series) -> int | None:
    """Get a sample's figure, in bytes."""
    sizes: dict[Series, int | None] = {
        "allocated": stats.allocated_bytes,
        "process": stats.process_bytes,
        "reserved": stats.reserved_bytes,
        "in_tensors": stats.in_tensors_bytes,
    }
    return sizes[series]
