"""Check that the decoder laid out for the CPU gives the official one's result, for pictures of any size."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from vitascope.errors import EngineError
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.models.rvm.blocked_decoder import NO_CROPS, BlockedDecoder, blocked_layout, crops_of
from vitascope.models.rvm.rvm import (
    GAIN,
    OFFSET,
    SMALL_RGB,
    STATES_IN,
    STATES_OUT,
    cut_official_graph,
    state_channels,
)
from vitascope.models.rvm.state import state_sizes

pytestmark = pytest.mark.fetched_model


@pytest.fixture(scope="module")
def halves(rvm_model_path):
    encoder, decoder = cut_official_graph(rvm_model_path)
    return OnnxRuntimeEngine(encoder, threads=1), decoder, state_channels(decoder)


def inputs_of(encoder, channels, size, *, eyes=2):
    rng = np.random.default_rng(0)
    pictures = rng.random((eyes, 3, *size), dtype=np.float32)
    states = {
        name: rng.uniform(-1, 1, (eyes, count, *level)).astype(np.float32)
        for name, count, level in zip(STATES_IN, channels, state_sizes(size), strict=True)
    }
    return {SMALL_RGB: pictures, **encoder.run({SMALL_RGB: pictures}), **states}


@pytest.mark.parametrize(
    "size", [(16, 16), (64, 96), (33, 50), (270, 480), (47, 31), (17, 40), (1, 33), (7, 1)]
)
def test_it_gives_what_the_official_decoder_gives(halves, size):
    encoder, decoder, channels = halves
    inputs = inputs_of(encoder, channels, size)
    blocked = BlockedDecoder(decoder, channels, threads=1)
    wanted = {tensor.name for tensor in blocked.spec.inputs}
    with OnnxRuntimeEngine(decoder, threads=1) as official:
        expected = official.run(inputs)
        found = blocked.run({name: array for name, array in inputs.items() if name in wanted})
    for name in (GAIN, OFFSET, *STATES_OUT):
        np.testing.assert_allclose(found[name], expected[name], atol=1e-4, err_msg=name)
    blocked.close()
    blocked.close()
    with pytest.raises(EngineError, match="closed"):
        blocked.run(inputs)


@pytest.mark.parametrize("crops", [NO_CROPS, crops_of((31, 270))])
def test_nothing_is_sliced_and_the_padded_picture_is_not_read(halves, crops):
    _, decoder, channels = halves
    graph = onnx.load_from_string(blocked_layout(decoder, channels, crops)).graph
    kinds = Counter(node.op_type for node in graph.node)
    assert kinds["Resize"] == 4
    assert not kinds.keys() & {"Slice", "Expand", "Shape"}
    assert f"{SMALL_RGB}_padded" not in {tensor.name for tensor in graph.input}
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in (*graph.input, *graph.initializer)} <= read
