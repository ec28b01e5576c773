"""The network that looks first where another one shall rest."""

from __future__ import annotations

from vitascope.models.network import MattingNetwork
from vitascope.models.store.store import ModelStore

__all__ = ["open_first_network"]


def open_first_network(store: ModelStore, *, threads: int, on_gpu: bool) -> MattingNetwork:
    """``selfie``, which ships with Vitascope; it computes on the processor, also for frames on a GPU.

    Args:
        store: Where networks lie.
        threads: Of the processor; 0 uses every core.
        on_gpu: True where its pictures come from a GPU.

    Raises:
        ModelError: The installation lacks it.
        EngineError: The engine cannot load it.
    """
    from vitascope.models.host_network import HostNetwork
    from vitascope.models.selfie.selfie import SelfieNetwork

    network = SelfieNetwork(store.path("selfie"), store.path("selfie-landscape"), threads=threads)
    return HostNetwork(network) if on_gpu else network
