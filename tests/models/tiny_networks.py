"""Tiny ONNX graphs, written to a file and opened as a user's network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vitascope.models.custom.custom import CustomNetwork, open_custom_network
from vitascope.models.custom.decoders import NetworkKind
from vitascope.models.network import FloatArray

Shape = Sequence[int | str]


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    *,
    input_shape: Shape,
    outputs: dict[str, Shape],
    constants: dict[str, npt.NDArray[np.generic]] | None = None,
    dtype: int = TensorProto.FLOAT,
    output_dtype: int = TensorProto.FLOAT,
) -> Path:
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info("picture", dtype, input_shape)],
        [helper.make_tensor_value_info(name, output_dtype, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def weighted(
    path: Path, weights: npt.ArrayLike, *, nodes: Sequence[onnx.NodeProto] = (), **shapes: object
) -> Path:
    """Build a 1x1 convolution of R, G, B ([classes, 3]) as ``planes``, then ``nodes``."""
    kernel = np.asarray(weights, np.float32)[:, :, None, None]
    convolution = helper.make_node("Conv", ["picture", "kernel"], ["planes"])
    return save(path, [convolution, *nodes], constants={"kernel": kernel}, **shapes)  # type: ignore[arg-type]


def pictures(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def alphas(network: CustomNetwork, images: FloatArray) -> FloatArray:
    """Return alpha [T, E, h, w]."""
    return np.stack([estimate.alpha for estimate in network.infer(images, network.new_state())])


FREE = ["n", 3, "h", "w"]
RED = [[1.0, 0.0, 0.0]]


def as_is(path: Path, kind: NetworkKind) -> CustomNetwork:
    """Open a network with mean 0 and std 1, so that pictures of any value pass unchanged."""
    return open_custom_network(path, kind=kind, threads=1)
