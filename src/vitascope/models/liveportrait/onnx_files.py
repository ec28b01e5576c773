"""LivePortrait's networks as ONNX files, for engines other than PyTorch's.

The published forms are written, not the fast ones: those are fused for PyTorch on NVIDIA GPUs, and other engines fuse
by themselves. W samples its volume with ONNX's ``GridSample`` on five dimensions, which opset 20 has and ONNX Runtime
computes; TensorRT 10 and before refuse it (NVIDIA/TensorRT issue 4618), so W is no network for them.
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
"""Largest batch that the files declare."""

_FEATURES_SIDE = CROP_SIDE // 4
_POINTS = (KEYPOINTS, 3)


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """The inputs and outputs of one network; batches come first and are free."""

    file_name: str
    inputs: Mapping[str, tuple[int, ...]]
    """Shapes without the batch."""
    outputs: tuple[str, ...]
    halves: bool = False
    """Whether FP16 is precise enough: for pictures and volumes, but not for keypoints."""


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
"""By the names of ``PublishedNetworks``. Inputs and outputs are float32 in every file, and mean what the networks'
``forward`` says."""


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A network that was written."""

    path: Path
    byte_count: int


def export_onnx_files(
    networks: PublishedNetworks,
    folder: Path,
    *,
    half_precision: bool = False,
    on_written: Callable[[OnnxFile], object] | None = None,
) -> tuple[OnnxFile, ...]:
    """Write all networks; takes minutes.

    Args:
        networks: With their weights, float32, on the CPU. Not changed.
        folder: The folder to write to; created. Files of the same names are replaced, each once it is whole.
        half_precision: FP16 inside of the networks that paint; the motion extractor and the perceptrons stay float32,
            because FP16 makes keypoints tremble.
        on_written: Called with each file.

    Raises:
        MissingDependencyError: ``onnxscript`` is not installed.
        EngineError: A network cannot be written as ONNX.
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
    """One network as a serialised ONNX model, with the sizes it is meant for among its metadata.

    Args:
        network: Float32, on the CPU. Not changed.
        form: Its inputs and outputs.
        half_precision: Compute in FP16 where the form says that it serves.

    Raises:
        MissingDependencyError: ``onnxscript`` is not installed.
        EngineError: It cannot be written as ONNX.
    """
    ranges = {
        name: ShapeRange((1, *shape), (1, *shape), (MOST_PICTURES, *shape))
        for name, shape in form.inputs.items()
    }
    named = _Named(network, form.outputs, halves=half_precision and form.halves)
    traced = trace_module(named, ranges, dtype=torch.float32, computes=False)
    return with_kept_shapes(traced.onnx_bytes(), ranges)


class _Named(nn.Module):
    """A network whose outputs have names, and which takes and gives float32 whatever it computes in."""

    def __init__(self, network: nn.Module, outputs: Sequence[str], *, halves: bool) -> None:
        super().__init__()
        self._halves = halves
        self._outputs = outputs
        self.network = copy.deepcopy(network).half() if halves else network

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        if self._halves:  # keypoints are [B, 21, 3], and stay as they are
            inputs = tuple(tensor.half() if tensor.ndim > 3 else tensor for tensor in inputs)
        results = self.network(*inputs)
        tensors = (results,) if isinstance(results, Tensor) else results
        return {name: tensor.float() for name, tensor in zip(self._outputs, tensors, strict=True)}
