"""Reading the published checkpoints: plain tensors by name, never pickled code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitascope.errors import ModelError

__all__ = ["fold_spectral_norm", "load_strictly", "read_checkpoint"]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state dict in a ``.pth``, on the processor.

    Raises:
        ModelError: The file is missing, damaged, or holds more than tensors.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ModelError(f"{path}: no such file") from error
    except Exception as error:  # whatever zipfile, pickle or torch make of a damaged file
        raise ModelError(f"{path}: not a checkpoint of plain tensors") from error
    if not isinstance(state, dict):
        raise ModelError(f"{path}: holds a {type(state).__name__}, not a state dict")
    return state


def fold_spectral_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Divide weights by their largest singular value, as PyTorch's ``spectral_norm`` does in evaluation.

    Its three tensors ``…weight_orig`` W, ``…weight_u`` u and ``…weight_v`` v become ``…weight`` = W / (uᵀ W v), W as a
    matrix of its first axis (Miyato et al. 2018, arXiv:1802.05957).
    """
    folded: dict[str, Tensor] = {}
    for key, tensor in state.items():
        if key.endswith(("weight_u", "weight_v")):
            continue
        if key.endswith("weight_orig"):
            base = key.removesuffix("_orig")
            matrix = tensor.flatten(1)
            sigma = torch.dot(state[f"{base}_u"], matrix @ state[f"{base}_v"])
            folded[base] = tensor / sigma
        else:
            folded[key] = tensor
    return folded


def load_strictly(network: nn.Module, state: Mapping[str, Tensor], *, label: str) -> None:
    """Give a network its weights; every tensor must be there, of its shape, and none more.

    ``module.`` before the names, which parallel training leaves, is taken off.

    Raises:
        ModelError: Anything does not fit; the message names the first tensors.
    """
    state = {key.removeprefix("module."): tensor for key, tensor in state.items()}
    if any(key.endswith("weight_orig") for key in state):
        state = fold_spectral_norm(state)
    try:
        network.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelError(f"{label}: {' '.join(str(error).split())[:300]}") from error
