"""Segment with an ONNX network of your own: here one of two nodes, for which whatever is bright is a person.

Usage: python examples/own_network.py [VIDEO [OUT.mp4]]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import vitascope


def bright_is_a_person(path: Path) -> Path:
    """A matte network: float32 [N, 3, 144, 256], RGB 0..1, in; alpha float32 [N, 1, 144, 256], 0..1, out."""
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [1, 3, 1, 1], np.full(3, 8.0, np.float32))
    bias = helper.make_tensor("bias", TensorProto.FLOAT, [1], np.array([-12.0], np.float32))
    nodes = [
        helper.make_node("Conv", ["picture", "weight", "bias"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["alpha"]),
    ]
    shapes = {"picture": ["N", 3, 144, 256], "alpha": ["N", 1, 144, 256]}
    graph = helper.make_graph(
        nodes,
        "bright",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, shapes["picture"])],
        [helper.make_tensor_value_info("alpha", TensorProto.FLOAT, shapes["alpha"])],
        [weight, bias],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def main(video: Path, out: Path) -> int:
    """Write the mask that the network makes; how many frames there were."""
    with tempfile.TemporaryDirectory() as folder:
        network = bright_is_a_person(Path(folder) / "bright.onnx")
        settings = {"model.name": str(network), "model.kind": "matte", "gpu.device": "cpu"}
        report = vitascope.segment(video, out, output="mask", settings=settings)
    print(f"{out}: {report.frame_count} frames by {report.model} on {report.engine}")
    return report.frame_count


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "astronaut_sbs.mp4",
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path("bright.mp4"),
    )
