"""What a network with memory is shown before its answers count."""

from __future__ import annotations

from typing import Any, Final

from vitascope.gpu.kernels.resize_normalize import resize_normalize
from vitascope.models.network import MattingNetwork, NetworkState, SpatialState

__all__ = ["SETTLING_SIDE", "settle"]

SETTLING_SIDE: Final = 384
"""Longest side, in samples, of the picture that memory settles on; see ``docs/decisions/0002-warm-up.md``."""


def settle(network: MattingNetwork, picture: Any, state: NetworkState, *, calls: int) -> None:
    """Show a network with memory the first picture of a shot a few times, and throw its answers away.

    It doubts what it sees for the first time: whole torsos are missing from the first frames of a shot. Shown the same
    picture again it becomes sure, and on a small picture, where more of a body lies in what a feature sees, it becomes
    sure of the right thing. So a larger picture is shrunk, and what the network remembers of it is stretched.

    Args:
        network: Whose memory it is.
        picture: [1, E, 3, h, w] of one time step, as the network's ``infer`` takes it, NumPy or CuPy.
        state: The stream's, which has seen nothing; changed in place.
        calls: How often; 0 leaves the state empty.

    Raises:
        ModelError: As ``infer``.
        EngineError: As ``infer``.
    """
    size = picture.shape[3:]
    if calls and max(size) > SETTLING_SIDE and isinstance(state, SpatialState):
        picture = _shrunk(picture)
    for _ in range(calls):
        network.infer(picture, state)
    if picture.shape[3:] != size and isinstance(state, SpatialState):
        state.stretch(size)


def _shrunk(picture: Any) -> Any:
    height, width = picture.shape[3:]
    scale = SETTLING_SIDE / max(height, width)
    size = max(round(height * scale), 1), max(round(width * scale), 1)
    small = resize_normalize(
        picture[0], size=size, mean=(0.0,) * 3, std=(1.0,) * 3, scale=1.0, layout_in="NCHW"
    )
    return small[None].astype(picture.dtype, copy=False)
