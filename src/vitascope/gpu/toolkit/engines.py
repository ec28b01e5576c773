"""Engines for users of the toolkit, on TensorRT, ONNX Runtime and PyTorch; ``open_engine`` chooses the best here.

TensorRT for users of the toolkit: PyTorch to ONNX to an engine for one GPU.

**Not yet run on hardware**: TensorRT was not to be had on the GPUs that this project is measured on; see ``trt_plan``.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from vitascope import __version__
from vitascope.device import select_device
from vitascope.errors import DeviceError, EngineError, MissingDependencyError, UsageError
from vitascope.gpu.engines.engine import (
    InputShapes,
    Precision,
    ShapeRange,
    TensorSpec,
    shape_ranges,
    shapes_from_json,
    shapes_to_json,
)
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
from vitascope.gpu.engines.selection import Candidate, choose_engine
from vitascope.gpu.engines.self_check import Arrays, Machine, Runner
from vitascope.gpu.engines.trt_plan import TrtCache, TrtPlan, load_tensorrt
from vitascope.gpu.toolkit.toolkit_engine import DeviceWord, ToolkitEngine

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitascope.gpu.engines.torch_engine import CompileEffort, Module, TorchEngine, TorchMode

__all__ = ["Backend", "InductorEngine", "OnnxEngine", "TensorRTEngine", "open_engine"]

# Batches of 1 to 16, each with a plan of its own.
_MOST_PLANS = 16
_NOTE = "vitascope.json"


class InductorEngine(ToolkitEngine):
    """PyTorch's compiler with the toolkit's methods, on the runtime's ``TorchEngine``.

    Runs a PyTorch module, compiled by Inductor, with a CUDA graph for each size that is met.

    The file that ``output_path`` names is an exported program (``torch.export.save``): operations and weights in the
    precision that was requested. It is compiled when it is opened, on whatever GPU is there.

    Args:
        fp16_mode: On a GPU weights and activations are FP16, and pictures lie channels-last, as tensor cores want them;
            inputs and outputs keep their types.
        int8_mode: Convolutions and linear layers are quantised by ``ModelQuantizer.quantize_int8``.
        workspace_gb: Has no effect: PyTorch allocates as it needs.
        cache_dir: Where ``mode="aot"`` keeps its packages.
        device: See ``ToolkitEngine``.
        device_id: See ``ToolkitEngine``.
        allow_tf32: See ``ToolkitEngine``.
        mode: ``compile`` at the first run of each size; ``aot`` from packages in ``cache_dir``; ``eager`` not at all.
            ``auto`` compiles on a GPU, and not on a CPU, where it needs a C++ compiler.
        effort: ``max-autotune`` lets the compiler time its choices, for minutes.
        cuda_graph: Record each size as a CUDA graph.

    Raises:
        MissingDependencyError: PyTorch is not installed.
        DeviceError: The device cannot be had.
        UsageError: A word that is none of those above, or ``mode="aot"`` without ``cache_dir``.
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
        mode: Literal["auto"] | TorchMode = "auto",
        effort: CompileEffort = "default",
        cuda_graph: bool = True,
    ) -> None:
        try:
            import torch  # noqa: F401 - takes a second; only who asks for this engine pays it
        except ImportError as error:
            raise MissingDependencyError(
                "PyTorch is not installed: pip install 'vitascope[torch]'"
            ) from error
        super().__init__(
            fp16_mode=fp16_mode,
            int8_mode=int8_mode,
            workspace_gb=workspace_gb,
            cache_dir=cache_dir,
            device=device,
            device_id=device_id,
            allow_tf32=allow_tf32,
        )
        from vitascope.gpu.engines import torch_engine

        modes, efforts = ("auto", *get_args(torch_engine.TorchMode)), get_args(torch_engine.CompileEffort)
        if mode not in modes or effort not in efforts:
            raise UsageError(
                f"mode is {mode!r} and effort {effort!r}; expected one of {', '.join(modes)}, and one of "
                f"{', '.join(efforts)}"
            )
        if mode == "aot" and cache_dir is None:
            raise UsageError('mode="aot" keeps packages: name a cache_dir')
        self._mode: TorchMode = ("compile" if self._on_gpu else "eager") if mode == "auto" else mode
        self._effort: CompileEffort = effort
        self._cuda_graph = cuda_graph
        self._program: torch.export.ExportedProgram | None = None
        if workspace_gb is not None:
            self._notes.append("workspace_gb has no effect: PyTorch allocates as it needs")
        if cache_dir is not None and self._mode != "aot":
            self._notes.append(f'cache_dir keeps no engine with mode="{self._mode}": mode="aot" does')

    def close(self) -> None:
        """Free the network; idempotent."""
        super().close()
        self._program = None

    def _from_pytorch(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> TorchEngine:
        from vitascope.gpu.engines.torch_export import trace_module, weights_dtype

        prepared = self._prepared(model, ranges, calibration)
        # The user's module says what it takes: the prepared one may have weights in half precision inside.
        traced = trace_module(prepared, ranges, device=self._torch_device, dtype=weights_dtype(model))
        self._program = traced.exported()
        return self._open_module(traced.module, traced.input_specs, traced.output_specs)

    def _from_onnx(
        self,
        source: Path | bytes,  # noqa: ARG002 - the base's signature
        ranges: Mapping[str, ShapeRange],  # noqa: ARG002
        calibration: Calibration | None,  # noqa: ARG002
    ) -> TorchEngine:
        raise UsageError(
            "InductorEngine runs PyTorch modules; OnnxEngine and TensorRTEngine run ONNX networks"
        )

    def _from_file(self, path: Path) -> tuple[TorchEngine, dict[str, ShapeRange]]:
        import torch
        from torch.export.passes import move_to_device_pass

        kept = {_NOTE: ""}
        try:
            program = torch.export.load(path, extra_files=kept)
            note = json.loads(kept[_NOTE])
            inputs, outputs = ([_spec(one) for one in note[key]] for key in ("inputs", "outputs"))
        except Exception as error:  # whatever torch.export raises for a file that is none of its
            raise EngineError(f"{path}: is no program that InductorEngine wrote") from error
        if note["device"] != self._device.kind:
            program = move_to_device_pass(program, self._torch_device)
        self._program = program
        # TF32 is a switch of the machine, and nothing that a program holds.
        self._found = path.name, note["precision"] if note["precision"] in ("fp16", "int8") else self._exact
        return self._open_module(program, inputs, outputs), shapes_from_json(note["shapes"])

    def _serialized(self) -> bytes:
        import torch

        engine = self._opened()
        note = {
            "inputs": [(one.name, one.dtype.name, one.shape) for one in engine.spec.inputs],
            "outputs": [(one.name, one.dtype.name, one.shape) for one in engine.spec.outputs],
            "shapes": shapes_to_json(self._ranges),
            "precision": self.precision,
            "device": self._device.kind,
        }
        content = io.BytesIO()
        assert self._program is not None  # set by both ways of opening
        with warnings.catch_warnings():
            # Said of each weight that lies channels-last; they are written whole all the same, and come back so.
            warnings.filterwarnings(
                "ignore", message="No complete tensor found in the group", category=UserWarning
            )
            torch.export.save(self._program, content, extra_files={_NOTE: json.dumps(note)})
        return content.getvalue()

    @property
    def _torch_device(self) -> str:
        return f"cuda:{self._device.index}" if self._on_gpu else "cpu"

    def _prepared(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> nn.Module:
        """The user's module in the arithmetic that was requested; still taking and giving what it did.

        Raises:
            UsageError: It is no module.
        """
        if not hasattr(model, "parameters"):
            raise UsageError(f"a PyTorch module is expected, got {type(model).__name__}")
        if calibration is not None:
            from vitascope.gpu.toolkit.quantization.calibration import named_frames
            from vitascope.gpu.toolkit.quantization.quantizer import ModelQuantizer

            model = ModelQuantizer.quantize_int8(model, named_frames(calibration, list(ranges)))
        if self._on_gpu and self._fp16:
            from vitascope.gpu.engines.torch_export import HalfPrecision

            model = HalfPrecision(model)
        return model

    def _open_module(
        self, module: Module, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> TorchEngine:
        from vitascope.gpu.engines.torch_engine import TorchEngine
        from vitascope.gpu.engines.torch_export import program_fingerprint

        fingerprint = None
        if self._mode == "aot":
            assert self._program is not None  # set by both callers
            fingerprint = program_fingerprint(self._program)
        return TorchEngine(
            module,
            inputs=inputs,
            outputs=outputs,
            device=self._torch_device,
            label="module",
            mode=self._mode,
            effort=self._effort,
            cuda_graph=self._cuda_graph,
            most_plans=_MOST_PLANS,
            cache_dir=self._cache_dir,
            fingerprint=fingerprint,
            allow_tf32=self._tf32,
        )


def _spec(row: Any) -> TensorSpec:
    name, dtype, shape = row
    return TensorSpec(name, np.dtype(dtype), tuple(shape))


_GPU_PROVIDERS = ("auto", "cuda", "tensorrt", "tensorrt-rtx")


class OnnxEngine(ToolkitEngine):
    """ONNX Runtime with the toolkit's methods, on the runtime's ``OnnxRuntimeEngine``.

    Runs an ONNX network, or a PyTorch module exported to one.

    The file that ``output_path`` names is an ONNX network in the precision that was requested. ``int8_mode`` quantises
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
        MissingDependencyError: A GPU or a provider was requested, without ONNX Runtime for GPUs.
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
        if provider != "auto":  # a provider that was requested is not passed over in silence
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


class TensorRTEngine(ToolkitEngine):
    """TensorRT (10 or newer) with the toolkit's methods, on the runtime's ``TrtPlan``. Not yet run on hardware.

    FP16 and INT8 networks are made by NVIDIA's Model Optimizer (``pip install 'vitascope[quantize]'``), because
    TensorRT 11 has no precision switches: "Python Migration Patterns for TensorRT 11.x". The file that ``output_path``
    names is TensorRT's own serialised engine, which ``trtexec --loadEngine`` takes too; it fits one GPU and one
    TensorRT version.

    Arguments are ``ToolkitEngine``'s.

    Raises:
        DeviceError: There is no GPU, or ``device="cpu"``.
        MissingDependencyError: TensorRT or CuPy is not installed; the message names the package.
    """

    def _placed(self, device: DeviceWord) -> DeviceWord:
        if device == "cpu":
            raise DeviceError("TensorRT runs on a GPU; take OnnxEngine or InductorEngine on a CPU")
        load_tensorrt()
        return "cuda"

    def _from_pytorch(
        self, model: nn.Module, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> TrtPlan:
        from vitascope.gpu.engines.torch_export import trace_module

        return self._from_onnx(trace_module(model, ranges).onnx_bytes(), ranges, calibration)

    def _from_onnx(
        self, source: Path | bytes, ranges: Mapping[str, ShapeRange], calibration: Calibration | None
    ) -> TrtPlan:
        return TrtPlan(
            source,
            profiles=ranges,
            precision=self.precision,
            calibration=calibration,
            device_id=self._device.index,
            cache_dir=self._cache_dir,
            workspace_bytes=self._workspace_bytes,
        )

    def _from_file(self, path: Path) -> tuple[TrtPlan, dict[str, ShapeRange]]:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise EngineError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from error
        plan = TrtPlan.from_serialized(
            content, label=str(path), precision=self.precision, device_id=self._device.index
        )
        return plan, plan.profiles

    def _serialized(self) -> bytes:
        plan = self._opened()
        assert isinstance(plan, TrtPlan)  # what this class opens
        return plan.serialized


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
        on_reason: Called line by line with what was passed over and why, and what was taken.

    Returns:
        The opened engine; the caller closes it.

    Raises:
        EngineError: No engine works, or the one that was requested gives wrong answers here.
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
        return InductorEngine

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
