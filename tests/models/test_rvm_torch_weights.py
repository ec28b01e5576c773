"""Tests of reading RVM's checkpoints: names by order, batch norm folded in."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from rvm_torch_cases import random_state_dict

from vitascope.errors import ModelError
from vitascope.models.rvm.weights import convolutions, fold_state_dict, load_rvm_weights


def parameter_count(backbone):
    """Trained numbers of the authors' network, with its segmentation head (16 inputs, one output)."""
    count = 17
    for conv in convolutions(backbone):
        count += int(np.prod(conv.shape)) + (2 if conv.norm else int(conv.biased)) * conv.shape[0]
    return count


def test_the_table_has_the_authors_number_of_parameters():
    assert parameter_count("mobilenetv3") == 3_748_633


def test_names_are_unique():
    for backbone in ("mobilenetv3", "resnet50"):
        names = [conv.name for conv in convolutions(backbone)]
        assert len(set(names)) == len(names)


@pytest.mark.fetched_model
def test_the_onnx_file_has_every_convolution_in_order(rvm_model_path):
    weights = load_rvm_weights(rvm_model_path)
    assert weights.backbone == "mobilenetv3"
    for conv in convolutions("mobilenetv3"):
        assert weights.tensors[f"{conv.name}.weight"].shape == conv.shape
        assert weights.tensors[f"{conv.name}.weight"].dtype == np.float32
        assert (f"{conv.name}.bias" in weights.tensors) == (conv.norm is not None or conv.biased)


@pytest.mark.parametrize("backbone", ["mobilenetv3", "resnet50"])
def test_folding_is_convolution_then_batch_norm(backbone):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    state = random_state_dict(backbone)
    folded = fold_state_dict(state).tensors
    rng = np.random.default_rng(1)
    checked = 0
    for conv in convolutions(backbone):
        if conv.norm is None or checked == 12:
            continue
        x = torch.from_numpy(rng.normal(size=(1, conv.shape[1] * conv.groups, 5, 6)).astype(np.float32))
        options = (conv.stride, conv.padding, conv.dilation, conv.groups)
        plain = functional.conv2d(x, torch.from_numpy(state[f"{conv.name}.weight"]), None, *options)
        mean, variance, gamma, beta = (
            torch.from_numpy(state[f"{conv.norm}.{part}"])
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        expected = functional.batch_norm(plain, mean, variance, gamma, beta, eps=conv.epsilon)
        weight, bias = (torch.from_numpy(folded[f"{conv.name}.{part}"]) for part in ("weight", "bias"))
        torch.testing.assert_close(
            functional.conv2d(x, weight, bias, *options), expected, atol=2e-5, rtol=2e-5
        )
        checked += 1
    assert checked == 12


def test_a_pth_is_read_without_running_anything(tmp_path):
    torch = pytest.importorskip("torch")
    state = random_state_dict("mobilenetv3")
    good, bad = tmp_path / "good.pth", tmp_path / "bad.pth"
    torch.save({name: torch.from_numpy(np.asarray(array)) for name, array in state.items()}, good)
    weights, expected = load_rvm_weights(good), fold_state_dict(state)
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(weights.tensors[name], tensor)
    torch.save({"backbone.features.0.0.weight": RunsWhenRead(tmp_path / "ran")}, bad)
    with pytest.raises(ModelError, match=r"bad\.pth"):
        load_rvm_weights(bad)
    assert not (tmp_path / "ran").exists()


class RunsWhenRead:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (type(self.path).touch, (self.path,))


@pytest.mark.parametrize("damage", ["missing", "reshaped"])
def test_another_networks_state_dict_is_refused_by_name(damage):
    state = random_state_dict("mobilenetv3")
    key = "decoder.decode2.conv.0.weight"
    state[key] = state[key][:, :-1]
    if damage == "missing":
        del state[key]
    with pytest.raises(ModelError, match=r"decoder\.decode2\.conv\.0\.weight"):
        fold_state_dict(state)


def test_another_onnx_network_is_refused(tmp_path):
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "other", tensors[:1], tensors[1:])
    path = tmp_path / "other.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ModelError, match="not an official"):
        load_rvm_weights(path)
    path.write_text("hello")
    with pytest.raises(ModelError, match=r"other\.onnx"):
        load_rvm_weights(path)
