"""Check that pictures of many threads share calls of the network, with the same results as alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from skimage import data

from forks import said_in_a_fork
from left_threads import left_threads
from lever_network import TrailNetwork
from scripted import BrightnessNetwork
from vitascope.errors import BatcherStoppedError
from vitascope.models.network import MatteEstimate, StatelessState
from vitascope.segmentation import stills as stills_module
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.segmentation.segmenter import Segmenter
from vitascope.segmentation.stills import StillSegmenter


class Network(BrightnessNetwork):
    """Mattes every picture alone, or claims to have a memory."""

    def __init__(self, *, stateless=True, **more):
        super().__init__(**more)
        self.stateless = stateless
        self.closed = False

    def new_state(self):
        return StatelessState() if self.stateless else super().new_state()

    def infer(self, images, state):
        self.calls.append(images.shape[:2])
        planes = images if self.layout == "NCHW" else np.moveaxis(images, -1, 2)
        return [MatteEstimate(alpha=(frame.mean(axis=1) > 0.5).astype(np.float32)) for frame in planes]

    def close(self):
        self.closed = True


@pytest.fixture
def opened(monkeypatch):
    made = []

    def open_with(network, **settings):
        monkeypatch.setattr(
            stills_module, "open_network", lambda *_, **__: ChosenNetwork(network, "scripted", None)
        )
        flags = {f"batching.dynamic.{key}": value for key, value in settings.items()}
        made.append(StillSegmenter(profile="fast", settings={"gpu.device": "cpu", **flags}))
        return made[-1]

    yield open_with
    for segmenter in made:
        segmenter.close()
    assert not left_threads("vitascope-batcher")


def picture(n=0):
    """Draw a bright square on black, further right for higher ``n``."""
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[16:48, 8 * n : 8 * n + 32] = 255
    return pixels


def masks(segmenter, count):
    """Return the masks of ``count`` threads that begin at the same time."""
    together = threading.Barrier(count)

    def client(n):
        together.wait(10)
        return segmenter.mask(picture(n))

    with ThreadPoolExecutor(count) as clients:
        return list(clients.map(client, range(count)))


def test_people_are_white(opened):
    alpha = opened(Network()).mask(picture())
    assert alpha.shape == (64, 96)
    assert alpha.dtype == np.uint8
    assert alpha[24:40, 4:24].min() > 250
    assert alpha[:, 64:].max() < 5


def test_a_picture_comes_out_as_its_file_does(tmp_path):
    shown = np.ascontiguousarray(data.astronaut()[:300, :401])
    cv2.imwrite(str(tmp_path / "in.png"), shown[..., ::-1])
    settings = {"gpu.device": "cpu", "edges.feather_px": 1.5}
    with Segmenter(profile="fast", settings=settings) as segmenter:
        ((_, expected),) = segmenter.stream(tmp_path / "in.png")
    with StillSegmenter(profile="fast", settings=settings) as stills:
        mask = stills.mask(shown)
    assert mask.max() > 200
    np.testing.assert_array_equal(mask, expected)


def test_threads_share_calls_up_to_the_largest_batch(opened):
    network = Network()
    segmenter = opened(network, max_batch_size=4, timeout_ms=10_000)
    alone = [opened(Network()).mask(picture(n)) for n in range(8)]
    with segmenter._batcher.client():  # so only full batches run
        together = masks(segmenter, 8)
    for mask, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(mask, expected)
    assert network.calls == [(1, 4), (1, 4)]
    assert segmenter.stats().mean_batch_size == 4


def test_the_largest_batch_is_what_the_setting_says(opened):
    network = Network()
    masks(opened(network, max_batch_size=1), 6)
    assert network.calls == [(1, 1)] * 6


def test_the_smallest_batch_is_filled_up(opened):
    network = Network()
    opened(network, min_batch_size=3).mask(picture())
    assert network.calls == [(1, 3)]


def test_the_timeout_bounds_the_wait_for_a_thread_that_is_slow_to_come(opened):
    segmenter = opened(Network(), timeout_ms=1)
    with segmenter._batcher.client():  # one that is preparing, and never arrives
        assert segmenter.mask(picture()).max() > 250
    assert opened(Network(), timeout_ms=40)._batcher.config.timeout_ms == 40


def test_a_lone_thread_waits_for_nobody(opened):
    segmenter = opened(Network(), timeout_ms=60_000)
    for n in range(5):
        segmenter.mask(picture(n))
    assert segmenter.stats().mean_batch_size == 1


def test_a_network_that_remembers_sees_each_picture_alone_and_repeatedly(opened):
    network = Network(stateless=False, recurrent=True)
    segmenter = opened(network, max_batch_size=4, timeout_ms=10_000)
    masks(segmenter, 4)
    assert network.calls == [(1, 1)] * 4 * (1 + segmenter.settings.model.warm_up_frames)


class Plane(TrailNetwork):
    """Takes pictures that are large enough for close-ups."""

    def __init__(self):
        super().__init__(size=(512, 768))


def test_close_ups_are_shown_smaller_whatever_their_company(opened):
    network = Plane()
    segmenter = opened(network, max_batch_size=2, timeout_ms=10_000)
    near, far = np.zeros((2, 64, 96, 3), np.uint8)
    near[8:56, 8:88] = 255
    far[24:40, 40:56] = 255
    alone = []
    for one, height in ((near, 341), (far, 512)):
        alone.append(segmenter.mask(one))
        assert network.calls[-1][1:] == (1, 3, height, height * 3 // 2 + height % 2)
    with segmenter._batcher.client(), ThreadPoolExecutor(2) as clients:
        together = list(clients.map(segmenter.mask, [near, far]))
    assert {shape[1:4:2] for shape in network.calls[-2:]} == {(2, 341), (2, 512)}
    for mask, expected, shown in zip(together, alone, (near, far), strict=True):
        np.testing.assert_array_equal(mask, expected)
        assert np.abs(mask.astype(int) - shown[..., 0]).mean() < 10


@pytest.mark.parametrize("setting", [{"model.input_size": 768}, {"model.downsample_ratio": 0.9}])
def test_a_still_of_a_size_that_was_asked_for_has_it(setting, monkeypatch):
    network = Plane()
    monkeypatch.setattr(stills_module, "open_network", lambda *_, **__: ChosenNetwork(network, "trail", None))
    with StillSegmenter(profile="balanced", settings={"gpu.device": "cpu", **setting}) as segmenter:
        segmenter.mask(np.full((64, 96, 3), 255, np.uint8))
    assert network.calls[-1][3:] == (512, 768)


def test_pictures_of_different_shapes_do_not_meet(opened):
    segmenter = opened(Network(), max_batch_size=2, timeout_ms=10_000)
    tall = np.ascontiguousarray(picture().transpose(1, 0, 2))
    with ThreadPoolExecutor(2) as clients:
        wide, high = clients.map(segmenter.mask, [picture(), tall])
    assert wide.shape == (64, 96)
    assert high.shape == (96, 64)
    np.testing.assert_allclose(high.T.astype(int), wide.astype(int), atol=2)


def test_rvm_mattes_pictures_together_as_alone(rvm_model_path, model_store):
    astronaut = np.ascontiguousarray(data.astronaut()[:256:2, 60:316:2])
    shown = [np.ascontiguousarray(np.roll(astronaut, 8 * n, axis=1)) for n in range(3)]
    settings = {
        "model.name": "rvm",
        "gpu.device": "cpu",
        "batching.dynamic.timeout_ms": 10_000,
        "batching.dynamic.max_batch_size": 3,
    }
    with StillSegmenter(settings=settings, store=model_store) as segmenter:
        alone = [segmenter.mask(one) for one in shown]
        with segmenter._batcher.client(), ThreadPoolExecutor(3) as clients:
            together = list(clients.map(segmenter.mask, shown))
        assert segmenter.stats().batches == 4
    assert alone[0].max() > 200
    for mask, expected in zip(together, alone, strict=True):
        assert np.abs(mask.astype(int) - expected.astype(int)).max() <= 1


def test_what_is_no_picture_is_refused(opened):
    segmenter = opened(Network())
    for wrong in (
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3)),
        np.zeros((0, 4, 3), np.uint8),
    ):
        with pytest.raises(ValueError, match="a picture is uint8"):
            segmenter.mask(wrong)


@pytest.mark.parametrize("wrong", ["portrait.jpg", None, [[[0, 0, 0]]]])
def test_what_is_no_array_is_refused_by_name(opened, wrong):
    with pytest.raises(TypeError, match=f"a picture is a NumPy array, .* not {type(wrong).__name__}"):
        opened(Network()).mask(wrong)


def test_one_that_was_closed_says_so(opened):
    network = Network()
    segmenter = opened(network)
    segmenter.close()
    assert network.closed
    with pytest.raises(BatcherStoppedError):
        segmenter.mask(picture())


def test_a_fork_is_told_to_open_its_own(opened):
    network = Network()
    segmenter = opened(network)
    segmenter.mask(picture())
    said = said_in_a_fork(lambda: segmenter.mask(picture()))
    assert said.startswith("UsageError: the StillSegmenter was opened before this process was forked")
    assert said_in_a_fork(lambda: (segmenter.close(), network.closed)) == "(None, False)"
    assert segmenter.mask(picture()).any()
