"""Inference engines behind one port."""

from vitascope.gpu.engines.engine import Engine, EngineSpec, TensorSpec
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

__all__ = ["Engine", "EngineSpec", "OnnxRuntimeEngine", "TensorSpec"]
