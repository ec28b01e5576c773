"""From the ``model`` settings to a network that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitascope.config import Settings
from vitascope.errors import ModelUnavailableError, UsageError
from vitascope.models.catalogue import load_catalogue
from vitascope.models.network import MattingNetwork
from vitascope.models.store import ModelStore

__all__ = ["ChosenNetwork", "FetchProgress", "foresee_network", "open_network"]

FetchProgress = Callable[[str, int, int], None]
"""Told (model name, bytes so far, bytes in all) while a model is fetched."""


@dataclass(frozen=True, slots=True)
class ChosenNetwork:
    """A network, and why it is this one."""

    network: MattingNetwork
    requested: str
    """What ``model.name`` asked for."""
    note: str | None
    """One line for the user when it is not what they would expect; None otherwise."""


def open_network(
    settings: Settings, store: ModelStore, *, progress: FetchProgress | None = None
) -> ChosenNetwork:
    """Open the network that the settings name, fetching it when needed.

    ``auto`` is ``rvm``, or ``selfie`` when that can't be had; every other name is that network or an error.

    Raises:
        UsageError: An ONNX file of one's own without ``model.kind``, or ``model.kind`` without one.
        ModelError: The network is unknown, cannot be fetched, fails its checksum, or is of another kind.
        EngineError: The engine cannot load it.
    """
    model = settings.model
    if _is_file_name(model.name):
        return ChosenNetwork(_open_custom(settings), model.name, None)
    _refuse_kind(settings)
    if model.name != "auto":
        return ChosenNetwork(_open_named(model.name, settings, store, progress), model.name, None)
    try:
        return ChosenNetwork(_open_named("rvm", settings, store, progress), "auto", None)
    except ModelUnavailableError as error:
        return ChosenNetwork(
            _open_named("selfie", settings, store, progress), "auto", f"{error}; going on with selfie"
        )


def foresee_network(settings: Settings, store: ModelStore) -> str:
    """Which network ``open_network`` would open, in words; fetches nothing.

    What is on this machine is verified, and an ONNX file of one's own opened and closed, so that what is wrong with
    them shows now.

    Raises:
        UsageError: As ``open_network``.
        ModelError: The network is unknown, damaged or of another kind.
        EngineError: The engine cannot load an ONNX file of one's own.
    """
    model = settings.model
    if _is_file_name(model.name):
        _open_custom(settings).close()
        return f"{model.name} (here)"
    _refuse_kind(settings)
    name = "rvm" if model.name == "auto" else model.name
    _require_matting(name)
    if store.is_cached(name):
        store.path(name)
        return f"{name} (here)"
    return f"{name} (would be fetched)" + (", else selfie" if model.name == "auto" else "")


def _open_named(
    name: str, settings: Settings, store: ModelStore, progress: FetchProgress | None
) -> MattingNetwork:
    # Networks are imported where they are opened: one run needs one of them, and onnx alone takes 0.1 s to import.
    threads = settings.processing.num_threads
    if name in ("selfie", "selfie-landscape"):
        from vitascope.models.selfie import SelfieNetwork

        return SelfieNetwork(
            store.path("selfie"),
            store.path("selfie-landscape"),
            threads=threads,
            choice="aspect" if name == "selfie" else "landscape",
        )
    _require_matting(name)
    from vitascope.models.rvm import RvmNetwork

    # A file that is here is verified and never silently replaced: a damaged one is the user's to know about.
    if store.is_cached(name):
        path = store.path(name)
    else:
        path = store.pull(name, progress=None if progress is None else partial(progress, name))
    ratio = settings.model.downsample_ratio
    return RvmNetwork(
        path,
        name=name,
        downsample_ratio=None if ratio == "auto" else ratio,
        longest_side=settings.model.longest_side,
        threads=threads,
    )


def _open_custom(settings: Settings) -> MattingNetwork:
    from vitascope.models.custom import open_custom_network

    model = settings.model
    if model.kind is None:
        raise UsageError(
            f"{model.name}: say what the network puts out with --kind matte, binary, semantic or yolo-seg"
        )
    return open_custom_network(
        Path(model.name),
        kind=model.kind,
        person_class=model.person_class,
        threads=settings.processing.num_threads,
    )


def _refuse_kind(settings: Settings) -> None:
    model = settings.model
    if model.kind is not None:
        raise UsageError(f"model.kind is for an ONNX file of your own; {model.name} says itself what it is")


def _require_matting(name: str) -> None:
    entry = load_catalogue().entry(name)
    if entry.used_by != "segmentation":
        raise UsageError(f"{name} is not a matting network: {entry.purpose}")


def _is_file_name(name: str) -> bool:
    return name.lower().endswith(".onnx") or "/" in name or "\\" in name
