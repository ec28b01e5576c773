"""LivePortrait's networks with the authors' weights."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

from vitascope.errors import ModelError
from vitascope.models.liveportrait.appearance import AppearanceExtractor
from vitascope.models.liveportrait.folder import CHECKPOINTS, require_checkpoints
from vitascope.models.liveportrait.generator import SpadeGenerator
from vitascope.models.liveportrait.motion import MotionExtractor
from vitascope.models.liveportrait.retargeting import KeypointPerceptron, lip_perceptron, stitching_perceptron
from vitascope.models.liveportrait.warping import WarpingNetwork
from vitascope.models.liveportrait.weights import load_strictly, read_checkpoint

__all__ = ["PublishedNetworks"]


class PublishedNetworks(NamedTuple):
    """What the animator runs, as it was trained."""

    appearance: AppearanceExtractor
    motion: MotionExtractor
    warping: WarpingNetwork
    generator: SpadeGenerator
    stitching: KeypointPerceptron
    lips: KeypointPerceptron

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the authors' checkpoints, onto the processor.

        Args:
            folder: See ``folder.require_checkpoints``.

        Raises:
            ModelError: A file is missing, damaged, or another network's.
        """
        require_checkpoints(folder)
        networks = (AppearanceExtractor(), MotionExtractor(), WarpingNetwork(), SpadeGenerator())
        for network, part in zip(networks, ("appearance", "motion", "warping", "generator"), strict=True):
            path = folder / CHECKPOINTS[part]
            load_strictly(network, read_checkpoint(path), label=str(path))
        path = folder / CHECKPOINTS["retargeting"]
        states = read_checkpoint(path)
        perceptrons = stitching_perceptron(), lip_perceptron()
        for perceptron, name in zip(perceptrons, ("retarget_shoulder", "retarget_mouth"), strict=True):
            if not isinstance(states.get(name), dict):
                raise ModelError(f"{path}: holds no {name}")
            load_strictly(perceptron, states[name], label=f"{path}, {name}")
        for network in (*networks, *perceptrons):
            network.eval().requires_grad_(False)
        return cls(*networks, *perceptrons)
