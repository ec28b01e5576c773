"""Check that exported sizes vary as requested, or that the export fails."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

import torch

from vitascope.errors import EngineError
from vitascope.gpu.engines import OnnxRuntimeEngine, ShapeRange
from vitascope.gpu.engines.torch_export import trace_module

RANGES = {"x": ShapeRange((1, 3, 8, 8), (1, 3, 16, 8), (4, 3, 64, 8))}


class Flattened(torch.nn.Module):
    """Uses the batch size as a number, which a trace keeps constant."""

    def forward(self, x):
        return x.reshape(len(x), -1).sum(1)


class Spoilt(torch.nn.Module):
    def forward(self, x):
        if float(x.sum()) > 1:  # depends on a value that a trace does not know
            return x
        return -x


def inputs_of(model):
    return {
        one.name: [size.dim_param or size.dim_value for size in one.type.tensor_type.shape.dim]
        for one in model.graph.input
    }


def test_free_sizes_are_free_and_have_names():
    content = trace_module(torch.nn.Conv2d(3, 2, 3, padding=1), RANGES).onnx_bytes()
    assert inputs_of(onnx.load_from_string(content)) == {"x": ["batch", 3, "x_2", 8]}
    with OnnxRuntimeEngine(content) as engine:
        for shape in ((1, 3, 8, 8), (3, 3, 20, 8)):
            made = engine.run({"x": np.zeros(shape, np.float32)})["output"]
            assert made.shape == (shape[0], 2, *shape[2:])


@pytest.mark.parametrize("make", [Flattened, Spoilt])
def test_what_cannot_stay_free_is_an_error_and_not_a_file_for_one_size(make):
    with pytest.raises(EngineError, match="cannot be exported"):
        trace_module(make(), RANGES).onnx_bytes()


@pytest.mark.parametrize("computes", [True, False])
def test_inputs_of_another_type_than_the_weights(computes):
    class Halved(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(8, 2).half()

        def forward(self, x):
            return {"y": self.inner(x.half()).float()}

    traced = trace_module(Halved(), RANGES, dtype=torch.float32, computes=computes)
    assert traced.outputs == ("y",)
    assert traced.input_specs[0].dtype == traced.output_specs[0].dtype == np.float32
    content = traced.onnx_bytes()
    with OnnxRuntimeEngine(content) as engine:
        x = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
        wanted = traced.module(torch.from_numpy(x))[0].detach().numpy()
        np.testing.assert_allclose(engine.run({"x": x})["y"], wanted, atol=2e-3)
