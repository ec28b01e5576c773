"""TensorRT for users of the toolkit: PyTorch to ONNX to an engine for one GPU.

**Not yet run on hardware**: TensorRT was not to be had on the GPUs that this project is measured on; see ``trt_plan``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vitascope.errors import DeviceError, EngineError
from vitascope.gpu.engines.engine import ShapeRange
from vitascope.gpu.engines.onnx_network import Calibration
from vitascope.gpu.engines.trt_plan import TrtPlan, load_tensorrt
from vitascope.gpu.toolkit.engines.toolkit_engine import DeviceWord, ToolkitEngine

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TensorRTEngine"]


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
