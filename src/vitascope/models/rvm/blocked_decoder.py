"""RVM's recurrent decoder on the CPU, as ONNX Runtime computes it fastest.

ONNX Runtime convolves in blocks of 8 or 16 channels, and turns a tensor into blocks and back wherever an operator
between two convolutions does not know them. The official decoder has such operators at its largest sizes: a crop after
each enlargement, which crops nothing where the sides are multiples of 16; a concatenation of 32 channels with the
picture's 3; one of 8 channels with the 16 of the last convolution. There the same numbers are computed in another
order of sums: a convolution of a concatenation is a sum of convolutions. And states are as large as what they are
joined to from the first frame on, so that nothing is stretched.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vitascope.errors import EngineError
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.gpu.engines.engine import EngineSpec, Tensor

_PICTURE: Final = "small_rgb"
_PICTURE_CHANNELS: Final = 3
_WHOLE_SIDES: Final = 16
_STATES: Final = ("r1i", "r2i", "r3i", "r4i")


class BlockedDecoder:
    """An engine of the decoder: laid out for blocks where the picture's sides are multiples of 16, as it is elsewhere.

    Args:
        decoder: As ``cut_official_graph`` gives it.
        state_channels: Channels of r1 to r4.
        threads: Threads inside one operator; 0 uses every core.

    Raises:
        EngineError: ONNX Runtime cannot load it.
    """

    def __init__(self, decoder: bytes, state_channels: Sequence[int], *, threads: int) -> None:
        self._decoder, self._threads = decoder, threads
        self._blocked: OnnxRuntimeEngine | None = OnnxRuntimeEngine(
            blocked_layout(decoder, state_channels), threads=threads
        )
        self._name, self._spec = self._blocked.name, self._blocked.spec
        self._plain: OnnxRuntimeEngine | None = None
        """Opened for the first picture of other sides."""
        self._opening = threading.Lock()

    @property
    def name(self) -> str:
        """The engine, and its threads."""
        return self._name

    @property
    def spec(self) -> EngineSpec:
        """See ``Engine``; the plain layout reads a padded picture as well, which is made where it is needed."""
        return self._spec

    def run(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Tensor]:
        """See ``Engine.run``."""
        if self._blocked is None:
            raise EngineError(f"{self._name}: closed")
        if not any(side % _WHOLE_SIDES for side in inputs[_PICTURE].shape[2:]):
            return self._blocked.run(inputs, outputs, stream=stream)
        with self._opening:
            if self._plain is None:
                self._plain = OnnxRuntimeEngine(self._decoder, threads=self._threads)
            plain = self._plain
        missing = {spec.name for spec in plain.spec.inputs} - set(inputs)
        padded = np.pad(inputs[_PICTURE], ((0, 0), (0, 1), (0, 0), (0, 0)))
        return plain.run({**inputs, **dict.fromkeys(missing, padded)}, outputs, stream=stream)

    def close(self) -> None:
        """Free both layouts; idempotent."""
        for engine in (self._blocked, self._plain):
            if engine is not None:
                engine.close()
        self._blocked = self._plain = None


def blocked_layout(decoder: bytes, state_channels: Sequence[int]) -> bytes:
    """The decoder for pictures whose sides are multiples of 16; it gives the same within rounding.

    Args:
        decoder: As ``cut_official_graph`` gives it.
        state_channels: Channels of r1 to r4.

    Returns:
        A serialised ONNX network that no longer reads the padded picture.
    """
    model = onnx.load_from_string(decoder)
    layout = _Layout(model.graph, state_channels)
    nodes = [changed for node in model.graph.node for changed in layout.changed(node)]
    outputs = {tensor.name for tensor in model.graph.output}
    while True:  # the inputs of the crops are not read any more
        read = outputs | {name for node in nodes for name in node.input}
        kept = [node for node in nodes if read.intersection(node.output)]
        if len(kept) == len(nodes):
            break
        nodes = kept
    graph = model.graph
    for field, new in (
        (graph.node, nodes),
        (graph.initializer, [tensor for tensor in layout.weights.values() if tensor.name in read]),
        (graph.input, [tensor for tensor in graph.input if tensor.name in read]),
    ):
        copies = [type(one).FromString(one.SerializeToString()) for one in new]
        del field[:]
        field.extend(copies)
    return bytes(model.SerializeToString())


class _Layout:
    """Changes a decoder's nodes, in their order."""

    def __init__(self, graph: onnx.GraphProto, state_channels: Sequence[int]) -> None:
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self._producer = {name: node for node in graph.node for name in node.output}
        self._same: dict[str, str] = {}
        """Tensors that are others, unchanged."""
        self._grown = {
            f"r{level}o": 2 * count for level, count in enumerate(state_channels, start=1)
        }  # a level's result is as many channels again beside its state

    def changed(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that replace a node."""
        for slot, name in enumerate(node.input):
            node.input[slot] = self._same.get(name, name)
        crops = node.op_type == "Slice" and self._made_by(node.input[0], "Resize") is not None
        if crops or (node.op_type == "Expand" and node.input[0] in _STATES):
            self._same[node.output[0]] = node.input[0]
            return []
        if node.op_type == "Concat" and (whole := self._split_before(node)):
            self._same[node.output[0]] = whole
            return []
        if node.op_type == "Resize":
            return self._enlarged(node)
        if node.op_type == "Conv" and (joined := self._made_by(node.input[0], "Concat")):
            return self._convolved(node, joined)
        return [node]

    def _made_by(self, name: str, operator: str) -> onnx.NodeProto | None:
        node = self._producer.get(name)
        return node if node is not None and node.op_type == operator else None

    def _split_before(self, concat: onnx.NodeProto) -> str | None:
        """The tensor whose parts, all of them in order, are joined again."""
        split = self._made_by(concat.input[0], "Split")
        return split.input[0] if split is not None and list(split.output) == list(concat.input) else None

    def _enlarged(self, resize: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The enlargement in blocks: behind a convolution that changes nothing, because those read and give blocks."""
        joined = self._made_by(resize.input[0], "Concat")
        channels = self._grown.get(joined.input[-1]) if joined is not None else None
        for attribute in resize.attribute:
            if attribute.name == "coordinate_transformation_mode" and attribute.s == b"pytorch_half_pixel":
                attribute.s = b"half_pixel"  # the same but for results of one sample, which none is
        if channels is None:
            return [resize]
        blocks = f"{resize.input[0]}_blocks"
        weight = self._weight(f"{blocks}_weight", np.eye(channels, dtype=np.float32)[:, :, None, None])
        same = helper.make_node("Conv", [resize.input[0], weight], [blocks], kernel_shape=[1, 1])
        resize.input[0] = blocks
        return [same, resize]

    def _convolved(self, convolution: onnx.NodeProto, joined: onnx.NodeProto) -> list[onnx.NodeProto]:
        """A convolution of large parts and small ones: each for itself, and their sum."""
        parts = [self._same.get(name, name) for name in joined.input]
        kernel = numpy_helper.to_array(self.weights[convolution.input[1]])
        if len(parts) == 2 and self._made_by(parts[0], "Resize") and self._is_picture(parts[1]):
            # The enlarged channels, then red, green, blue and a padding of zeros.
            at = kernel.shape[1] - _PICTURE_CHANNELS - 1
            large, small = kernel[:, :at], kernel[:, at : at + _PICTURE_CHANNELS]
            return self._sum(convolution, (parts[0], large), (_PICTURE, small), [])
        if len(parts) == 3 and self._made_by(parts[2], "Relu"):
            # Moments of the guided filter, then the last convolution's channels.
            relu = self._made_by(parts[2], "Relu")
            assert relu is not None  # just found
            before = self._made_by(relu.input[0], "Conv")
            if before is not None:
                at = kernel.shape[1] - numpy_helper.to_array(self.weights[before.input[1]]).shape[0]
                moments = f"{convolution.output[0]}_moments"
                concat = helper.make_node("Concat", parts[:2], [moments], axis=1)
                return self._sum(convolution, (parts[2], kernel[:, at:]), (moments, kernel[:, :at]), [concat])
        return [convolution]

    def _is_picture(self, name: str) -> bool:
        return name == f"{_PICTURE}_padded"

    def _sum(
        self,
        convolution: onnx.NodeProto,
        large: tuple[str, np.ndarray[Any, Any]],
        small: tuple[str, np.ndarray[Any, Any]],
        before: list[onnx.NodeProto],
    ) -> list[onnx.NodeProto]:
        """Two convolutions instead of one; the large one has the bias."""
        name = convolution.output[0]
        attributes = {each.name: helper.get_attribute_value(each) for each in convolution.attribute}
        made = []
        for (source, kernel), part, bias in (
            (small, f"{name}_small", []),
            (large, f"{name}_large", convolution.input[2:]),
        ):
            inputs = [source, self._weight(f"{part}_weight", kernel), *bias]
            made.append(helper.make_node("Conv", inputs, [part], **attributes))
        return [*before, *made, helper.make_node("Add", [f"{name}_large", f"{name}_small"], [name])]

    def _weight(self, name: str, values: np.ndarray[Any, Any]) -> str:
        self.weights[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name
