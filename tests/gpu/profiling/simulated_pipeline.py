"""Pipelines on a simulated clock: the rules of ``Pipeline``, with cores and a GPU that stages share.

To see what halving a stage does to the wall time, simulate twice with the same random numbers.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from vitascope.gpu.pipeline.queues import QueueReport
from vitascope.gpu.pipeline.report import Latency, PipelineReport, StageReport


@dataclass(frozen=True)
class SimulatedStage:
    """A stage, with the average costs of an item (of a batch, in a batched stage)."""

    name: str
    cpu_ms: float = 0.0
    gpu_ms: float = 0.0
    """Time on the one GPU."""
    other_ms: float = 0.0
    """Waiting for something that no other stage uses: a decoder chip, a disk."""
    spread: float = 0.0
    """Standard deviation over mean of an item's costs (gamma distribution)."""
    workers: int = 1
    batch: int = 1
    room: int = 8
    """Number of items in the queue after it."""

    def halved(self) -> SimulatedStage:
        return replace(self, cpu_ms=self.cpu_ms / 2, gpu_ms=self.gpu_ms / 2, other_ms=self.other_ms / 2)


@dataclass(frozen=True)
class Outcome:
    report: PipelineReport
    gpu_seconds: dict[str, float]
    gpu_busy_share: float


Task: TypeAlias = Generator[Any, None, None]


class _Resource:
    def __init__(self, units: int) -> None:
        self.free = units
        self.waiting: deque[Task] = deque()


class _Queue:
    def __init__(self, room: int) -> None:
        self.room = room
        self.items = 0
        self.ended = False
        self.getters: deque[Task] = deque()
        self.putters: deque[Task] = deque()
        self.put_wait = self.get_wait = self.held = 0.0
        self.count = 0
        self.changed_at = 0.0


class _Simulation:
    def __init__(self, stages: list[SimulatedStage], *, items: int, cores: int, seed: int) -> None:
        self.stages, self.items, self.cores = stages, items, cores
        self.now = 0.0
        self.events: list[tuple[float, int, Task]] = []
        self.order = itertools.count()
        self.processor, self.gpu = _Resource(cores), _Resource(1)
        self.queues = [_Queue(stage.room) for stage in stages[:-1]]
        self.busy = [0.0] * len(stages)
        self.cpu = [0.0] * len(stages)
        self.gpu_used = [0.0] * len(stages)
        self.taken = [0] * len(stages)
        self.turn = [0] * len(stages)
        self.lines: list[dict[int, deque[Task]]] = [{} for _ in stages]
        self.alive = [stage.workers for stage in stages]
        self.durations: list[list[float]] = [[] for _ in stages]
        self.luck = [self._luck(stage, np.random.default_rng((seed, n))) for n, stage in enumerate(stages)]

    def _luck(self, stage: SimulatedStage, random: np.random.Generator) -> list[float]:
        if not stage.spread:
            return [1.0] * self.items
        shape = 1 / stage.spread**2
        return list(random.gamma(shape, 1 / shape, self.items))

    def run(self) -> None:
        for n, stage in enumerate(self.stages):
            for _ in range(stage.workers):
                self._step(self._worker(n, stage))
        while self.events:
            self.now, _, task = heapq.heappop(self.events)
            self._step(task)

    def _step(self, task: Task) -> None:
        """Run a task until it waits: for some seconds, or in a line until it is woken."""
        for wait in task:
            if isinstance(wait, deque):
                wait.append(task)
            else:
                heapq.heappush(self.events, (self.now + wait, next(self.order), task))
            return

    def _wake_one(self, line: deque[Task]) -> None:
        if line:
            heapq.heappush(self.events, (self.now, next(self.order), line.popleft()))

    def _worker(self, n: int, stage: SimulatedStage) -> Task:
        inlet = self.queues[n - 1] if n else None
        outlet = self.queues[n] if n < len(self.queues) else None
        while True:
            ticket, gathered = self.taken[n], 0
            while gathered < stage.batch:
                if inlet is None and self.taken[n] == self.items:
                    break
                if inlet is not None:
                    since = self.now
                    while not inlet.items and not inlet.ended:
                        yield inlet.getters
                    inlet.get_wait += self.now - since
                    if not inlet.items:
                        break
                    self._note(inlet, -1)
                    self._wake_one(inlet.putters)
                if not gathered:
                    ticket = self.taken[n]
                self.taken[n] += 1
                gathered += 1
            if not gathered:
                break
            since = self.now
            yield from self._serve(n, stage, self.luck[n][ticket] * gathered / stage.batch)
            self.busy[n] += self.now - since
            self.durations[n].append(self.now - since)
            while self.turn[n] != ticket:
                yield self.lines[n].setdefault(ticket, deque())
            for _ in range(gathered if outlet is not None else 0):
                assert outlet is not None
                since = self.now
                while outlet.items >= outlet.room:
                    yield outlet.putters
                outlet.put_wait += self.now - since
                self._note(outlet, +1)
                outlet.count += 1
                self._wake_one(outlet.getters)
            self.turn[n] = ticket + gathered
            self._wake_one(self.lines[n].pop(self.turn[n], deque()))
        self.alive[n] -= 1
        if not self.alive[n] and outlet is not None:
            outlet.ended = True
            while outlet.getters:
                self._wake_one(outlet.getters)

    def _serve(self, n: int, stage: SimulatedStage, luck: float) -> Task:
        for resource, mean_ms in ((self.processor, stage.cpu_ms), (self.gpu, stage.gpu_ms)):
            left = mean_ms * luck / 1e3
            while left > 1e-12:
                # Slices: schedulers take turns, so that a long job does not block others.
                piece = min(left, 2e-3)
                if resource.free:
                    resource.free -= 1
                else:
                    yield resource.waiting  # whoever wakes it passes the unit on
                yield piece
                if resource.waiting:
                    self._wake_one(resource.waiting)
                else:
                    resource.free += 1
                left -= piece
        self.cpu[n] += stage.cpu_ms * luck / 1e3
        self.gpu_used[n] += stage.gpu_ms * luck / 1e3
        if stage.other_ms:
            yield stage.other_ms * luck / 1e3

    def _note(self, queue: _Queue, change: int) -> None:
        queue.held += queue.items * (self.now - queue.changed_at)
        queue.changed_at = self.now
        queue.items += change


def simulate(stages: list[SimulatedStage], *, items: int = 200, cores: int = 16, seed: int = 0) -> Outcome:
    """Run to the end, and report as a pipeline does."""
    run = _Simulation(stages, items=items, cores=cores, seed=seed)
    run.run()
    assert run.taken == [items] * len(stages)
    wall = run.now
    reports = tuple(
        StageReport(
            name=stage.name,
            workers=stage.workers,
            items=items,
            busy_seconds=run.busy[n],
            cpu_seconds=run.cpu[n],
            load=min(run.busy[n] / (wall * stage.workers), 1.0),
            latency=_latency(run.durations[n]),
        )
        for n, stage in enumerate(stages)
    )
    queues = tuple(
        QueueReport(
            name=f"{before.name} > {after.name}",
            count=queue.count,
            dropped=0,
            put_wait_seconds=queue.put_wait,
            get_wait_seconds=queue.get_wait,
            occupancy=0,
            occupancy_mean=queue.held / wall,
            occupancy_max=queue.room,
            nbytes_max=0,
        )
        for before, after, queue in zip(stages, stages[1:], run.queues, strict=False)
    )
    report = PipelineReport(
        stages=reports,
        queues=queues,
        latency=Latency(count=items),
        wall_seconds=wall,
        cores_busy=sum(run.cpu) / wall,
        finished=True,
        stopped=False,
        bottleneck=None,
    )
    gpu_seconds = {stage.name: run.gpu_used[n] for n, stage in enumerate(stages) if stage.gpu_ms}
    return Outcome(report, gpu_seconds, sum(run.gpu_used) / wall)


def _latency(durations: list[float]) -> Latency:
    values = np.array(durations)
    p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
    return Latency(
        count=len(values),
        mean_seconds=float(values.mean()),
        p50_seconds=p50,
        p95_seconds=p95,
        p99_seconds=p99,
        max_seconds=float(values.max()),
    )


def gains(
    stages: list[SimulatedStage], outcome: Outcome, *, items: int, cores: int, seed: int
) -> dict[str, float]:
    """Return by stage how many times faster the run gets if that stage costs half."""
    before = outcome.report.wall_seconds
    after = {}
    for n, stage in enumerate(stages):
        changed = [*stages[:n], stage.halved(), *stages[n + 1 :]]
        faster = simulate(changed, items=items, cores=cores, seed=seed)
        after[stage.name] = before / faster.report.wall_seconds
    return after


def random_pipeline(random: np.random.Generator) -> tuple[list[SimulatedStage], int]:
    """Make three to six stages with costs from 1 to 30 ms, some on a shared GPU, and the number of cores."""
    count = int(random.integers(3, 7))
    stages = []
    for n in range(count):
        cost = float(np.exp(random.uniform(0, np.log(30))))
        kind = str(random.choice(["cpu", "gpu", "other", "mixed"]))
        share = float(random.uniform(0.2, 0.8)) if kind == "mixed" else 1.0
        middle = 0 < n < count - 1
        batch = int(random.choice([1, 1, 4, 8])) if middle else 1
        workers = int(random.choice([1, 1, 2, 4])) if middle and batch == 1 else 1
        stages.append(
            SimulatedStage(
                name=f"stage{n}",
                cpu_ms=batch * cost * share if kind in ("cpu", "mixed") else 0.0,
                gpu_ms=batch * cost if kind == "gpu" else 0.0,
                other_ms=batch * cost * (1 - share) if kind == "mixed" else batch * cost * (kind == "other"),
                spread=float(random.choice([0.0, 0.1, 0.5])),
                workers=workers,
                batch=batch,
                room=int(random.choice([2, 4, 8, 16])),
            )
        )
    return stages, int(random.choice([1, 2, 4, 16]))
