"""What tuning changed, and when: one line of JSON for each search, kept with models and caches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from vitascope import __version__
from vitascope.config import vitascope_home
from vitascope.errors import OutputError
from vitascope.tune.tuned_file import TunedSettings

__all__ = ["append_history", "history_path", "read_history"]


def history_path() -> Path:
    """Where the history lies: below ``VITASCOPE_HOME``."""
    return vitascope_home() / "optimization_history.jsonl"


def append_history(tuned: TunedSettings, *, subject: str, when: datetime, file: Path | None) -> Path:
    """Add one line.

    Args:
        tuned: What was found.
        subject: What it was measured on, in words.
        when: Now, with its time zone.
        file: The settings file that was written; None without one.

    Returns:
        The history's path.

    Raises:
        OutputError: It cannot be written.
    """
    before, after = tuned.figures()
    line = {
        "date": when.isoformat(timespec="seconds"),
        "vitascope": __version__,
        "clip": subject,
        "device": tuned.device_label,
        "network": tuned.network,
        "change": dict(tuned.values),
        "before": dict(before),
        "after": dict(after),
        "trade_off": tuned.trade_off(),
        "target": asdict(tuned.target),
        "unreachable": tuned.unreachable,
        "trials": len(tuned.search.trials),
        "combinations": tuned.search.grid_size,
        "file": None if file is None else str(file.absolute()),
    }
    path = history_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file_:
            file_.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def read_history() -> Iterator[dict[str, Any]]:
    """All lines, the oldest first; what a crash left half-written is passed over."""
    path = history_path()
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            yield line
