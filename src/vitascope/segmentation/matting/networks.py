"""From the ``model`` settings to a network that runs, on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from vitascope.config import Settings
from vitascope.device import Device
from vitascope.errors import ModelUnavailableError, UsageError
from vitascope.models.custom.decoders import NetworkKind
from vitascope.models.network import MattingNetwork
from vitascope.models.store.catalogue import InputKind, load_catalogue
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.opened_network import (
    OpenedNetwork,
    refuse_gpu_engine,
    refuse_int8,
    rvm_size,
)

FetchProgress = Callable[[str, int, int], None]
"""Called with (model name, bytes so far, bytes in all) while a model is fetched."""


_SELFIE: Final = ("selfie", "selfie-landscape")
_SLOWER_THERE: Final = (
    "selfie computes on the CPU: rvm, which --profile balanced fetches, is faster with this GPU, and better"
)


class NetworkFacts(Protocol):
    """Facts about a network for reports, wherever it is open."""

    @property
    def name(self) -> str:
        """The network's name, for example ``rvm``."""
        ...

    @property
    def engine_name(self) -> str:
        """The engine that runs it."""
        ...

    @property
    def recurrent(self) -> bool:
        """True when it remembers frames."""
        ...


Network = TypeVar("Network", bound=NetworkFacts, covariant=True)


@dataclass(frozen=True, slots=True)
class ChosenNetwork(Generic[Network]):
    """A network, and why it was chosen."""

    network: Network
    """Open in this process; of a run that is shared by several, what is known of it."""
    requested: str
    """What ``model.name`` asked for."""
    note: str | None
    """One line for the user when it is not what they would expect; None otherwise."""
    engine_reasons: tuple[str, ...] = ()
    """Why it runs on its engine, one line each: what was passed over, and for what."""


def open_network(
    settings: Settings,
    store: ModelStore,
    *,
    device: Device,
    progress: FetchProgress | None = None,
) -> ChosenNetwork[MattingNetwork]:
    """Open the network that the settings name, fetching it when needed.

    ``auto`` is ``rvm``, or ``selfie`` when that can't be had; every other name is that network or an error.

    Args:
        settings: The run's settings.
        store: Where networks lie.
        device: On a GPU the network takes and gives CuPy arrays.
        progress: Called with the progress of a download.

    Raises:
        UsageError: An ONNX file of one's own without ``model.kind``, or ``model.kind`` without one.
        ModelError: The network is unknown, cannot be fetched, fails its checksum, or is of another kind.
        EngineError: The engine cannot load it.
        MissingDependencyError: The engine that was requested is not installed.
    """
    model = settings.model
    if is_network_file(model.name):
        return _chosen(_open_custom(settings, device), model.name)
    _refuse_kind(settings)
    if model.name != "auto":
        note = _SLOWER_THERE if device.kind == "cuda" and model.name in _SELFIE else None
        return _chosen(_open_named(model.name, settings, store, device, progress), model.name, note)
    try:
        return _chosen(_open_named("rvm", settings, store, device, progress), "auto")
    except ModelUnavailableError as error:
        note = f"{error}; going on with selfie"
        return _chosen(_open_named("selfie", settings, store, device, progress), "auto", note)


def _chosen(opened: OpenedNetwork, requested: str, note: str | None = None) -> ChosenNetwork[MattingNetwork]:
    return ChosenNetwork(opened.network, requested, note, opened.reasons)


def foresee_network(settings: Settings, store: ModelStore) -> str:
    """The network that ``open_network`` would open, in words; fetches nothing.

    What is on this machine is verified, and an ONNX file of one's own opened and closed, so that what is wrong with
    them shows now.

    Raises:
        UsageError: As ``open_network``.
        ModelError: The network is unknown, damaged or of another kind.
        EngineError: The engine cannot load an ONNX file of one's own.
    """
    model = settings.model
    if is_network_file(model.name):
        _open_custom_on_processor(settings).close()
        return f"{model.name} (here)"
    _refuse_kind(settings)
    name = "rvm" if model.name == "auto" else model.name
    _require_matting(name)
    if store.is_cached(name):
        store.path(name)
        return f"{name} (here)"
    return f"{name} (would be fetched)" + (", else selfie" if model.name == "auto" else "")


def open_first_network(store: ModelStore, *, threads: int, on_gpu: bool) -> MattingNetwork:
    """Open the network that looks first for ``early_exit="selfie"``: it ships with Vitascope, and computes on the CPU.

    Args:
        store: Where networks lie.
        threads: Threads of the CPU; 0 uses every core.
        on_gpu: True where its pictures come from a GPU.

    Raises:
        ModelError: The installation lacks it.
        EngineError: The engine cannot load it.
    """
    from vitascope.models.host_network import HostNetwork
    from vitascope.models.selfie.selfie import SelfieNetwork

    network = SelfieNetwork(store.path("selfie"), store.path("selfie-landscape"), threads=threads)
    return HostNetwork(network) if on_gpu else network


def _open_named(
    name: str, settings: Settings, store: ModelStore, device: Device, progress: FetchProgress | None
) -> OpenedNetwork:
    _require_matting(name)
    # Networks are imported where they are opened: one run needs one of them, and onnx alone takes 0.1 s to import.
    match name:
        case "selfie" | "selfie-landscape":
            return _open_selfie(name, settings, store, device)
        case "rvm" | "rvm-resnet50":
            return _open_rvm(name, settings, store, device, progress)
    raise AssertionError(f"{name} is in the catalogue, and nothing here opens it")


def _open_rvm(
    name: str, settings: Settings, store: ModelStore, device: Device, progress: FetchProgress | None
) -> OpenedNetwork:
    # A file that is here is verified and never silently replaced: a damaged one is the user's to know about.
    if store.is_cached(name):
        path = store.path(name)
    else:
        path = store.pull(name, progress=None if progress is None else partial(progress, name))
    if device.kind == "cuda":
        from vitascope.segmentation.matting.gpu_networks import open_rvm_on_gpu

        return open_rvm_on_gpu(path, name=name, settings=settings, device=device)
    from vitascope.models.rvm.rvm import RvmNetwork

    refuse_gpu_engine(settings)
    return OpenedNetwork(
        RvmNetwork(
            path,
            name=name,
            threads=settings.processing.num_threads,
            near_people=True,
            **rvm_size(settings),
        )
    )


def _open_selfie(name: str, settings: Settings, store: ModelStore, device: Device) -> OpenedNetwork:
    from vitascope.models.selfie.selfie import SelfieNetwork

    network = SelfieNetwork(
        store.path("selfie"),
        store.path("selfie-landscape"),
        threads=settings.processing.num_threads,
        choice="aspect" if name == "selfie" else "landscape",
    )
    if device.kind == "cuda":
        from vitascope.segmentation.matting.gpu_networks import on_processor

        return on_processor(
            network, settings=settings, why="the selfie networks are small and gated on the CPU"
        )
    refuse_gpu_engine(settings)
    refuse_int8(settings, name=name)
    return OpenedNetwork(network)


def _open_custom(settings: Settings, device: Device) -> OpenedNetwork:
    if device.kind == "cuda":
        from vitascope.segmentation.matting.gpu_networks import open_custom_on_gpu

        return open_custom_on_gpu(
            Path(settings.model.name), kind=_custom_kind(settings), settings=settings, device=device
        )
    refuse_gpu_engine(settings)
    refuse_int8(settings, name=settings.model.name)
    return OpenedNetwork(_open_custom_on_processor(settings))


def _open_custom_on_processor(settings: Settings) -> MattingNetwork:
    from vitascope.models.custom.custom import open_custom_network

    return open_custom_network(
        Path(settings.model.name),
        kind=_custom_kind(settings),
        person_class=settings.model.person_class,
        threads=settings.processing.num_threads,
    )


def _custom_kind(settings: Settings) -> NetworkKind:
    model = settings.model
    if model.kind is None:
        raise UsageError(
            f"{model.name}: say what the network puts out with --kind matte, binary, semantic or yolo-seg"
        )
    return model.kind


def _refuse_kind(settings: Settings) -> None:
    model = settings.model
    if model.kind is not None:
        raise UsageError(f"model.kind is for an ONNX file of your own; {model.name} says itself what it is")


def _require_matting(name: str) -> None:
    entry = load_catalogue().entry(name, wanted_for="segmentation")
    if entry.used_by != "segmentation":
        raise UsageError(f"{name} is not a matting network: {entry.purpose}")


def remembers(name: str) -> bool:
    """True for a network of the catalogue with a memory of the frames before; False for somebody's own file."""
    kinds = {entry.name: entry.input_kind for entry in load_catalogue().models}
    return kinds.get(name) is InputKind.RECURRENT_VIDEO


def is_network_file(name: str) -> bool:
    """True for the path of somebody's own network, in the place of a name of ours."""
    return name.lower().endswith(".onnx") or "/" in name or "\\" in name
