"""Mattes of a job on the GPU on their way into the cache: they come down with the pictures that they made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput
from vitascope.segmentation.matte_cache import MatteCache

__all__ = ["KeptMatte", "MatteKeeper"]


@dataclass(slots=True, eq=False)
class KeptMatte:
    """What the cache shall have of one frame."""

    arrays: list[Any]
    """gain and offset, CuPy, dense; none where the frame before has the very same."""
    starts_shot: bool
    memory: Sequence[FloatArray] | None
    """The network's, after this frame; None but now and then."""


class MatteKeeper:
    """Gives mattes to the cache, in order.

    ``come_down`` is called by the thread that launches, ``keep`` by the one that waits for what comes down.

    Args:
        cache: Of the stretch.
        wanted: What the network sees of a whole eye.
        with_foreground: Keep the foreground's planes, where there are any.
    """

    def __init__(self, cache: MatteCache, wanted: NetworkInput, *, with_foreground: bool) -> None:
        self._cache, self._wanted, self._with_foreground = cache, wanted, with_foreground
        self._sent: MatteEstimate | None = None
        self._last: MatteEstimate | None = None

    def come_down(
        self,
        estimate: MatteEstimate,
        gain: Any,
        offset: Any,
        *,
        starts_shot: bool,
        memory: Sequence[FloatArray] | None,
    ) -> KeptMatte:
        """What has to come down for the next frame.

        Args:
            estimate: Its matte: the same object as the frame before where it serves again.
            gain: Its coefficients on the GPU, [E, C, h, w].
            offset: As ``gain``.
            starts_shot: True where nothing before it counts.
            memory: The network's after this frame, where it shall be kept.
        """
        is_same = estimate is self._sent and estimate.alpha is None
        self._sent = estimate
        arrays = [] if is_same else [self._planes(gain), self._planes(offset)]
        return KeptMatte(arrays, starts_shot, memory)

    def keep(self, kept: KeptMatte, views: Sequence[Any]) -> None:
        """Give the next frame's matte to the cache.

        Args:
            kept: What ``come_down`` gave.
            views: Its arrays in the host's memory; copied.
        """
        if views:
            # Copies: page-locked memory is for what is on its way.
            self._last = MatteEstimate(gain=np.array(views[0]), offset=np.array(views[1]))
        assert self._last is not None  # only a later frame can be like the one before
        self._cache.keep(self._last, starts_shot=kept.starts_shot, wanted=self._wanted, memory=kept.memory)

    def _planes(self, planes: Any) -> Any:
        wanted = planes if self._with_foreground else planes[:, -1:]
        return wanted if wanted.flags.c_contiguous else wanted.copy()
