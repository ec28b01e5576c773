"""The requests that wait, and the rule that picks the next batch of them. No threads, no clock of its own.

In order of service: who starves; then level by level those in time, then those of the level whose deadline passed and
who were put back. A request that is picked takes along the earlier ones of its stream, whatever their level, so that
a stream is never reordered.

Requests of one batch are alike in shape and kind. Those of another kind wait for a batch of their own, which is sent
by the same rules.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, takewhile
from typing import Any

from vitascope.gpu.toolkit.batching.requests import BatchConfig, InferenceRequest, PriorityLevel, Promise

__all__ = ["Waiting", "WaitingRoom"]


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the room."""

    request: InferenceRequest
    kind: Hashable
    """Equal for requests that can be stacked."""
    number: int
    """Order of arrival."""
    arrived: float
    future: Promise = field(default_factory=Future)
    origin: Any = None
    """The submitting thread's streams, for the batcher."""


class WaitingRoom:
    """Requests by level, kind and stream; each belongs to one caller at a time, who holds the lock.

    Args:
        config: Sizes.
        levels: The most urgent first.
        starvation_seconds: Who has waited this long goes before everyone; None: never.
    """

    def __init__(
        self, config: BatchConfig, *, levels: Sequence[PriorityLevel], starvation_seconds: float | None = None
    ) -> None:
        self.levels = tuple(levels)
        self._linger_seconds = [
            (config.timeout_ms if level.timeout_ms is None else level.timeout_ms) / 1e3
            for level in self.levels
        ]
        self._deadline_seconds = [
            math.inf if level.deadline_ms is None else level.deadline_ms / 1e3 for level in self.levels
        ]
        self._patience_seconds = list(map(min, self._linger_seconds, self._deadline_seconds))
        self._most = config.max_batch_size
        self._preferred = tuple(sorted(config.preferred_batch_sizes, reverse=True))
        self._starvation = starvation_seconds
        self._in_time: list[OrderedDict[int, Waiting]] = [OrderedDict() for _ in levels]
        self._put_back: list[OrderedDict[int, Waiting]] = [OrderedDict() for _ in levels]
        self._streams: dict[Hashable, OrderedDict[int, Waiting]] = {}
        self._kinds: dict[Hashable, int] = {}
        self._count = 0
        self._fills = min((self._most, *self._preferred))

    def __len__(self) -> int:
        """Requests waiting."""
        return self._count

    def has_room(self, level: int) -> bool:
        """True when one more of this level may come in."""
        return len(self._in_time[level]) + len(self._put_back[level]) < self.levels[level].max_queue_size

    def can_fill(self, kind: Hashable) -> bool:
        """True when there may be enough of a kind for a batch that is sent at once."""
        return self._kinds.get(kind, 0) >= self._fills

    def add(self, entry: Waiting) -> None:
        """Let one in; numbers and arrival times must rise."""
        self._in_time[entry.request.priority][entry.number] = entry
        self._kinds[entry.kind] = self._kinds.get(entry.kind, 0) + 1
        self._count += 1
        stream = entry.request.stream_id
        if stream is not None:
            self._streams.setdefault(stream, OrderedDict())[entry.number] = entry

    def expire(self, now: float) -> list[Waiting]:
        """Enforce deadlines: put back those who may wait on, and return, removed, those who may not."""
        rejected = []
        for level, (rule, deadline) in enumerate(zip(self.levels, self._deadline_seconds, strict=True)):
            if deadline == math.inf:
                continue
            line = self._in_time[level]
            while line and now >= next(iter(line.values())).arrived + deadline:
                number, entry = line.popitem(last=False)
                self._put_back[level][number] = entry
                if rule.on_deadline == "reject":
                    rejected.append(entry)
                    self._remove(entry)
        return rejected

    def take(self, now: float, *, closing: bool = False) -> list[Waiting]:
        """Remove and return the next batch.

        Args:
            now: The time.
            closing: Nobody comes any more, so nobody waits for others.

        Returns:
            At most ``max_batch_size`` requests of one kind; empty when it is better to wait.
        """
        due: set[Hashable] | None = None
        for kind in self._kinds_in_order(now):
            batch = self._candidates(kind, now)
            size = self._size_to_send(len(batch))
            if not size and batch:
                if due is None:
                    due = self._due_kinds(now)
                size = len(batch) if closing or kind in due else 0
            if size:
                for entry in batch[:size]:
                    self._remove(entry)
                return batch[:size]
        return []

    def wake_at(self) -> float | None:
        """Time to ask again though nobody came, after ``expire`` and ``take`` gave nothing; None: never."""
        earliest = None
        for patience, line in zip(self._patience_seconds, self._in_time, strict=True):
            if line:
                time = next(iter(line.values())).arrived + patience
                if earliest is None or time < earliest:
                    earliest = time
        return earliest

    def clear(self) -> list[Waiting]:
        """Remove and return everyone, in order of arrival."""
        everyone = sorted(self._everyone(), key=lambda entry: entry.number)
        for entry in everyone:
            self._remove(entry)
        return everyone

    def _everyone(self) -> Iterator[Waiting]:
        return chain.from_iterable(line.values() for line in (*self._in_time, *self._put_back))

    def _remove(self, entry: Waiting) -> None:
        level, stream = entry.request.priority, entry.request.stream_id
        if self._in_time[level].pop(entry.number, None) is None:
            del self._put_back[level][entry.number]
        self._count -= 1
        self._kinds[entry.kind] -= 1
        if not self._kinds[entry.kind]:
            del self._kinds[entry.kind]
        if stream is not None:
            del self._streams[stream][entry.number]
            if not self._streams[stream]:
                del self._streams[stream]

    def _size_to_send(self, ready: int) -> int:
        """Number to send at once when so many are ready; 0 where they wait for others."""
        if ready >= self._most:
            return self._most
        return next((size for size in self._preferred if size <= ready), 0)

    def _due_kinds(self, now: float) -> set[Hashable]:
        """Kinds of those who waited long enough; of one who stands behind another of its stream, the first one's."""
        due = set()
        for linger, line, put_back in zip(self._linger_seconds, self._in_time, self._put_back, strict=True):
            late = takewhile(partial(_has_waited, now, linger), line.values())
            for entry in chain(late, put_back.values()):
                due.add(next(iter(self._its_stream(entry))).kind)
                if len(due) == len(self._kinds):
                    return due
        return due

    def _kinds_in_order(self, now: float) -> list[Hashable]:
        if len(self._kinds) < 2:
            return list(self._kinds)
        return list(dict.fromkeys(entry.kind for entry in self._in_order(now)))

    def _candidates(self, kind: Hashable, now: float) -> list[Waiting]:
        """The next of one kind, at most a full batch; an entry never comes before an earlier one of its stream."""
        if len(self._in_time) == len(self._kinds) == 1 and not self._put_back[0]:
            return list(islice(self._in_time[0].values(), self._most))  # one line of one kind: as they came
        chosen: dict[int, Waiting] = {}
        for entry in self._in_order(now):
            if entry.kind != kind or entry.number in chosen:
                continue
            for earlier in self._its_stream(entry):
                if earlier.number > entry.number or earlier.kind != kind:
                    break
                chosen[earlier.number] = earlier
                if len(chosen) == self._most:
                    return list(chosen.values())
        return list(chosen.values())

    def _its_stream(self, entry: Waiting) -> Sequence[Waiting] | Iterator[Waiting]:
        stream = entry.request.stream_id
        return (entry,) if stream is None else iter(self._streams[stream].values())

    def _in_order(self, now: float) -> Iterator[Waiting]:
        starves = partial(_has_waited, now, math.inf if self._starvation is None else self._starvation)
        lines = (*self._in_time, *self._put_back)
        starving = chain.from_iterable(takewhile(starves, line.values()) for line in lines)
        yield from sorted(starving, key=lambda entry: entry.number)
        for line in chain.from_iterable(zip(self._in_time, self._put_back, strict=True)):
            yield from (entry for entry in line.values() if not starves(entry))


def _has_waited(now: float, seconds: float, entry: Waiting) -> bool:
    return now >= entry.arrived + seconds
