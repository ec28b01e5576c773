"""Check that the networks' ONNX files compute in ONNX Runtime what PyTorch computes, in batches of any size.

They have the published classes with fewer channels: at full width, each takes up to half a minute to export.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from portrait_networks import keypoints, randomised, relative_error
from torch import Tensor, nn

from vitascope.errors import OutputError
from vitascope.gpu import OnnxEngine
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.models.liveportrait import onnx_files
from vitascope.models.liveportrait.motion import MotionExtractor
from vitascope.models.liveportrait.onnx_files import ONNX_FILES, export_onnx_files, onnx_network
from vitascope.models.liveportrait.published import (
    AppearanceExtractor,
    PublishedNetworks,
    SpadeGenerator,
    WarpingNetwork,
    lip_perceptron,
    stitching_perceptron,
)

pytestmark = pytest.mark.usefixtures("narrow")

SMALL: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "appearance": {"picture": (3, 32, 32)},
    "motion": {"picture": (3, 64, 64)},
    "warping": {"volume": (32, 16, 8, 8), "driving": (21, 3), "source": (21, 3)},
    "generator": {"features": (256, 4, 4)},
}
"""Smaller inputs, to save time."""


def network_of(part: str) -> nn.Module:
    make = {
        "appearance": AppearanceExtractor,
        "motion": MotionExtractor,
        "warping": WarpingNetwork,
        "generator": SpadeGenerator,
        "stitching": stitching_perceptron,
        "lips": lip_perceptron,
    }[part]
    return randomised(make())


def inputs_of(part: str, batch: int) -> dict[str, Tensor]:
    driving, source = keypoints(batch)
    points = {"driving": driving, "source": source}
    shapes = SMALL.get(part, ONNX_FILES[part].inputs)
    return {name: points.get(name, torch.rand(batch, *shape)) for name, shape in shapes.items()}


def outputs_of(network: nn.Module, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    results = network(*inputs.values())
    return [results] if isinstance(results, Tensor) else list(results)


@pytest.mark.parametrize("part", ONNX_FILES)
def test_onnx_runtime_computes_what_pytorch_computes(part: str) -> None:
    network = network_of(part)
    form = replace(ONNX_FILES[part], inputs=SMALL.get(part, ONNX_FILES[part].inputs))
    content = onnx_network(network, form)
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    assert [one.version for one in model.opset_import if not one.domain] == [20]
    assert [one.name for one in model.graph.input] == list(form.inputs)
    assert {one.type.tensor_type.shape.dim[0].dim_param for one in model.graph.input} == {"batch"}
    samplings = sum(node.op_type == "GridSample" for node in model.graph.node)
    assert samplings == (2 if part == "warping" else 0)
    with OnnxRuntimeEngine(content, threads=2) as engine:
        for batch in (1, 2):
            inputs = inputs_of(part, batch)
            made = engine.run({name: tensor.numpy() for name, tensor in inputs.items()})
            assert tuple(made) == form.outputs
            for got, wanted in zip(made.values(), outputs_of(network, inputs), strict=True):
                assert relative_error(torch.from_numpy(got), wanted) < 1e-4


@pytest.mark.parametrize("part", ["warping", "generator"])
def test_half_precision_stays_close_and_keeps_types(part: str) -> None:
    network = network_of(part)
    form = replace(ONNX_FILES[part], inputs=SMALL[part])
    content = onnx_network(network, form, half_precision=True)
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
    weights = {one.data_type for one in onnx.load_from_string(content).graph.initializer if len(one.dims) > 2}
    assert onnx.TensorProto.FLOAT16 in weights
    inputs = inputs_of(part, 1)  # several in float32 are checked above
    with OnnxRuntimeEngine(content, threads=2) as engine:
        made = engine.run({name: tensor.numpy() for name, tensor in inputs.items()})
    (got,), (wanted,) = made.values(), outputs_of(network, inputs)
    assert got.dtype == "float32"
    assert relative_error(torch.from_numpy(got), wanted) < 0.02


def test_what_reads_motion_stays_in_float32() -> None:
    assert {part for part, form in ONNX_FILES.items() if form.halves} == {
        "appearance",
        "warping",
        "generator",
    }


def test_a_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ("stitching", "lips")
    monkeypatch.setattr(onnx_files, "ONNX_FILES", {part: ONNX_FILES[part] for part in parts})
    networks = PublishedNetworks(*(network_of(part) for part in PublishedNetworks._fields))  # type: ignore[arg-type]
    told: list[onnx_files.OnnxFile] = []
    written = export_onnx_files(networks, tmp_path / "new" / "folder", on_written=told.append)
    assert told == list(written)
    assert [file.path.name for file in written] == ["stitching.onnx", "lips.onnx"]
    assert [file.path.stat().st_size for file in written] == [file.byte_count for file in written]
    (tmp_path / "other").touch()
    assert {file.path.stat().st_mode for file in written} == {(tmp_path / "other").stat().st_mode}
    # The toolkit's engine loads them, and knows their batch sizes.
    driving, source = keypoints(2)
    with OnnxEngine(device="cpu") as engine:
        engine.load_engine(written[0].path)
        made = engine.run({"source": source.numpy(), "driving": driving.numpy()})
    assert relative_error(torch.from_numpy(made["delta"]), networks.stitching(source, driving)) < 1e-4


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(onnx_files, "ONNX_FILES", {"lips": ONNX_FILES["lips"]})
    networks = PublishedNetworks(*(network_of(part) for part in PublishedNetworks._fields))  # type: ignore[arg-type]
    with pytest.raises(OutputError, match=r"lips\.onnx: cannot be written"):
        export_onnx_files(networks, tmp_path / "file")


def test_every_network_of_the_animator_has_a_file() -> None:
    assert tuple(ONNX_FILES) == PublishedNetworks._fields
    assert len({form.file_name for form in ONNX_FILES.values()}) == 6
