"""Tests of a memory in the plane: parts of it, copies of it, and continuing from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage import data

from vitascope.gpu.kernels.region import Region
from vitascope.models.network import SpatialState, StatelessState, at_level
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.rvm.state import RvmState

SIZE = (80, 112)


def rvm_state(eyes=2, size=SIZE):
    state, (height, width) = RvmState(), size
    state.tensors = []
    for level, channels in enumerate((3, 2, 2, 1), start=1):
        shape = (eyes, channels, -(-height // 2**level), -(-width // 2**level))
        state.tensors.append(np.random.default_rng(level).random(shape, np.float32))
    return state


def torch_state():
    torch = pytest.importorskip("torch")
    from vitascope.models.rvm.torch_network import RvmTorchState

    state = RvmTorchState()
    state.tensors = tuple(torch.from_numpy(a.transpose(0, 2, 3, 1).copy()) for a in rvm_state().tensors)
    return state


STATES = {"onnx": rvm_state, "torch": torch_state}


@given(
    y=st.integers(0, 20), x=st.integers(0, 20),
    height=st.integers(1, 100), width=st.integers(1, 100), level=st.integers(1, 4),
)  # fmt: skip
def test_a_part_has_a_share_of_every_level(y, x, height, width, level):
    at = at_level(Region(16 * x, 16 * y, width, height), level)
    step = 2**level
    assert (at.x * step, at.y * step) == (16 * x, 16 * y)
    assert (at.width - 1) * step < width <= at.width * step
    assert (at.height - 1) * step < height <= at.height * step


def test_a_part_begins_with_a_sample_of_every_level():
    with pytest.raises(ValueError, match="multiple of 16"):
        at_level(Region(8, 0, 16, 16), 4)


@pytest.mark.parametrize("kind", STATES)
def test_parts_are_cut_out_and_put_back(kind):
    state = STATES[kind]()
    before = [array.copy() for array in state.arrays()]
    parts = [Region(16, 32, 48, 48), Region(64, 32, 48, 48)]
    part = state.window(parts)
    assert isinstance(state, SpatialState)
    axis = 2 if kind == "onnx" else 1
    assert [array.shape[axis] for array in part.arrays()] == [24, 12, 6, 3]
    part.restore([array + 1 for array in part.arrays()])
    state.put(parts, part)
    for now, old in zip(state.arrays(), before, strict=True):
        changed = now - old
        assert set(np.unique(changed.round(4))) == {0.0, 1.0}
        assert changed.mean() == pytest.approx(48 * 48 / (SIZE[0] * SIZE[1]), abs=1e-6)
    state.put(parts, STATES[kind]().window(parts))
    assert all(np.array_equal(now, old) for now, old in zip(state.arrays(), before, strict=True))


@pytest.mark.parametrize("kind", STATES)
def test_a_copy_goes_its_own_way(kind):
    state = STATES[kind]()
    before = [array.copy() for array in state.arrays()]
    copy = state.copy()
    copy.put([Region(0, 0, 16, 16)] * 2, STATES[kind]().window([Region(16, 16, 16, 16)] * 2))
    assert not all(np.array_equal(one, old) for one, old in zip(copy.arrays(), before, strict=True))
    assert all(np.array_equal(one, old) for one, old in zip(state.arrays(), before, strict=True))
    state.reset()
    assert state.copy().arrays() == []


@pytest.mark.parametrize("kind", STATES)
def test_features_are_taken_from_another_memory_where_they_are_wanted(kind):
    state, other = STATES[kind](), STATES[kind]()
    before = [array.copy() for array in state.arrays()]
    other.restore([array + 1 for array in before])
    share = np.zeros((2, 5, 7), np.float32)
    share[1, :, :3] = 1
    state.take(other, share)
    for now, old in zip(state.arrays(), before, strict=True):
        more = now - old if kind == "onnx" else (now - old).transpose(0, 3, 1, 2)
        assert not more[0].any()
        third = more.shape[3] // 3
        assert more[1, :, :, :third] == pytest.approx(1, abs=1e-5)
        assert more[1, :, :, -third:] == pytest.approx(0, abs=1e-5)
    state.reset()
    with pytest.raises(ValueError, match="empty"):
        state.take(other, share)


@pytest.mark.parametrize("kind", STATES)
def test_what_is_taken_from_nobodys_memory_is_forgotten(kind):
    state = STATES[kind]()
    before = [array.copy() for array in state.arrays()]
    state.take(None, np.full((2, 5, 7), 0.25, np.float32))
    for now, old in zip(state.arrays(), before, strict=True):
        np.testing.assert_allclose(now, old * 0.75, atol=1e-6)


class QuarterOnAGpu:
    """An array of quarters like CuPy's, which NumPy only gets by ``get``."""

    shape = (2, 5, 7)

    def get(self):
        return np.full(self.shape, 0.25, np.float32)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")


QuarterOnAGpu.__module__ = "cupy"


def test_a_network_on_the_cpu_in_a_job_on_a_gpu_takes_by_what_lies_there():
    state = rvm_state()
    before = [array.copy() for array in state.arrays()]
    state.take(None, QuarterOnAGpu())
    for now, old in zip(state.arrays(), before, strict=True):
        np.testing.assert_allclose(now, old * 0.75, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("at", ["host", "device"])
@pytest.mark.parametrize("kind", STATES)
def test_features_are_taken_by_what_lies_on_a_gpu(kind, at):
    import cupy

    share = np.random.default_rng(3).random((2, 5, 7), np.float32)
    expected, state = STATES[kind](), STATES[kind]()
    expected.take(None, share)
    if at == "device" and kind == "onnx":
        state = RvmState(on_gpu=True)
        state.tensors = [cupy.asarray(tensor) for tensor in rvm_state().tensors]
    elif at == "device":
        from vitascope.models.rvm.torch_network import RvmTorchState

        state = RvmTorchState("cuda")
        state.restore(torch_state().arrays())
    state.take(None, cupy.asarray(share))
    for ours, theirs in zip(state.arrays(), expected.arrays(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("kind", STATES)
def test_features_are_taken_alike_on_a_gpu(kind):
    share = np.random.default_rng(3).random((2, 5, 7), np.float32)
    taken = []
    for on_gpu in (False, True):
        pair = STATES[kind](), STATES[kind]()
        if on_gpu and kind == "onnx":
            import cupy

            pair = RvmState(on_gpu=True), RvmState(on_gpu=True)
            for state in pair:
                state.tensors = [cupy.asarray(tensor) for tensor in rvm_state().tensors]
        elif on_gpu:
            from vitascope.models.rvm.torch_network import RvmTorchState

            pair = RvmTorchState("cuda"), RvmTorchState("cuda")
            for state in pair:
                state.restore(torch_state().arrays())
        state, other = pair
        other.restore([array + 1 for array in other.arrays()])
        state.take(other, share)
        state.take(None, share / 2)
        taken.append(state.arrays())
    for host, device in zip(*taken, strict=True):
        np.testing.assert_allclose(host, device, atol=1e-5)


@pytest.mark.parametrize("kind", STATES)
def test_left_and_right_change_places(kind):
    state = STATES[kind]()
    before = [array.copy() for array in state.arrays()]
    state.mirror()
    for now, old in zip(state.arrays(), before, strict=True):
        np.testing.assert_array_equal(now, np.flip(old, 3 if kind == "onnx" else 2))
    state.reset()
    state.mirror()
    assert state.arrays() == []


@pytest.mark.parametrize("size", [(160, 224), (81, 113), (301, 113), SIZE])
def test_a_memory_is_stretched_alike_in_both_engines(size):
    states = [rvm_state(), torch_state()]
    for state in states:
        state.stretch(size)
    for level, (onnx, torch) in enumerate(zip(*(state.arrays() for state in states), strict=True), start=1):
        assert onnx.shape[2:] == (-(-size[0] // 2**level), -(-size[1] // 2**level))
        np.testing.assert_allclose(onnx, torch.transpose(0, 3, 1, 2), atol=1e-4)


def test_a_ramp_stays_a_ramp_when_it_is_stretched():
    state = rvm_state(eyes=1, size=(32, 32))
    for tensor in state.tensors:
        tensor[:] = np.linspace(0, 1, tensor.shape[3], endpoint=False) + 0.5 / tensor.shape[3]
    state.stretch((32, 128))
    finest = state.tensors[0]
    assert finest.shape == (1, 3, 16, 64)
    expected = (np.arange(64) + 0.5) / 64
    np.testing.assert_allclose(finest[0, 0, 5, 2:-2], expected[2:-2], atol=1e-5)


@pytest.mark.parametrize("kind", STATES)
def test_an_empty_memory_has_empty_parts(kind):
    state = STATES[kind]()
    part = state.window([Region(0, 0, 16, 16)] * 2)
    state.reset()
    state.stretch((64, 64))
    assert state.arrays() == []
    assert state.arrays() == []
    assert state.window([Region(0, 0, 16, 16)] * 2).arrays() == []
    with pytest.raises(ValueError, match="empty"):
        state.put([Region(0, 0, 16, 16)] * 2, part)
    assert not isinstance(StatelessState(), SpatialState)


def pictures(steps, size=(64, 96)):
    rng = np.random.default_rng(0)
    small = rng.random((steps, 1, 3, size[0] // 8, size[1] // 8), np.float32)
    return np.ascontiguousarray(small.repeat(8, axis=3).repeat(8, axis=4))


@pytest.fixture(params=["onnx", "torch"])
def network(request, rvm_model_path):
    if request.param == "onnx":
        made = RvmNetwork(rvm_model_path)
    else:
        pytest.importorskip("torch")
        from vitascope.models.rvm.torch_network import RvmTorchNetwork

        made = RvmTorchNetwork(rvm_model_path, device="cpu", precision="fp32")
    yield made
    made.close()


def test_a_copied_memory_goes_on_as_the_first_would(network):
    images = pictures(5)
    state = network.new_state()
    network.infer(images[:3], state)
    copy = network.new_state()
    copy.restore(state.arrays())
    straight, resumed = network.infer(images[3:], state), network.infer(images[3:], copy)
    for one, other in zip(straight, resumed, strict=True):
        assert np.array_equal(one.gain, other.gain)
        assert np.array_equal(one.offset, other.offset)


def test_a_part_of_the_memory_fits_the_part_of_the_picture(network):
    """Check that answers are close; the network's global pooling sees less of a part, so they are not equal."""
    picture = data.astronaut()[:352:2, ::2].transpose(2, 0, 1).astype(np.float32) / 255
    images = np.ascontiguousarray(np.broadcast_to(picture, (6, 1, *picture.shape)))
    parts = [Region(32, 0, 192, 176)]
    cut = np.ascontiguousarray(images[5:, ..., 32:224])

    def alpha(estimate, rgb):
        grey = rgb.mean(axis=1)
        return np.clip(estimate.gain[:, 3] * grey + estimate.offset[:, 3], 0, 1)

    state = network.new_state()
    network.infer(images[:5], state)
    part = state.window(parts)
    with_memory = alpha(network.infer(cut, part)[0], cut[0])
    without = alpha(network.infer(cut, network.new_state())[0], cut[0])
    state.put(parts, part)
    network.infer(images[5:], state)
    whole = alpha(network.infer(images[5:], state)[0], images[5])[..., 32:224]
    assert np.abs(with_memory - whole).mean() < 0.03
    assert np.abs(with_memory - whole).mean() < np.abs(without - whole).mean() / 2
