"""What a benchmark measured, as a JSON file of a versioned schema; ``docs/benchmarking.md`` describes it.

The file is written anew after every cell, whole or not at all: a run that is killed keeps what it measured.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from vitascope.errors import InputError
from vitascope.gpu.profiling.exports import write_file
from vitascope.gpu.profiling.findings import Finding
from vitascope.gpu.profiling.utilisation import Utilisation
from vitascope.tuning.machine import Machine

__all__ = [
    "RESULTS_NAME",
    "SCHEMA",
    "SCHEMA_VERSION",
    "BenchResults",
    "Cell",
    "CellKey",
    "ResultsFile",
    "Row",
    "load_results",
    "now",
]

SCHEMA = "vitascope.bench"
SCHEMA_VERSION = 1
"""Raised when a field is renamed, removed or changes its unit; new fields have defaults, and do not raise it."""
RESULTS_NAME = "benchmark_results.json"
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity, measured ``n`` times."""

    name: str
    """``throughput`` (a sample for each round), ``frame_time`` and ``latency`` (for each frame), ``stage/NAME`` and
    ``gpu/NAME`` (for each round), ``peak_ram``, ``peak_vram``."""
    unit: str
    """``frames/s``, ``ms`` or ``MB`` (10^6 bytes)."""
    n: int
    p5: float
    p50: float
    p95: float
    p99: float
    samples: tuple[float, ...]
    """In the order of measurement, six digits each."""

    @classmethod
    def of(cls, name: str, unit: str, samples: Sequence[float]) -> Self:
        """Percentiles of samples, interpolated linearly.

        Raises:
            ValueError: There are none, or one is not finite.
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
class CellKey:
    """What is measured; two runs are compared cell by cell where their keys are equal."""

    clip: str
    """``synthetic``, or the file's name."""
    resolution: str
    """``1080p``, ``4K`` … of a synthetic clip, else ``WIDTHxHEIGHT``."""
    width: int
    height: int
    batch: int
    """Frames for each call of the network."""
    precision: str
    stereo: str
    """``mono``, ``side-by-side``, ``top-bottom``, or ``auto`` where the file says it."""
    output: str
    """Kind of picture that is made, for example ``key``; behind it ``, discarded`` where nothing is encoded."""

    def label(self) -> str:
        """For people."""
        eyes = "" if self.stereo in ("mono", "auto") else f", {self.stereo}"
        return f"{self.resolution}, batch {self.batch}, {self.precision}{eyes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination, and what became of it."""

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
    """Of one round."""
    rounds: int = 0
    alpha_error: float | None = None
    """Mean absolute difference of alpha, 0..1, to the same network in fp32 with one frame a call; None where that was
    this very combination."""
    rows: tuple[Row, ...] = ()
    load: Utilisation | None = None
    """Of processor and GPU while it was measured."""
    verdict: Finding | None = None
    """What limits it."""
    notes: tuple[str, ...] = ()

    def row(self, name: str) -> Row | None:
        """The quantity of that name."""
        return next((row for row in self.rows if row.name == name), None)

    def median(self, name: str) -> float | None:
        """Its median."""
        row = self.row(name)
        return None if row is None else row.p50


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResults:
    """One run of a benchmark."""

    schema: Literal["vitascope.bench"] = "vitascope.bench"
    version: int = SCHEMA_VERSION
    kind: Literal["suite", "pipeline"]
    began_at: str
    """ISO 8601, UTC."""
    finished: bool = False
    """False while it runs, and for ever where it was killed."""
    machine: Machine
    workload: dict[str, str]
    """What was asked for, in plain words; a run is resumed only by the same."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings that were set explicitly, by dotted key."""
    cells: tuple[Cell, ...] = ()

    def cell(self, key: CellKey) -> Cell | None:
        """The cell of that key."""
        return next((cell for cell in self.cells if cell.key == key), None)

    @property
    def measured(self) -> tuple[Cell, ...]:
        """Cells that have figures."""
        return tuple(cell for cell in self.cells if cell.status == "measured")


_ADAPTER = TypeAdapter(BenchResults)


def load_results(path: Path) -> BenchResults:
    """Read what a benchmark wrote.

    Raises:
        InputError: The file cannot be read, holds no results, or those of another version.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise InputError(f"{path} holds no benchmark results: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        named = document.get("schema") if isinstance(document, dict) else None
        raise InputError(f"{path} holds no benchmark results: its schema is {named!r}, not {SCHEMA!r}")
    if document.get("version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} holds results of version {document.get('version')!r}; this program reads version "
            f"{SCHEMA_VERSION}: measure again, or use the program that wrote them"
        )
    try:
        return _ADAPTER.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path} holds damaged results: {place}: {first['msg']}") from error


class ResultsFile:
    """Results that grow on disk, cell by cell.

    Args:
        path: Written at once, and after every cell.
        results: What is there already.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, path: Path, results: BenchResults) -> None:
        self.path = path
        self.results = results
        self._write()

    def add(self, cell: Cell) -> None:
        """Keep one more cell.

        Raises:
            OutputError: The file cannot be written.
        """
        self.results = replace(self.results, cells=(*self.results.cells, cell))
        self._write()

    def finish(self) -> BenchResults:
        """Every cell is there.

        Raises:
            OutputError: The file cannot be written.
        """
        self.results = replace(self.results, finished=True)
        self._write()
        return self.results

    def _write(self) -> None:
        plain: dict[str, Any] = _ADAPTER.dump_python(self.results, mode="json")
        write_file(self.path, (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode())


def now() -> str:
    """The time of day as results hold it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
