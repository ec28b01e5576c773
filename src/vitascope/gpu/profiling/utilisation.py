"""How busy CPU and GPU are while something runs, sampled by a thread.

The GPU's figures are NVML's; functions and units: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Literal

from vitascope.closing import Closing
from vitascope.device import available_cores
from vitascope.errors import DeviceError, MissingDependencyError
from vitascope.gpu.memory.host_memory import host_memory
from vitascope.gpu.profiling.intervals import AtIntervals, check_sampling

_THROTTLING = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons that mean: it could be faster. The others (idle, set by the user) do not."""
_PCIE_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""One lane in one direction after line coding, by generation (PCI-SIG)."""


def pcie_bytes_per_second(generation: int, width: int) -> float | None:
    """Most bytes a second in one direction; None for a generation that is not known."""
    lane = _PCIE_LANE_BYTES_PER_SECOND.get(generation)
    return None if lane is None else lane * width


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLimits:
    """Limits of a GPU; None if the driver does not report it."""

    name: str
    memory_bytes: int | None
    power_watts: float | None
    slowdown_celsius: float | None
    """Temperature at which it begins to slow down."""
    sm_clock_mhz: float | None
    pcie_bytes_per_second: float | None
    """The most that the link as it is now moves in one direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """One reading of a GPU; None if the driver does not report it."""

    gpu_percent: float | None
    """Share of the last driver period (1/6 to 1 s) in which any kernel ran."""
    memory_bus_percent: float | None
    decoder_percent: float | None
    encoder_percent: float | None
    pcie_to_gpu_bytes_per_second: float | None
    """Over the last 20 ms."""
    pcie_from_gpu_bytes_per_second: float | None
    memory_used_bytes: int | None
    """By all processes."""
    power_watts: float | None
    temperature_celsius: float | None
    sm_clock_mhz: float | None
    throttling: tuple[str, ...]
    """Why the clocks are below what they could be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """One reading of a GPU's memory."""

    total_bytes: int
    used_bytes: int
    """By all processes and by the driver itself."""
    reserved_bytes: int | None
    """Kept by driver and firmware, a part of what is used; None if an old driver does not report it."""
    process_bytes: dict[int, int]
    """By process id as the driver counts, which a container may not; empty if it does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Settings that an administrator can change; None if the driver does not report them."""

    power_watts: float | None
    """Its present power limit."""
    power_default_watts: float | None
    """Its maker's power limit."""
    keeps_driver_loaded: bool | None
    """Persistence mode; Linux alone has it."""


class NvmlGpu(Closing):
    """NVML's view of one GPU. Close it, or use it as a context manager.

    Args:
        device_id: Number of the GPU as CUDA counts, which ``CUDA_VISIBLE_DEVICES`` changes.

    Raises:
        MissingDependencyError: ``nvidia-ml-py`` is not installed.
        DeviceError: There is no driver, or no such GPU.
    """

    def __init__(self, device_id: int = 0) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise MissingDependencyError(
                "the GPU's load is read through NVML: pip install 'vitascope[cuda]' (nvidia-ml-py)"
            ) from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DeviceError(f"no NVIDIA driver answers: {error}") from error
        try:
            self._handle = self._find(device_id)
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise DeviceError(f"NVML knows no GPU {device_id}: {error}") from error
        except DeviceError:
            pynvml.nvmlShutdown()
            raise

    def close(self) -> None:
        """Release NVML."""
        self._nvml.nvmlShutdown()

    def limits(self) -> GpuLimits:
        """Limits of the GPU."""
        nvml, handle = self._nvml, self._handle
        name = self._ask(lambda: nvml.nvmlDeviceGetName(handle)) or "NVIDIA GPU"
        power = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return GpuLimits(
            name=name.decode(errors="replace") if isinstance(name, bytes) else str(name),
            memory_bytes=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
            power_watts=None if power is None else power / 1e3,
            slowdown_celsius=self._ask(
                lambda: float(
                    nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
                )
            ),
            sm_clock_mhz=self._ask(lambda: float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
            pcie_bytes_per_second=self._ask(
                lambda: pcie_bytes_per_second(
                    nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
                    nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
                )
            ),
        )

    def figures(self) -> GpuFigures:
        """One look. PCIe is averaged over 20 ms for each direction, so a look takes 40 ms or more."""
        nvml, handle = self._nvml, self._handle
        rates = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0

        def pcie(counter: int) -> float | None:
            kilobytes = self._ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, counter))
            return None if kilobytes is None else kilobytes * 1024.0

        return GpuFigures(
            gpu_percent=None if rates is None else float(rates.gpu),
            memory_bus_percent=None if rates is None else float(rates.memory),
            decoder_percent=self._ask(lambda: float(nvml.nvmlDeviceGetDecoderUtilization(handle)[0])),
            encoder_percent=self._ask(lambda: float(nvml.nvmlDeviceGetEncoderUtilization(handle)[0])),
            pcie_to_gpu_bytes_per_second=pcie(nvml.NVML_PCIE_UTIL_RX_BYTES),
            pcie_from_gpu_bytes_per_second=pcie(nvml.NVML_PCIE_UTIL_TX_BYTES),
            memory_used_bytes=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            power_watts=None if power is None else power / 1e3,
            temperature_celsius=self._ask(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            sm_clock_mhz=self._ask(lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            throttling=tuple(reason for bit, reason in _THROTTLING.items() if reasons & bit),
        )

    def memory(self) -> GpuMemory:
        """Memory alone: microseconds, where ``figures`` takes tens of milliseconds.

        Raises:
            DeviceError: The driver does not answer any more.
        """
        nvml, handle = self._nvml, self._handle
        try:
            simple = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            raise DeviceError(f"the NVIDIA driver does not report the GPU's memory: {error}") from error
        detailed = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        processes = [
            *(self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()),
            *(self._ask(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or ()),
        ]
        return GpuMemory(
            total_bytes=int(simple.total),
            # Not its own "used", which older drivers count without what they keep for themselves.
            used_bytes=int(simple.total) - int(simple.free),
            reserved_bytes=None if detailed is None else int(detailed.reserved),
            process_bytes={one.pid: int(one.usedGpuMemory) for one in processes if one.usedGpuMemory},
        )

    def settings(self) -> GpuSettings:
        """Present settings; reading needs no rights."""
        nvml, handle = self._nvml, self._handle
        power = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        default = self._ask(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
        return GpuSettings(
            power_watts=None if power is None else power / 1e3,
            power_default_watts=None if default is None else default / 1e3,
            keeps_driver_loaded=self._ask(lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle))),
        )

    def gpu_percent(self) -> float | None:
        """Share of the last driver period (1/6 to 1 s) in which any kernel ran; None if it does not report it."""
        rates = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(self._handle))
        return None if rates is None else float(rates.gpu)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The driver's answer; None if this GPU or this user gets none."""
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def _find(self, device_id: int) -> Any:
        """By bus address: CUDA and NVML may number GPUs differently."""
        return self._nvml.nvmlDeviceGetHandleByPciBusId(_bus_address(device_id))


def _bus_address(device_id: int) -> bytes:
    """Bus address of a GPU, from the CUDA driver itself: needs neither CuPy nor PyTorch, and starts no context.

    https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise DeviceError(f"the NVIDIA driver has no CUDA: {name} is not there") from error
    device, address = ctypes.c_int(), ctypes.create_string_buffer(32)
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), device_id)
        or driver.cuDeviceGetPCIBusId(address, len(address), device)
    ):
        raise DeviceError(f"CUDA knows no GPU {device_id}")
    return address.value


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationSample:
    """One sample."""

    seconds: float
    """On the clock of ``time.perf_counter``."""
    process_cores: float
    """CPU cores that this process kept busy since the look before."""
    machine_cpu_percent: float | None
    """Load of all CPUs by all processes since the look before, 0..100; None if the system does not report it."""
    resident_bytes: int | None
    """Main memory of this process; None if the system does not report it."""
    gpu: GpuFigures | None
    """None without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """A summary of samples: means, and maxima where the peak matters. None if nothing was reported."""

    sample_count: int
    seconds: float
    """Time that the looks span."""
    cores: int
    """CPU cores that the process may use."""
    process_cores: float
    machine_cpu_percent: float | None = None
    resident_bytes_max: int | None = None
    gpu_percent: float | None = None
    memory_bus_percent: float | None = None
    decoder_percent: float | None = None
    encoder_percent: float | None = None
    pcie_to_gpu_bytes_per_second: float | None = None
    pcie_from_gpu_bytes_per_second: float | None = None
    memory_used_bytes_max: int | None = None
    power_watts: float | None = None
    temperature_celsius_max: float | None = None
    sm_clock_mhz: float | None = None
    throttled_share: float = 0.0
    """Share of the looks, 0..1, that found the GPU slowed down by heat; waiting at a power cap is normal."""
    throttling: tuple[str, ...] = ()
    """Every reason that was met for clocks below what they could be."""
    limits: GpuLimits | None = None
    """None without a GPU."""
    gc_count: int = 0
    """Times that Python's garbage collector stopped everything."""
    gc_seconds: float = 0.0
    """All of these together."""
    gc_seconds_max: float = 0.0
    """The longest."""

    @property
    def cpu_share(self) -> float:
        """Share of the process's cores that it kept busy, 0..1."""
        return min(self.process_cores / self.cores, 1.0)

    @property
    def memory_share(self) -> float | None:
        """Most of the GPU's memory that was in use, 0..1."""
        if self.memory_used_bytes_max is None or self.limits is None or not self.limits.memory_bytes:
            return None
        return self.memory_used_bytes_max / self.limits.memory_bytes

    @property
    def pcie_share(self) -> float | None:
        """Load of the busier direction of the PCIe link, 0..1."""
        most = None if self.limits is None else self.limits.pcie_bytes_per_second
        rates = (self.pcie_to_gpu_bytes_per_second, self.pcie_from_gpu_bytes_per_second)
        known = [rate for rate in rates if rate is not None]
        return min(max(known) / most, 1.0) if most and known else None


def summarise_samples(
    samples: Sequence[UtilisationSample], *, limits: GpuLimits | None = None
) -> Utilisation:
    """Means and maxima over samples; the first one is where counting began, and counts only as that.

    Raises:
        ValueError: Fewer than two samples.
    """
    if len(samples) < 2:
        raise ValueError("utilisation is measured between two looks: at least two samples are needed")
    counted = samples[1:]
    seconds = samples[-1].seconds - samples[0].seconds
    lengths = [after.seconds - before.seconds for before, after in zip(samples, counted, strict=False)]

    def mean(value: Callable[[UtilisationSample], float | None]) -> float | None:
        pairs = [(value(sample), length) for sample, length in zip(counted, lengths, strict=True)]
        known = [(found, length) for found, length in pairs if found is not None]
        weight = sum(length for _, length in known)
        return sum(found * length for found, length in known) / weight if weight else None

    def most(value: Callable[[UtilisationSample], float | None]) -> float | None:
        return max((found for sample in counted if (found := value(sample)) is not None), default=None)

    def of_gpu(name: str) -> Callable[[UtilisationSample], float | None]:
        return lambda sample: None if sample.gpu is None else getattr(sample.gpu, name)

    reasons = [sample.gpu.throttling for sample in counted if sample.gpu is not None]
    hot = [any("thermal" in reason or "hardware" in reason for reason in found) for found in reasons]
    resident = most(lambda sample: sample.resident_bytes)
    used = most(of_gpu("memory_used_bytes"))
    return Utilisation(
        sample_count=len(samples),
        seconds=seconds,
        cores=available_cores(),
        process_cores=mean(lambda sample: sample.process_cores) or 0.0,
        machine_cpu_percent=mean(lambda sample: sample.machine_cpu_percent),
        resident_bytes_max=None if resident is None else int(resident),
        memory_used_bytes_max=None if used is None else int(used),
        temperature_celsius_max=most(of_gpu("temperature_celsius")),
        gpu_percent=mean(of_gpu("gpu_percent")),
        memory_bus_percent=mean(of_gpu("memory_bus_percent")),
        decoder_percent=mean(of_gpu("decoder_percent")),
        encoder_percent=mean(of_gpu("encoder_percent")),
        pcie_to_gpu_bytes_per_second=mean(of_gpu("pcie_to_gpu_bytes_per_second")),
        pcie_from_gpu_bytes_per_second=mean(of_gpu("pcie_from_gpu_bytes_per_second")),
        power_watts=mean(of_gpu("power_watts")),
        sm_clock_mhz=mean(of_gpu("sm_clock_mhz")),
        throttled_share=sum(hot) / len(hot) if hot else 0.0,
        throttling=tuple(sorted({reason for found in reasons for reason in found})),
        limits=limits,
    )


class UtilisationSampler:
    """Looks at CPU and GPU while a block runs: ``with UtilisationSampler() as sampler: ...``.

    The thread is called ``vitascope-utilisation`` and is joined on leaving. Without a GPU, or without
    ``nvidia-ml-py``, it reports the CPU alone, and ``note`` says why.

    Args:
        interval_seconds: Time between two looks, 0.02 or more.
        device: ``auto`` looks at a GPU where one can be seen; ``cuda`` insists on it; ``cpu`` looks at none.
        device_id: Number of the GPU.
        keep_samples: The newest samples that are kept; at the default interval 100,000 last 14 hours.

    Raises:
        MissingDependencyError: ``device="cuda"`` without ``nvidia-ml-py``.
        DeviceError: ``device="cuda"`` without a GPU.
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        *,
        interval_seconds: float = 0.5,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        keep_samples: int = 100_000,
    ) -> None:
        check_sampling(interval_seconds, least=0.02, keep_samples=keep_samples, device=device)
        self.note: str | None = None
        """Why there are no figures of a GPU."""
        self._gpu = self._open_gpu(device, device_id)
        self._limits = None if self._gpu is None else self._gpu.limits()
        self._samples: deque[UtilisationSample] = deque(maxlen=keep_samples)
        self._processor = _Processor()
        self._collections = _Collections()
        self._watch = AtIntervals(self._look, interval_seconds, name="vitascope-utilisation")

    def __enter__(self) -> UtilisationSampler:
        """Start looking."""
        self._look()
        gc.callbacks.append(self._collections)
        self._watch.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Look once more, and end the thread.

        Raises:
            Exception: What the thread failed with, unless the block itself failed.
        """
        self._watch.end()
        gc.callbacks.remove(self._collections)
        if self._watch.failure is None:
            self._look()
        if self._gpu is not None:
            self._gpu.close()
            self._gpu = None
        if self._watch.failure is not None and error is None:
            raise self._watch.failure

    def samples(self) -> list[UtilisationSample]:
        """The looks so far; callable from any thread."""
        return list(self._samples)

    def summary(self) -> Utilisation:
        """All looks in one.

        Raises:
            ValueError: Before the second look.
        """
        pauses = self._collections
        return replace(
            summarise_samples(self.samples(), limits=self._limits),
            gc_count=pauses.count,
            gc_seconds=pauses.seconds,
            gc_seconds_max=pauses.seconds_max,
        )

    def _open_gpu(self, device: str, device_id: int) -> NvmlGpu | None:
        if device == "cpu":
            return None
        try:
            return NvmlGpu(device_id)
        except (MissingDependencyError, DeviceError) as error:
            if device == "cuda":
                raise
            self.note = str(error)
            return None

    def _look(self) -> None:
        gpu = None if self._gpu is None else self._gpu.figures()
        now = perf_counter()
        process_cores, machine_percent = self._processor.since_last(now)
        self._samples.append(
            UtilisationSample(
                seconds=now,
                process_cores=process_cores,
                machine_cpu_percent=machine_percent,
                resident_bytes=resident_bytes(),
                gpu=gpu,
            )
        )


class _Collections:
    """Times the garbage collector; called by it, in whichever thread it runs, one collection at a time."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = self.seconds_max = 0.0
        self._began = 0.0

    def __call__(self, phase: str, _: dict[str, int]) -> None:
        """A collection starts or stops."""
        if phase == "start":
            self._began = perf_counter()
        elif self._began:
            seconds = perf_counter() - self._began
            self.count += 1
            self.seconds += seconds
            self.seconds_max = max(self.seconds_max, seconds)


class _Processor:
    """Differences of the system's counters."""

    def __init__(self) -> None:
        self._at = perf_counter()
        self._process_seconds = process_time()
        self._machine = _machine_ticks()

    def since_last(self, now: float) -> tuple[float, float | None]:
        """Cores that this process kept busy, and the load of the whole machine in percent."""
        process_seconds, machine = process_time(), _machine_ticks()
        elapsed = now - self._at
        cores = (process_seconds - self._process_seconds) / elapsed if elapsed > 0 else 0.0
        percent = None
        if machine is not None and self._machine is not None:
            busy, total = machine[0] - self._machine[0], machine[1] - self._machine[1]
            percent = 100.0 * busy / total if total > 0 else None  # ticks are 10 ms long
        self._at, self._process_seconds = now, process_seconds
        if percent is not None:
            self._machine = machine
        return cores, percent


def _machine_ticks() -> tuple[float, float] | None:
    """Busy and all time of all CPUs: /proc/stat (proc(5)), else psutil, else None."""
    stat = Path("/proc/stat")
    if stat.exists():
        # user nice system idle iowait irq softirq steal; guest time is inside user's.
        values = [float(value) for value in stat.read_text().split("\n", 1)[0].split()[1:9]]
        idle = sum(values[3:5])
        return sum(values) - idle, sum(values)
    try:
        import psutil
    except ImportError:
        return None
    times = psutil.cpu_times()
    total = sum(times)
    return total - times.idle, total


def resident_bytes() -> int | None:
    """Main memory that this process holds; None if the system does not report it."""
    try:
        return host_memory().process_bytes
    except MissingDependencyError:
        return None
