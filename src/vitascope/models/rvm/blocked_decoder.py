"""Lays out RVM's recurrent decoder in the form that ONNX Runtime computes fastest on the CPU.

ONNX Runtime convolves in blocks of 8 or 16 channels, and converts a tensor to blocks and back wherever an operator
between two convolutions does not support them. The official decoder has such operators at its largest sizes: a crop
after each enlargement; a concatenation of 32 channels with the picture's 3; and one of 8 channels with the 16 of the
last convolution. Here the same values are computed with another order of sums: a convolution of a concatenation becomes
a sum of convolutions. A crop, needed where a side is odd, becomes a convolution that picks the first of two rows or
columns. States have the size of the features beside them from the first frame on, so that nothing is stretched.
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
from vitascope.models.rvm.state import state_sizes

_PICTURE: Final = "small_rgb"
_PICTURE_CHANNELS: Final = 3
_STATES: Final = ("r1i", "r2i", "r3i", "r4i")
Crops = tuple[tuple[bool, bool], ...]
"""Whether an enlargement makes a row, and a column, too many: for the picture, its half, its quarter and its eighth."""
NO_CROPS: Final[Crops] = 4 * ((False, False),)
"""Crops of pictures whose sides are multiples of 16."""


def crops_of(size: Sequence[int]) -> Crops:
    """The crops for a picture of (height, width): a side that was halved and rounded up comes back longer."""
    levels = [size, *state_sizes(size)[:-1]]
    return tuple((height % 2 == 1, width % 2 == 1) for height, width in levels)


class BlockedDecoder:
    """An engine for the decoder in blocks; it opens one layout for each set of crops, when first needed.

    Args:
        decoder: From ``cut_official_graph``.
        state_channels: Channels of r1 to r4.
        threads: Threads inside one operator; 0 uses every core.

    Raises:
        EngineError: ONNX Runtime cannot load it.
    """

    def __init__(self, decoder: bytes, state_channels: Sequence[int], *, threads: int) -> None:
        def open_layout(crops: Crops) -> OnnxRuntimeEngine:
            return OnnxRuntimeEngine(blocked_layout(decoder, state_channels, crops), threads=threads)

        self._open = open_layout
        usual = open_layout(NO_CROPS)
        self._layouts = {NO_CROPS: usual}
        self._name, self._spec = usual.name, usual.spec
        self._opening = threading.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """The engine, and its threads."""
        return self._name

    @property
    def spec(self) -> EngineSpec:
        """See ``Engine``."""
        return self._spec

    def run(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Tensor]:
        """See ``Engine.run``."""
        crops = crops_of(inputs[_PICTURE].shape[2:])
        with self._opening:
            if self._closed:
                raise EngineError(f"{self._name}: closed")
            if crops not in self._layouts:
                self._layouts[crops] = self._open(crops)
            layout = self._layouts[crops]
        return layout.run(inputs, outputs, stream=stream)

    def close(self) -> None:
        """Free the layouts; idempotent."""
        with self._opening:
            self._closed = True
            for layout in self._layouts.values():
                layout.close()


def blocked_layout(decoder: bytes, state_channels: Sequence[int], crops: Crops) -> bytes:
    """Lay out the decoder for pictures with these crops; results are the same within rounding.

    Args:
        decoder: From ``cut_official_graph``.
        state_channels: Channels of r1 to r4.
        crops: From ``crops_of``.

    Returns:
        A serialised ONNX network that no longer reads the padded picture.
    """
    model = onnx.load_from_string(decoder)
    layout = _Layout(model.graph, state_channels, crops)
    nodes = [changed for node in model.graph.node for changed in layout.changed(node)]
    outputs = {tensor.name for tensor in model.graph.output}
    while True:  # the inputs of the crops are no longer read
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

    def __init__(self, graph: onnx.GraphProto, state_channels: Sequence[int], crops: Crops) -> None:
        self.weights = {tensor.name: tensor for tensor in graph.initializer}
        self._producer = {name: node for node in graph.node for name in node.output}
        self._same: dict[str, str] = {}
        """Tensors that equal others, by name."""
        # A level's result is joined to its state, of as many channels, and enlarged to the level above.
        self._grown = {
            f"r{level}o": (2 * count, crop)
            for level, (count, crop) in enumerate(zip(state_channels, crops, strict=True), start=1)
        }

    def changed(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that replace one node."""
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
        """The tensor whose parts, all and in order, this joins again; None if there is none."""
        split = self._made_by(concat.input[0], "Split")
        return split.input[0] if split is not None and list(split.output) == list(concat.input) else None

    def _enlarged(self, resize: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The enlargement in blocks, cropped where the level above is shorter.

        An identity convolution in front of it converts to blocks.
        """
        joined = self._made_by(resize.input[0], "Concat")
        assert joined is not None  # a level's result, which ends with its state
        channels, crop = self._grown[joined.input[-1]]
        for attribute in resize.attribute:
            if attribute.name == "coordinate_transformation_mode" and attribute.s == b"pytorch_half_pixel":
                attribute.s = b"half_pixel"  # differs only for results of one sample, which do not occur
        small, enlarged = resize.input[0], resize.output[0]
        resize.input[0] = f"{small}_blocks"
        made = [self._picked(small, resize.input[0], channels, (1, 1)), resize]
        if any(crop):
            resize.output[0] = f"{enlarged}_whole"
            rows, columns = (2 if longer else 1 for longer in crop)
            made.append(self._picked(resize.output[0], enlarged, channels, (rows, columns)))
        return made

    def _picked(self, source: str, name: str, channels: int, window: tuple[int, int]) -> onnx.NodeProto:
        """The first sample of each window, in blocks: a window of two drops the last row or column."""
        kernel = np.zeros((channels, channels, *window), np.float32)
        kernel[:, :, 0, 0] = np.eye(channels)
        return helper.make_node(
            "Conv", [source, self._weight(f"{name}_weight", kernel)], [name], kernel_shape=list(window)
        )

    def _convolved(self, convolution: onnx.NodeProto, joined: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Split a convolution of large and small parts into one each, and add the results."""
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
            assert relu is not None  # the caller found it
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
