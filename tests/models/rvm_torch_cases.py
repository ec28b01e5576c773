"""Functions for tests of RVM on PyTorch: pictures, random checkpoints, and mattes from coefficients."""

from __future__ import annotations

import numpy as np

from vitascope.models.network_check import random_pictures
from vitascope.models.rvm.weights import RvmWeights, convolutions


def drifting_pictures(steps, eyes, size, *, dtype="float32"):
    """Make smooth noise that drifts, [T, E, 3, h, w] in 0..1."""
    pictures = random_pictures(steps=steps, eyes=eyes, size=size)()["pictures"]
    return np.ascontiguousarray(pictures.astype(dtype))


def random_state_dict(backbone, seed=0):
    """Make a random checkpoint under the authors' names, batch norms included; float32."""
    rng = np.random.default_rng(seed)
    state = {}
    for conv in convolutions(backbone):
        fan_in = np.prod(conv.shape[1:])
        state[f"{conv.name}.weight"] = rng.normal(0, fan_in**-0.5, conv.shape).astype(np.float32)
        outputs = conv.shape[0]
        if conv.norm is not None:
            state[f"{conv.norm}.weight"] = rng.uniform(0.5, 1.5, outputs).astype(np.float32)
            state[f"{conv.norm}.bias"] = rng.normal(0, 0.1, outputs).astype(np.float32)
            state[f"{conv.norm}.running_mean"] = rng.normal(0, 0.1, outputs).astype(np.float32)
            state[f"{conv.norm}.running_var"] = rng.uniform(0.5, 1.5, outputs).astype(np.float32)
            state[f"{conv.norm}.num_batches_tracked"] = np.array(7)
        elif conv.biased:
            state[f"{conv.name}.bias"] = rng.normal(0, 0.1, outputs).astype(np.float32)
    return state


def random_weights(backbone, seed=0) -> RvmWeights:
    from vitascope.models.rvm.weights import fold_state_dict

    return fold_state_dict(random_state_dict(backbone, seed))


def alpha_of(estimates, pictures):
    """Compute alpha at the network's size, [T, E, h, w]; unclipped, as noise shows nobody, and all would be 0."""
    grey = np.asarray(pictures, np.float32).mean(axis=2)
    gain = np.stack([np.asarray(one.gain, np.float32)[:, -1] for one in estimates])
    offset = np.stack([np.asarray(one.offset, np.float32)[:, -1] for one in estimates])
    return gain * grey + offset
