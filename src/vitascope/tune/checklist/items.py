"""One question of a checklist, its answer, and the measurements that answers are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vitascope.bench.machine import Machine
from vitascope.bench.results import BenchResults, Cell
from vitascope.bench.soak import Soak
from vitascope.tune.checklist.system_checks import SystemCheck

__all__ = ["Answer", "ChecklistItem", "Measurements", "answered"]

Answer = Literal["yes", "no", "not applicable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistItem:
    """One question, and what measurements say."""

    group: str
    question: str
    answer: Answer
    figure: str
    """What was measured; for ``not applicable``: why not."""
    advice: str | None = None
    """What brings a yes; None where nothing is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What the answers are drawn from."""

    film: str
    """How to speak of it."""
    is_synthetic: bool
    layout: str
    """How eyes share the film's frame, and what says so; empty for a flat one."""
    machine: Machine
    on_gpu: bool
    precision: str
    target_fps: float
    max_latency_ms: float
    free_running: Cell
    """As the settings are, as fast as it goes."""
    prompt: Cell
    """The same in ``performance.mode=latency``."""
    doubled: Cell | None
    """With twice the batch; None where that was not tried."""
    not_doubled: str = ""
    """Why not."""
    suite: BenchResults | None
    """Results of ``bench run``; None where there are none."""
    suite_place: str
    """Where it was looked for."""
    tuned: Mapping[str, Any] | None
    """The newest line of the history of ``optimize`` for this device and network; None where there is none."""
    not_in_use: Mapping[str, Any]
    """What it found, of settings that are something else now."""
    processor_throttled: int | None
    """How often heat slowed the processor down meanwhile; None where the system does not count it."""
    system: Sequence[SystemCheck]
    soak: Soak | None
    """None where none was asked for."""


def answered(
    group: str, question: str, good: bool | None, figure: str, advice: str | None = None
) -> ChecklistItem:
    """One item.

    Args:
        group: Which list it belongs to.
        question: As a statement that is hoped for.
        good: None where it cannot be told, or is not asked here.
        figure: What was measured, or why not.
        advice: Dropped where all is well.
    """
    answers: dict[bool | None, Answer] = {True: "yes", False: "no", None: "not applicable"}
    return ChecklistItem(
        group=group,
        question=question,
        answer=answers[good],
        figure=figure,
        advice=None if good else advice,
    )
