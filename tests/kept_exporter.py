"""PyTorch's table of ONNX translations of its operators, made once in a process of tests.

PyTorch makes it again for each network that it exports, by reading the source of 500 functions: one of two
seconds. Only custom translations would change it, and Vitascope has none.
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
    """Let the next export reuse the table of the first; no effect before the first export."""
    registration = sys.modules.get("torch.onnx._internal.exporter._registration")
    if registration is not None:
        _keep(registration.ONNXRegistry)
