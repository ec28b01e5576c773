"""The runtime under both applications, and a toolkit: kernels, engines, memory, batching, pipeline, profiler.

It knows nothing of people, faces or files. Names are loaded when they are first used: importing the package touches
neither CUDA, CuPy nor PyTorch, and what computes on a CPU works without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitascope.gpu.async_pipeline import AsyncPipeline
    from vitascope.gpu.batching.adaptive import AdaptiveBatchSizer
    from vitascope.gpu.batching.dynamic import DynamicBatcher
    from vitascope.gpu.batching.priority import PriorityBatcher
    from vitascope.gpu.batching.requests import BatchConfig, InferenceRequest, InferenceResponse
    from vitascope.gpu.batching.search import BatchSizeOptimizer
    from vitascope.gpu.batching.streams import StreamBatcher
    from vitascope.gpu.engines.inductor import InductorEngine
    from vitascope.gpu.engines.onnx_runtime import OnnxEngine
    from vitascope.gpu.engines.opening import open_engine
    from vitascope.gpu.engines.tensorrt import TensorRTEngine
    from vitascope.gpu.memory.device_pool import MemoryPool
    from vitascope.gpu.memory.disk_cache import CacheManager
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool
    from vitascope.gpu.memory.vram_monitor import VRAMMonitor
    from vitascope.gpu.prefetch import PrefetchDataLoader
    from vitascope.gpu.preprocessing import PreprocessingPipeline
    from vitascope.gpu.processor import CUDAKernelProcessor
    from vitascope.gpu.profiling.bottleneck import BottleneckDetector
    from vitascope.gpu.profiling.cuda import CUDAProfiler
    from vitascope.gpu.profiling.memory import MemoryProfiler
    from vitascope.gpu.profiling.profiler import Profiler
    from vitascope.gpu.quantization.quantizer import ModelQuantizer
    from vitascope.gpu.temporal import TemporalOptimizer

_HOMES = {
    "AdaptiveBatchSizer": "batching.adaptive",
    "AsyncPipeline": "async_pipeline",
    "BatchConfig": "batching.requests",
    "BatchSizeOptimizer": "batching.search",
    "BottleneckDetector": "profiling.bottleneck",
    "CUDAKernelProcessor": "processor",
    "CUDAProfiler": "profiling.cuda",
    "CacheManager": "memory.disk_cache",
    "DynamicBatcher": "batching.dynamic",
    "InductorEngine": "engines.inductor",
    "InferenceRequest": "batching.requests",
    "InferenceResponse": "batching.requests",
    "MemoryPool": "memory.device_pool",
    "MemoryProfiler": "profiling.memory",
    "ModelQuantizer": "quantization.quantizer",
    "OnnxEngine": "engines.onnx_runtime",
    "PinnedMemoryPool": "memory.pinned_pool",
    "PrefetchDataLoader": "prefetch",
    "PreprocessingPipeline": "preprocessing",
    "PriorityBatcher": "batching.priority",
    "Profiler": "profiling.profiler",
    "StreamBatcher": "batching.streams",
    "TemporalOptimizer": "temporal",
    "TensorRTEngine": "engines.tensorrt",
    "VRAMMonitor": "memory.vram_monitor",
    "open_engine": "engines.opening",
}

__all__ = [
    "AdaptiveBatchSizer",
    "AsyncPipeline",
    "BatchConfig",
    "BatchSizeOptimizer",
    "BottleneckDetector",
    "CUDAKernelProcessor",
    "CUDAProfiler",
    "CacheManager",
    "DynamicBatcher",
    "InductorEngine",
    "InferenceRequest",
    "InferenceResponse",
    "MemoryPool",
    "MemoryProfiler",
    "ModelQuantizer",
    "OnnxEngine",
    "PinnedMemoryPool",
    "PrefetchDataLoader",
    "PreprocessingPipeline",
    "PriorityBatcher",
    "Profiler",
    "StreamBatcher",
    "TemporalOptimizer",
    "TensorRTEngine",
    "VRAMMonitor",
    "open_engine",
]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vitascope.gpu' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitascope.gpu.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Public names, for completion in a shell."""
    return sorted(__all__)
