"""Run a matting network for its engine's self-check, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vitascope.errors import ModelError
from vitascope.gpu.engines.selection import Arrays, Runner
from vitascope.gpu.kernels.cuda_module import import_cupy, is_on_gpu
from vitascope.models.network import MattingNetwork

CHECK_STEPS = 3
"""Frames of one check, in one call of the network."""

_PICTURES = "pictures"


def random_pictures(
    *, steps: int = CHECK_STEPS, eyes: int = 1, size: tuple[int, int] = (144, 256)
) -> Callable[[], Arrays]:
    """Make pictures for a check: drifting smooth noise, float32 [T, E, 3, h, w] in 0..1, the same each time.

    Several frames, because an error in a recurrent network's state shows in the next frame. Smooth, because pixel noise
    looks like nothing that a network has seen.
    """

    def make() -> Arrays:
        rng = np.random.default_rng(0)
        height, width = size
        coarse = rng.random((eyes, 3, height // 8 + 2, width // 8 + 2 + steps), dtype=np.float32)
        large = np.repeat(np.repeat(coarse, 8, axis=2), 8, axis=3)
        frames = [large[..., :height, 8 * step : 8 * step + width] for step in range(steps)]
        noise = rng.random((steps, eyes, 3, height, width), dtype=np.float32)
        return {_PICTURES: (0.9 * np.stack(frames) + 0.1 * noise).astype(np.float32)}

    return make


def network_runner(network: MattingNetwork, *, on_gpu: bool) -> Runner:
    """Make a runner that mattes one short stream from the beginning.

    Args:
        network: Takes NCHW pictures of any size, as RobustVideoMatting does.
        on_gpu: True for a network that takes CuPy pictures.

    Returns:
        From ``pictures`` [T, E, 3, h, w] to alpha's ``gain`` and ``offset`` [T, E, 1, h, w], or ``alpha`` [T, E, h, w].
        The foreground's coefficients are left out: nothing needs them, and some engines do not return them.
    """

    def run(inputs: Arrays) -> Arrays:
        pictures: Any = inputs[_PICTURES]
        wanted = network.input_for(pictures.shape[3:])
        if wanted.layout != "NCHW":
            raise ModelError(f"{network.name}: the check is made for networks that take [T, E, 3, h, w]")
        pictures = pictures.astype(wanted.dtype, copy=False)
        estimates = network.infer(
            import_cupy().asarray(pictures) if on_gpu else pictures, network.new_state()
        )
        if estimates[0].alpha is not None:
            return {"alpha": np.stack([_on_host(estimate.alpha) for estimate in estimates])}
        return {
            name: np.stack([_on_host(getattr(estimate, name)[:, -1:]) for estimate in estimates])
            for name in ("gain", "offset")
        }

    return run


def _on_host(array: Any) -> Any:
    return import_cupy().asnumpy(array) if is_on_gpu(array) else array
