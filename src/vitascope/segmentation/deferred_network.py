"""A network that is opened when it is first asked: a film whose mattes are in the cache needs none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    side_multiple,
)
from vitascope.segmentation.networks import ChosenNetwork

__all__ = ["DeferredNetwork", "opening"]


class DeferredNetwork:
    """Stands for a network until somebody needs it. Opened once, from one thread at a time.

    Args:
        open_network: Opens it.
        name: What reports call it.
        recurrent: What it is expected to be, until it was opened.
    """

    def __init__(self, open_network: Callable[[], ChosenNetwork], *, name: str, recurrent: bool) -> None:
        self._open_network = open_network
        self.name = name
        self._expected_recurrent = recurrent
        self.chosen: ChosenNetwork | None = None
        """The network, once it was opened."""

    @property
    def recurrent(self) -> bool:
        """As the network says; before it was opened, as expected."""
        return self._expected_recurrent if self.chosen is None else self.chosen.network.recurrent

    @property
    def engine_name(self) -> str:
        """The engine; where none was needed, that."""
        return "no engine: mattes from the cache" if self.chosen is None else self.chosen.network.engine_name

    @property
    def side_multiple(self) -> int | None:
        """The network's own."""
        return side_multiple(self.opened())

    def opened(self) -> MattingNetwork:
        """The network itself.

        Raises:
            ModelError: It cannot be had.
            EngineError: The engine cannot load it.
        """
        if self.chosen is None:
            self.chosen = self._open_network()
        return self.chosen.network

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """As the network says."""
        return self.opened().input_for(region_size)

    def new_state(self) -> NetworkState:
        """A state of the network's."""
        return self.opened().new_state()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """See ``MattingNetwork.infer``."""
        return self.opened().infer(images, state)

    def close(self) -> None:
        """Close it if it was opened."""
        if self.chosen is not None:
            self.chosen.network.close()


def opening(chosen: ChosenNetwork) -> ChosenNetwork:
    """What is known of a network by now: of one that was deferred and opened, all."""
    network = chosen.network
    if isinstance(network, DeferredNetwork) and network.chosen is not None:
        return replace(network.chosen, requested=chosen.requested)
    return chosen
