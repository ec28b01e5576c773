"""``open_engine``: a module or an ONNX network on the engine that is best here, or on the one that was asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.device import select_device
from vitascope.errors import UsageError
from vitascope.gpu.engines.engine import InputShapes, Precision, shape_ranges
from vitascope.gpu.engines.onnx_network import Calibration, read_network
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.gpu.engines.selection import Candidate, choose_engine
from vitascope.gpu.engines.self_check import Arrays, Machine, Runner
from vitascope.gpu.toolkit.engines.onnx import OnnxEngine
from vitascope.gpu.toolkit.engines.toolkit_engine import ToolkitEngine

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Backend", "open_engine"]

Backend = Literal["auto", "tensorrt", "inductor", "onnxruntime"]


def open_engine(
    model: nn.Module | str | PathLike[str] | bytes,
    backend: Backend = "auto",
    *,
    input_shapes: InputShapes | None = None,
    fp16_mode: bool = False,
    int8_mode: bool = False,
    calibration: Calibration | None = None,
    workspace_gb: float | None = None,
    cache_dir: str | PathLike[str] | None = None,
    device: Literal["auto", "cuda", "cpu"] = "auto",
    device_id: int = 0,
    allow_tf32: bool = True,
    on_reason: Callable[[str], None] | None = None,
) -> ToolkitEngine:
    """Build an engine and check its answers against the CPU's before it is used.

    Args:
        model: A PyTorch module, or an ONNX network (path or bytes).
        backend: ``auto`` tries ``tensorrt``, ``inductor`` (modules only) and ``onnxruntime`` on a GPU, and
            ``onnxruntime`` and ``inductor`` on a CPU, and takes the first that is installed and right; a name takes
            that engine, or says why it cannot be had.
        input_shapes: As for ``build_engine_from_pytorch``; may be left out for an ONNX network of fixed sizes.
        fp16_mode: See ``ToolkitEngine``.
        int8_mode: See ``ToolkitEngine``.
        calibration: For ``int8_mode``.
        workspace_gb: See ``ToolkitEngine``.
        cache_dir: Where engines and verdicts on them are kept.
        device: See ``ToolkitEngine``.
        device_id: See ``ToolkitEngine``.
        allow_tf32: See ``ToolkitEngine``.
        on_reason: Told, line by line, what was passed over and why, and what was taken.

    Returns:
        The opened engine; the caller closes it.

    Raises:
        EngineError: No engine works, or the one that was asked for gives wrong answers here.
        MissingDependencyError: It is not installed; the message names the package.
        UsageError: The arguments do not fit the model.
    """
    is_network = isinstance(model, bytes | str | PathLike)
    chosen_device = select_device(device, index=device_id)
    on_gpu = chosen_device.kind == "cuda"
    options: dict[str, Any] = {
        "fp16_mode": fp16_mode,
        "int8_mode": int8_mode,
        "cache_dir": cache_dir,
        "device": chosen_device.kind,
        "device_id": device_id,
        "allow_tf32": allow_tf32,
    }
    if is_network and backend == "inductor":
        raise UsageError(
            "the inductor engine runs PyTorch modules; an ONNX network runs on onnxruntime or tensorrt"
        )
    if not is_network and input_shapes is None:
        raise UsageError("a PyTorch module needs input_shapes={name: {'min': …, 'opt': …, 'max': …}}")
    network: Any = read_network(Path(model)) if isinstance(model, str | PathLike) else model

    def opened(name: str) -> ToolkitEngine:
        own: dict[str, Any] = {"workspace_gb": workspace_gb} if name == "tensorrt" else {}
        engine = _engine_class(name)(**options, **own)
        try:
            if is_network:
                engine.build_engine_from_onnx(network, input_shapes, calibration=calibration)
            else:
                assert input_shapes is not None  # checked above
                engine.build_engine_from_pytorch(network, input_shapes, calibration=calibration)
        except BaseException:
            engine.close()
            raise
        return engine

    order = ["tensorrt", "inductor", "onnxruntime"] if on_gpu else ["onnxruntime", "inductor"]
    if backend == "tensorrt" and not on_gpu:
        order = ["tensorrt"]  # whose error says why it cannot be had
    if is_network:
        order = [name for name in order if name != "inductor"]
    precision: Precision = "tf32" if on_gpu and allow_tf32 else "fp32"
    if int8_mode or (fp16_mode and on_gpu):
        precision = "int8" if int8_mode else "fp16"
    chosen = choose_engine(
        [
            Candidate[ToolkitEngine](
                name=name,
                precision=precision,
                open=partial(opened, name),
                describe=lambda engine: engine.name,
                runner=lambda engine: engine.run,
            )
            for name in order
        ],
        wanted=backend,
        reference=_network_reference(network) if is_network else _module_reference(network),
        make_inputs=lambda: _random_inputs(network, input_shapes),
        model=hashlib.sha256(network).hexdigest() if is_network else _module_sha256(network, input_shapes),
        machine=Machine.of_gpu(device_id) if on_gpu else Machine(chosen_device.label, "none"),
        cache_dir=None if cache_dir is None else Path(cache_dir),
    )
    if on_reason is not None:
        for reason in chosen.reasons:
            on_reason(reason)
    return chosen.engine


def _engine_class(name: str) -> type[ToolkitEngine]:
    if name == "onnxruntime":
        return OnnxEngine
    if name == "inductor":
        from vitascope.gpu.toolkit.engines.inductor import InductorEngine

        return InductorEngine
    from vitascope.gpu.toolkit.engines.tensorrt import TensorRTEngine

    return TensorRTEngine


def _network_reference(network: bytes) -> Runner:
    """The network under ONNX Runtime on the CPU."""

    def run(inputs: Arrays) -> Arrays:
        with OnnxRuntimeEngine(network) as engine:
            return engine.run(inputs)

    return run


def _module_reference(model: nn.Module) -> Runner:
    """The module on the CPU, in FP32."""

    def run(inputs: Arrays) -> Arrays:
        from vitascope.gpu.engines.torch_export import run_on_cpu

        return run_on_cpu(model, inputs)

    return run


def _random_inputs(network: Any, input_shapes: InputShapes | None) -> dict[str, npt.NDArray[Any]]:
    """Inputs of the smallest batch and the usual size; values of 0 to 1, as pictures have them."""
    random = np.random.default_rng(0)
    ranges = {} if input_shapes is None else shape_ranges(input_shapes)
    if not isinstance(network, bytes):
        return {
            name: random.random((one.smallest[0], *one.usual[1:]), np.float32) for name, one in ranges.items()
        }
    arrays = {}
    with OnnxRuntimeEngine(network) as engine:
        for tensor in engine.spec.inputs:
            known = ranges.get(tensor.name)
            shape = (
                (known.smallest[0], *known.usual[1:])
                if known is not None
                else tuple(side if isinstance(side, int) else 1 for side in tensor.shape)
            )
            arrays[tensor.name] = random.random(shape, np.float32).astype(tensor.dtype)
    return arrays


def _module_sha256(model: nn.Module, input_shapes: InputShapes | None) -> str:
    from vitascope.gpu.engines.torch_export import program_fingerprint, trace_module

    return program_fingerprint(trace_module(model, shape_ranges(input_shapes or {})).exported())
