"""ONNX Runtime for users of the toolkit: an ONNX network, or a PyTorch module exported to one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from vitascope import __version__
from vitascope.errors import MissingDependencyError, UsageError
from vitascope.gpu.engines.engine import ShapeRange
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_network import (
    Calibration,
    kept_shapes,
    low_precision_of,
    read_network,
    with_kept_shapes,
    with_precision,
)
from vitascope.gpu.engines.onnx_runtime import (
    OnnxRuntimeEngine,
    Provider,
    missing_provider,
)
from vitascope.gpu.engines.trt_cache import TrtCache
from vitascope.gpu.toolkit.engines.toolkit_engine import ToolkitEngine

if TYPE_CHECKING:
    from torch import nn

__all__ = ["OnnxEngine"]

_GPU_PROVIDERS = ("auto", "cuda", "tensorrt", "tensorrt-rtx")


class OnnxEngine(ToolkitEngine):
    """ONNX Runtime with the toolkit's methods, on the runtime's ``OnnxRuntimeEngine``.

    Runs an ONNX network, or a PyTorch module exported to one.

    The file that ``output_path`` names is an ONNX network in the precision that was asked for. ``int8_mode`` quantises
    with ``ModelQuantizer.quantize_int8``; FP16 networks for a GPU are made by NVIDIA's Model Optimizer.

    Args:
        fp16_mode: See ``ToolkitEngine``.
        int8_mode: See ``ToolkitEngine``.
        workspace_gb: Acts with ``provider="tensorrt"``.
        cache_dir: Where quantised networks are kept, and what the TensorRT providers build.
        device: ``auto`` takes the GPU where ONNX Runtime has a provider for it, else the CPU.
        device_id: See ``ToolkitEngine``.
        allow_tf32: See ``ToolkitEngine``.
        threads: Threads inside one operator on the CPU; 0 uses every core this process may run on.
        provider: Which of ONNX Runtime's GPU providers; ``auto`` is ``cuda`` on a GPU, and any other asks for one.

    Raises:
        DeviceError: The device cannot be had.
        MissingDependencyError: A GPU or a provider was asked for, without ONNX Runtime for GPUs.
        UsageError: A provider that is none, or one together with ``device="cpu"``; threads below 0.
    """

    def __init__(
        self,
        *,
        fp16_mode: bool = False,
        int8_mode: bool = False,
        workspace_gb: float | None = None,
        cache_dir: str | PathLike[str] | None = None,
        device: Literal["auto", "cuda", "cpu"] = "auto",
        device_id: int = 0,
        allow_tf32: bool = True,
        threads: int = 0,
        provider: Literal["auto", "cuda", "tensorrt", "tensorrt-rtx"] = "auto",
    ) -> None:
        if provider not in _GPU_PROVIDERS:
            raise UsageError(f"provider is {provider!r}, expected one of {', '.join(_GPU_PROVIDERS)}")
        if provider != "auto" and device == "cpu":
            raise UsageError(f"provider={provider!r} runs on a GPU, and device='cpu' was asked for")
        if threads < 0:
            raise UsageError(f"threads is {threads}, expected a number from 0")
        if provider != "auto":  # a provider that was asked for is not passed over in silence
            device = "cuda"
        on_gpu: Provider = "cuda" if provider == "auto" else provider
        missing = None if device == "cpu" else missing_provider(on_gpu)
        super().__init__(
            fp16_mode=fp16_mode,
            int8_mode=int8_mode,
            workspace_gb=workspace_gb,
            cache_dir=cache_dir,
            device="cpu" if device == "auto" and missing else device,
            device_id=device_id,
            allow_tf32=allow_tf32,
        )
        if missing and self._on_gpu:
            raise MissingDependencyError(missing)
        self._provider: Provider = on_gpu if self._on_gpu else "cpu"
        self._threads = threads
        self._network = b""
        if workspace_gb is not None and self._provider != "tensorrt":
            self._notes.append("workspace_gb has no effect: ONNX Runtime allocates as it needs")

    def _from_pytorch(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> OnnxRuntimeEngine:
        from vitascope.gpu.engines.torch_export import trace_module

        return self._from_onnx(trace_module(model, ranges).onnx_bytes(), ranges, calibration)

    def _from_onnx(
        self, source: Path | bytes, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> OnnxRuntimeEngine:
        network = read_network(source)
        if calibration is not None:
            network = self._quantized(network, calibration)
        elif self.precision == "fp16":
            network = with_precision(network, "fp16")
        self._network = network
        return self._opened_network(
            network, ranges, label=str(source) if isinstance(source, Path) else "network"
        )

    def _from_file(self, path: Path) -> tuple[OnnxRuntimeEngine, dict[str, ShapeRange]]:
        self._network = read_network(path)
        ranges = kept_shapes(self._network)
        return self._opened_network(self._network, ranges, label=str(path)), ranges

    def _serialized(self) -> bytes:
        return with_kept_shapes(self._network, self._ranges)

    def _opened_network(
        self, network: bytes, ranges: Mapping[str, ShapeRange], *, label: str
    ) -> OnnxRuntimeEngine:
        builds = self._provider.startswith("tensorrt")
        self._found = Path(label).name, low_precision_of(network) or self._exact
        return OnnxRuntimeEngine(
            network,
            provider=self._provider,
            threads=self._threads,
            device_id=self._device.index,
            precision="tf32" if self._on_gpu and self._tf32 else "fp32",
            cache_dir=self._cache_dir if builds else None,
            profiles=ranges if builds else None,
            workspace_bytes=self._workspace_bytes if self._provider == "tensorrt" else None,
            label=label,
        )

    def _quantized(self, network: bytes, calibration: Calibration) -> bytes:
        """The network in int8, from the cache where it is there."""
        from vitascope.gpu.toolkit.quantization.quantizer import ModelQuantizer

        target: Literal["cpu", "gpu"] = "gpu" if self._on_gpu else "cpu"
        if self._cache_dir is None:
            quantized: bytes = ModelQuantizer.quantize_int8(network, calibration, target=target)
            return quantized
        version = f"onnxruntime {ort.__version__}, vitascope {__version__}"
        cache = TrtCache(self._cache_dir, gpu=f"any {target}", version=version)
        digest = hashlib.sha256(network)
        for name in sorted(calibration):
            array = np.ascontiguousarray(calibration[name])
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        path = cache.engine_path({"network": digest.hexdigest(), "precision": "int8"})
        kept = cache.load(path)
        if kept is None:
            kept = ModelQuantizer.quantize_int8(network, calibration, target=target)
            cache.store(path, kept)
        self._notes += cache.notes
        return kept
