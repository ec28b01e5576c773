"""Inference engines behind one port.

Those that need more than the base install (``torch_engine``, ``trt_plan``), and what users of the toolkit hold
(``inductor``, ``tensorrt``, ``opening``), are imported from their own modules.
"""

from vitascope.gpu.engines.engine import Engine, EngineSpec, Precision, ShapeRange, TensorSpec
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

__all__ = ["Engine", "EngineSpec", "OnnxRuntimeEngine", "Precision", "ShapeRange", "TensorSpec"]
