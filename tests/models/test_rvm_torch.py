"""Check that RVM on PyTorch, on the CPU, gives the same numbers as the ONNX file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rvm_torch_cases import alpha_of, drifting_pictures, random_weights

pytest.importorskip("torch")

from vitascope.errors import EngineError, ModelError
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.rvm.state import frame_chunks
from vitascope.models.rvm.torch_network import RvmTorchNetwork


@pytest.fixture(scope="module")
def network(rvm_model_path):
    with_threads = RvmTorchNetwork(rvm_model_path, device="cpu", precision="fp32")
    yield with_threads
    with_threads.close()


@pytest.fixture(scope="module")
def reference(rvm_model_path):
    network = RvmNetwork(rvm_model_path)
    yield network
    network.close()


def share_off(ours, theirs):
    """Return the largest difference as a share of the largest value."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize(("size", "eyes"), [((64, 96), 1), ((61, 95), 2), ((37, 51), 1), ((16, 17), 1)])
def test_coefficients_and_states_are_the_onnx_files(network, reference, size, eyes):
    pictures = drifting_pictures(5, eyes, size)
    ours, theirs = network.new_state(), reference.new_state()
    estimates, expected = network.infer(pictures, ours), reference.infer(pictures, theirs)
    for got, wanted in zip(estimates, expected, strict=True):
        assert share_off(got.gain, wanted.gain) < 1e-3
        assert share_off(got.offset, wanted.offset) < 1e-3
    for got, wanted in zip(ours.tensors, theirs.tensors, strict=True):
        assert share_off(got.numpy().transpose(0, 3, 1, 2), wanted) < 1e-3


def test_half_precision_keeps_the_matte(rvm_model_path, reference):
    pictures = drifting_pictures(4, 1, (48, 80), dtype="float16")
    expected = alpha_of(reference.infer(pictures.astype(np.float32), reference.new_state()), pictures)
    for precision in ("mixed", "fp16"):
        network = RvmTorchNetwork(rvm_model_path, device="cpu", precision=precision)
        assert network.input_for((48, 80)).dtype == "float16"
        estimates = network.infer(pictures, network.new_state())
        assert estimates[0].gain.dtype == np.float32
        error = np.abs(alpha_of(estimates, pictures) - expected)
        assert error.mean() * 255 < 1.5


@pytest.mark.parametrize("eyes", [1, 2])
def test_a_batch_of_frames_gives_what_single_frames_give(network, eyes):
    pictures = drifting_pictures(5, eyes, (40, 56))
    one, many = network.new_state(), network.new_state()
    singles = [network.infer(picture[None], one)[0] for picture in pictures]
    batched = network.infer(pictures[:3], many) + network.infer(pictures[3:], many)
    for single, together in zip(singles, batched, strict=True):
        np.testing.assert_allclose(together.gain, single.gain, atol=1e-4)
        np.testing.assert_allclose(together.offset, single.offset, atol=1e-4)


def test_eyes_and_streams_do_not_leak_into_each_other(network):
    pictures = drifting_pictures(3, 2, (40, 56))
    together = network.infer(pictures, network.new_state())
    for eye in range(2):
        alone = network.infer(np.ascontiguousarray(pictures[:, eye : eye + 1]), network.new_state())
        for stereo, mono in zip(together, alone, strict=True):
            np.testing.assert_allclose(stereo.gain[eye], mono.gain[0], atol=1e-4)


def test_the_state_matters_and_reset_forgets_it(network):
    pictures = drifting_pictures(1, 1, (40, 56))
    state = network.new_state()
    first = network.infer(pictures, state)[0]
    again = network.infer(pictures, state)[0]
    assert np.abs(again.gain - first.gain).max() > 1e-3
    state.reset()
    np.testing.assert_array_equal(network.infer(pictures, state)[0].gain, first.gain)


def test_input_size_is_that_of_the_onnx_network(rvm_model_path):
    for arguments in ({}, {"downsample_ratio": 0.25}, {"longest_side": 512}):
        ours = RvmTorchNetwork(rvm_model_path, device="cpu", precision="fp32", **arguments)
        theirs = RvmNetwork(rvm_model_path, **arguments)
        assert ours.input_for((1080, 1920)) == theirs.input_for((1080, 1920))


def test_what_was_not_prepared_for_it_is_a_model_error(network):
    state = network.new_state()
    with pytest.raises(ModelError, match="float64"):
        network.infer(np.zeros((1, 1, 3, 32, 32)), state)
    with pytest.raises(ModelError, match="frames, eyes"):
        network.infer(np.zeros((1, 3, 32, 32), np.float32), state)
    with pytest.raises(ModelError, match="frames, eyes"):
        network.infer(np.zeros((0, 1, 3, 32, 32), np.float32), state)
    with pytest.raises(ModelError, match="own state"):
        network.infer(np.zeros((1, 1, 3, 32, 32), np.float32), object())
    network.infer(np.zeros((1, 1, 3, 32, 32), np.float32), state)
    with pytest.raises(ModelError, match="another size"):
        network.infer(np.zeros((1, 1, 3, 32, 48), np.float32), state)


def test_a_call_that_fails_leaves_the_stream_where_it_was(network, monkeypatch):
    pictures, state = drifting_pictures(3, 1, (32, 32)), network.new_state()
    network.infer(pictures[:1], state)
    before = state.tensors
    calls = []

    def fail_the_second(inputs, **_):
        calls.append(inputs)
        if len(calls) == 2:
            raise EngineError("broken")
        return real(inputs)

    real = network._engine.run_tensors
    monkeypatch.setattr(network._engine, "run_tensors", fail_the_second)
    with pytest.raises(EngineError, match="broken"):
        network.infer(pictures, state)
    assert state.tensors is before


def test_packages_need_a_directory(rvm_model_path):
    with pytest.raises(EngineError, match="directory"):
        RvmTorchNetwork(rvm_model_path, device="cpu", precision="fp32", mode="aot")


def test_after_close_it_says_so(rvm_model_path):
    network = RvmTorchNetwork(rvm_model_path, device="cpu", precision="fp32")
    network.close()
    network.close()
    with pytest.raises(EngineError, match="closed"):
        network.infer(drifting_pictures(1, 1, (32, 32)), network.new_state())


def test_the_report_names_what_ran(network):
    assert network.engine_name.startswith("torch ")
    assert network.engine_name.endswith("eager), fp32")
    assert network.notes == ()


@given(frames=st.integers(1, 200), most=st.integers(1, 40))
def test_chunks_are_powers_of_two_that_cover_all_frames(frames, most):
    parts = frame_chunks(frames, most)
    assert sum(parts) == frames
    assert all(part & (part - 1) == 0 and part <= most for part in parts)
    assert parts == sorted(parts, reverse=True)


def test_resnet50_runs_in_its_own_shapes():
    torch = pytest.importorskip("torch")
    from vitascope.models.rvm.structure import state_shapes
    from vitascope.models.rvm.torch_network import RvmCoarseNetwork

    weights = random_weights("resnet50")
    network = RvmCoarseNetwork(weights).eval()
    shapes = state_shapes(weights, 2, (33, 50))
    assert [shape[3] for shape in shapes] == [16, 32, 64, 128]
    assert [shape[1:3] for shape in shapes] == [(17, 25), (9, 13), (5, 7), (3, 4)]
    pictures = torch.from_numpy(drifting_pictures(3, 2, (33, 50)))
    blank = [torch.zeros(shape) for shape in shapes]
    with torch.inference_mode():
        gain, offset, *states = network(pictures, *blank)
        singles = blank
        for picture, expected in zip(pictures, gain, strict=True):
            got, _, *singles = network(picture[None], *singles)
            torch.testing.assert_close(got[0], expected, atol=1e-3, rtol=1e-3)
    assert gain.shape == offset.shape == (3, 2, 4, 33, 50)
    assert [tuple(state.shape) for state in states] == list(shapes)
    assert bool(torch.isfinite(gain).all())
