"""A network over consecutive frames of one stream: what it remembers ends where a shot ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vitascope.errors import DeviceMemoryError
from vitascope.models.network import MatteEstimate, MattingNetwork

__all__ = ["ShotInference", "next_part"]


class ShotInference:
    """Runs one stream's frames through a network; owns the stream's recurrent state.

    Args:
        network: Shared with other streams if need be; only this object's state is changed.
        warm_up_frames: How often a recurrent network sees the first picture of a shot before its answer counts.
    """

    def __init__(self, network: MattingNetwork, *, warm_up_frames: int) -> None:
        self._network = network
        self._warm_up_frames = warm_up_frames
        self._state = network.new_state()
        self._is_cold = network.recurrent

    def run(
        self,
        images: Any,
        starts_shot: Sequence[bool],
        *,
        most_frames: int | None = None,
        on_shortage: Callable[[DeviceMemoryError, int], object] | None = None,
    ) -> list[MatteEstimate]:
        """Matte the next frames, a shot at a time.

        Args:
            images: [T, E, ...] as the network's ``input_for`` says, NumPy or CuPy as the network takes them.
            starts_shot: For each of the T frames, True where a new shot begins.
            most_frames: Most frames of one call; all of a shot's when omitted.
            on_shortage: Told of a GPU that ran out of memory, and how many frames a call will have from then on. What
                was matted before stays matted, and the call that failed is made again with fewer frames.

        Returns:
            T estimates.

        Raises:
            DeviceMemoryError: Nobody listens for a shortage, or a single frame does not fit.
        """
        estimates: list[MatteEstimate] = []
        most = most_frames or max(len(images), 1)
        while len(estimates) < len(images):
            first = len(estimates)
            end = next_part(starts_shot, first, most)
            if starts_shot[first]:
                self._state.reset()
                self._is_cold = self._network.recurrent
            try:
                estimates += self._run_shot(images[first:end])
            except DeviceMemoryError as error:
                if on_shortage is None or end - first == 1:
                    raise
                most = (end - first) // 2
                on_shortage(error, most)
        return estimates

    def _run_shot(self, images: Any) -> list[MatteEstimate]:
        if self._is_cold:
            # A recurrent network doubts what it sees for the first time: whole torsos are missing from the first
            # frames of a shot. Its memory settles when it is shown the same picture a few times.
            for _ in range(self._warm_up_frames):
                self._network.infer(images[:1], self._state)
            self._is_cold = False
        return self._network.infer(images, self._state)


def next_part(starts_shot: Sequence[bool], first: int, most: int) -> int:
    """Where the part that begins at frame ``first`` ends: at the next shot, after ``most`` frames, or at the end."""
    end = min(first + most, len(starts_shot))
    return next((step for step in range(first + 1, end) if starts_shot[step]), end)
