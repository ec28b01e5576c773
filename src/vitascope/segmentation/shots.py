"""A network over consecutive frames of one stream: what it remembers ends where a shot ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitascope.models.network import MatteEstimate, MattingNetwork

__all__ = ["ShotInference"]


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

    def run(self, images: Any, starts_shot: Sequence[bool]) -> list[MatteEstimate]:
        """Matte the next frames.

        Args:
            images: [T, E, ...] as the network's ``input_for`` says, NumPy or CuPy as the network takes them.
            starts_shot: For each of the T frames, True where a new shot begins.

        Returns:
            T estimates.
        """
        estimates: list[MatteEstimate] = []
        first = 0
        for step, starts in enumerate(starts_shot):
            if starts:
                estimates += self._run_shot(images[first:step])
                first = step
                self._state.reset()
                self._is_cold = self._network.recurrent
        return estimates + self._run_shot(images[first:])

    def _run_shot(self, images: Any) -> list[MatteEstimate]:
        if len(images) == 0:
            return []
        if self._is_cold:
            # A recurrent network doubts what it sees for the first time: whole torsos are missing from the first
            # frames of a shot. Its memory settles when it is shown the same picture a few times.
            for _ in range(self._warm_up_frames):
                self._network.infer(images[:1], self._state)
            self._is_cold = False
        return self._network.infer(images, self._state)
