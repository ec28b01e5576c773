"""ONNX Runtime, loaded on first use and with telemetry off.

From 1.32 on, also on Linux, ONNX Runtime writes a device id and events into the user's cache folder and sends them to
its vendor. The variable must be set before the library is loaded, so every module takes ``ort`` from here. Whoever sets
``ORT_DISABLE_TELEMETRY=0`` has chosen otherwise.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["ort"]


os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@cache
def _library() -> Any:
    library = import_module("onnxruntime")
    if os.environ["ORT_DISABLE_TELEMETRY"] != "0":
        library.disable_telemetry_events()  # for a program that had loaded the library before us
    return library


class _OnFirstUse:
    """The module ``onnxruntime``, loaded on first use: a run on fused kernels never needs it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_library(), name)


if TYPE_CHECKING:
    import onnxruntime as ort
else:
    ort = _OnFirstUse()
