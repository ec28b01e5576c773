"""The trials of a search that is not over, on disk: a search that was broken off goes on from there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitascope.errors import OutputError, UsageError

if TYPE_CHECKING:
    from vitascope.tuning.grid import Trial

__all__ = ["load_trials", "save_trials"]

_SCHEMA = "vitascope.search"
_VERSION = 1


def save_trials(path: Path, identity: Mapping[str, Any], trials: Sequence[Trial]) -> None:
    """Write all trials; a crash leaves the file of before.

    Raises:
        OutputError: It cannot be written.
    """
    rows = [
        {
            "cell": list(trial.cell),
            "score": trial.measured.score,
            "figures": dict(trial.measured.figures),
            "failure": trial.measured.failure,
            "why": trial.why,
        }
        for trial in trials
    ]
    document = {"schema": _SCHEMA, "version": _VERSION, "search": dict(identity), "trials": rows}
    unfinished = path.with_name(f"{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def load_trials(path: Path, identity: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials of the same search.

    Raises:
        UsageError: Not a state, of another version, or of another search.
    """
    again = "search again without --resume"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a search that can be resumed; {again}") from error
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        raise UsageError(f"{path}: not a search that can be resumed; {again}")
    if document.get("version") != _VERSION:
        raise UsageError(f"{path}: version {document.get('version')} of a search is not known here; {again}")
    if document.get("search") != json.loads(json.dumps(dict(identity))):
        raise UsageError(f"{path}: belongs to a search with other settings, limits or clip; {again}")
    sizes = [len(values) for _, values in identity["knobs"]]
    rows = document.get("trials")
    if not isinstance(rows, list) or not all(_is_trial(row, sizes) for row in rows):
        raise UsageError(f"{path}: its trials are damaged; {again}")
    return rows


def _is_trial(row: Any, sizes: Sequence[int]) -> bool:
    if not isinstance(row, dict) or set(row) != {"cell", "score", "figures", "failure", "why"}:
        return False
    cell, figures = row["cell"], row["figures"]
    return (
        isinstance(cell, list)
        and len(cell) == len(sizes)
        and all(type(place) is int and 0 <= place < size for place, size in zip(cell, sizes, strict=True))
        and _is_number(row["score"])
        and isinstance(figures, dict)
        and all(_is_number(figure) for figure in figures.values())
        and isinstance(row["failure"], str | None)
        and isinstance(row["why"], str)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
