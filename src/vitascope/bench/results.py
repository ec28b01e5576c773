"""The results of a benchmark and a description of its machine, as a JSON file with a versioned schema.

The file is rewritten whole after every cell, so a run that is killed keeps what it measured.
"""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from vitascope import __version__
from vitascope.device import available_cores, physical_memory_bytes, probe_gpus
from vitascope.errors import DeviceError, InputError, MissingDependencyError
from vitascope.file_lock import write_file
from vitascope.gpu.profiling.bottleneck import Finding
from vitascope.gpu.profiling.utilisation import GpuLimits, NvmlGpu, Utilisation
from vitascope.observe.report_values import gib

_PACKAGES = (
    "numpy",
    "av",
    "opencv-python-headless",
    "onnxruntime",
    "onnxruntime-gpu",
    "triton",
    "torch",
    "tensorrt",
)
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_MEMORY_TOLERANCE = 0.05
"""Systems reserve a little of the installed memory for themselves, not always the same amount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU."""

    name: str
    driver: str
    memory_bytes: int | None
    """None if the driver does not report it; the same for the next two."""
    sm_clock_mhz: float | None = None
    """Highest possible clock."""
    power_watts: float | None = None
    """The power limit that is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine and software that results depend on."""

    system: str
    processor: str
    cores: int
    """Number of cores that the process may use."""
    memory_bytes: int | None
    gpus: tuple[GpuFacts, ...]
    versions: dict[str, str]
    """Versions of Python, Vitascope and the installed libraries that compute, decode and encode."""
    commit: str | None
    """Vitascope's commit, if it runs from a git checkout."""

    def label(self) -> str:
        """A short label for table headings."""
        gpus = ", ".join(gpu.name for gpu in self.gpus)
        return f"{gpus}; {self.processor}" if gpus else f"{self.processor} ({self.cores} cores)"


def this_machine() -> Machine:
    """Describe this machine; without a driver no CUDA context is created."""
    found = {"python": platform.python_version(), "vitascope": __version__}
    for package in (*_PACKAGES, *_CUPY):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return Machine(
        system=platform.platform(terse=True),
        processor=_processor_name(),
        cores=available_cores(),
        memory_bytes=physical_memory_bytes(),
        gpus=tuple(_gpus()),
        versions=found,
        commit=_commit(),
    )


def differences(one: Machine, other: Machine) -> tuple[str, ...]:
    """Reasons why results of two machines are not comparable, one sentence each; software is not compared.

    Args:
        one: The earlier machine.
        other: The later one.
    """
    found = []
    gpus, others = [gpu.name for gpu in one.gpus], [gpu.name for gpu in other.gpus]
    if gpus != others:
        found.append(f"GPU: {', '.join(gpus) or 'none'} against {', '.join(others) or 'none'}")
    if one.processor != other.processor:
        found.append(f"processor: {one.processor} against {other.processor}")
    if one.cores != other.cores:
        found.append(f"cores: {one.cores} against {other.cores}")
    if _differ_much(one.memory_bytes, other.memory_bytes):
        found.append(f"memory: {gib(one.memory_bytes)} against {gib(other.memory_bytes)}")
    return tuple(found)


def _differ_much(one: int | None, other: int | None) -> bool:
    if one is None or other is None:
        return False
    return abs(one - other) > _MEMORY_TOLERANCE * max(one, other)


def _processor_name() -> str:
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> Iterable[GpuFacts]:
    for number, gpu in enumerate(probe_gpus()):
        limits = _limits(number)
        yield GpuFacts(
            name=gpu.name,
            driver=gpu.driver,
            memory_bytes=gpu.memory_bytes,
            sm_clock_mhz=None if limits is None else limits.sm_clock_mhz,
            power_watts=None if limits is None else limits.power_watts,
        )


def _limits(number: int) -> GpuLimits | None:
    try:
        with NvmlGpu(number) as gpu:
            return gpu.limits()
    except (MissingDependencyError, DeviceError):
        return None


def _commit() -> str | None:
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():  # an installed package may lie inside some other repository
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


SCHEMA = "vitascope.bench"
SCHEMA_VERSION = 3
"""Raised when a field is renamed, removed or changes its unit, or when reports need something that earlier runs did
not measure. Version 2 added the operators of networks; version 3 dropped the machine's ceilings and the work of each
part."""
_OLDEST_VERSION = 1
RESULTS_NAME = "benchmark_results.json"
BASELINES_SCHEMA = "vitascope.baselines"
"""Schema of a file of baselines, which distinguishes it from a file of results."""
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity, measured ``n`` times."""

    name: str
    """``throughput`` (one sample per round), ``frame_time`` and ``latency`` (per frame), ``stage/NAME`` and
    ``gpu/NAME`` (per round), ``network`` (per call, without the rest of the pipeline), ``peak_ram``, ``peak_vram``."""
    unit: str
    """``frames/s``, ``ms`` or ``MB`` (10^6 bytes)."""
    n: int
    p5: float
    p50: float
    p95: float
    p99: float
    samples: tuple[float, ...]
    """Samples in the order of measurement, six digits each."""

    @classmethod
    def of(cls, name: str, unit: str, samples: Sequence[float]) -> Self:
        """Make a row with percentiles of samples, interpolated linearly.

        Raises:
            ValueError: There are no samples, or one is not finite.
        """
        values = np.asarray(samples, np.float64)
        if not values.size or not np.isfinite(values).all():
            raise ValueError(f"{name} needs finite samples, at least one")
        p5, p50, p95, p99 = (
            float(f"{value:.{_DIGITS}g}") for value in np.percentile(values, (5, 50, 95, 99))
        )
        kept = tuple(float(f"{value:.{_DIGITS}g}") for value in values)
        return cls(name=name, unit=unit, n=values.size, p5=p5, p50=p50, p95=p95, p99=p99, samples=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operator at one place of a network, or all launches of one kernel."""

    name: str
    kind: str
    """Operator type, such as ``Conv``; ``kernel`` on a GPU."""
    shape: str = ""
    """Shape of its first result, for example ``4x16x144x256``."""
    calls: float
    """Calls per call of the network."""
    ms: float
    """Milliseconds per frame."""
    share: float
    """Its share of the time of all operators, 0..1."""
    mbytes: float | None = None
    """Megabytes (10^6) read and written per frame, weights included; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operators of a network by time and memory traffic."""

    source: str
    """What computed and recorded them."""
    ms: float = 0.0
    """Time of all operators per frame; recording costs a little."""
    operator_count: int = 0
    """Number of different places in the network, or of kernels."""
    by_time: tuple[Operation, ...] = ()
    """The ten most expensive operators."""
    by_memory: tuple[Operation, ...] = ()
    """The ten operators that move the most bytes; empty if the profiler reports none."""
    share_by_kind: dict[str, float] = field(default_factory=dict)
    """Share of the time by kind, the largest first."""
    missing: str = ""
    """Why there are no figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellKey:
    """The settings of a cell; two runs are compared cell by cell where their keys are equal."""

    clip: str
    """``synthetic``, or the file's name."""
    resolution: str
    """``1080p``, ``4K`` … for a synthetic clip, otherwise ``WIDTHxHEIGHT``."""
    width: int
    height: int
    batch: int
    """Frames per call of the network."""
    precision: str
    stereo: str
    """``mono``, ``side-by-side``, ``top-bottom``, or ``auto`` if taken from the file."""
    output: str
    """Kind of picture made, for example ``key``, followed by ``, discarded`` if nothing is encoded."""

    def label(self) -> str:
        """The human-readable form."""
        eyes = "" if self.stereo in ("mono", "auto") else f", {self.stereo}"
        return f"{self.resolution}, batch {self.batch}, {self.precision}{eyes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination and its result."""

    key: CellKey
    status: Literal["measured", "failed", "skipped"]
    """``failed``: it was tried (out of memory, wrong mattes); ``skipped``: it cannot be tried on this machine."""
    reason: str | None = None
    """Why there are no figures."""
    device: str = ""
    engine: str = ""
    decoder: str = ""
    model: str = ""
    network_size: tuple[int, int] | None = None
    """(height, width) of the network's picture."""
    frames: int = 0
    """Frames in one round."""
    rounds: int = 0
    damaged_count: int = 0
    """Packets and pictures that could not be decoded, over all rounds."""
    alpha_error: float | None = None
    """Mean absolute difference of alpha, 0..1, from the same network in fp32 with one frame per call; None if that
    was this very combination."""
    rows: tuple[Row, ...] = ()
    load: Utilisation | None = None
    """Load of CPU and GPU during the measurement."""
    verdict: Finding | None = None
    """What limits it."""
    operations: Operations | None = None
    """None if they were not requested."""
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row | None:
        """The quantity with that name."""
        return next((row for row in self.rows if row.name == name), None)

    def median(self, name: str) -> float | None:
        """The median of that quantity."""
        row = self.row(name)
        return None if row is None else row.p50

    def stages_ms(self) -> dict[str, float]:
        """Median work per frame in each stage; ``finish`` is the encoder's after the last frame."""
        return {
            row.name.removeprefix("stage/"): row.p50 for row in self.rows if row.name.startswith("stage/")
        }

    @property
    def frames_per_second(self) -> float:
        """Median throughput; 0 if it was not measured."""
        return self.median("throughput") or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResults:
    """One run of a benchmark."""

    schema: Literal["vitascope.bench"] = "vitascope.bench"
    version: int = SCHEMA_VERSION
    kind: Literal["suite", "pipeline"]
    began_at: str
    """ISO 8601, UTC."""
    finished: bool = False
    """False while it runs, and permanently if it was killed."""
    machine: Machine
    workload: dict[str, str]
    """The request in plain words; a run is resumed only if they are the same."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings that were set explicitly, by dotted key."""
    cells: tuple[Cell, ...] = ()

    def cell(self, key: CellKey) -> Cell | None:
        """The cell with that key."""
        return next((cell for cell in self.cells if cell.key == key), None)

    @property
    def measured(self) -> tuple[Cell, ...]:
        """Cells that have figures."""
        return tuple(cell for cell in self.cells if cell.status == "measured")


_ADAPTER = TypeAdapter(BenchResults)


def load_results(path: Path) -> BenchResults:
    """Read the results of a benchmark.

    Raises:
        InputError: The file cannot be read, has no results, or has those of another version.
    """
    return results_from(read_document(path), path)


def read_document(path: Path) -> Any:
    """Read a file's JSON.

    Raises:
        InputError: It cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; name the file in it, such as {path / RESULTS_NAME}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise InputError(f"{path} holds no benchmark results: it is not JSON") from error


def results_from(document: Any, path: Path) -> BenchResults:
    """Read results from JSON, migrating earlier versions.

    Args:
        document: A document from ``document_of``.
        path: Its file, for messages.

    Raises:
        InputError: It is something else, or has another version.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        named = document.get("schema") if isinstance(document, dict) else None
        if named == BASELINES_SCHEMA:
            raise InputError(
                f"{path} holds baselines, which stand first: vitascope bench compare {path} LATEST.json"
            )
        named_as = "it has no schema" if named is None else f"its schema is {named!r}"
        raise InputError(f"{path} holds no benchmark results: {named_as}, not {SCHEMA!r}")
    version = document.get("version")
    if not isinstance(version, int) or not _OLDEST_VERSION <= version <= SCHEMA_VERSION:
        raise InputError(
            f"{path} holds results of version {version!r}; this program reads versions {_OLDEST_VERSION} to "
            f"{SCHEMA_VERSION}: measure again, or use the program that wrote them"
        )
    try:
        # Earlier versions have fields that are ignored, and lack others that are optional.
        results = _ADAPTER.validate_python({**document, "version": SCHEMA_VERSION})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path} holds damaged results: {place}: {first['msg']}") from error
    if fault := what_is_wrong(results):
        raise InputError(f"{path} holds damaged results: {fault}")
    return results


def document_of(results: BenchResults) -> dict[str, Any]:
    """Return results as plain values, for JSON."""
    plain: dict[str, Any] = _ADAPTER.dump_python(results, mode="json")
    return plain


class ResultsFile:
    """Results that are written to disk cell by cell.

    Args:
        path: Written at once, and after every cell.
        results: The results so far.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path, results: BenchResults) -> None:
        self.path = path
        self.results = results
        self._keep()

    def add(self, cell: Cell) -> None:
        """Add one more cell.

        Raises:
            OutputError: The file cannot be written.
        """
        self._keep(cells=(*self.results.cells, cell))

    def replace(self, cell: Cell) -> None:
        """Replace the cell with the same key.

        Raises:
            OutputError: The file cannot be written.
        """
        self._keep(cells=tuple(cell if one.key == cell.key else one for one in self.results.cells))

    def finish(self) -> BenchResults:
        """Mark the results as finished.

        Raises:
            OutputError: The file cannot be written.
        """
        self._keep(finished=True)
        return self.results

    def _keep(self, **changes: Any) -> None:
        self.results = replace(self.results, **changes)
        write_file(
            self.path, (json.dumps(document_of(self.results), indent=1, allow_nan=False) + "\n").encode()
        )


def now() -> str:
    """The current time in the format of results."""
    return datetime.now(UTC).isoformat(timespec="seconds")


_POSITIVE = ("throughput", "frame_time")
_ALWAYS, _TO_EXPLAIN = ("throughput",), ("throughput", "frame_time", "latency")
"""Rows of measured cells: of every cell, and of the cells of a run; baselines keep only what comparisons need."""


def what_is_wrong(results: BenchResults) -> str | None:
    """The first invalid value, with its position; None if there is none.

    Args:
        results: Results of one machine, as read.
    """
    for number, cell in enumerate(results.cells):
        if fault := _fault(cell.rows):
            return f"cells.{number}.{fault}"
    return _lacking(results, _ALWAYS)


def what_is_lacking(results: BenchResults) -> str | None:
    """The first missing row that a report needs; None if all are there.

    Args:
        results: Results of one machine, as read.
    """
    return _lacking(results, _TO_EXPLAIN)


def _lacking(results: BenchResults, names: Iterable[str]) -> str | None:
    for number, cell in enumerate(results.cells):
        lacking = next((name for name in names if cell.row(name) is None), None)
        if cell.status == "measured" and lacking is not None:
            return f"cells.{number}.rows: it was measured, and has no {lacking!r}"
    return None


def _fault(rows: Iterable[Row]) -> str | None:
    for number, row in enumerate(rows):
        values = (row.p5, row.p50, row.p95, row.p99, *row.samples)
        least = min((value for value in values if math.isfinite(value)), default=0.0)
        if not row.samples or row.n != len(row.samples):
            return f"rows.{number}: {row.name!r} has {len(row.samples)} samples, and says that it has {row.n}"
        if not all(map(math.isfinite, values)) or least < 0 or (row.name in _POSITIVE and least == 0):
            return f"rows.{number}: {row.name!r} holds an impossible figure"
    return None
