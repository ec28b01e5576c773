"""Checks the GPUs that settings name: each exists, and no other setting contradicts it."""

from __future__ import annotations

from typing import Literal

from vitascope.config.loading import LoadedSettings
from vitascope.config.settings import Settings, value_of
from vitascope.device import select_device
from vitascope.errors import UsageError


def checked_gpus(
    loaded: LoadedSettings, *, number: Literal["gpu.device_id", "animation.gpu_id"] = "gpu.device_id"
) -> LoadedSettings:
    """Settings in which the devices do not contradict each other; one GPU in a list is that GPU.

    Args:
        loaded: Settings, and where they came from.
        number: The setting that names a single GPU.

    Raises:
        UsageError: ``gpu.device_ids`` beside a device or a number that says otherwise.
        DeviceError: A GPU of the list is missing.
    """
    ids = loaded.settings.gpu.device_ids
    if ids is None:
        return loaded
    if loaded.settings.gpu.device == "cpu":
        raise UsageError("gpu.device_ids names GPUs, and gpu.device is cpu; leave one of them out")
    if loaded.origin(number).explicit:
        raise UsageError(
            f"{number} {value_of(loaded.settings, number)} and gpu.device_ids {','.join(map(str, ids))}: "
            "leave one of them out"
        )
    refuse_missing_gpus(loaded.settings)
    if len(ids) > 1 or loaded.settings.processing.cluster is not None:
        return loaded
    return loaded.with_values({"gpu.device": "cuda", number: ids[0], "gpu.device_ids": None})


def refuse_missing_gpus(settings: Settings) -> None:
    """Refuse a list of GPUs of which one is not there; those of a cluster's nodes are not this machine's.

    Raises:
        DeviceError: The message names it.
    """
    if settings.processing.cluster is not None:
        return
    for number in settings.gpu.device_ids or ():
        select_device("cuda", index=number)
