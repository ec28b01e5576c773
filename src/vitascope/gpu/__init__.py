"""Runtime of both applications, and the toolkit: kernels, engines, memory, batching, pipeline, profiler.

Nothing here depends on people, faces or files. Names load on first use: importing the package touches neither
CUDA, CuPy nor PyTorch, and everything that computes on a CPU works without them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitascope.gpu.memory.device_pool import MemoryPool as MemoryPool
    from vitascope.gpu.memory.disk_cache import CacheManager as CacheManager
    from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool as PinnedMemoryPool
    from vitascope.gpu.memory.vram_monitor import VRAMMonitor as VRAMMonitor
    from vitascope.gpu.pipeline import Group as Group
    from vitascope.gpu.pipeline import Map as Map
    from vitascope.gpu.pipeline import Pipeline as Pipeline
    from vitascope.gpu.pipeline import Sink as Sink
    from vitascope.gpu.pipeline import Source as Source
    from vitascope.gpu.profiling.bottleneck import BottleneckDetector as BottleneckDetector
    from vitascope.gpu.profiling.cuda import CUDAProfiler as CUDAProfiler
    from vitascope.gpu.profiling.memory import MemoryProfiler as MemoryProfiler
    from vitascope.gpu.profiling.profiler import Profiler as Profiler
    from vitascope.gpu.toolkit.async_pipeline import AsyncPipeline as AsyncPipeline
    from vitascope.gpu.toolkit.batching.batch_sizes import AdaptiveBatchSizer as AdaptiveBatchSizer
    from vitascope.gpu.toolkit.batching.batch_sizes import BatchSizeOptimizer as BatchSizeOptimizer
    from vitascope.gpu.toolkit.batching.batch_sizes import find_optimal_batch_size as find_optimal_batch_size
    from vitascope.gpu.toolkit.batching.batcher import DynamicBatcher as DynamicBatcher
    from vitascope.gpu.toolkit.batching.batcher import PriorityBatcher as PriorityBatcher
    from vitascope.gpu.toolkit.batching.batcher import StreamBatcher as StreamBatcher
    from vitascope.gpu.toolkit.batching.requests import BatchConfig as BatchConfig
    from vitascope.gpu.toolkit.batching.requests import InferenceRequest as InferenceRequest
    from vitascope.gpu.toolkit.batching.requests import InferenceResponse as InferenceResponse
    from vitascope.gpu.toolkit.engines import InductorEngine as InductorEngine
    from vitascope.gpu.toolkit.engines import OnnxEngine as OnnxEngine
    from vitascope.gpu.toolkit.engines import TensorRTEngine as TensorRTEngine
    from vitascope.gpu.toolkit.engines import open_engine as open_engine
    from vitascope.gpu.toolkit.feeding import PrefetchDataLoader as PrefetchDataLoader
    from vitascope.gpu.toolkit.feeding import PreprocessingPipeline as PreprocessingPipeline
    from vitascope.gpu.toolkit.processor import CUDAKernelProcessor as CUDAKernelProcessor
    from vitascope.gpu.toolkit.quantization.quantizer import ModelQuantizer as ModelQuantizer
    from vitascope.gpu.toolkit.temporal import TemporalOptimizer as TemporalOptimizer

_HOMES = {
    "AdaptiveBatchSizer": "toolkit.batching.batch_sizes",
    "AsyncPipeline": "toolkit.async_pipeline",
    "BatchConfig": "toolkit.batching.requests",
    "BatchSizeOptimizer": "toolkit.batching.batch_sizes",
    "BottleneckDetector": "profiling.bottleneck",
    "CUDAKernelProcessor": "toolkit.processor",
    "CUDAProfiler": "profiling.cuda",
    "CacheManager": "memory.disk_cache",
    "DynamicBatcher": "toolkit.batching.batcher",
    "Group": "pipeline",
    "InductorEngine": "toolkit.engines",
    "InferenceRequest": "toolkit.batching.requests",
    "InferenceResponse": "toolkit.batching.requests",
    "Map": "pipeline",
    "MemoryPool": "memory.device_pool",
    "MemoryProfiler": "profiling.memory",
    "ModelQuantizer": "toolkit.quantization.quantizer",
    "OnnxEngine": "toolkit.engines",
    "PinnedMemoryPool": "memory.pinned_pool",
    "Pipeline": "pipeline",
    "PrefetchDataLoader": "toolkit.feeding",
    "PreprocessingPipeline": "toolkit.feeding",
    "PriorityBatcher": "toolkit.batching.batcher",
    "Profiler": "profiling.profiler",
    "Sink": "pipeline",
    "Source": "pipeline",
    "StreamBatcher": "toolkit.batching.batcher",
    "TemporalOptimizer": "toolkit.temporal",
    "TensorRTEngine": "toolkit.engines",
    "VRAMMonitor": "memory.vram_monitor",
    "find_optimal_batch_size": "toolkit.batching.batch_sizes",
    "open_engine": "toolkit.engines",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vitascope.gpu' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vitascope.gpu.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, for completion in a shell."""
    return __all__
