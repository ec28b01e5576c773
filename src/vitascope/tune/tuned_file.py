"""The result of a tuner: a settings file for ``-c`` with a reason beside each value, and the history.

The history has one line of JSON per search, and is kept with models and caches.
"""

from __future__ import annotations

import json
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vitascope import __version__
from vitascope.config import SettingsSource, vitascope_home
from vitascope.tune.search import Effect, Measured, SearchResult, Trial

NOTHING_BETTER = "nothing was better than the settings as they are"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedSettings(ABC):
    """The result of a tuner."""

    values: Mapping[str, Any]
    """The settings to change, by key; empty if nothing was better than the current settings."""
    before: Measured
    after: Measured
    """Measured alternately with ``before``."""
    search: SearchResult
    """The search."""
    target: Any
    """The goal, a dataclass."""
    unreachable: str | None
    """What cannot be reached and what can, in one line; None if the target was reached."""
    device_label: str
    """The device."""
    network: str
    """The network, or what else the measurements are of."""
    score_unit: str
    """Unit of the scores of the search."""
    command: str
    """The command that repeats the search."""

    @abstractmethod
    def figures(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Measurements before and after, by name."""

    @abstractmethod
    def change_in_words(self) -> str:
        """The gain, and its cost."""

    def unchanged_in_words(self) -> str:
        """Say that nothing was better than the current settings, and why, if that is known."""
        return NOTHING_BETTER

    @abstractmethod
    def trade_off(self) -> str:
        """The cost of the speed, in words."""

    @abstractmethod
    def own_figures(self) -> Mapping[str, object]:
        """Further results of this tuner, as plain values."""

    @abstractmethod
    def place_and_score(self, trial: Trial) -> Mapping[str, object]:
        """The cell that a trial measured and its score, as plain values."""

    def lines(self, *, file: Path | None, usage: str, history: str, with_missed: bool = False) -> list[str]:
        """Report the result to a person, line by line.

        Args:
            file: The settings file written; None if there is none.
            usage: A command that uses the file, up to its name.
            history: Where the search was recorded, as returned by ``append_history``.
            with_missed: Also report what cannot be reached, for commands that do not fail because of it.
        """
        lines = []
        for effect in self.search.effects:
            if effect.key in self.values:
                value = self.values[effect.key]
                lines.append(f"{effect.key}: {'null' if value is None else value}")
                lines.append(f"  {reason(effect, unit=self.score_unit)}")
        if not self.values:
            lines.append(self.unchanged_in_words())
        lines.append(self.change_in_words())
        if with_missed and self.unreachable is not None:
            lines.append(f"not reached: {self.unreachable}")
        trials, cells = len(self.search.trials), self.search.grid_size
        lines.append(f"{trials} trials in {cells} combinations; ended because {self.search.ended}")
        if file is not None:
            lines.append(f"written: {file}; use it with: {usage} -c {file}")
        return [*lines, f"history: {history}"]

    def to_dict(self, *, file: Path | None) -> dict[str, object]:
        """Return the result as plain values.

        Args:
            file: The settings file written; None if there is none.
        """
        before, after = self.figures()
        return {
            "change": dict(self.values),
            "before": dict(before),
            "after": dict(after),
            **self.own_figures(),
            "unreachable": self.unreachable,
            "trials": [
                {
                    **self.place_and_score(trial),
                    **trial.measured.figures,
                    "failure": trial.measured.failure,
                    "why": trial.why,
                }
                for trial in self.search.trials
            ],
            "combinations": self.search.grid_size,
            "ended": self.search.ended,
            "file": None if file is None else str(file),
        }


_WIDTH = 110


def tuned_text(tuned: TunedSettings, source: SettingsSource, *, subject: str, when: datetime) -> str:
    """Write the file's text.

    Args:
        tuned: The result.
        source: Source of the settings that were tuned; explicitly set values stay.
        subject: Description of what was measured.
        when: The current time.
    """
    chosen = dict(tuned.values)
    if source.load().settings.performance.auto_tune:
        chosen["performance.auto_tune"] = False  # tuned settings need no tuning before each job
    plain = source.load(chosen).to_yaml()
    effects = {effect.key: effect for effect in tuned.search.effects}
    reasons = {key: reason(effects[key], unit=tuned.score_unit) for key in tuned.values if key in effects}
    return f"{_head(tuned, subject, when)}\n{_commented(plain, reasons)}"


def reason(effect: Effect, *, unit: str = "fps") -> str:
    """Explain a setting's value by the predictions for each candidate, with the other settings as chosen.

    Args:
        effect: The search's findings about it.
        unit: Unit of the search's scores.
    """
    parts = [
        f"{'null' if value is None else value}: {score:.3g} {unit}"
        for value, score in sorted(effect.scores, key=lambda pair: -pair[1])
    ]
    top = max(score for _, score in effect.scores)
    own = {str(value): score for value, score in effect.scores}[str(effect.value)]
    text = f"expected for each value, with the rest as below: {', '.join(parts)}"
    if own < top * 0.99:
        text += "; faster ones were not within the limits, or not measured"
    elif own < min(score for _, score in effect.scores) * 1.02:
        text += "; it matters little"
    return text


def _head(tuned: TunedSettings, subject: str, when: datetime) -> str:
    device, network = tuned.device_label, tuned.network
    search = tuned.search
    lines = [
        f"Tuned by vitascope {__version__} on {when:%Y-%m-%d %H:%M} for {subject}, with {network} on {device}.",
        f"{tuned.change_in_words()}.",
        f"{len(search.trials)} trials in {search.grid_size} combinations; why no more: {search.ended}.",
    ]
    if not tuned.values:
        lines.append(f"They stay: {tuned.unchanged_in_words()}.")
    lines.append(f"Another clip, network or machine needs a search of its own: {tuned.command}")
    # a flag broken at its hyphens could not be copied
    wrapped = (textwrap.wrap(line, _WIDTH, break_on_hyphens=False) for line in lines)
    return "\n".join(f"# {part}" for parts in wrapped for part in parts)


def _commented(plain: str, reasons: Mapping[str, str]) -> str:
    """Put each reason above its line. Every setting is on a line of its own, and sections are indented by two."""
    lines: list[str] = []
    path: list[str] = []
    for line in plain.splitlines():
        name = line.strip().partition(":")[0]
        depth = (len(line) - len(line.lstrip())) // 2
        path = [*path[:depth], name]
        if text := reasons.get(".".join(path)):
            indent = "  " * depth
            lines += [f"{indent}# {part}" for part in textwrap.wrap(text, _WIDTH - len(indent))]
        lines.append(line)
    return "\n".join(lines) + "\n"


def history_path() -> Path:
    """Path of the history, below ``VITASCOPE_HOME``."""
    return vitascope_home() / "optimization_history.jsonl"


def append_history(tuned: TunedSettings, *, subject: str, when: datetime, file: Path | None) -> str:
    """Add one line to the history.

    Args:
        tuned: The result.
        subject: Description of what was measured.
        when: The current time, with its time zone.
        file: The settings file written; None if there is none.

    Returns:
        The history's path, followed by the reason if it cannot be written, which does not affect the result.
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
        return f"{path}: cannot be written: {error.strerror or error}"
    return str(path)


def read_history() -> Iterator[dict[str, Any]]:
    """All lines, oldest first; a line cut off by a crash is skipped."""
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
