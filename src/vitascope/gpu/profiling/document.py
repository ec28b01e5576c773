"""A profile as plain values: the content of its JSON file, and the data of every chart."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from os import PathLike
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from vitascope.device import available_cores, probe_gpus
from vitascope.errors import InputError
from vitascope.file_lock import write_file
from vitascope.gpu.profiling.charts import profile_chart
from vitascope.gpu.profiling.tables import html_page, milliseconds

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Profiler
    from vitascope.gpu.profiling.utilisation import UtilisationSample

SCHEMA = "vitascope.profile"
SCHEMA_VERSION = 1
"""Increased when a field is renamed, removed or gets another unit; new fields do not increase it."""


def profile_document(profiler: Profiler, *, utilisation: Sequence[UtilisationSample] = ()) -> dict[str, Any]:
    """Collect everything that a profiler recorded. Times are in seconds; spans and samples count from ``began_at``.

    ``schema``, ``version``
        ``vitascope.profile``, 1.
    ``machine``, ``threads``, ``utilisation``
        System, CPU, cores, Python, GPUs; numbers and names; samples of the load.
    ``summary``
        For each place its ``path``, ``count``, total, self and CPU seconds, ``min`` to ``max``, percentiles, and
        ``gpu`` with the same fields, or null.
    ``spans``
        ``place`` (position in ``summary``), ``thread``, ``start_seconds``, ``seconds``, ``cpu_seconds``, ``gpu``,
        ``error``.
    ``dropped_spans``
        Number of older spans that are only in the summary.
    ``verdict``
        Only in files of ``vitascope segment``: ``main``, ``others``, and ``paces``, the saving of each stage.

    Args:
        profiler: The profiler, which may still be in use.
        utilisation: Samples taken during the same time.
    """
    began = profiler.began_ns * 1e-9
    stats = profiler.stats()
    kept = profiler.spans()
    places = {row.path: number for number, row in enumerate(stats)}
    threads = {span.thread.number: span.thread.thread.name for span in kept}
    spans = []
    for span in kept:
        if span.path not in places:  # it ended after the sums were computed
            continue
        gpu = None
        if span.gpu is not None:
            gpu = {**span.gpu._asdict(), "start_seconds": span.gpu.start_seconds - began}
        spans.append(
            {
                "place": places[span.path],
                "thread": span.thread.number,
                "start_seconds": (span.began_ns - profiler.began_ns) * 1e-9,
                "seconds": span.wall_ns * 1e-9,
                "cpu_seconds": span.cpu_ns * 1e-9,
                "gpu": gpu,
                "error": span.error,
            }
        )
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "name": profiler.name,
        "began_at": profiler.began_at.isoformat(),
        "wall_seconds": (perf_counter_ns() - profiler.began_ns) * 1e-9,
        "machine": {
            "system": platform.platform(terse=True),
            "processor": platform.machine(),
            "cores": available_cores(),
            "python": platform.python_version(),
            "gpus": [gpu.name for gpu in probe_gpus()],
        },
        "summary": [{**asdict(row), "path": list(row.path)} for row in stats],
        "threads": [{"number": number, "name": name} for number, name in sorted(threads.items())],
        "spans": spans,
        "dropped_spans": profiler.dropped_count,
        "utilisation": [{**asdict(sample), "seconds": sample.seconds - began} for sample in utilisation],
    }


def load_profile(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a file written by ``Profiler.export_json``.

    Raises:
        InputError: The file cannot be read, is not a profile, or has a newer version.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or nested too deeply
        raise InputError(f"{path} is not a profile: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a profile: its schema is not {SCHEMA!r}")
    if document.get("version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} is a profile of version {document.get('version')!r}; this program reads version {SCHEMA_VERSION}"
        )
    return document


_HOST, _GPU, _LOAD = 1, 100, 99
"""Process numbers in the trace: the host, the first GPU, the counters."""


def chrome_trace(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a profile to the Trace Event Format of chrome://tracing and ui.perfetto.dev.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

    Args:
        document: A profile, as ``profile_document`` returns it.
    """
    summary = document["summary"]
    events: list[dict[str, Any]] = [_named("process_name", _HOST, 0, document["name"])]
    events += [_named("thread_name", _HOST, row["number"], row["name"]) for row in document["threads"]]
    lanes: set[tuple[int, int]] = set()
    for span in document["spans"]:
        path = summary[span["place"]]["path"]
        details = {"path": " > ".join(path), "cpu_ms": span["cpu_seconds"] * 1e3}
        if span["error"]:
            details["error"] = span["error"]
        if span["gpu"]:
            gpu = span["gpu"]
            lanes.add((gpu["device"], gpu["stream"]))
            details["gpu_ms"] = gpu["seconds"] * 1e3
            events.append(
                _span(path[-1], _GPU + gpu["device"], gpu["stream"], gpu, {"path": details["path"]})
            )
        events.append(_span(path[-1], _HOST, span["thread"], span, details))
    for device in sorted({device for device, _ in lanes}):
        events.append(_named("process_name", _GPU + device, 0, f"GPU {device}"))
    events += [
        _named("thread_name", _GPU + device, stream, f"stream {stream:#x}" if stream else "default stream")
        for device, stream in sorted(lanes)
    ]
    events += _counters(document["utilisation"])
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {key: document[key] for key in ("schema", "version", "began_at", "dropped_spans")},
    }


def _span(
    name: str, process: int, thread: int, time: dict[str, Any], details: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": "gpu" if process >= _GPU else "host",
        "pid": process,
        "tid": thread,
        "ts": time["start_seconds"] * 1e6,
        "dur": time["seconds"] * 1e6,
        "args": details,
    }


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _counters(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    events = [_named("process_name", _LOAD, 0, "load")] if samples else []
    for sample in samples:
        gpu = sample["gpu"] or {}
        rows = {
            "processor cores": {"process": sample["process_cores"]},
            "main memory MB": {"resident": _scaled(sample["resident_bytes"], 1e-6)},
            "GPU %": {
                "kernels": gpu.get("gpu_percent"),
                "decoder": gpu.get("decoder_percent"),
                "encoder": gpu.get("encoder_percent"),
            },
            "GPU memory MB": {"used": _scaled(gpu.get("memory_used_bytes"), 1e-6)},
            "PCIe MB/s": {
                "to GPU": _scaled(gpu.get("pcie_to_gpu_bytes_per_second"), 1e-6),
                "from GPU": _scaled(gpu.get("pcie_from_gpu_bytes_per_second"), 1e-6),
            },
            "power W": {"draw": gpu.get("power_watts")},
            "temperature C": {"GPU": gpu.get("temperature_celsius")},
            "SM clock MHz": {"now": gpu.get("sm_clock_mhz")},
        }
        for name, values in rows.items():
            known = {key: value for key, value in values.items() if value is not None}
            if known:
                when = sample["seconds"] * 1e6
                events.append({"ph": "C", "name": name, "pid": _LOAD, "tid": 0, "ts": when, "args": known})
    return events


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def write_document(document: dict[str, Any], path: Path) -> None:
    """Write plain values as JSON: a profile for ``load_profile``, or its ``chrome_trace``.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(path, json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


_HEADS = (
    "span", "count", "total ms", "self ms", "cpu ms", "mean ms", "p50", "p95", "p99", "max", "GPU ms", "GPU p95",
)  # fmt: skip


def profile_page(document: dict[str, Any]) -> str:
    """Make a self-contained HTML page of a profile.

    Args:
        document: A profile, as ``profile_document`` returns it.

    Raises:
        MissingDependencyError: matplotlib, which draws the charts, is not installed.
    """
    machine, dropped = document["machine"], document["dropped_spans"]
    gpus = f", {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    where = escape(f"{machine['system']}, {machine['cores']} cores{gpus}, Python {machine['python']}")
    heads = "".join(f"<th>{head}</th>" for head in _HEADS)
    rows = "\n".join(map(_page_row, document["summary"]))
    note = f"<p>{dropped} older spans are in the table, but not in the drawing.</p>" if dropped else ""
    body = f"""<p>{document["wall_seconds"]:.3f} s, began {escape(document["began_at"])}<br>{where}</p>
<div class="wide">
<table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{note}
<div class="wide">
{profile_chart(document).to_svg()}
</div>"""
    return html_page(str(document["name"]), body)


def _page_row(row: dict[str, Any]) -> str:
    gpu, path = row["gpu"] or {}, row["path"]
    indent = f' style="padding-left:{0.7 + 1.2 * (len(path) - 1):.1f}rem"'
    times = [row[f"{key}_seconds"] for key in ("total", "self", "cpu", "mean", "p50", "p95", "p99", "max")]
    times += [gpu.get("total_seconds"), gpu.get("p95_seconds")]
    cells = "".join(f"<td>{milliseconds(time)}</td>" for time in times)
    return f"<tr><td{indent}>{escape(path[-1])}</td><td>{row['count']}</td>{cells}</tr>"
