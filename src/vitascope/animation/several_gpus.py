"""Several GPUs that draw one portrait: each has an animator and a thread of its own, and takes its share of a video."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING

from vitascope.animation.face import FaceMotion, RgbPicture

if TYPE_CHECKING:
    from vitascope.animation.animator import OpenedAnimator


def open_on_several(
    gpus: Sequence[int], open_on: Callable[[int, OpenedAnimator | None], OpenedAnimator], stack: ExitStack
) -> OpenedAnimator:
    """Open an animator on each GPU, and let them share the motions of each call.

    Args:
        gpus: Their numbers; one that is there several times gets as many animators.
        open_on: Opens the animator of a GPU; told the first one, or None. Runs on the thread that will draw with it.
        stack: Ends the threads, before what ``open_on`` put on it is closed.
    """
    opened: list[OpenedAnimator] = []
    threads = [ThreadPoolExecutor(1, thread_name_prefix=f"vitascope-gpu-{gpu}") for gpu in gpus]
    try:
        for thread, gpu in zip(threads, gpus, strict=True):
            opened.append(thread.submit(open_on, gpu, opened[0] if opened else None).result())
    finally:
        for thread in threads:
            stack.callback(thread.shutdown)
    first = opened[0]
    size = first.batch_size
    last_seen: FaceMotion | None = None

    def relaxed(motion: FaceMotion) -> FaceMotion:
        """A lost face goes back from where it was seen last, which perhaps another GPU drew."""
        nonlocal last_seen
        if not first.animator.needs_driver_picture:
            return motion
        if motion.face is not None and motion.driver_rgb is not None:
            last_seen = motion
            return motion
        return motion if last_seen is None else replace(last_seen, presence=motion.presence)

    def animate_batch(motions: Sequence[FaceMotion]) -> list[RgbPicture]:
        given = [relaxed(motion) for motion in motions]
        parts = [given[start : start + size] for start in range(0, len(given), size)]
        drawn = [
            thread.submit(one.animate_batch, part)
            for thread, one, part in zip(cycle(threads), cycle(opened), parts, strict=False)
        ]
        return [picture for part in drawn for picture in part.result()]

    def set_strength(strength: float) -> None:
        for one in opened:
            one.set_strength(strength)

    return replace(
        first,
        set_strength=set_strength,
        animate_batch=animate_batch,
        batch_size=size * len(gpus),
        device_label=", ".join(one.device_label for one in opened),
    )
