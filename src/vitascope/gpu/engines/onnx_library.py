"""ONNX Runtime, loaded on first use and without telemetry.

From 1.32 on, on Linux, too, ONNX Runtime writes a device ID and events into the user's cache folder and sends them to
its vendor. The variable must be set before the library is loaded, so every module imports ``ort`` from here.
``ORT_DISABLE_TELEMETRY=0`` in the environment keeps telemetry on.
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
        library.disable_telemetry_events()  # another part of the program has already loaded the library
    return library


class _OnFirstUse:
    """The module ``onnxruntime``, loaded on first use: runs on fused kernels never need it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_library(), name)


if TYPE_CHECKING:
    import onnxruntime as ort
else:
    ort = _OnFirstUse()
