"""Launches of ``composite.cu`` that differ in pointers alone: described once, then patched from frame to frame.

Filling in the job takes longer than the kernel. Frames of one film differ only in where their planes lie, so the job
of the first is kept, with what each of its pointers is relative to.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitascope.gpu.kernels.composite_job import JOB, MAX_EYES
from vitascope.gpu.kernels.cuda_module import by_value

__all__ = ["JobArrays", "Launch", "LaunchPlans", "array_layout"]

_MOST_PLANS = 256
_PARAMETER = np.dtype((np.void, JOB.itemsize))


@dataclass(frozen=True, slots=True, eq=False)
class JobArrays:
    """The CuPy arrays that a job points into; None where it has none."""

    luma: Any
    chroma: Any
    behind_luma: Any = None
    behind_chroma: Any = None
    alpha: Any = None
    made_luma: Any = None
    made_chroma: Any = None
    gain: Any = None
    offset: Any = None

    def as_tuple(self) -> tuple[Any, ...]:
        """In the order of the fields."""
        return (
            self.luma, self.chroma, self.behind_luma, self.behind_chroma, self.alpha,
            self.made_luma, self.made_chroma, self.gain, self.offset,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A launch, with the job of the frame that it was described for."""

    kernel: Any
    grid: tuple[int, int, int]
    shared_bytes: int
    job: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    launch: Launch
    words: Any
    """The job as uint64."""
    pointers: tuple[tuple[int, int, int], ...]
    """Word of the job, array that it points into, and bytes from that array's beginning."""


class LaunchPlans:
    """Launches by what they have in common."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, _Plan] = {}

    def job(self, key: Hashable, arrays: JobArrays, describe: Callable[[], Launch]) -> tuple[Launch, Any]:
        """The launch, and its job with pointers into these arrays, as a kernel's parameter (``by_value``).

        Args:
            key: All that the job holds but pointers; equal keys have arrays of equal layout.
            arrays: Of this frame.
            describe: Describes the launch of this frame, pointers included.
        """
        plan = self._plans.get(key)
        parts = arrays.as_tuple()
        if plan is None:
            launch = describe()
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = _Plan(launch, launch.job.view(np.uint64).copy(), _pointers(launch.job, parts))
            return launch, by_value(launch.job)
        words = plan.words.copy()
        for word, part, beyond in plan.pointers:
            words[word] = parts[part].data.ptr + beyond
        # Not by way of the job's own type, which NumPy compares with the words' field by field, in Python.
        return plan.launch, words.view(_PARAMETER)


def array_layout(array: Any) -> Hashable:
    """What a kernel's code and job depend on, of an array: all but where it lies."""
    return None if array is None else (array.shape, array.strides, array.dtype.char, array.data.ptr % 16)


def _pointer_words() -> Sequence[tuple[int, int]]:
    """Words of a job that are pointers, and the field of ``JobArrays`` that each points into."""
    fields: Any = JOB.fields

    def at(dtype: Any, *names: str) -> int:
        offset = 0
        for name in names:
            dtype, step = dtype.fields[name][:2]
            offset += step
        return offset

    words = [
        (at(JOB, "frame", "luma"), 0),
        (at(JOB, "frame", "chroma"), 1),
        (at(JOB, "behind", "luma"), 2),
        (at(JOB, "behind", "chroma"), 3),
        (at(JOB, "alpha"), 4),
        (at(JOB, "result", "luma"), 5),
        (at(JOB, "result", "chroma"), 6),
    ]
    eyes, start = fields["eye"][:2]
    eye = eyes.base
    for number in range(MAX_EYES):
        for name, part in (("gain", 7), ("offset", 8)):
            for which in ("alpha", "residual"):
                words.append((start + number * eye.itemsize + at(eye, name, which), part))
    return [(offset // 8, part) for offset, part in words]


_WORDS = _pointer_words()


def _pointers(job: Any, parts: tuple[Any, ...]) -> tuple[tuple[int, int, int], ...]:
    words = job.view(np.uint64)
    return tuple(
        (word, part, int(words[word]) - parts[part].data.ptr)
        for word, part in _WORDS
        if words[word] and parts[part] is not None
    )
