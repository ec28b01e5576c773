"""ONNX Runtime as it is used here: with its telemetry off.

From 1.32 on, ONNX Runtime for Linux, too, writes a device id and events into the user's cache folder and sends them to
its vendor. The variable must be set before the library is loaded, so every module takes ``ort`` from here. Whoever sets
``ORT_DISABLE_TELEMETRY=0`` has chosen otherwise.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

__all__ = ["ort"]

if os.environ["ORT_DISABLE_TELEMETRY"] != "0":
    ort.disable_telemetry_events()  # for a program that had loaded the library before us
