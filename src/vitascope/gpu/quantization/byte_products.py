"""Whether this processor adds up products of bytes exactly."""

from __future__ import annotations

from functools import cache

import numpy as np
from onnx import TensorProto, helper

from vitascope.gpu.engines.onnx_library import ort

__all__ = ["adds_byte_products_exactly"]


@cache
def adds_byte_products_exactly() -> bool:
    """False on x86 processors without VNNI, where ONNX Runtime adds two products of 8 bits in 16 and cuts off the rest.

    Asked of ONNX Runtime itself, with the largest products there are; see its "Quantize ONNX Models", "When and why do
    I need to try U8U8?". Weights of 7 bits are exact everywhere.
    """
    network = helper.make_graph(
        [helper.make_node("MatMulInteger", ["activations", "weights"], ["sums"])],
        "largest byte products",
        [
            helper.make_tensor_value_info("activations", TensorProto.UINT8, [1, 2]),
            helper.make_tensor_value_info("weights", TensorProto.INT8, [2, 16]),
        ],
        [helper.make_tensor_value_info("sums", TensorProto.INT32, [1, 16])],
    )
    model = helper.make_model(network, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    largest = {"activations": np.full((1, 2), 255, np.uint8), "weights": np.full((2, 16), 127, np.int8)}
    (sums,) = session.run(["sums"], largest)
    return bool((sums == 2 * 255 * 127).all())
