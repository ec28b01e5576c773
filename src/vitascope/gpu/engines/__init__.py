"""Inference engines with a common interface.

Those that need more than the base install (``torch_engine``, ``trt_plan``) are imported from their own modules. What
users hold (``TensorRTEngine``, ``InductorEngine``, ``OnnxEngine``, ``open_engine``) is built on these, in
``gpu/toolkit/engines``.
"""

from vitascope.gpu.engines.engine import Engine, EngineSpec, Precision, ShapeRange, TensorSpec
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

__all__ = ["Engine", "EngineSpec", "OnnxRuntimeEngine", "Precision", "ShapeRange", "TensorSpec"]
