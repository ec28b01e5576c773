from __future__ import annotations

import sys

import numpy as np
import pytest

from fake_cupy import FakeArray, fake_cupy
from vitascope.errors import ModelError
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.models.network_check import network_runner, random_pictures


class Remembering:
    """A network whose offset is the sum of all pictures so far."""

    name = "remembering"

    def __init__(self, *, layout="NCHW", dtype="float32"):
        self.layout, self.dtype, self.kinds = layout, dtype, set()

    def input_for(self, region_size):
        return NetworkInput(region_size, self.layout, dtype=self.dtype)

    def new_state(self):
        return []

    def infer(self, images, state):
        self.kinds.add((type(images), images.dtype.name))
        estimates = []
        for step in images.astype(np.float32):
            state.append(step[:, [0, 1, 2, 0]])
            estimates.append(MatteEstimate(gain=state[-1], offset=sum(state[1:], state[0])))
        return estimates


def test_pictures_are_the_same_each_time_in_range_and_move():
    make = random_pictures(steps=4, eyes=2, size=(24, 40))
    pictures = make()["pictures"]
    np.testing.assert_array_equal(pictures, make()["pictures"])
    assert (pictures.shape, pictures.dtype) == ((4, 2, 3, 24, 40), np.float32)
    assert 0 <= pictures.min() < 0.1
    assert 0.9 < pictures.max() <= 1
    still = np.abs(pictures[1] - pictures[0]).mean()
    moved = np.abs(pictures[1, ..., :-8] - pictures[0, ..., 8:]).mean()
    assert moved < still / 3


def test_every_step_and_what_is_remembered_is_compared():
    inputs = random_pictures(steps=3, eyes=2, size=(16, 24))()
    outputs = network_runner(Remembering(), on_gpu=False)(inputs)
    assert set(outputs) == {"gain", "offset"}
    assert outputs["gain"].shape == (3, 2, 1, 16, 24)  # alpha's plane, the last of four
    np.testing.assert_allclose(outputs["offset"][2, :, 0], inputs["pictures"].sum(axis=0)[:, 0], rtol=1e-6)


def test_each_run_begins_a_stream():
    run, inputs = network_runner(Remembering(), on_gpu=False), random_pictures()()
    np.testing.assert_array_equal(run(inputs)["offset"], run(inputs)["offset"])


def test_a_network_on_the_gpu_gets_cupy_pictures_of_its_dtype(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    network = Remembering(dtype="float16")
    outputs = network_runner(network, on_gpu=True)(random_pictures()())
    assert network.kinds == {(FakeArray, "float16")}
    assert type(outputs["gain"]) is np.ndarray


def test_a_network_of_another_layout_is_refused():
    with pytest.raises(ModelError, match="remembering"):
        network_runner(Remembering(layout="NHWC"), on_gpu=False)(random_pictures()())
