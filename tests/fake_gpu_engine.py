"""An engine that requires CuPy arrays, like one on a GPU, and computes with ONNX Runtime on the CPU."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np

from fake_cupy import FakeArray
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.gpu.engines.engine import require_gpu_inputs


class FakeGpuEngine:
    def __init__(self, model):
        self.real = OnnxRuntimeEngine(model, threads=1)
        self.spec = dataclasses.replace(self.real.spec, device="cuda")
        self.name = "fake GPU engine 1.0"
        self.shapes = []
        self.closed = False

    def run(self, inputs, outputs=None, *, stream=None):
        require_gpu_inputs(self.spec, inputs, label="fake")
        self.shapes.append({name: array.shape for name, array in inputs.items()})
        results = self.real.run({name: np.array(array) for name, array in inputs.items()}, outputs)
        assert all(isinstance(array, FakeArray) for array in inputs.values())
        return {name: sys.modules["cupy"].asarray(array) for name, array in results.items()}

    def close(self):
        self.closed = True
        self.real.close()
