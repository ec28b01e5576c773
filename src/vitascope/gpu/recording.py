"""CUDA graphs are recorded one at a time, and while one is, nothing makes a whole device wait.

``cudaDeviceSynchronize`` from any thread of the process breaks a recording, in every capture mode (CUDA Runtime API,
"Graph Management": such calls are not permitted during stream capture).
"""

from __future__ import annotations

import threading

__all__ = ["RECORDING"]

RECORDING = threading.RLock()
"""Held while a graph is recorded, and around our own waits for a whole device."""
