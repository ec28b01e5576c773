"""The network of the toolkit's examples: two convolutions, small enough for any machine. Put yours in its place.

A PyTorch module where PyTorch is installed, else the same as an ONNX network: the toolkit takes both.
"""

from __future__ import annotations

import importlib.util
from os import PathLike
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from vitascope.gpu import InductorEngine, OnnxEngine, TensorRTEngine

HAS_TORCH = importlib.util.find_spec("torch") is not None
ENGINES: dict[str, Any] = {"tensorrt": TensorRTEngine, "inductor": InductorEngine, "onnx": OnnxEngine}
SUFFIXES = {"tensorrt": ".trt", "inductor": ".pt2", "onnx": ".onnx"}
INSTALLED = "tensorrt" if importlib.util.find_spec("tensorrt") else "inductor" if HAS_TORCH else "onnx"
"""The engine that is taken when none is named."""


def make_model() -> Any:
    """The module, or without PyTorch the bytes of the ONNX network."""
    if not HAS_TORCH:
        return onnx_network()
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 1)
    ).eval()


def onnx_network() -> bytes:
    """Float32 [N, 3, H, W] in, scores of two classes float32 [N, 2, H / 2, W / 2] out."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["input", "first", "first_bias"], ["a"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second", "second_bias"], ["scores"]),
    ]
    shapes = {"first": [8, 3, 3, 3], "first_bias": [8], "second": [2, 8, 1, 1], "second_bias": [2]}
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, shape, random.normal(0, 0.2, shape).astype(np.float32))
        for name, shape in shapes.items()
    ]
    ends = [("input", ["N", 3, "H", "W"]), ("scores", ["N", 2, "h", "w"])]
    first, last = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
    graph = helper.make_graph(nodes, "small", [first], [last], weights)
    network: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    return network


def build(engine: Any, model: Any, sizes: dict[str, Any], path: str | PathLike[str]) -> None:
    """Build an engine from what ``make_model`` gave, open it, and keep it in a file."""
    if HAS_TORCH:
        engine.build_engine_from_pytorch(model, {"input": sizes}, path)
    else:
        engine.build_engine_from_onnx(model, {"input": sizes}, path)
