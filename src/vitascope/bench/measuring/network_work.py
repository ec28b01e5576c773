"""How much a network has to compute and to move, counted from the shapes of its graph's nodes.

FLOPs: two for each multiply-add of a convolution or matrix product; one for each element of every other operator, of
its input or its result, whichever is larger.

Bytes: weights once a call, and activations as if every operator that can be fused into the one before it were. So a
convolution reads its input and weights and writes its result; the activation function behind it moves nothing; a sum
reads what else it adds; cutting, joining and reordering move nothing. No cache is assumed to hold what lies between two
convolutions, which on a processor it sometimes does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from vitascope.gpu.engines.operator_trace import OperatorCall

__all__ = ["NetworkWork", "bytes_of", "count_work", "flops_of"]

_CONVOLUTIONS = frozenset({"Conv", "FusedConv"})
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm"})
_MOVING_NOTHING = frozenset({
    "Cast", "Concat", "Constant", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape",
    "Shape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip


_FUSED = frozenset({
    "Add", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Max", "Min", "Mul",
    "Neg", "PRelu", "Pow", "QuickGelu", "Relu", "Sigmoid", "Softplus", "Sqrt", "Sub", "Tanh", "Where",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class NetworkWork:
    """The work for one frame, all eyes, in float32."""

    flops: float
    nbytes: float


def count_work(calls: Iterable[OperatorCall], *, frames: int) -> NetworkWork:
    """Add up operators.

    Args:
        calls: Of a graph that was run as it is, without fusions.
        frames: That they computed.
    """
    flops = nbytes = 0.0
    for call in calls:
        flops += flops_of(call)
        nbytes += bytes_of(call)
    return NetworkWork(flops / frames, nbytes / frames)


def flops_of(call: OperatorCall) -> float:
    """Arithmetic of one operator, as the module's text says."""
    inputs, outputs = call.input_shapes, call.output_shapes
    if call.kind in _CONVOLUTIONS:  # weights [out, in / groups, kernel ...]
        return 2.0 * prod(outputs[0]) * prod(inputs[1][1:])
    if call.kind == "ConvTranspose":  # weights [in, out / groups, kernel ...]
        return 2.0 * prod(inputs[0]) * prod(inputs[1][1:])
    if (
        call.kind in _PRODUCTS
    ):  # [m, k] times [k, n], whichever is given transposed: m n k = sqrt(mk * kn * mn)
        summed = prod(inputs[0]) / _rows_of(inputs[0], outputs[0])
        return 2.0 * prod(outputs[0]) * summed
    if call.kind in _MOVING_NOTHING:
        return 0.0
    return float(max(max(map(prod, inputs), default=0), sum(map(prod, outputs))))


def _rows_of(given: tuple[int, ...], result: tuple[int, ...]) -> int:
    """Rows of the first factor: all of the result's axes but the last; a factor that is one vector has one row."""
    return prod(result[:-1]) if len(given) > 1 else 1


def bytes_of(call: OperatorCall) -> float:
    """What one operator must move, as the module's text says."""
    if call.kind in _MOVING_NOTHING:
        return 0.0
    if call.kind in _FUSED:
        # The largest input is what the operator before it holds; a second one must be read.
        largest = max(map(prod, call.input_shapes), default=0)
        itemsize = call.output_bytes / max(sum(map(prod, call.output_shapes)), 1)
        return max(call.activation_bytes - largest * itemsize, 0.0) + call.parameter_bytes
    return float(call.activation_bytes + call.parameter_bytes + call.output_bytes)
