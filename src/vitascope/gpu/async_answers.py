"""What the network of an ``AsyncPipeline`` gave becomes results: masks, of each frame's kind, where the frame was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from vitascope.errors import EngineError
from vitascope.gpu.async_batches import Call, Job
from vitascope.gpu.batching.batch_arrays import leaves, map_leaves, split
from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_cupy, to_kind, to_numpy
from vitascope.gpu.kernels.mask_postprocess import postprocess_mask

if TYPE_CHECKING:
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

__all__ = ["settle_on_gpu", "settle_on_host"]


def settle_on_host(jobs: Sequence[Job], *, as_mask: bool) -> None:
    """Make frames' answers their results, without a GPU.

    Args:
        jobs: Any part of a call, each with its own answer.
        as_mask: Make masks of scores.

    Raises:
        EngineError: The scores are none.
    """
    for job in jobs:
        answer = _mask_of_row(job.data) if as_mask else job.data
        job.data = _in_kind(answer, job, on_gpu=False)
        job.call = None


def settle_on_gpu(call: Call, *, as_mask: bool, stream: Any, pool: PinnedMemoryPool) -> None:
    """Make the answers of all frames of a call their results, whichever thread comes first; others wait for that.

    One kernel makes the masks of a call, and one copy brings all that is wanted on the host down. The network is
    through.

    Args:
        call: What the network gave for the frames.
        as_mask: Make masks of scores.
        stream: The ``cupy.cuda.Stream`` of this thread; nothing else may be current.
        pool: Lends the page-locked memory that results come down to.

    Raises:
        EngineError: The scores are none.
        MemoryLimitError: The pool lends nothing any more.
    """
    with call.lock:
        if call.output is None:
            return
        jobs, count = call.jobs, len(call.jobs)
        answers = call.output
        if isinstance(answers, list):  # an entry for each row
            answers = [_mask_of_row(row) if as_mask else row for row in answers[:count]]
        elif as_mask:
            answers = _mask_of(next(leaves(answers))[:count])
        else:
            answers = map_leaves(answers, lambda array: array[:count])
        if not all(job.wants_gpu for job in jobs):
            landed = split(_brought_down(answers, stream=stream, pool=pool), rows=count, count=count)
            for job, row in zip(jobs, landed, strict=True):
                if not job.wants_gpu:
                    job.data = _in_kind(row, job, on_gpu=False)
        if any(job.wants_gpu for job in jobs):
            for job, row in zip(jobs, split(answers, rows=count, count=count), strict=True):
                if job.wants_gpu:
                    job.data = _in_kind(row, job, on_gpu=True)
            stream.synchronize()  # from here on any stream may read them
        for job in jobs:
            job.call = None
        call.output = None


def _brought_down(answers: Any, *, stream: Any, pool: PinnedMemoryPool) -> Any:
    """The same form with all arrays of the GPU on the host, once they are there."""
    # Imported here: page-locked memory is of no use without a GPU.
    from vitascope.gpu.download import Download

    arrays = [import_cupy().ascontiguousarray(to_cupy(leaf)) for leaf in leaves(answers) if _is_on_gpu(leaf)]
    if not arrays:
        return answers
    landed = iter(Download(arrays, stream=stream, pool=pool).wait())
    return map_leaves(answers, lambda leaf: next(landed) if _is_on_gpu(leaf) else leaf)


def _is_on_gpu(leaf: Any) -> bool:
    try:
        return lies_on_gpu(leaf)
    except TypeError:  # a number, or something of the user's own
        return False


def _in_kind(answer: Any, job: Job, *, on_gpu: bool) -> Any:
    """Every array of an answer in the frame's kind; numbers and what is the user's own as they are."""

    def changed(leaf: Any) -> Any:
        try:
            kind_of(leaf)
        except TypeError:
            return leaf
        return to_kind(leaf if on_gpu else to_numpy(leaf), job.kind, on_gpu=on_gpu)

    return map_leaves(answer, changed)


def _mask_of_row(answer: Any) -> Any:
    scores = next(leaves(answer))
    return _mask_of(scores[None])[0]


def _mask_of(scores: Any) -> Any:
    """Class maps of several classes, masks of one: uint8 [N, h, w] of float scores [N, C, h, w], where they are."""
    if len(scores.shape) != 4:
        raise EngineError(
            f"a mask is made of scores [C, h, w], and the network gave {list(scores.shape[1:])}"
        )
    own = to_cupy(scores) if lies_on_gpu(scores) else to_numpy(scores)
    kind: Literal["argmax", "threshold"] = "argmax" if own.shape[1] > 1 else "threshold"
    return postprocess_mask(own, kind=kind)
