"""A profile as plain values: what its JSON file holds, and what every drawing is made of."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from vitascope.device import available_cores, probe_gpus
from vitascope.errors import InputError

if TYPE_CHECKING:
    from vitascope.gpu.profiling.profiler import Profiler
    from vitascope.gpu.profiling.utilisation import UtilisationSample

__all__ = ["SCHEMA", "SCHEMA_VERSION", "load_profile", "profile_document"]

SCHEMA = "vitascope.profile"
SCHEMA_VERSION = 1
"""Raised when a field is renamed, removed or changes its unit; new fields do not raise it."""


def profile_document(profiler: Profiler, *, utilisation: Sequence[UtilisationSample] = ()) -> dict[str, Any]:
    """Everything that a profiler knows; ``docs/profiling.md`` describes the fields. Times are in seconds.

    Times of spans and samples count from the moment at which the profiler was made or last reset.

    Args:
        profiler: May still be in use.
        utilisation: Samples of the same time.
    """
    began = profiler.began_ns * 1e-9
    stats = profiler.stats()
    kept = profiler.spans()
    places = {row.path: number for number, row in enumerate(stats)}
    threads = {span.thread.number: span.thread.thread.name for span in kept}
    spans = []
    for span in kept:
        if span.path not in places:  # counted after the sums were taken
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


def load_profile(path: Path | str) -> dict[str, Any]:
    """Read what ``Profiler.export_json`` wrote.

    Raises:
        InputError: The file cannot be read, is no profile, or is one of a newer version.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or nested without end
        raise InputError(f"{path} is not a profile: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path} is not a profile: its schema is not {SCHEMA!r}")
    if document.get("version") != SCHEMA_VERSION:
        raise InputError(
            f"{path} is a profile of version {document.get('version')!r}; this program reads version {SCHEMA_VERSION}"
        )
    return document
