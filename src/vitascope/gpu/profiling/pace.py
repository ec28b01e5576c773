"""Find the stage that sets a pipeline's pace: the run's gain if a stage took half the time.

The model: a run takes as long as its busiest resource. Resources are its stages (their load), the CPU cores
and the GPU that stages share, and pairs of stages that cannot overlap because the queue between them is too
small, so that one waits for room and the other for items. Halving a stage halves its part of each resource;
the busiest one then sets the new pace. Compared with a discrete-event simulation, which knows the truth, this
names the right stage in 96 % of 1,400 random cases, load alone in 93 % (tests/gpu/profiling/test_pace.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitascope.device import available_cores
from vitascope.gpu.pipeline.queues import QueueReport
from vitascope.gpu.pipeline.report import Bottleneck, StageReport

_SHARPNESS = 24
"""Exponent of the power mean that stands for the busiest; finite, because costs vary and the next one matters, too."""
_TIGHT = 0.12
"""Share of the wall time that both sides of a queue must wait for it to count as too small."""
_SERIAL = 0.5
"""Share of two stages' loads that adds up where both wait so much; the share that they wait is added to it."""
_FULL = 0.85
"""Load of shared cores or of the GPU above which time in a stage is partly waiting for them."""
_DROPPED = 0.1
"""Share of a queue's items that must be dropped to show that the stage behind it is too slow."""
_QUEUED = 0.8
"""Share of a stage's unexplained time that is such waiting when cores or GPU are full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePace:
    """Effect of one stage on the pace."""

    stage: str
    saving: float
    """Share of the wall time, 0..0.5, saved by halving this stage's cost."""
    load: float
    """0..1, as in ``StageReport``."""
    cpu_share: float
    """Share of the process's cores kept busy by the stage, 0..1, including its share of native threads."""
    gpu_share: float
    """Share of the wall time in which its work ran on the GPU; 0 if not measured."""

    @property
    def gain(self) -> float:
        """Speed-up factor."""
        return 1 / (1 - self.saving)


def tight_queues(
    stages: Sequence[StageReport], queues: Sequence[QueueReport], *, wall_seconds: float
) -> list[tuple[QueueReport, float]]:
    """Find queues where both sides wait long, with the share of the wall time that both do.

    Args:
        stages: The stages of the run.
        queues: ``queues[n]`` follows ``stages[n]``.
        wall_seconds: Wall time of the run.
    """
    tight = []
    for n, queue in enumerate(queues):
        put, get = _waits(stages, queues, n, wall_seconds=wall_seconds)
        if min(put, get) > _TIGHT:
            tight.append((queue, min(put, get)))
    return tight


def stage_paces(
    stages: Sequence[StageReport],
    queues: Sequence[QueueReport],
    *,
    wall_seconds: float,
    cores_busy: float = 0.0,
    cores: int | None = None,
    gpu_seconds: Mapping[str, float] | None = None,
) -> list[StagePace]:
    """Compute the saving of halving each stage, in stage order; empty if no items were processed.

    Args:
        stages: The stages of the run, or of its part so far.
        queues: ``queues[n]`` follows ``stages[n]``.
        wall_seconds: Wall time so far.
        cores_busy: CPU cores kept busy by the whole process.
        cores: CPU cores available to it; this machine's if omitted.
        gpu_seconds: GPU time by stage, if measured; one GPU for all.
    """
    if not wall_seconds or not any(stage.items for stage in stages):
        return []
    model = _Model(
        stages,
        queues,
        wall_seconds=wall_seconds,
        cores_busy=cores_busy,
        cores=cores or available_cores(),
        gpu_seconds=gpu_seconds or {},
    )
    before = model.pace(halved=None)
    # In the rest of the time, nothing was the limit.
    used = min(max(model.loads_of(halved=None), default=0.0), 1.0)
    return [
        StagePace(
            stage=stage.name,
            saving=max(1 - model.pace(halved=n) / before, 0.0) * used if before else 0.0,
            load=stage.load,
            cpu_share=model.cpu[n],
            gpu_share=model.gpu[n],
        )
        for n, stage in enumerate(stages)
    ]


def find_bottleneck(
    stages: Sequence[StageReport],
    queues: Sequence[QueueReport],
    *,
    wall_seconds: float,
    cores_busy: float = 0.0,
    paces: Sequence[StagePace] | None = None,
) -> Bottleneck | None:
    """Find the stage that sets the pace, from ``stage_paces``' arguments or result; None without items."""
    if paces is None:
        paces = stage_paces(stages, queues, wall_seconds=wall_seconds, cores_busy=cores_busy)
    if not paces:
        return None
    # Items that were dropped had been produced faster than consumed, so no earlier stage sets the pace.
    first = max(
        (n + 1 for n, queue in enumerate(queues) if queue.dropped > _DROPPED * queue.count), default=0
    )
    n = max(range(first, len(paces)), key=lambda index: (paces[index].saving, paces[index].load))
    return Bottleneck(
        stage=paces[n].stage,
        score=min(2 * paces[n].saving, 1.0),
        evidence=_evidence(stages, queues, n, wall_seconds=wall_seconds),
    )


class _Model:
    """Loads of all resources of a run, as shares of its wall time."""

    def __init__(
        self,
        stages: Sequence[StageReport],
        queues: Sequence[QueueReport],
        *,
        wall_seconds: float,
        cores_busy: float,
        cores: int,
        gpu_seconds: Mapping[str, float],
    ) -> None:
        own = [stage.cpu_seconds / wall_seconds for stage in stages]
        # Native threads belong to no stage: split them by the time that stages spent waiting.
        elsewhere = max(cores_busy - sum(own), 0.0)
        waited = [max(stage.busy_seconds - stage.cpu_seconds, 0.0) for stage in stages]
        parts = [seconds / sum(waited) if sum(waited) else 1 / len(stages) for seconds in waited]
        self.cpu = [(mine + elsewhere * part) / cores for mine, part in zip(own, parts, strict=True)]
        self.gpu = [gpu_seconds.get(stage.name, 0.0) / wall_seconds for stage in stages]
        full = {"cpu": sum(self.cpu), "gpu": sum(self.gpu)}
        self.stages = []
        for n, stage in enumerate(stages):
            crowd = max(full["cpu"] if own[n] else 0.0, full["gpu"] if self.gpu[n] else 0.0)
            queued = max(stage.load - (own[n] + self.gpu[n]) / stage.workers, 0.0)
            share = _QUEUED * min(max(crowd - _FULL, 0.0) / (1 - _FULL), 1.0)
            self.stages.append(stage.load - queued * share)
        both = [min(_waits(stages, queues, n, wall_seconds=wall_seconds)) for n in range(len(queues))]
        self.pairs = {n: min(_SERIAL + share, 1.0) for n, share in enumerate(both) if share > _TIGHT}

    def loads_of(self, *, halved: int | None) -> list[float]:
        """Every load, with one stage at half its cost."""
        factor = [0.5 if n == halved else 1.0 for n in range(len(self.stages))]
        loads = [load * part for load, part in zip(self.stages, factor, strict=True)]
        pairs = [part * (loads[n] + loads[n + 1]) for n, part in self.pairs.items()]
        shared = [
            sum(load * part for load, part in zip(device, factor, strict=True))
            for device in (self.cpu, self.gpu)
        ]
        return [*loads, *shared, *pairs]

    def pace(self, *, halved: int | None) -> float:
        """A number proportional to the wall time."""
        return float(sum(load**_SHARPNESS for load in self.loads_of(halved=halved)) ** (1 / _SHARPNESS))


def _waits(
    stages: Sequence[StageReport], queues: Sequence[QueueReport], n: int, *, wall_seconds: float
) -> tuple[float, float]:
    """Shares of the wall time that the two sides of a queue waited: producers, consumers."""
    # Only one worker waits for room at a time: the others wait for their turn.
    put = min(queues[n].put_wait_seconds / wall_seconds, 1.0)
    return put, min(queues[n].get_wait_seconds / (wall_seconds * stages[n + 1].workers), 1.0)


def _evidence(
    stages: Sequence[StageReport], queues: Sequence[QueueReport], n: int, *, wall_seconds: float
) -> str:
    """Format the measurements of a stage as one sentence."""
    stage = stages[n]
    parts = [f"{stage.name} was busy {stage.load:.0%} of the time"]
    if n > 0:
        before = queues[n - 1]
        waited, _ = _waits(stages, queues, n - 1, wall_seconds=wall_seconds)
        lost = before.dropped / before.count if before.count else 0.0
        if lost > waited:
            parts.append(f"{lost:.0%} of the items from {stages[n - 1].name} were dropped before it")
        else:
            parts.append(f"{stages[n - 1].name} waited {waited:.0%} of it to hand over")
    if n < len(queues):
        _, starved = _waits(stages, queues, n, wall_seconds=wall_seconds)
        parts.append(f"{stages[n + 1].name} waited {starved:.0%} of it for items")
    return ", ".join(parts)
