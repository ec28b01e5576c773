"""PyTorch's table of how its operators are written as ONNX, made once in a process of tests.

PyTorch makes it anew for each network that it writes, by reading the source of 500 functions: a second of two. Without
translations of one's own, which Vitascope has none of, nothing changes it.
"""

from __future__ import annotations

import sys
from functools import cache

__all__ = ["keep_exporter_table"]


@cache
def _keep(registry: type) -> None:
    made = cache(registry.from_torchlib)
    registry.from_torchlib = staticmethod(made)


def keep_exporter_table() -> None:
    """Let the next network be written with the table of the first; nothing where PyTorch has not written one."""
    registration = sys.modules.get("torch.onnx._internal.exporter._registration")
    if registration is not None:
        _keep(registration.ONNXRegistry)
