"""Real runs of a tuner with known speed: their clock is set by a scripted network."""

from __future__ import annotations

import numpy as np
import pytest

from scripted import BrightnessNetwork
from vitascope.config import Settings
from vitascope.errors import DeviceMemoryError
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation import film_run
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.tune import optimizer as search_time
from vitascope.tune.optimizer import ClipTrials

# All settings but batch and size are fixed: a grid of a few cells.
HELD = (
    "processing.num_threads=1",
    "model.num_workers=1",
    "pipeline.stages.decode.threads=1",
    "pipeline.stages.postprocess.threads=1",
    "processing.max_queue_size=32",
    "performance.mode=auto",
    "video.scene_cut_threshold=0",  # frames that wait for a certain cut would make calls of other sizes
)

# Batches of 4 are by far the fastest, and 8 do not fit.
CALL_SECONDS = {1: 0.008, 2: 0.014, 4: 0.01}


class BatchNetwork(BrightnessNetwork):
    """Says how long it would take, by batch size; runs out of memory, and has errors like FP16's."""

    name = "rvm-scripted"

    def __init__(self, side):
        super().__init__()
        self.side = side
        self.frames, self.seconds = 0, 0.0

    def input_for(self, region_size):
        return NetworkInput((self.side or 128,) * 2, self.layout, self.mean, self.std)

    def infer(self, images, state):
        if len(images) > 4:
            raise DeviceMemoryError("8 frames do not fit")
        self.frames += len(images)
        self.seconds += CALL_SECONDS.get(len(images), 0.01) * (((self.side or 128) / 128) ** 2)
        found = super().infer(images, state)
        wrong = 0.1 if self.side == 64 else 0.0
        return [MatteEstimate(alpha=np.clip(one.alpha + wrong, 0, 1)) for one in found]


def script_runs(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Give runs these networks and speeds, so that other programs do not affect what is fastest.

    Returns:
        The settings of every run, in order, from now on.
    """
    opened, networks, by_the_clock = [], [], ClipTrials._speed

    def open_network(settings, *_, **__):
        opened.append(settings)
        networks.append(BatchNetwork(settings.model.longest_side))
        return ChosenNetwork(networks[-1], "scripted", None)

    def by_the_network(self, run, batch):
        assert by_the_clock(self, run, batch) > 0
        return networks[-1].frames / networks[-1].seconds

    monkeypatch.setattr(film_run, "open_network", open_network)
    monkeypatch.setattr(ClipTrials, "_speed", by_the_network)
    monkeypatch.setattr(search_time, "_TURNS", 1)
    return opened
