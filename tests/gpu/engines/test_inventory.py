from __future__ import annotations

import importlib.metadata
import sys

from fake_onnx_runtime import fake_onnx_runtime
from fake_tensorrt import fake_tensorrt
from vitascope.gpu.engines import onnx_runtime, selection
from vitascope.gpu.engines.selection import engine_inventory


def test_what_is_missing_comes_with_what_installs_it(monkeypatch):
    ort = fake_onnx_runtime(available=("CUDAExecutionProvider", "CPUExecutionProvider"))
    for module in (selection, onnx_runtime):
        monkeypatch.setattr(module, "ort", ort)
    onnx_runtime._register_rtx_plugin.cache_clear()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    listed = {engine.name: engine for engine in engine_inventory()}
    assert listed["ONNX Runtime, CPU"].version == listed["ONNX Runtime, CUDA"].version == "1.31.1"
    for name, package in (
        ("ONNX Runtime, TensorRT", "pip install onnxruntime-gpu tensorrt"),
        ("ONNX Runtime, TensorRT-RTX", "pip install onnxruntime-ep-nv-tensorrt-rtx-cu13"),
        ("TensorRT", "pip install tensorrt"),
        ("Model Optimizer", "pip install 'nvidia-modelopt[onnx]'"),
    ):
        assert listed[name].version is None
        assert package in listed[name].missing


def test_what_is_there_has_its_version(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt(version="10.9.0"))
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.47.0")
    listed = {engine.name: engine for engine in engine_inventory()}
    assert (listed["TensorRT"].version, listed["TensorRT"].missing) == ("10.9.0", None)
    assert (listed["Model Optimizer"].version, listed["Model Optimizer"].missing) == ("0.47.0", None)
