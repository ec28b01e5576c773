"""Finds what a finished job leaves in memory without garbage collection."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

import av

from vitascope.frames import Frame
from vitascope.gpu.pipeline.pipeline import Node, Pipeline, Worker
from vitascope.gpu.pipeline.queues import BoundedQueue
from vitascope.gpu.pipeline.stages import Stage

HEAVY = (
    Frame,
    Pipeline,
    Node,
    Worker,
    BoundedQueue,
    Stage,
    av.VideoFrame,
    av.Packet,
    av.VideoCodecContext,
    av.container.InputContainer,
    av.container.OutputContainer,
)
"""Objects that hold a video's memory."""


def heavy_objects() -> Counter[str]:
    # By type: asking a lazy module for its class would load it.
    return Counter(type(thing).__qualname__ for thing in gc.get_objects() if issubclass(type(thing), HEAVY))


def left_by(job: Callable[[], object]) -> Counter[str]:
    """Count the heavy objects that a job's second run adds to those after its first."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        job()
        before = heavy_objects()
        job()
        return heavy_objects() - before
    finally:
        if was_enabled:
            gc.enable()
