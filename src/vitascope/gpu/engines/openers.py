"""The ways to run an ONNX network on a GPU, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitascope.gpu.engines.engine import Engine, Precision, ShapeRange
from vitascope.gpu.engines.onnx_providers import Provider
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

__all__ = ["GpuOptions", "Opener", "gpu_openers"]

Opener = Callable[[Path | bytes, Mapping[str, ShapeRange]], Engine]
"""Opens a network, given the sizes of its inputs; engines that take any size as it comes ignore them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """How networks shall run on a GPU, whichever engine runs them."""

    cache_dir: Path
    """Where TensorRT keeps what it builds."""
    precision: Precision = "tf32"
    tensorrt_precision: Precision | None = None
    """What TensorRT computes in, alone and inside of ONNX Runtime, where that is not ``precision``."""
    workspace_bytes: int | None = None
    """Most scratch memory of TensorRT; None leaves its own limit."""
    device_id: int = 0
    cuda_graph: bool = False
    """Replay CUDA graphs under ONNX Runtime, which takes no network with operators on the CPU then."""
    cudnn_benchmark: bool = True
    deterministic: bool = False


def gpu_openers(options: GpuOptions) -> list[tuple[str, Precision, Opener]]:
    """What one asks for them by, their arithmetic, and openers: ``tensorrt``, then ONNX Runtime's GPU providers.

    What is missing shows when an opener is called.
    """
    built = options.tensorrt_precision or options.precision
    return [
        ("tensorrt", built, partial(_open_tensorrt, options, built)),
        ("onnxruntime", built, partial(_open_onnx_runtime, options, "tensorrt", built)),
        ("onnxruntime", built, partial(_open_onnx_runtime, options, "tensorrt-rtx", built)),
        ("onnxruntime", options.precision, partial(_open_onnx_runtime, options, "cuda", options.precision)),
    ]


def _open_tensorrt(
    options: GpuOptions, precision: Precision, model: Path | bytes, profiles: Mapping[str, ShapeRange]
) -> Engine:
    from vitascope.gpu.engines.trt_plan import TrtPlan

    return TrtPlan(
        model,
        profiles=profiles,
        precision=precision,
        device_id=options.device_id,
        cache_dir=options.cache_dir,
        workspace_bytes=options.workspace_bytes,
    )


def _open_onnx_runtime(
    options: GpuOptions,
    provider: Provider,
    precision: Precision,
    model: Path | bytes,
    profiles: Mapping[str, ShapeRange],
) -> Engine:
    builds = provider != "cuda"
    return OnnxRuntimeEngine(
        model,
        provider=provider,
        device_id=options.device_id,
        precision=precision,
        cuda_graph=options.cuda_graph,
        cudnn_benchmark=options.cudnn_benchmark,
        deterministic=options.deterministic,
        cache_dir=options.cache_dir if builds else None,
        profiles=profiles if builds else None,
        workspace_bytes=options.workspace_bytes if provider == "tensorrt" else None,
    )
