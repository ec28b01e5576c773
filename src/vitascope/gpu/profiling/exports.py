"""Profiles as files: JSON, a trace for Chrome and Perfetto, PNG, HTML."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitascope.errors import OutputError
from vitascope.gpu.profiling.charts import profile_chart
from vitascope.gpu.profiling.page import html_page

__all__ = ["chrome_trace", "write_chrome_trace", "write_document", "write_file", "write_html", "write_png"]

_HOST, _GPU, _LOAD = 1, 100, 99
"""Process numbers of the trace: what ran on the host, the first GPU, the counters."""


def chrome_trace(document: dict[str, Any]) -> dict[str, Any]:
    """A profile in the Trace Event Format, which chrome://tracing and ui.perfetto.dev read.

    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

    Args:
        document: Of ``profile_document``.
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
    """Write plain values as JSON, such as a profile for ``load_profile``.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(path, json.dumps(document, separators=(",", ":"), allow_nan=False).encode())


def write_chrome_trace(document: dict[str, Any], path: Path) -> None:
    """Write a profile for Chrome and Perfetto.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(path, json.dumps(chrome_trace(document), separators=(",", ":"), allow_nan=False).encode())


def write_png(document: dict[str, Any], path: Path) -> None:
    """Draw a profile as a picture.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(path, profile_chart(document).to_png())


def write_html(document: dict[str, Any], path: Path) -> None:
    """Write a profile as one page that needs no network.

    Raises:
        OutputError: The file cannot be written.
    """
    write_file(path, html_page(document).encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folder is made.

    Raises:
        OutputError: It cannot be written.
    """
    # Not write_atomically: its files are for the user alone, as caches are.
    unfinished = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
