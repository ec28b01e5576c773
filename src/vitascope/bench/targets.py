"""Speed targets and limits: those of the guides, which are meant for a GPU, and the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from vitascope.bench.results import BenchResults, Cell

USER = "yours"
"""Source of targets that the user set."""


@dataclass(frozen=True, slots=True)
class Target:
    """One figure to reach."""

    name: str
    source: str
    """Where it comes from."""
    limit: float
    unit: str
    value: Callable[[Cell], float | None]
    """Returns the figure of a cell; None if it was not measured."""
    resolution: str | None = None
    """None checks every cell and takes the worst."""
    _: KW_ONLY
    batch: int | None = None
    """The largest measured batch up to this one; None takes the fastest."""
    stereo: bool = False
    at_least: bool = False
    """True if more is better."""

    def wish(self) -> str:
        """The target for people: ``>= 60 frames/s``."""
        return f"{'>=' if self.at_least else '<'} {self.limit:g} {self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetResult:
    """The result for a target."""

    target: Target
    value: float | None
    """None if no measurement could tell."""
    cell: Cell | None
    """The cell that the value is from."""

    @property
    def passed(self) -> bool | None:
        """None if nothing was measured."""
        if self.value is None:
            return None
        return self.value >= self.target.limit if self.target.at_least else self.value < self.target.limit

    def status(self) -> str:
        """``pass``, ``fail``, ``not measured``; ``for comparison`` if a CPU computed a GPU's target."""
        if self.cell is not None and self.target.source != USER and self.cell.device.startswith("CPU"):
            return "for comparison"
        return {True: "pass", False: "fail", None: "not measured"}[self.passed]


def check_targets(
    results: BenchResults, *, performance: Mapping[str, float] | None = None
) -> list[TargetResult]:
    """Check results against every target.

    Args:
        results: Results of one machine.
        performance: The user's ``target_fps`` and ``max_latency_ms``, where set.
    """
    targets = (*_GUIDES, *_users(results, performance or {}))
    return [_check(target, results.measured) for target in targets]


def _speed(
    name: str, source: str, fps: float, resolution: str, batch: int | None = None, *, stereo: bool = False
) -> Target:
    return Target(name, source, fps, "frames/s", _rate, resolution, batch=batch, stereo=stereo, at_least=True)


def _busy(name: str, source: str, percent: float, value: Callable[[Cell], float | None]) -> Target:
    return Target(f"{name} at 1080p", source, percent, "%", value, "1080p", at_least=True)


def _rate(cell: Cell) -> float | None:
    return cell.median("throughput")


def _percentile(name: str, which: str) -> Callable[[Cell], float | None]:
    return lambda cell: None if (row := cell.row(name)) is None else getattr(row, which)


def _memory_percent(cell: Cell) -> float | None:
    share = None if cell.load is None else cell.load.memory_share
    return None if share is None else share * 100


def _gpu_percent(cell: Cell) -> float | None:
    return None if cell.load is None else cell.load.gpu_percent


def _cpu_percent(cell: Cell) -> float | None:
    return None if cell.load is None else cell.load.cpu_share * 100


_PROFILING, _TUNING, _MODULE = "profiling guide", "tuning guide", "GPU module's guide"
_PROFILING_SPEEDS = (("1080p", 1, 60), ("1080p", 4, 60), ("1080p", 4, 120), ("4K", 1, 30), ("4K", 2, 30))
_TUNING_SPEEDS = (("1080p", 150), ("4K", 100), ("6K", 60), ("8K", 30))
_MODE_SPEEDS = (
    ("VR mode", 2, 60),
    ("VR mode", 2, 90),
    ("throughput mode", 16, 150),
    ("throughput mode", 16, 200),
)
_FRAME_TIMES_MS = (("p50", 16.67), ("p95", 20.0), ("p99", 25.0))
_GUIDES = (
    *(
        _speed(f"{resolution}, batch {batch}", _PROFILING, fps, resolution, batch)
        for resolution, batch, fps in _PROFILING_SPEEDS
    ),
    _speed("VR stereo 4K, batch 4 for each eye", _PROFILING, 60, "4K", 4, stereo=True),
    *(
        Target(
            f"1080p, time for a frame, {which.upper()}",
            _PROFILING,
            limit,
            "ms",
            _percentile("frame_time", which),
            "1080p",
        )
        for which, limit in _FRAME_TIMES_MS
    ),
    Target("GPU memory, share", _PROFILING, 80, "%", _memory_percent),
    Target("GPU memory", _PROFILING, 19_200, "MB", lambda cell: cell.median("peak_vram")),
    _busy("GPU utilisation", _PROFILING, 85, _gpu_percent),
    *(
        _speed(f"{resolution}, the best batch", _TUNING, fps, resolution)
        for resolution, fps in _TUNING_SPEEDS
    ),
    Target(
        "VR mode: 1080p, batch up to 2, P95 from decoder to encoder, queues included",
        _MODULE,
        50,
        "ms",
        _percentile("latency", "p95"),
        "1080p",
        batch=2,
    ),
    *(
        _speed(f"{mode}: 1080p, batch up to {batch}", _MODULE, fps, "1080p", batch)
        for mode, batch, fps in _MODE_SPEEDS
    ),
    _busy("GPU utilisation", _MODULE, 90, _gpu_percent),
    _busy("CPU utilisation", _MODULE, 70, _cpu_percent),
)


def _users(results: BenchResults, performance: Mapping[str, float]) -> Iterable[Target]:
    sizes = dict.fromkeys((cell.key.resolution, _is_stereo(cell)) for cell in results.measured)
    fps, latency_ms = performance.get("target_fps"), performance.get("max_latency_ms")
    for resolution, stereo in sizes:
        name = f"{resolution}{', two eyes' if stereo else ''}"
        if fps is not None:
            yield _speed(f"performance.target_fps at {name}", USER, fps, resolution, stereo=stereo)
        if latency_ms is not None:
            title = f"performance.max_latency_ms at {name}, P95 from decoder to encoder"
            yield Target(
                title, USER, latency_ms, "ms", _percentile("latency", "p95"), resolution, stereo=stereo
            )


def _is_stereo(cell: Cell) -> bool:
    return cell.key.stereo not in ("mono", "auto")


def _check(target: Target, cells: Sequence[Cell]) -> TargetResult:
    known = [(value, cell) for cell in cells if (value := target.value(cell)) is not None]
    if target.resolution is None:
        ordered = sorted(known, key=lambda pair: pair[0], reverse=not target.at_least)
        value, cell = ordered[0] if ordered else (None, None)
        return TargetResult(target=target, value=value, cell=cell)
    fitting = [
        (value, cell)
        for value, cell in known
        if cell.key.resolution == target.resolution and _is_stereo(cell) == target.stereo
    ]
    if target.batch is not None:
        batches = [cell.key.batch for _, cell in fitting if cell.key.batch <= target.batch]
        fitting = [pair for pair in fitting if pair[1].key.batch == max(batches, default=0)]
    fastest = max(fitting, key=lambda pair: pair[1].median("throughput") or 0.0, default=None)
    value, cell = (None, None) if fastest is None else fastest
    return TargetResult(target=target, value=value, cell=cell)
