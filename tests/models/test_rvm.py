from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from vitascope.errors import ModelError
from vitascope.models.rvm import RvmNetwork, body_downsample_ratio

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
    """The uncut file, run frame by frame: the oracle."""

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
