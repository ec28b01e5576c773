"""Check that engine settings reach TensorRT's limits and folder, and the precision of the network."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clips import write_clip
from fake_cupy import fake_cupy
from fake_tensorrt import fake_tensorrt
from scripted import BrightnessNetwork, segment_with
from vitascope.config import load_settings
from vitascope.device import Device
from vitascope.errors import EngineError, UsageError
from vitascope.gpu.engines import ShapeRange
from vitascope.gpu.engines.selection import Chosen, gpu_openers
from vitascope.models.custom import custom
from vitascope.models.rvm import fused_network
from vitascope.segmentation.matting import networks
from vitascope.segmentation.segmenter import Segmenter

GPU = Device("cuda", "Fake GPU", 0)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def network():
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


@pytest.fixture
def trt(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    module = fake_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    return module


def options(**flags):
    return networks._options(load_settings(flags=flags).settings, GPU)


def build(network, **flags):
    """Open the network as ``segment`` opens ONNX networks under TensorRT, and return its precision."""
    name, precision, open_one = gpu_openers(options(**flags))[0]
    assert name == "tensorrt"
    open_one(network, {"x": ShapeRange((1, 3), (2, 3), (4, 3))}).close()
    return precision


def test_the_workspace_reaches_the_builder(trt, network):
    for gigabytes in (4.0, 1.5):
        build(network, **{"tensorrt.workspace_gb": gigabytes, "gpu.precision": "fp32"})
    assert [one.workspace for one in trt.builds] == [4_000_000_000, 1_500_000_000]


def test_engines_are_kept_in_the_folder_that_is_named(trt, network, home, tmp_path):
    build(network, **{"gpu.precision": "fp32"})
    assert list((home / "engines").glob("*.engine"))
    build(network, **{"gpu.precision": "fp32", "tensorrt.cache_dir": str(tmp_path / "own")})
    assert list((tmp_path / "own").glob("*.engine"))
    assert len(trt.builds) == 2


@pytest.mark.parametrize(
    ("flags", "in_pytorch", "in_onnx_runtime"),
    [
        ({}, False, True),
        ({"gpu.cudnn_benchmark": True}, True, True),
        ({"gpu.cudnn_benchmark": False}, False, False),
    ],
)
def test_cudnn_is_not_searched_with_pytorch_unless_asked_for(
    monkeypatch, tmp_path, flags, in_pytorch, in_onnx_runtime
):
    """Check that cuDNN does not search by default: it takes 15 s, which a short video never gains back."""
    told = []
    module = SimpleNamespace(RvmTorchNetwork=lambda path, **options: told.append(options))
    monkeypatch.setitem(sys.modules, "vitascope.models.rvm.torch_network", module)
    settings = load_settings(flags={"model.backend": "torch", **flags}).settings
    networks._torch_candidate(tmp_path / "rvm.onnx", "rvm", settings, GPU).open()
    assert told[0]["cudnn_benchmark"] is in_pytorch
    assert options(**flags).cudnn_benchmark is in_onnx_runtime


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ({}, "fp16"),
        ({"gpu.precision": "mixed"}, "mixed"),
        ({"tensorrt.precision.fp16": False}, "tf32"),
        ({"tensorrt.precision.fp16": False, "gpu.precision": "mixed", "gpu.allow_tf32": False}, "fp32"),
        ({"tensorrt.precision.fp16": False, "gpu.precision": "fp32", "gpu.allow_tf32": False}, "fp32"),
        ({"tensorrt.precision.int8": True}, "int8"),
        ({"gpu.precision": "int8"}, "int8"),
    ],
)
def test_tensorrt_computes_in_what_is_asked_and_allowed(trt, network, monkeypatch, flags, precision):
    asked = []
    monkeypatch.setattr(
        "vitascope.gpu.engines.trt_plan.with_precision",
        lambda model, wanted, *, calibration=None: asked.append(wanted) or model,
    )
    assert build(network, **flags) == precision
    assert asked == [precision]


def test_what_tensorrt_may_not_do_leaves_the_other_engines_alone():
    precisions = {
        name: precision for name, precision, _ in gpu_openers(options(**{"tensorrt.precision.int8": True}))
    }
    assert precisions == {"tensorrt": "int8", "onnxruntime": "fp16"}  # the second one is CUDA's


def test_int8_that_nobody_calibrated_says_how_to(trt, network):
    with pytest.raises(EngineError, match=r"ModelQuantizer\.quantize_int8 makes one"):
        build(network, **{"tensorrt.precision.int8": True})


@pytest.fixture
def candidates(monkeypatch):
    """List the engines that ``segment`` would try for RVM on a GPU, without opening any."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    seen = []

    def choose(listed, **_):
        seen.extend(listed)
        raise EngineError("enough")

    monkeypatch.setattr(networks, "choose_engine", choose)

    def listed(**flags):
        seen.clear()
        with pytest.raises(EngineError, match="enough"):
            networks._open_rvm_on_gpu(
                Path(__file__), name="rvm", settings=load_settings(flags=flags).settings, device=GPU
            )
        return list(seen)

    return listed


@pytest.mark.parametrize("precision", ["fp32", "fp16", "mixed"])
def test_the_arithmetic_reaches_the_networks(candidates, monkeypatch, home, precision):
    rvm_torch = pytest.importorskip("vitascope.models.rvm.torch_network")
    asked, fused = {}, {}
    monkeypatch.setattr(rvm_torch, "RvmTorchNetwork", lambda path, **given: asked.update(given))
    monkeypatch.setattr(fused_network, "RvmFusedNetwork", lambda path, **given: fused.update(given))
    first, second = candidates(**{"gpu.precision": precision, "gpu.allow_tf32": False})[:2]
    assert (first.name, second.name) == ("triton", "torch")
    if precision == "fp32":
        with pytest.raises(UsageError, match=r"support fp16 and mixed, not fp32; use --backend torch"):
            first.open()
    else:
        first.open()
        assert fused["precision"] == precision
        assert fused["cache_dir"] == home / "engines"
    second.open()
    assert asked["mode"] == "eager"
    assert asked["precision"] == first.precision == second.precision == precision


def test_inductor_compiles_and_keeps_what_it_compiled(candidates, monkeypatch, home):
    rvm_torch = pytest.importorskip("vitascope.models.rvm.torch_network")
    asked = {}
    monkeypatch.setattr(rvm_torch, "RvmTorchNetwork", lambda path, **given: asked.update(given))
    second = candidates(**{"model.backend": "inductor"})[1]
    second.open()
    assert second.name == "inductor"
    assert (asked["mode"], asked["cache_dir"]) == ("aot", home / "engines")


def test_a_file_of_ones_own_is_no_pytorch_network(trt, tmp_path):
    for backend in ("triton", "torch", "inductor"):
        settings = load_settings(flags={"model.backend": backend}).settings
        with pytest.raises(UsageError, match=f"model.backend={backend} runs only RVM"):
            networks._open_custom_on_gpu(tmp_path / "n.onnx", kind="matte", settings=settings, device=GPU)


def test_what_became_of_kept_engines_is_told_with_the_reasons(trt, monkeypatch, tmp_path):
    line = "the stored engine was built by TensorRT 10.9.0; rebuilt by 11.4.0"
    scripted = BrightnessNetwork()
    scripted.notes = (line, line)
    for module, name in ((networks, "choose_engine"), (custom, "choose_custom_network")):
        monkeypatch.setattr(module, name, lambda *_, **__: Chosen(scripted, "tensorrt", ("it is used",)))
    file = tmp_path / "network.onnx"
    file.write_bytes(b"read for its sha256 alone")
    settings = load_settings().settings
    opened = networks._open_custom_on_gpu(file, kind="matte", settings=settings, device=GPU)
    assert opened.reasons == ("it is used", line)
    opened = networks._open_rvm_on_gpu(file, name="rvm", settings=settings, device=GPU)
    assert opened.reasons == ("it is used", line)


def test_int8_is_refused_with_the_reason(candidates):
    first = candidates(**{"gpu.precision": "int8"})[0]
    with pytest.raises(Exception, match=r"fails the quantiser's gate.*docs/quantization\.md.*fp16 or mixed"):
        first.open()


def test_settings_of_tensorrt_are_named_where_it_did_not_run(tmp_path, monkeypatch):
    scripted = BrightnessNetwork()
    segment_with(monkeypatch, scripted)
    clip = write_clip(
        tmp_path / "in.mp4",
        width=64,
        height=64,
        frame_count=3,
        paint=lambda index: np.full((64, 64, 3), 200, np.uint8),
    )
    flags = {"tensorrt.workspace_gb": 2.0, "tensorrt.precision.fp16": False, "gpu.device": "cpu"}
    with Segmenter(settings=flags) as segmenter:
        notes = segmenter.write(clip, [("mask", tmp_path / "o.mp4")]).notes
    assert notes == tuple(
        f"{key} has no effect here: the network did not run on TensorRT"
        for key in ("tensorrt.precision.fp16", "tensorrt.workspace_gb")
    )
