"""Watching memory: figures now, their history, limits that call back, leaks, and the peak of a stretch of work.

The figures come from the driver, the allocators of CuPy and PyTorch, or the host's own system.
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
    """One reading of a GPU's memory, or of the host's if there is no GPU. Gigabytes are 10^9 bytes."""

    taken_seconds: float
    """When, on ``time.perf_counter``."""
    total_bytes: int
    allocated_bytes: int
    """In use by all processes, this one's idle pools and the driver's own share included."""
    process_bytes: int | None
    """This process's part of ``allocated_bytes``; None if the driver does not report it, as in most containers."""
    reserved_bytes: int
    """Held by the allocators of this process (CuPy, PyTorch), lent and idle; on a host, its resident memory."""
    in_tensors_bytes: int
    """The part of ``reserved_bytes`` lent to arrays and tensors now; on a host, the same as ``reserved_bytes``."""
    driver_bytes: int | None
    """Kept by driver and firmware; None if unknown."""
    gpu_percent: float | None
    """Share of the driver's last period (1/6 to 1 s) in which any kernel ran, 0 to 100; None without NVML."""
    processes: Mapping[int, int] = field(default_factory=dict)
    """Bytes of each process that has some, by process id, as far as the driver tells."""

    @property
    def allocated_vram_gb(self) -> float:
        """In use by all processes."""
        return self.allocated_bytes / _GB

    @property
    def total_vram_gb(self) -> float:
        """In all."""
        return self.total_bytes / _GB

    @property
    def free_vram_gb(self) -> float:
        """Free memory."""
        return (self.total_bytes - self.allocated_bytes) / _GB

    @property
    def reserved_vram_gb(self) -> float:
        """Held by the allocators of this process."""
        return self.reserved_bytes / _GB

    @property
    def process_vram_gb(self) -> float | None:
        """In use by this process, as the driver sees it; None if it does not report it."""
        return None if self.process_bytes is None else self.process_bytes / _GB

    @property
    def utilization(self) -> float:
        """Share of the memory that is in use, 0 to 1."""
        return self.allocated_bytes / self.total_bytes


class MemoryFigures:
    """A source of figures; here of the host's memory.

    Raises:
        MissingDependencyError: Nothing on this system reports how much memory is in use.
    """

    note: str | None = None
    """Missing figures, and what to install for them."""

    def __init__(self) -> None:
        host_memory()  # raises here rather than in a thread

    def look(self) -> VRAMStats:
        """The figures now."""
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
        """Release the source; nothing is held here."""


class VramFigures(MemoryFigures):
    """A GPU's memory: NVML, and the allocators of those libraries that this process has loaded.

    Without NVML the CUDA runtime tells what is free, which makes a CUDA context (some hundred megabytes) where this
    process has none.

    Args:
        device_id: Number of the GPU.

    Raises:
        DeviceError: The GPU does not answer.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        self._nvml: NvmlGpu | None = None
        try:
            # Imported here: of no use without a GPU.
            from vitascope.gpu.profiling.utilisation import NvmlGpu

            self._nvml = NvmlGpu(device_id)
        except (MissingDependencyError, DeviceError) as error:
            self.note = f"figures of single processes and of the GPU's load are missing: {error}"
        self.look()

    def look(self) -> VRAMStats:
        """The figures now."""
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
    """The source for a device.

    Raises:
        DeviceError: The GPU does not answer.
        MissingDependencyError: Nothing on this system reports how much memory is in use.
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
    """(held, lent) bytes of CuPy's and PyTorch's allocators, where they are loaded; neither is loaded for this."""
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
"""Which figure of ``VRAMStats``: all processes', this process's, its allocators', or what they have lent."""

_INTERVAL_SECONDS = 0.5
_BLOCK_INTERVAL_SECONDS = 0.005
_HISTORY = 7200  # an hour at two a second: under 2 MB
# A limit that was passed counts again once memory has fallen this share below it; else it would call at every tremor.
_REARM_SHARE = 0.02


class Threshold:
    """A limit on the share of memory in use; see ``VRAMMonitor.on_usage_above``."""

    def __init__(self, share: float, callback: Callable[[VRAMStats], object]) -> None:
        self.share = share
        self.callback = callback
        self.passed_count = 0
        """Number of times that memory rose above it."""
        self._armed = True

    def passes(self, stats: VRAMStats) -> bool:
        """True for the figures that are the first above the limit."""
        if self._armed and stats.utilization >= self.share:
            self._armed = False
            self.passed_count += 1
            return True
        if stats.utilization < self.share - _REARM_SHARE:
            self._armed = True
        return False


class VRAMMonitor:
    """Memory of one GPU, or of the host where there is none.

    ``get_stats`` looks at once. As a context manager, or between ``start`` and ``stop``, a thread looks as well, at
    fixed intervals. Every look goes into the history and is held against the limits. Thread-safe.

    Args:
        device_id: Number of the GPU, from 0; ignored on a CPU.
        device: ``auto`` takes the GPU where one can be used; or a device that was chosen before.
        interval_s: Between two looks of the thread.
        history_length: Looks that are kept, the latest ones.

    Raises:
        ValueError: An interval or a length is not positive.
        DeviceError: ``cuda`` was requested and cannot be had, or the GPU does not answer.
        MissingDependencyError: Nothing on this system reports how much memory is in use.
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
        """Start looking at intervals."""
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Stop; what a callback raised in the thread is raised here, unless another error is on its way."""
        try:
            self.stop()
        except BaseException:
            if error is None:
                raise

    def start(self) -> None:
        """Read at intervals, in a thread; a second call does nothing."""
        with self._lock:
            if self._watch is None:
                self._watch = AtIntervals(
                    self.get_stats, self.interval_s, name="vitascope-vram-monitor", at_start=True
                )
                self._watch.start()

    def stop(self) -> None:
        """End the thread, and wait for its end. The history stays.

        Raises:
            Exception: What a callback, or the driver, raised in the thread; it ended the sampling.
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
        """The figures now.

        Raises:
            DeviceError: The driver does not answer any more.
            Exception: What a callback raised whose limit was passed.
        """
        stats = self._figures.look()
        with self._lock:
            self._history.append(stats)
            passed = [one for one in self._thresholds if one.passes(stats)]
        for threshold in passed:
            threshold.callback(stats)
        return stats

    def history(self) -> tuple[VRAMStats, ...]:
        """The latest looks, oldest first."""
        with self._lock:
            return tuple(self._history)

    def peak(self) -> VRAMStats | None:
        """The look with most memory in use; None before the first."""
        return max(self.history(), key=lambda stats: stats.allocated_bytes, default=None)

    def on_usage_above(self, share: float, callback: Callable[[VRAMStats], object]) -> Threshold:
        """Call back when memory in use rises above a share of all.

        It calls once, and again only after memory fell two percent of all below the limit in between.

        Args:
            share: Above 0, up to 1.
            callback: Called with the figures, in the thread that looked; it should be quick.

        Raises:
            ValueError: The share is out of range.
        """
        check_number("the share of memory", share, above=0, most=1)
        threshold = Threshold(share, callback)
        with self._lock:
            self._thresholds = (*self._thresholds, threshold)
        return threshold

    def remove(self, threshold: Threshold) -> None:
        """Forget a limit."""
        with self._lock:
            self._thresholds = tuple(one for one in self._thresholds if one is not threshold)

    def leak(self, *, last_s: float | None = None, of: Series = "allocated") -> LeakSlope:
        """Measure how fast memory grew, by the line through the history.

        Args:
            last_s: Only this many seconds back; leave out the warm-up, in which growth is no leak.
            of: Which figure. ``allocated`` counts all processes; ``in_tensors`` shows what is kept by mistake even
                while an allocator still has room.

        Raises:
            ValueError: There is no such figure, or no such time.
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
            interval_s: Between two looks meanwhile.

        Raises:
            ValueError: The interval is not positive.
        """
        check_number("interval_s", interval_s, above=0)
        return MeasuredBlock(self._figures, interval_s=interval_s)


class MeasuredBlock:
    """The memory of a stretch of work: before, after, and the most in between.

    A thread looks all the while. What rises and falls between two looks is missed, save what allocators keep: CuPy's
    and PyTorch's pools give nothing back by themselves, so that their peak stands in ``allocated`` and ``reserved``
    until it is seen.

    Args:
        figures: Where they come from.
        interval_s: Between two looks.
    """

    def __init__(self, figures: MemoryFigures, *, interval_s: float) -> None:
        self._figures = figures
        self._looks: list[VRAMStats] = []
        self._most: dict[Series, int] = {}
        self.count = 0
        """Looks."""
        self._watch = AtIntervals(self._look, interval_s, name="vitascope-vram-block")
        self.seconds = 0.0
        """Time that the block took, once it is over."""

    def __enter__(self) -> MeasuredBlock:
        """Look for the first time, and begin."""
        self._look()
        self._watch.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Look for the last time."""
        self._watch.end()
        self._look()
        self.seconds = self.after.taken_seconds - self.before.taken_seconds
        if self._watch.failure is not None and error is None:
            raise self._watch.failure

    @property
    def before(self) -> VRAMStats:
        """The first look."""
        return self._looks[0]

    @property
    def after(self) -> VRAMStats:
        """The last look."""
        return self._looks[-1]

    def peak_bytes(self, of: Series = "allocated") -> int | None:
        """Most bytes in use at any look; None if the figure is not told."""
        return self._most.get(of)

    def growth_bytes(self, of: Series = "allocated") -> int | None:
        """Bytes in use after the block beyond those before; None if the figure is not told.

        Raises:
            ValueError: There is no such figure.
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
    """One figure of a look, in bytes."""
    sizes: dict[Series, int | None] = {
        "allocated": stats.allocated_bytes,
        "process": stats.process_bytes,
        "reserved": stats.reserved_bytes,
        "in_tensors": stats.in_tensors_bytes,
    }
    return sizes[series]
