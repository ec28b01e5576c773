"""Inference engines with a common interface.

Engines that need more than the base install (``torch_engine``, ``trt_plan``) are imported from their own modules. The
classes for users (``TensorRTEngine``, ``InductorEngine``, ``OnnxEngine``, ``open_engine``) wrap these, in
``gpu/toolkit/engines``.
"""

from vitascope.gpu.engines.engine import Engine, EngineSpec, Precision, ShapeRange, TensorSpec
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

__all__ = ["Engine", "EngineSpec", "OnnxRuntimeEngine", "Precision", "ShapeRange", "TensorSpec"]
