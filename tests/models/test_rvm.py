from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from fake_cupy import FakeArray
from fake_gpu_engine import FakeGpuEngine
from vitascope.errors import EngineError, ModelError
from vitascope.gpu.engines import OnnxRuntimeEngine, ShapeRange
from vitascope.gpu.pipeline import Pipeline, Sink, Source
from vitascope.models.rvm import rvm
from vitascope.models.rvm.rvm import (
    GAIN,
    SMALL_RGB,
    STATES_IN,
    STATES_OUT,
    RvmNetwork,
    cut_official_graph,
    engine_profiles,
)
from vitascope.models.rvm.state import body_downsample_ratio

pytestmark = pytest.mark.fetched_model


@pytest.fixture(scope="module")
def network(rvm_model_path):
    network = RvmNetwork(rvm_model_path, downsample_ratio=0.5)
    yield network
    network.close()


def moving_pictures(count, eyes=1, size=(64, 96)):
    rng = np.random.default_rng(0)
    return rng.random((count, eyes, 3, *size), dtype=np.float32)


class OfficialGraph:
    """The uncut file, run frame by frame, as the reference."""

    def __init__(self, path):
        self.session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.states = [np.zeros((1, 1, 1, 1), np.float32)] * 4

    def __call__(self, picture, ratio):
        inputs = {f"r{level}i": state for level, state in enumerate(self.states, start=1)}
        outputs = self.session.run(None, {"src": picture, "downsample_ratio": np.float32([ratio]), **inputs})
        self.states = outputs[2:]
        return outputs[0], outputs[1]


def test_at_ratio_one_the_cut_network_gives_the_official_alpha_and_foreground(rvm_model_path):
    network, official = RvmNetwork(rvm_model_path, downsample_ratio=1.0), OfficialGraph(rvm_model_path)
    pictures, state = moving_pictures(4), network.new_state()
    for picture in pictures:
        (estimate,) = network.infer(picture[None], state)
        foreground, alpha = official(picture, 1.0)
        grey = picture.mean(axis=1)
        ours = np.clip(estimate.gain[:, 3] * grey + estimate.offset[:, 3], 0, 1)
        np.testing.assert_allclose(ours, alpha[:, 0], atol=2e-4)
        colour = picture + estimate.gain[:, :3] * picture + estimate.offset[:, :3]
        np.testing.assert_allclose(np.clip(colour, 0, 1), foreground, atol=2e-4)


def test_a_long_call_ends_where_the_run_is_given_up(network):
    pictures, before = moving_pictures(80, size=(288, 512)), network.encoder_calls

    def call(_: int) -> None:
        pipeline.stop(drain=False)
        network.infer(pictures, network.new_state())

    pipeline = Pipeline([Source("once", [0]), Sink("call", call)])
    assert pipeline.run().stopped
    assert network.encoder_calls == before


@pytest.mark.parametrize("eyes", [1, 2])
def test_a_batch_of_frames_gives_what_single_frames_give(network, eyes):
    pictures = moving_pictures(5, eyes)
    one, many = network.new_state(), network.new_state()
    singles = [network.infer(picture[None], one)[0] for picture in pictures]
    calls = network.encoder_calls
    batched = network.infer(pictures[:3], many) + network.infer(pictures[3:], many)
    assert network.encoder_calls - calls == 2
    for single, together in zip(singles, batched, strict=True):
        np.testing.assert_allclose(together.gain, single.gain, atol=1e-4)
        np.testing.assert_allclose(together.offset, single.offset, atol=1e-4)


def test_large_eyes_are_seen_one_after_the_other(network, monkeypatch):
    pictures, calls = moving_pictures(3, 2), []
    together, apart = network.new_state(), network.new_state()
    expected = network.infer(pictures, together)
    run = network._decoder.run
    monkeypatch.setattr(
        network._decoder, "run", lambda given: calls.append(len(given[SMALL_RGB])) or run(given)
    )
    monkeypatch.setattr(rvm, "_SAMPLES_AT_ONCE", pictures[0].size // 3 - 1)
    found = network.infer(pictures[:2], apart) + network.infer(pictures[2:], apart)
    assert calls == [1] * 6
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.gain, other.gain, atol=1e-5)
        np.testing.assert_allclose(one.offset, other.offset, atol=1e-5)
    for level, wanted in zip(apart.tensors, together.tensors, strict=True):
        np.testing.assert_allclose(level, wanted, atol=1e-5)


@pytest.mark.parametrize("are_large", [False, True])
@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2)])
def test_a_state_of_other_eyes_is_refused(network, monkeypatch, are_large, before, now):
    state = network.new_state()
    network.infer(moving_pictures(1, before), state)
    kept = [tensor.copy() for tensor in state.tensors]
    if are_large:
        monkeypatch.setattr(rvm, "_SAMPLES_AT_ONCE", 1)
    with pytest.raises(ModelError, match=f"got {now} eyes and a state of {before}"):
        network.infer(moving_pictures(1, now), state)
    for tensor, old in zip(state.tensors, kept, strict=True):
        np.testing.assert_array_equal(tensor, old)


def test_eyes_and_streams_do_not_leak_into_each_other(network):
    pictures = moving_pictures(3, eyes=2)
    both = network.new_state()
    together = network.infer(pictures, both)
    for eye in range(2):
        alone = network.infer(pictures[:, eye : eye + 1], network.new_state())
        for stereo, mono in zip(together, alone, strict=True):
            np.testing.assert_allclose(stereo.gain[eye], mono.gain[0], atol=1e-4)


def test_the_state_matters_and_reset_forgets_it(network):
    pictures = moving_pictures(2)
    state = network.new_state()
    first = network.infer(pictures[:1], state)[0]
    again = network.infer(pictures[:1], state)[0]
    assert np.abs(again.gain - first.gain).max() > 1e-3
    state.reset()
    np.testing.assert_array_equal(network.infer(pictures[:1], state)[0].gain, first.gain)


@pytest.mark.parametrize(
    ("size", "ratio"), [((480, 512), 1.0), ((720, 1280), 0.6), ((1080, 1920), 0.4), ((2160, 3840), 0.2)]
)
def test_the_body_ratio_is_the_authors_table(size, ratio):
    assert body_downsample_ratio(size) == pytest.approx(ratio)


def test_input_size_follows_ratio_then_longest_side_then_body(rvm_model_path):
    size = (1080, 1920)
    assert RvmNetwork(rvm_model_path, downsample_ratio=0.25).input_for(size).size == (270, 480)
    assert RvmNetwork(rvm_model_path, longest_side=512).input_for(size).size == (288, 512)
    both = RvmNetwork(rvm_model_path, downsample_ratio=0.25, longest_side=512)
    assert both.input_for(size).size == (270, 480)
    assert RvmNetwork(rvm_model_path).input_for(size).size == (432, 768)
    assert RvmNetwork(rvm_model_path).input_for((3, 5)).size == (16, 16)


def test_wrong_pictures_are_a_model_error(network):
    with pytest.raises(ModelError, match="float32"):
        network.infer(np.zeros((1, 3, 64, 64), np.float32), network.new_state())


def test_another_network_is_refused(tmp_path):
    node = helper.make_node("Relu", ["x"], ["y"])
    tensor = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([node], "other", tensor[:1], tensor[1:])
    path = tmp_path / "other.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ModelError, match="not an official"):
        RvmNetwork(path)


def test_text_is_refused(tmp_path):
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    with pytest.raises(ModelError, match=r"text\.onnx"):
        RvmNetwork(path)


def on_gpu_engines(opened):
    def open_engines(encoder, decoder):
        opened.extend([FakeGpuEngine(encoder), FakeGpuEngine(decoder)])
        return opened[0], opened[1]

    return open_engines


def test_on_a_gpu_engine_pictures_states_and_coefficients_stay_there(network, rvm_model_path, cupy):
    opened = []
    on_gpu = RvmNetwork(rvm_model_path, open_engines=on_gpu_engines(opened))
    assert on_gpu.engine_name == "fake GPU engine 1.0"
    pictures = moving_pictures(3, eyes=2, size=(33, 50))
    expected = network.infer(pictures, network.new_state())
    state = on_gpu.new_state()
    ours = on_gpu.infer(cupy.asarray(pictures[:2]), state) + on_gpu.infer(cupy.asarray(pictures[2:]), state)
    for one, other in zip(ours, expected, strict=True):
        assert isinstance(one.gain, FakeArray)
        assert isinstance(one.offset, FakeArray)
        np.testing.assert_allclose(one.gain, other.gain, atol=1e-4)
        np.testing.assert_allclose(one.offset, other.offset, atol=1e-4)
    assert all(isinstance(tensor, FakeArray) for tensor in state.tensors)
    state.reset()
    first = on_gpu.infer(cupy.asarray(pictures[:1]), state)[0]
    np.testing.assert_allclose(first.gain, expected[0].gain, atol=1e-4)
    # CUDA graphs and TensorRT profiles need one set of shapes from the first frame on.
    decoder_shapes = {tuple(sorted(shapes.items())) for shapes in opened[1].shapes}
    assert len(decoder_shapes) == 1
    on_gpu.close()
    assert all(engine.closed for engine in opened)


def test_pictures_on_the_wrong_device_are_an_engine_error(rvm_model_path, cupy):
    on_gpu = RvmNetwork(rvm_model_path, open_engines=on_gpu_engines([]))
    with pytest.raises(EngineError, match="host memory"):
        on_gpu.infer(moving_pictures(1), on_gpu.new_state())


@pytest.mark.parametrize("size", [(16, 16), (33, 50), (65, 47)])
def test_profiles_name_the_sizes_that_the_engines_meet(rvm_model_path, size):
    encoder, decoder = cut_official_graph(rvm_model_path)
    pictures = ShapeRange((1, 3, 16, 16), (6, 3, *size), (8, 3, 80, 90))
    of_encoder, of_decoder = engine_profiles(encoder, decoder, pictures, most_eyes=2)
    assert of_encoder == {SMALL_RGB: pictures}
    with OnnxRuntimeEngine(encoder) as first, OnnxRuntimeEngine(decoder) as second:
        assert set(of_decoder) == {tensor.name for tensor in second.spec.inputs}
        small_rgb = moving_pictures(1, eyes=2, size=size)[0]
        inputs = {SMALL_RGB: small_rgb, **first.run({SMALL_RGB: small_rgb})}
        inputs |= {name: np.zeros(of_decoder[name].usual, np.float32) for name in STATES_IN}
        assert {name: array.shape for name, array in inputs.items()} == {
            name: shapes.usual for name, shapes in of_decoder.items()
        }
        outputs = second.run(inputs)
    assert outputs[GAIN].shape == (2, 4, *size)
    for into, out in zip(STATES_IN, STATES_OUT, strict=True):
        assert outputs[out].shape == of_decoder[into].usual
        assert of_decoder[into].smallest[0] == 1
