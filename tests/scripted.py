"""A matting network with predictable answers: it sees people where the picture is bright."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation import film_run
from vitascope.segmentation.matting.networks import ChosenNetwork


class ScriptedState:
    """Counts the frames of a stream since its last reset."""

    def __init__(self) -> None:
        self.seen = 0
        self.resets = 0

    def reset(self) -> None:
        self.seen = 0
        self.resets += 1


class BrightnessNetwork:
    """Alpha is 1 where the mean of RGB exceeds a half, at a network size of 32 x 48."""

    name = "scripted"
    engine_name = "scripted"

    def __init__(self, *, recurrent: bool = False, layout: str = "NCHW", normalise: bool = False) -> None:
        self.recurrent = recurrent
        self.calls: list[tuple[int, int]] = []  # (frames, eyes) of each call
        self.states: list[ScriptedState] = []
        self.mean, self.std = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)) if normalise else ((0.0,) * 3, (1.0,) * 3)
        self.layout = layout

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        size = (32, 48) if region_size[1] >= region_size[0] else (48, 32)
        return NetworkInput(size, self.layout, self.mean, self.std)

    def new_state(self) -> ScriptedState:
        self.states.append(ScriptedState())
        return self.states[-1]

    def infer(self, images: np.ndarray, state: ScriptedState) -> list[MatteEstimate]:
        self.calls.append(images.shape[:2])
        planes = images if self.layout == "NCHW" else np.moveaxis(images, -1, 2)
        rgb = planes * np.array(self.std).reshape(3, 1, 1) + np.array(self.mean).reshape(3, 1, 1)
        state.seen += len(images)
        return [MatteEstimate(alpha=(frame.mean(axis=1) > 0.5).astype(np.float32)) for frame in rgb]

    def close(self) -> None:
        pass


def segment_with(monkeypatch: pytest.MonkeyPatch, network: MattingNetwork, *, name: str = "scripted") -> None:
    """Give all segmenters this network, whichever they ask for."""
    monkeypatch.setattr(film_run, "open_network", lambda *_, **__: ChosenNetwork(network, name, None))
