"""Which devices a run works on, and whether it takes several processes."""

from __future__ import annotations

from vitascope.config import LoadedSettings, Settings
from vitascope.device import select_device
from vitascope.errors import UsageError

__all__ = ["checked_devices", "refuse_missing_gpus", "works_in_processes"]


def checked_devices(loaded: LoadedSettings) -> LoadedSettings:
    """Settings in which the devices do not contradict each other; one GPU in a list is that GPU.

    Raises:
        UsageError: ``gpu.device_ids`` beside a device or a number that says otherwise.
        DeviceError: A GPU of the list is missing.
    """
    ids = loaded.settings.gpu.device_ids
    if ids is None:
        return loaded
    if loaded.settings.gpu.device == "cpu":
        raise UsageError("gpu.device_ids names GPUs, and gpu.device is cpu; leave one of them out")
    if loaded.origin("gpu.device_id").explicit:
        raise UsageError(
            f"gpu.device_id {loaded.settings.gpu.device_id} and gpu.device_ids {','.join(map(str, ids))}: "
            "leave one of them out"
        )
    refuse_missing_gpus(loaded.settings)
    if len(ids) > 1:
        return loaded
    return loaded.with_values({"gpu.device": "cuda", "gpu.device_id": ids[0], "gpu.device_ids": None})


def refuse_missing_gpus(settings: Settings) -> None:
    """Refuse a list of GPUs of which one is not there.

    Raises:
        DeviceError: The message names it.
    """
    for number in settings.gpu.device_ids or ():
        select_device("cuda", index=number)


def works_in_processes(settings: Settings) -> bool:
    """True when several processes share each video: on several GPUs, or on the processor where that is asked for."""
    gpu = settings.gpu
    if gpu.device_ids is not None:
        return len(gpu.device_ids) > 1
    if not settings.processing.use_multiprocessing:
        return False
    return select_device(gpu.device, index=gpu.device_id).kind == "cpu"
