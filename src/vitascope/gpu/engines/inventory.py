"""Which engines for ONNX networks this installation has, and what would bring the others."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import get_args

from vitascope.errors import MissingDependencyError
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_providers import PROVIDER_LABELS, Provider, missing_provider
from vitascope.gpu.engines.trt_plan import load_tensorrt

__all__ = ["InstalledEngine", "engine_inventory"]


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """One engine, or a package that engines need."""

    name: str
    version: str | None
    """None when it is missing."""
    missing: str | None
    """Why it cannot be used, and what installs it; None when it can be tried."""


def engine_inventory() -> list[InstalledEngine]:
    """ONNX Runtime with each of its providers, TensorRT, and the converter for fp16 and int8.

    That a provider is there does not mean that its libraries fit: that shows when a network is opened. Loads TensorRT
    and the TensorRT-RTX plugin where they are installed, which takes a second.
    """
    listed = [
        _status(f"ONNX Runtime, {PROVIDER_LABELS[provider]}", ort.__version__, missing_provider(provider))
        for provider in get_args(Provider)
    ]
    try:
        listed.append(InstalledEngine("TensorRT", load_tensorrt().__version__, None))
    except MissingDependencyError as error:
        listed.append(InstalledEngine("TensorRT", None, str(error)))
    try:
        listed.append(InstalledEngine("Model Optimizer", version("nvidia-modelopt"), None))
    except PackageNotFoundError:
        reason = "fp16 and int8 ONNX networks cannot be made: pip install 'nvidia-modelopt[onnx]'"
        listed.append(InstalledEngine("Model Optimizer", None, reason))
    return listed


def _status(name: str, installed: str, missing: str | None) -> InstalledEngine:
    return InstalledEngine(name, None if missing else installed, missing)
