"""The tuning guide's checklists for troubles (slow, out of memory, late), and the machine's own state."""

from __future__ import annotations

import os
from collections.abc import Iterator

from vitascope.bench.analysis.in_short import limit_of
from vitascope.bench.comparison import FEWEST_ROUNDS, gain_of
from vitascope.bench.results import Cell
from vitascope.tune.checklist.items import ChecklistItem, Measurements, answered

__all__ = ["trouble_items"]

_SPEED, _MEMORY, _DELAY, _MACHINE = "speed below target", "out of memory", "high latency", "this machine"
_MEMORY_FULL = 0.95
_WORTHWHILE_GAIN = 1.05
"""A larger batch is called for when it is certainly faster by so much."""
_OTHERS_SHARE, _IDLE_SHARE = 0.2, 0.05
"""Other programs disturb when they take so much of the processors, and leave less than that idle."""


def trouble_items(found: Measurements) -> Iterator[ChecklistItem]:
    """What the guide tells to look at when something is not as it should be."""
    yield _half_precision(found)
    yield _batch_is_large_enough(found)
    yield _bottleneck_is_known(found)
    yield _memory_fits(found)
    yield _queues_are_short(found)
    yield _preprocessing_is_fast(found)
    yield _stages_are_known(found)
    yield _is_undisturbed(found)
    yield from _system(found)


def _half_precision(found: Measurements) -> ChecklistItem:
    question = "the network computes in half precision"
    if not found.on_gpu:
        return answered(_SPEED, question, None, "processors compute in fp32")
    good = found.precision in ("fp16", "mixed", "int8")
    return answered(_SPEED, question, good, f"gpu.precision is {found.precision}", "--precision fp16")


def _batch_is_large_enough(found: Measurements) -> ChecklistItem:
    question, doubled, batch = (
        "a larger batch would not be faster",
        found.doubled,
        found.free_running.key.batch,
    )
    if doubled is None:
        return answered(_SPEED, question, None, found.not_doubled)
    if doubled.status == "skipped":
        return answered(_SPEED, question, None, doubled.reason or "twice the batch was not tried")
    if doubled.status != "measured":
        return answered(_SPEED, question, True, f"batch {batch}; twice as many do not run: {doubled.reason}")
    for cell in (found.free_running, doubled):
        if _rate_count(cell) < FEWEST_ROUNDS:
            figure = f"{cell.frames} frames in batches of {cell.key.batch} are too few to tell their speed"
            return answered(_SPEED, question, None, figure)
    gain, low, high = gain_of(found.free_running, doubled)
    figure = f"batch {doubled.key.batch} is {gain:.2f} times as fast as {batch} ({low:.2f} to {high:.2f})"
    return answered(
        _SPEED, question, low < _WORTHWHILE_GAIN, figure, f"--set model.batch_size={doubled.key.batch}"
    )


def _rate_count(cell: Cell) -> int:
    """How many rates of whole batches a run gave; of fewer than it has batches its parts were cut inside them."""
    row = cell.row("throughput")
    return 0 if row is None else min(row.n, cell.frames // cell.key.batch)


def _bottleneck_is_known(found: Measurements) -> ChecklistItem:
    verdict = limit_of(found.free_running)
    if verdict is None:
        return answered(_SPEED, "the bottleneck is known", None, "too little ran for a verdict")
    figure = f"{verdict.kind.replace('_', '-')}: {verdict.title}; {verdict.advice}"
    if verdict.expected_gain >= 1.01:
        figure += f" (up to {verdict.expected_gain:.2f}x, confidence {verdict.confidence})"
    return answered(_SPEED, "the bottleneck is known", True, figure)


def _memory_fits(found: Measurements) -> ChecklistItem:
    question, load = f"less than {_MEMORY_FULL:.0%} of the memory is in use", found.free_running.load
    figures, full = [], False
    share = None if load is None else load.memory_share
    if found.on_gpu and share is not None:
        figures.append(f"GPU {share:.0%}, all processes")
        full |= share >= _MEMORY_FULL
    resident = None if load is None else load.resident_bytes_max
    if resident is not None and found.machine.memory_bytes:
        share = resident / found.machine.memory_bytes
        figures.append(f"main memory {share:.0%} by this process ({resident / 1e6:.0f} MB)")
        full |= share >= _MEMORY_FULL
    if not figures:
        return answered(_MEMORY, question, None, "this system does not tell")
    advice = "a smaller model.batch_size, model.input_size or processing.max_queue_mb"
    return answered(_MEMORY, question, not full, "; ".join(figures), advice)


def _queues_are_short(found: Measurements) -> ChecklistItem:
    row = found.prompt.row("latency")
    assert row is not None  # a measured cell has it
    work = sum(_stages(found.prompt).values())
    figure = (
        f"a film is read as fast as it goes, and fills every queue: {max(row.p50 - work, 0.0):.1f} of {row.p50:.1f} ms "
        "are waits; live sources drop the oldest instead"
    )
    return answered(_DELAY, "queues are short", None, figure)


def _preprocessing_is_fast(found: Measurements) -> ChecklistItem:
    question = "preprocessing does not set the pace"
    stages = _stages(found.free_running)
    own = {name: time for name, time in stages.items() if name.startswith("prep")}
    if not own:
        return answered(_DELAY, question, None, "no stage of its own does it")
    limit = limit_of(found.free_running)
    if limit is None:
        return answered(_DELAY, question, None, "too little ran for a verdict")
    # Not the longest stage: its work is that of all its threads, which share it.
    figure = f"{sum(own.values()):.2f} ms a frame, of all its threads together; {limit.title}"
    return answered(
        _DELAY,
        question,
        limit.stage not in own,
        figure,
        "a smaller model.input_size, or more processing.num_threads",
    )


def _stages_are_known(found: Measurements) -> ChecklistItem:
    stages = ", ".join(f"{name} {time:.2f} ms" for name, time in _stages(found.free_running).items())
    return answered(_DELAY, "where the time goes is known", bool(stages), f"work for each frame: {stages}")


def _is_undisturbed(found: Measurements) -> ChecklistItem:
    question, load = "no other program takes the processor", found.free_running.load
    if load is None or load.machine_cpu_percent is None:
        return answered(_MACHINE, question, None, "this system does not tell")
    processors = os.cpu_count() or 1
    busy = load.machine_cpu_percent / 100
    others = max(busy - load.process_cores / processors, 0.0)
    good = others < _OTHERS_SHARE or busy < 1 - _IDLE_SHARE
    figure = f"all processors {busy:.0%} busy, {others:.0%} with other programs"
    return answered(_MACHINE, question, good, figure, "close what else runs: all speeds above are too low")


def _system(found: Measurements) -> Iterator[ChecklistItem]:
    for check in found.system:
        yield answered(_MACHINE, check.name, check.advice is None, check.found, check.advice)


def _stages(cell: Cell) -> dict[str, float]:
    """Milliseconds of work for a frame, by stage."""
    return {
        row.name.partition("/")[2]: row.p50
        for row in cell.rows
        if row.name.startswith("stage/") and row.name != "stage/finish"
    }
