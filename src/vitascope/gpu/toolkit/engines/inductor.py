"""PyTorch's compiler for users of the toolkit: a module exported, compiled, and replayed as CUDA graphs."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from vitascope.errors import EngineError, MissingDependencyError, UsageError
from vitascope.gpu.engines.engine import ShapeRange, TensorSpec, shapes_from_json, shapes_to_json
from vitascope.gpu.engines.onnx_network import Calibration
from vitascope.gpu.toolkit.engines.toolkit_engine import ToolkitEngine

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vitascope.gpu.engines.torch_engine import CompileEffort, Module, TorchEngine, TorchMode

__all__ = ["InductorEngine"]

# Batches of 1 to 16, each with a plan of its own.
_MOST_PLANS = 16
_NOTE = "vitascope.json"


class InductorEngine(ToolkitEngine):
    """PyTorch's compiler with the toolkit's methods, on the runtime's ``TorchEngine``.

    Runs a PyTorch module, compiled by Inductor, with a CUDA graph for each size that is met.

    The file that ``output_path`` names is an exported program (``torch.export.save``): operations and weights in the
    precision that was asked for. It is compiled when it is opened, on whatever GPU is there.

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
        """The user's module in the arithmetic that was asked for; still taking and giving what it did.

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
