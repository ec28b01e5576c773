from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vitascope.models
from fake_cupy import FakeArray
from vitascope.errors import EngineError
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.selfie.selfie import SelfieNetwork

PICTURES = np.random.default_rng(0).random((3, 2, 3, 4, 6), dtype=np.float32)


class Counting:
    """A network on the CPU that returns its pictures' means, and records them."""

    name, engine_name, recurrent = "counting", "an engine", True

    def __init__(self, *, plain):
        self.plain, self.seen, self.closed = plain, [], False

    def input_for(self, region_size):
        return NetworkInput(region_size, "NCHW")

    def new_state(self):
        return {"frames": 0}

    def infer(self, images, state):
        assert type(images) is np.ndarray
        self.seen.append(images.copy())
        state["frames"] += len(images)
        if self.plain:
            return [MatteEstimate(alpha=step.mean(axis=1)) for step in images]
        planes = np.concatenate([images, images[:, :, :1]], axis=2)
        return [MatteEstimate(gain=step, offset=-step) for step in planes]

    def close(self):
        self.closed = True


def test_coefficients_go_up_again(cupy):
    network = Counting(plain=False)
    host, state = HostNetwork(network), network.new_state()
    estimates = host.infer(cupy.asarray(PICTURES), state)
    np.testing.assert_array_equal(network.seen[0], PICTURES)
    assert state == {"frames": 3}
    for step, estimate in zip(PICTURES, estimates, strict=True):
        assert isinstance(estimate.gain, FakeArray)
        assert isinstance(estimate.offset, FakeArray)
        np.testing.assert_array_equal(estimate.gain[:, :3], step)
        np.testing.assert_array_equal(estimate.offset, -estimate.gain)


def test_a_plain_matte_stays_in_the_hosts_memory(cupy):
    estimates = HostNetwork(Counting(plain=True)).infer(cupy.asarray(PICTURES), {"frames": 0})
    assert [type(estimate.alpha) for estimate in estimates] == [np.ndarray] * 3


def test_the_copy_runs_behind_the_jobs_work_on_a_stream_of_its_own_and_is_waited_for(cupy):
    job = cupy.cuda.Stream()
    host = HostNetwork(Counting(plain=True))
    for _ in range(2):
        with job:
            host.infer(cupy.asarray(PICTURES), {"frames": 0})
    produced, wait, copy, arrived, host_waits = cupy.diary[:5]
    copying = copy[1]
    assert copying != job.ptr
    assert produced == ("record", job.ptr, wait[2])
    assert wait[:2] == ("wait", copying)
    assert copy[2] == PICTURES.nbytes
    assert arrived[:2] == ("record", copying)
    assert host_waits == ("host waits", arrived[2])
    assert cupy.diary[7][1] == copying  # the second call copies on the same stream


def test_it_speaks_for_its_network(cupy):
    network = Counting(plain=True)
    host = HostNetwork(network)
    assert (host.name, host.recurrent) == ("counting", True)
    assert host.engine_name == "an engine, fed from the GPU"
    assert host.input_for((7, 9)).size == (7, 9)
    assert host.new_state() == {"frames": 0}
    host.close()
    assert network.closed


def test_pictures_in_the_hosts_memory_go_straight_to_the_network(cupy):
    """Check a video whose frames cannot stay on the GPU."""
    network = Counting(plain=False)
    expected = Counting(plain=False).infer(PICTURES, {"frames": 0})
    answers = HostNetwork(network).infer(PICTURES, {"frames": 0})
    assert len(answers) == len(expected)
    for answer, plain in zip(answers, expected, strict=True):
        assert isinstance(answer.gain, np.ndarray)
        np.testing.assert_array_equal(answer.gain, plain.gain)


def test_the_networks_own_errors_pass(cupy):
    network = Counting(plain=True)

    def fail(images, state):
        raise EngineError("inference failed")

    network.infer = fail
    with pytest.raises(EngineError, match="inference failed"):
        HostNetwork(network).infer(cupy.asarray(PICTURES), {"frames": 0})


def selfie():
    data = Path(vitascope.models.__file__).with_name("data")
    general, landscape = (data / f"selfie_segmentation{name}.onnx" for name in ("", "_landscape"))
    return SelfieNetwork(general, landscape, threads=2)


@pytest.mark.cuda
def test_selfie_on_a_gpu_gives_what_it_gives_on_the_cpu():
    import cupy

    network = selfie()
    wanted = network.input_for((1080, 1920))
    pictures = np.random.default_rng(0).random((4, 2, *wanted.picture_shape()), dtype=np.float32)
    expected = network.infer(pictures, network.new_state())
    with cupy.cuda.Stream(non_blocking=True):
        # A kernel of the same stream writes these: a copy that does not wait for it sees zeros.
        on_gpu = cupy.zeros(pictures.shape, np.float32)
        on_gpu += cupy.asarray(pictures)
        estimates = HostNetwork(network).infer(on_gpu, network.new_state())
    for ours, theirs in zip(estimates, expected, strict=True):
        np.testing.assert_array_equal(ours.alpha, theirs.alpha)


@pytest.mark.cuda
def test_rvm_on_a_gpu_gives_what_it_gives_on_the_cpu(rvm_model_path):
    import cupy

    network = RvmNetwork(rvm_model_path, downsample_ratio=1.0)
    pictures = np.random.default_rng(0).random((5, 2, 3, 90, 160), dtype=np.float32)
    expected = network.infer(pictures, network.new_state())
    host, state, ours = HostNetwork(network), network.new_state(), []
    with cupy.cuda.Stream(non_blocking=True) as stream:
        on_gpu = cupy.asarray(pictures)
        for part in (on_gpu[:2], on_gpu[2:]):
            ours += host.infer(part, state)
        stream.synchronize()
    for one, other in zip(ours, expected, strict=True):
        assert isinstance(one.gain, cupy.ndarray)
        np.testing.assert_allclose(one.gain.get(), other.gain, atol=1e-4)
        np.testing.assert_allclose(one.offset.get(), other.offset, atol=1e-4)
