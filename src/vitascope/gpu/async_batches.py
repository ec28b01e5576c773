"""Frames on their way through an ``AsyncPipeline``, one by one and then in the batches of the network's calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from vitascope.gpu.async_host import HostCall
from vitascope.gpu.async_rows import BatchRow
from vitascope.gpu.batching.lanes import Origin
from vitascope.gpu.interchange import ArrayKind
from vitascope.gpu.queues import nbytes_of

__all__ = ["Call", "Job", "names_of"]


@dataclass(slots=True, eq=False)
class Job:
    """One frame."""

    frame_id: Hashable
    frame: Any
    """As it was submitted; once decoded, the picture."""
    submitted_at: float
    """``perf_counter`` seconds."""
    origin: Origin | None = None
    """From when on the frame may be read, where it is on a GPU."""
    kind: ArrayKind = "numpy"
    """What the result is to be."""
    wants_gpu: bool = False
    row: BatchRow | None = None
    """Where the network's input is to be written; once it is prepared, where it is: None when it lies elsewhere."""
    prepared: Any = None
    """The network's input without its batch axis."""
    ready: Any = None
    """``cupy.cuda.Event`` behind it; None on a CPU."""
    call: Call | None = None
    """The call that it shares, from the network's answer until that is taken apart."""
    data: Any = None
    """The network's answer, then what becomes of it."""
    batch_size: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """Time in each stage's own work."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps alive, for the bounds of queues."""
        return nbytes_of(self.frame) + nbytes_of(self.prepared) + nbytes_of(self.data)


@dataclass(slots=True, eq=False)
class Call:
    """One call of the network that was launched, and its frames."""

    jobs: Sequence[Job]
    label: str
    """The frames, as messages call them."""
    rows: int = 0
    """Of the batch; what is more than frames only fills it up."""
    on_host: HostCall | None = None
    """The call on a CPU."""
    started: Any = None
    """``cupy.cuda.Event`` with a timer before the network; None on a CPU."""
    ended: Any = None
    """The one behind it."""
    output: Any = None
    """What the network gave for all of them, on a GPU perhaps before it is computed; until it is taken apart."""
    lock: Lock = field(default_factory=Lock)
    """Held by whoever takes the answer apart, where several threads may want to."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps alive."""
        return sum(job.nbytes for job in self.jobs)


def names_of(jobs: Sequence[Job]) -> str:
    """Frames, as messages call them."""
    names = ", ".join(str(job.frame_id) for job in jobs)
    return f"frame {names}" if len(jobs) == 1 else f"frames {names}"
