"""What opening a network gives, on the CPU and on a GPU alike, and what the settings say about it."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from vitascope.config import Settings
from vitascope.errors import UsageError
from vitascope.models.network import MattingNetwork


class OpenedNetwork(NamedTuple):
    """A network that runs, and why on this engine."""

    network: MattingNetwork
    reasons: tuple[str, ...] = ()
    """One line each: what was passed over, and for what."""


class RvmSize(TypedDict):
    """The size of RVM's picture: arguments of its networks."""

    downsample_ratio: float | None
    longest_side: int | None


def rvm_size(settings: Settings) -> RvmSize:
    """The picture's size that the settings ask for."""
    ratio = settings.model.downsample_ratio
    return RvmSize(
        downsample_ratio=None if ratio == "auto" else ratio, longest_side=settings.model.longest_side
    )


def refuse_gpu_engine(settings: Settings) -> None:
    """Refuse an engine that a run on the CPU does not have.

    Raises:
        UsageError: ``model.backend`` names one.
    """
    backend = settings.model.backend
    if backend not in ("auto", "onnxruntime"):
        raise UsageError(f"model.backend={backend} runs on a GPU, and this run computes on the CPU")


def refuse_int8(settings: Settings, *, name: str) -> None:
    """Refuse 8 bits for a network that has none on the CPU.

    Raises:
        UsageError: ``gpu.precision`` asks for them.
    """
    if settings.gpu.precision == "int8":
        raise UsageError(
            f"gpu.precision=int8: on the CPU RVM alone is quantised, and the network is {name}; leave it out, or "
            "quantise a network of your own with ModelQuantizer (docs/quantization.md)"
        )
