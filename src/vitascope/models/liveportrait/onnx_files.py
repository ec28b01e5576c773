"""LivePortrait's networks as ONNX files, for engines other than PyTorch's.

The published forms are exported, not the fast ones: those are fused for PyTorch on NVIDIA GPUs, and other engines do
their own fusion. W samples its volume with ONNX's ``GridSample`` on five dimensions, which opset 20 has and ONNX
Runtime supports; TensorRT up to 10 does not (NVIDIA/TensorRT issue 4618), so it cannot run W.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitascope.file_lock import write_file
from vitascope.gpu.engines.engine import ShapeRange
from vitascope.gpu.engines.onnx_network import with_kept_shapes
from vitascope.gpu.engines.torch_export import trace_module
from vitascope.models.liveportrait.motion import KEYPOINTS
from vitascope.models.liveportrait.networks import CROP_SIDE
from vitascope.models.liveportrait.published import VOLUME_CHANNELS, VOLUME_DEPTH, PublishedNetworks

MOST_PICTURES = 16
"""Maximum batch size that the files declare."""

_FEATURES_SIDE = CROP_SIDE // 4
_POINTS = (KEYPOINTS, 3)


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """Inputs and outputs of one network; the first axis is the batch, of any size."""

    file_name: str
    inputs: Mapping[str, tuple[int, ...]]
    """Shapes without the batch axis."""
    outputs: tuple[str, ...]
    halves: bool = False
    """True if FP16 is precise enough: it is for pictures and volumes, not for keypoints."""


_VOLUME = (VOLUME_CHANNELS, VOLUME_DEPTH, _FEATURES_SIDE, _FEATURES_SIDE)

ONNX_FILES: Mapping[str, NetworkForm] = {
    "appearance": NetworkForm(
        "appearance_feature_extractor.onnx", {"picture": (3, CROP_SIDE, CROP_SIDE)}, ("volume",), halves=True
    ),
    "motion": NetworkForm(
        "motion_extractor.onnx",
        {"picture": (3, CROP_SIDE, CROP_SIDE)},
        ("kp", "exp", "scale", "t", "pitch", "yaw", "roll"),
    ),
    "warping": NetworkForm(
        "warping_module.onnx",
        {"volume": _VOLUME, "driving": _POINTS, "source": _POINTS},
        ("features",),
        halves=True,
    ),
    "generator": NetworkForm(
        "spade_generator.onnx",
        {"features": (256, _FEATURES_SIDE, _FEATURES_SIDE)},
        ("picture",),
        halves=True,
    ),
    "stitching": NetworkForm("stitching.onnx", {"source": _POINTS, "driving": _POINTS}, ("delta",)),
    "lips": NetworkForm("lips.onnx", {"source": _POINTS, "openness": (2,)}, ("delta",)),
}
"""Forms by the names of ``PublishedNetworks``. Inputs and outputs are float32 in all files; the networks' ``forward``
documents them."""


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """An exported network."""

    path: Path
    byte_count: int


def export_onnx_files(
    networks: PublishedNetworks,
    folder: Path,
    *,
    half_precision: bool = False,
    on_written: Callable[[OnnxFile], object] | None = None,
) -> tuple[OnnxFile, ...]:
    """Export all networks; takes minutes.

    Args:
        networks: The networks with their weights, float32, on the CPU; unchanged.
        folder: The folder to write to, created if missing. Existing files are replaced, each when the new one is
            complete.
        half_precision: FP16 inside the networks that paint; the motion extractor and the perceptrons stay in float32,
            because FP16 makes keypoints jitter.
        on_written: Called after each file.

    Raises:
        MissingDependencyError: ``onnxscript`` is not installed.
        EngineError: A network cannot be exported to ONNX.
        OutputError: A file cannot be written.
    """
    written = []
    for part, form in ONNX_FILES.items():
        content = onnx_network(getattr(networks, part), form, half_precision=half_precision)
        path = folder / form.file_name
        write_file(path, content)
        written.append(OnnxFile(path, len(content)))
        if on_written is not None:
            on_written(written[-1])
    return tuple(written)


def onnx_network(network: nn.Module, form: NetworkForm, *, half_precision: bool = False) -> bytes:
    """Export one network as a serialised ONNX model, with its intended sizes in the metadata.

    Args:
        network: The network in float32, on the CPU; unchanged.
        form: Its inputs and outputs.
        half_precision: Compute in FP16 if the form allows it.

    Raises:
        MissingDependencyError: ``onnxscript`` is not installed.
        EngineError: It cannot be exported to ONNX.
    """
    ranges = {
        name: ShapeRange((1, *shape), (1, *shape), (MOST_PICTURES, *shape))
        for name, shape in form.inputs.items()
    }
    named = _Named(network, form.outputs, halves=half_precision and form.halves)
    traced = trace_module(named, ranges, dtype=torch.float32, computes=False)
    return with_kept_shapes(traced.onnx_bytes(), ranges)


class _Named(nn.Module):
    """Wraps a network to name its outputs, with float32 inputs and outputs whatever it computes in."""

    def __init__(self, network: nn.Module, outputs: Sequence[str], *, halves: bool) -> None:
        super().__init__()
        self._halves = halves
        self._outputs = outputs
        self.network = copy.deepcopy(network).half() if halves else network

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        if self._halves:  # keypoints, [B, 21, 3], stay in float32
            inputs = tuple(tensor.half() if tensor.ndim > 3 else tensor for tensor in inputs)
        results = self.network(*inputs)
        tensors = (results,) if isinstance(results, Tensor) else results
        return {name: tensor.float() for name, tensor in zip(self._outputs, tensors, strict=True)}
