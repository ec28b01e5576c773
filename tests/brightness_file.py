"""A file with a matting network of a few operators that finds what is bright.

For tests that start processes or machines, where a scripted network cannot be patched in, and that only need
mattes which differ from frame to frame. It takes a hundredth of the built-in network's computation.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

__all__ = ["brightness_settings"]

_SIDE = 48
_LUMA = np.array([0.3, 0.6, 0.1], np.float32).reshape(1, 3, 1, 1)


@cache
def _file() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vitascope-brightness-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    nodes = [
        helper.make_node("Conv", ["picture", "luma"], ["grey"]),
        helper.make_node("Mul", ["grey", "steepness"], ["steep"]),
        helper.make_node("Sigmoid", ["steep"], ["alpha"]),
    ]
    graph = helper.make_graph(
        nodes,
        "brightness",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, ["n", 3, _SIDE, _SIDE])],
        [helper.make_tensor_value_info("alpha", TensorProto.FLOAT, ["n", 1, _SIDE, _SIDE])],
        [
            helper.make_tensor("luma", TensorProto.FLOAT, _LUMA.shape, _LUMA.ravel()),
            helper.make_tensor("steepness", TensorProto.FLOAT, [1], [3.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / "brightness.onnx"
    onnx.save(model, str(path))
    return path


def brightness_settings() -> dict[str, object]:
    """Return the settings that select it."""
    return {"model.name": str(_file()), "model.kind": "matte"}
