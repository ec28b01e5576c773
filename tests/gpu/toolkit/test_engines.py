"""Tests of build, load, infer and benchmark, the same on every engine that runs on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tiny_modules import SHAPES, TwoHeads, expected, pictures, tiny_network
from vitascope.errors import DeviceError, EngineError, MissingDependencyError, UsageError
from vitascope.gpu import InductorEngine, ModelQuantizer, OnnxEngine

ENGINES = {"onnx": OnnxEngine, "inductor": InductorEngine}
SUFFIX = {"onnx": ".onnx", "inductor": ".pt2"}


def needs_onnxscript(needed=True):
    if needed:
        pytest.importorskip("onnxscript", reason="PyTorch writes ONNX networks with onnxscript")


@pytest.fixture(scope="module")
def network():
    return tiny_network()


@pytest.fixture(scope="module", params=list(ENGINES))
def kept(request, network, tmp_path_factory):
    """Return an engine's class and a file that it wrote, as building takes seconds and loading does not."""
    needs_onnxscript(request.param == "onnx")
    path = tmp_path_factory.mktemp("engines") / f"tiny{SUFFIX[request.param]}"
    with ENGINES[request.param](device="cpu") as engine:
        assert engine.build_engine_from_pytorch(network, SHAPES, output_path=path) == path
        given = pictures(2)
        np.testing.assert_allclose(engine.infer(given), expected(network, given), atol=1e-5)
    return ENGINES[request.param], path


@pytest.fixture(scope="module")
def in_int8(kept, network, tmp_path_factory):
    """Return the int8 file of the same network, and the results and description of the engine that built it."""
    cls, _ = kept
    path = tmp_path_factory.mktemp("engines") / "int8.engine"
    with cls(device="cpu", int8_mode=True) as engine:
        engine.build_engine_from_pytorch(network, SHAPES, path, calibration={"input": pictures(8)})
        return path, engine.infer(pictures(4, seed=5)), (engine.precision, engine.name, engine.notes)


@pytest.fixture
def engine(kept):
    cls, path = kept
    with cls(device="cpu") as opened:
        opened.load_engine(path)
        yield opened


@pytest.mark.parametrize("count", [1, 2, 3, 16])
def test_every_batch_in_range_is_right(engine, network, count):
    given = pictures(count, seed=count)
    np.testing.assert_allclose(engine.infer(given), expected(network, given), atol=1e-5)


@pytest.mark.parametrize("shape", [(17, 3, 16, 16), (1, 3, 16, 20), (3, 16, 16)])
def test_other_sizes_are_refused_with_what_was_expected(engine, shape):
    with pytest.raises(EngineError, match=r"was built for \[1, 3, 16, 16\] to \[16, 3, 16, 16\]"):
        engine.infer(np.zeros(shape, np.float32))


def test_the_same_kind_of_array_comes_back(engine, network):
    given = pictures(2)
    wanted = expected(network, given)
    tensor = engine.infer(torch.from_numpy(given))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), wanted, atol=1e-5)
    strided = engine.infer(np.asfortranarray(given))
    assert isinstance(strided, np.ndarray)
    np.testing.assert_allclose(strided, wanted, atol=1e-5)
    with pytest.raises(EngineError, match="list"):
        engine.infer(given.tolist())


def test_run_takes_and_gives_names(engine):
    results = engine.run({"input": pictures(2)})
    assert list(results) == ["output"]
    assert engine.run({"input": pictures(2)}, ["output"])["output"].shape == (2, 16)
    with pytest.raises(EngineError, match="'other'"):
        engine.run({"input": pictures(2)}, ["other"])
    for names, reason in (
        (["wrong"], "'wrong' is unknown; the network takes input"),
        (["input", "mask"], "'mask' is unknown"),
        ([], "'input' is missing"),
    ):
        with pytest.raises(EngineError, match=reason):
            engine.run(dict.fromkeys(names, pictures(2)))


def test_benchmark_says_what_it_measured(engine):
    results = engine.benchmark(num_iterations=5, warmup=1)
    assert results["batch_size"] == 4  # the usual size in SHAPES, stored in the file
    assert results["input_shapes"] == {"input": (4, 3, 16, 16)}
    assert 0 < results["min_ms"] <= results["p50_ms"] <= results["p95_ms"] <= results["p99_ms"]
    assert results["p99_ms"] <= results["max_ms"]
    assert results["min_ms"] <= results["avg_latency_ms"] <= results["max_ms"]
    assert results["throughput_fps"] > 0
    assert results["device"].startswith("CPU")
    assert results["engine"] == engine.name
    assert engine.benchmark(2, warmup=0, batch_size=16)["batch_size"] == 16
    with pytest.raises(EngineError, match="built for"):
        engine.benchmark(2, batch_size=17)
    with pytest.raises(UsageError, match="iterations"):
        engine.benchmark(0)


def test_weights_that_lie_channels_last_are_kept_without_a_warning(tmp_path, network):
    path = tmp_path / "network.pt2"
    with InductorEngine(device="cpu") as engine:
        engine.build_engine_from_pytorch(tiny_network().to(memory_format=torch.channels_last), SHAPES, path)
        engine.load_engine(path)
        np.testing.assert_allclose(
            engine.infer(pictures(3)), expected(network, pictures(3)), rtol=1e-4, atol=1e-5
        )


def test_the_module_stays_as_it_was(kept, network):
    cls, _ = kept
    network.train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with cls(device="cpu") as engine:
        engine.build_engine_from_pytorch(network, SHAPES)
        assert network.training
        network.eval()
        np.testing.assert_allclose(engine.infer(pictures(2)), expected(network, pictures(2)), atol=1e-5)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_int8_is_calibrated_near_and_smaller(kept, in_int8, network):
    cls, exact = kept
    path, got, (precision, name, notes) = in_int8
    wanted = expected(network, pictures(4, seed=5))
    assert 0 < np.abs(got - wanted).mean() < 0.03 * np.abs(wanted).mean()
    assert precision == "int8"
    assert "int8" in name
    assert notes == ()
    if cls is OnnxEngine:
        assert ModelQuantizer.measure_model_size(path) < ModelQuantizer.measure_model_size(exact)


def test_what_is_loaded_says_what_it_computes_in_whatever_was_asked_for(kept, in_int8):
    (cls, exact), (path, *_) = kept, in_int8
    with cls(device="cpu", int8_mode=True) as engine:
        engine.load_engine(path)
        assert (engine.precision, engine.notes) == ("int8", ())
        engine.load_engine(exact)
        assert engine.precision == "fp32"
        assert "int8" not in engine.name
        assert engine.notes == (f"{exact.name} is in fp32 and computes in it, although int8 was requested",)
        engine.close()
        assert engine.precision == "int8"
    with cls(device="cpu") as engine:
        engine.load_engine(path)
        assert engine.precision == engine.benchmark(1, warmup=0)["precision"] == "int8"
        assert engine.notes == ("int8.engine is in int8 and computes in it, although fp32 was requested",)


def test_a_network_that_was_quantised_before_is_known_for_what_it_is(doubling):
    network = ModelQuantizer.quantize_fp16(halves_network())
    with OnnxEngine(device="cpu") as engine:
        engine.build_engine_from_onnx(network)
        assert engine.precision == "fp16"
        engine.build_engine_from_onnx(doubling)
        assert engine.precision == "fp32"


def halves_network():
    """Build a network that halves its input, by a product with a weight."""
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    half = helper.make_tensor("half", TensorProto.FLOAT, [4], [0.5] * 4)
    graph = helper.make_graph([helper.make_node("Mul", ["x", "half"], ["y"])], "halves", [x], [y], [half])
    opset = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


HALF_WEIGHTS = [("Cast", ["w"], ["wide"], {"to": 1}), ("Mul", ["x", "wide"], ["y"], {})]
BYTE_WEIGHTS = [("DequantizeLinear", ["b", "s", "z"], ["wide"], {}), ("Mul", ["x", "wide"], ["y"], {})]
ROUNDED = [("QuantizeLinear", ["x", "s", "z"], ["q"], {}), ("DequantizeLinear", ["q", "s", "z"], ["y"], {})]
WIDENED_INPUT = [("Cast", ["x"], ["wide"], {"to": 1}), ("Relu", ["wide"], ["y"], {})]
CONSTANT = [("Constant", [], ["c"], {"value": np.ones(4, np.float16)}), ("Mul", ["x", "c"], ["y"], {})]


@pytest.mark.parametrize(
    ("nodes", "x", "expected"),
    [
        (HALF_WEIGHTS, "FLOAT", None),
        (BYTE_WEIGHTS, "FLOAT", None),
        (ROUNDED, "FLOAT", "int8"),
        (WIDENED_INPUT, "FLOAT16", None),
        ([("Relu", ["x"], ["y"], {})], "FLOAT16", "fp16"),
        ([("Mul", ["x", "w"], ["y"], {})], "FLOAT16", "fp16"),
        (CONSTANT, "FLOAT16", "fp16"),
    ],
)
def test_what_is_merely_kept_small_is_not_computed_in(nodes, x, expected):
    onnx = pytest.importorskip("onnx")
    from onnx import helper, numpy_helper

    from vitascope.gpu.engines.onnx_network import low_precision_of

    kinds = onnx.TensorProto
    values = {"w": np.ones(4, np.float16), "b": np.ones(4, np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    made = []
    for kind, given, results, attributes in nodes:
        kept = {
            name: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            for name, value in attributes.items()
        }
        made.append(helper.make_node(kind, given, results, **kept))
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info("x", getattr(kinds, x), [4])],
        [helper.make_tensor_value_info("y", kinds.FLOAT if expected is None else getattr(kinds, x), [4])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert low_precision_of(model.SerializeToString()) == expected


def test_a_network_that_was_refused_tells_nothing(doubling):
    engine = OnnxEngine(device="cpu")
    with pytest.raises(UsageError, match="names 'nope'"):
        engine.build_engine_from_onnx(doubling, {"nope": (1, 2)})
    assert engine.precision == "fp32"
    assert engine.notes == ()


def test_fp16_on_a_processor_computes_in_fp32_and_says_so(kept, network):
    cls, path = kept
    with cls(device="cpu", fp16_mode=True) as engine:
        engine.load_engine(path)
        assert engine.precision == "fp32"
        assert any("fp16_mode has no effect on a CPU" in note for note in engine.notes)
        np.testing.assert_allclose(engine.infer(pictures(1)), expected(network, pictures(1)), atol=1e-5)


def test_several_inputs_and_named_outputs(kept):
    cls, _ = kept
    shapes = {name: {"min": (1, 2), "opt": (2, 2), "max": (8, 2)} for name in ("a", "b")}
    a, b = np.float32([[1, 2], [3, 4], [5, 6]]), np.float32([[1, 1], [2, 2], [3, 3]])
    with cls(device="cpu") as engine:
        engine.build_engine_from_pytorch(TwoHeads(), shapes)
        results = engine.run({"b": b, "a": a})
        np.testing.assert_array_equal(results["sum"], a + b)
        np.testing.assert_array_equal(results["difference"], a - b)
        with pytest.raises(EngineError, match="2 inputs"):
            engine.infer(a)


def test_an_engine_that_holds_nothing_says_what_to_call(kept):
    cls, path = kept
    engine = cls(device="cpu")
    for call in (lambda: engine.infer(pictures()), lambda: engine.benchmark(), lambda: engine.name):
        with pytest.raises(EngineError, match="nothing is built or loaded"):
            call()
    engine.load_engine(path)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="nothing is built or loaded"):
        engine.infer(pictures())


def test_files_that_are_no_engines_are_refused(kept, tmp_path, capfd):
    cls, _ = kept
    engine = cls(device="cpu")
    with pytest.raises(EngineError, match="it is a folder"):
        engine.load_engine(tmp_path)
    with pytest.raises(EngineError, match="no such file"):
        engine.load_engine(tmp_path / "missing.engine")
    other = tmp_path / "notes.engine"
    other.write_text("not an engine")
    with pytest.raises(EngineError, match=r"notes\.engine"):
        engine.load_engine(other)
    assert capfd.readouterr().err == ""  # torch would print a traceback here


def test_a_folder_that_cannot_be_written_is_named(kept, network, tmp_path):
    cls, _ = kept
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError, match="cannot be written"), cls(device="cpu") as engine:
        engine.build_engine_from_pytorch(network, SHAPES, tmp_path / "file" / "tiny.engine")


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({}, "names no input"),
        ({"input": {"min": (1, 3, 16, 16), "opt": (1, 3, 16, 16)}}, "expected min, opt, max"),
        ({"input": {"min": (4, 3), "opt": (1, 3), "max": (8, 3)}}, "not in rising order"),
        ({"input": {"min": (0, 3), "opt": (1, 3), "max": (8, 3)}}, "not in rising order"),
        ({"input": {"min": "one", "opt": (1, 3), "max": (8, 3)}}, "input_shapes"),
    ],
)
def test_shapes_are_checked_before_anything_is_built(kept, network, shapes, reason):
    with pytest.raises(UsageError, match=reason):
        kept[0](device="cpu").build_engine_from_pytorch(network, shapes)


def test_a_module_that_does_not_take_the_shapes_says_why(kept, network):
    shapes = {"input": (2, 5, 16, 16)}
    with pytest.raises(EngineError, match=r"does not take \[2, 5, 16, 16\]"):
        kept[0](device="cpu").build_engine_from_pytorch(network, shapes)


def test_calibration_and_int8_belong_together(kept, network):
    cls, _ = kept
    with pytest.raises(UsageError, match="int8_mode needs calibration"):
        cls(device="cpu", int8_mode=True).build_engine_from_pytorch(network, SHAPES)
    with pytest.raises(UsageError, match="is for other; the network takes input"):
        cls(device="cpu", int8_mode=True).build_engine_from_pytorch(
            network, SHAPES, calibration={"other": pictures()}
        )
    with pytest.raises(UsageError, match="calibration is for int8_mode"):
        cls(device="cpu").build_engine_from_pytorch(network, SHAPES, calibration={"input": pictures()})


@pytest.mark.parametrize("workspace_gb", [0, -1, float("nan")])
def test_a_workspace_is_a_positive_number(kept, workspace_gb):
    with pytest.raises(UsageError, match="workspace_gb"):
        kept[0](device="cpu", workspace_gb=workspace_gb)


def test_onnx_networks_run_where_onnx_runs(doubling, tmp_path):
    path = tmp_path / "doubling.onnx"
    path.write_bytes(doubling)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in (path, str(path), doubling):
        with OnnxEngine(device="cpu") as engine:
            assert engine.build_engine_from_onnx(source, output_path=tmp_path / "kept.onnx") is not None
            np.testing.assert_array_equal(engine.run({"x": x})["twice"], 2 * x)
            assert engine.benchmark(2, warmup=0)["batch_size"] == 1
    with pytest.raises(UsageError, match="'y'; the network takes x"):
        OnnxEngine(device="cpu").build_engine_from_onnx(doubling, {"y": (1, 3)})
    with pytest.raises(UsageError, match="OnnxEngine and TensorRTEngine"):
        InductorEngine(device="cpu").build_engine_from_onnx(path)


def test_a_quantised_network_is_found_again(network, tmp_path, monkeypatch):
    needs_onnxscript()
    calls = []
    quantize = ModelQuantizer.quantize_int8
    monkeypatch.setattr(
        ModelQuantizer, "quantize_int8", staticmethod(lambda *a, **k: calls.append(1) or quantize(*a, **k))
    )
    results = []
    for seed in (0, 0, 1):
        with OnnxEngine(device="cpu", int8_mode=True, cache_dir=tmp_path) as engine:
            engine.build_engine_from_pytorch(network, SHAPES, calibration={"input": pictures(seed=seed)})
            results.append(engine.infer(pictures(1)))
    assert len(calls) == 2  # another calibration is another network
    np.testing.assert_array_equal(results[0], results[1])


def test_without_onnxscript_its_package_is_named(network, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[torch\]"):
        OnnxEngine(device="cpu").build_engine_from_pytorch(network, SHAPES)


def test_without_onnx_runtime_for_gpus_auto_takes_the_processor_and_cuda_says_what_to_install(monkeypatch):
    assert OnnxEngine().device.kind == "cpu"
    for wanted in ({"device": "cuda"}, {"provider": "cuda"}, {"provider": "tensorrt"}):
        with pytest.raises((DeviceError, MissingDependencyError)):
            OnnxEngine(**wanted)


@pytest.mark.parametrize(
    ("cls", "options", "reason"),
    [
        (OnnxEngine, {"provider": "openvino"}, "expected one of auto, cuda, tensorrt, tensorrt-rtx"),
        (OnnxEngine, {"provider": "tensorrt", "device": "cpu"}, "runs on a GPU"),
        (OnnxEngine, {"threads": -1, "device": "cpu"}, "threads is -1"),
        (InductorEngine, {"mode": "jit"}, "mode is 'jit'"),
        (InductorEngine, {"effort": "most"}, "effort 'most'"),
    ],
)
def test_words_that_are_none_are_refused_and_not_passed_over(cls, options, reason):
    with pytest.raises(UsageError, match=reason):
        cls(**{"device": "cpu"} | options if cls is InductorEngine else options)


def test_a_folder_that_keeps_nothing_is_said(tmp_path):
    assert (
        'cache_dir keeps no engine with mode="eager"'
        in InductorEngine(device="cpu", cache_dir=tmp_path).notes[0]
    )
    assert InductorEngine(device="cpu", mode="aot", cache_dir=tmp_path).notes == ()


def test_packages_need_a_folder():
    with pytest.raises(UsageError, match="cache_dir"):
        InductorEngine(device="cpu", mode="aot")
