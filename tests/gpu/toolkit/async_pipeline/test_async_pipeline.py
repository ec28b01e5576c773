"""Tests of ``AsyncPipeline``: contents, order, kinds, every key of the configuration, figures."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_runs import watched

from pictures import random_frame
from vitascope.device import Device
from vitascope.errors import ConfigError, DeviceError, EngineError, InputError, PipelineError
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu import AsyncPipeline
from vitascope.gpu.engines.engine import EngineSpec, TensorSpec
from vitascope.gpu.toolkit import async_model
from vitascope.gpu.toolkit.async_pipeline import AsyncConfig

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")

RGB = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def double(batch):
    return batch * 2


def picture(n):
    return np.full((4, 6, 3), n % 256, np.uint8)


def value_of(result):
    return round(float(np.asarray(result.data).mean()) * 255 / 2)


def run_through(pipeline, frames):
    """Submit all frames, and take all results."""

    def submit():
        with suppress(PipelineError, RuntimeError):  # errors also reach whoever takes the results
            for frame_id, frame in enumerate(frames):
                pipeline.submit_frame(frame, frame_id)
        pipeline.finish()

    def run():
        with pipeline:
            thread = threading.Thread(target=submit)
            thread.start()
            try:
                return list(pipeline.results())
            finally:
                thread.join()

    return watched(run)


def test_the_loop_of_the_guide():
    """Check example 3 of the GPU module's page, unchanged except for the device."""
    model, video_frames = torch.nn.Conv2d(3, 2, 3, padding=1), [RGB] * 30
    config = {
        "decode_threads": 8, "preprocess_streams": 4, "batch_size": 4, "postprocess_threads": 16, "queue_size": 100,
    }  # fmt: skip
    pipeline = AsyncPipeline(model, config, device_id=0, device="cpu")
    pipeline.start()
    taken = []
    for frame_id, frame in enumerate(video_frames):
        pipeline.submit_frame(frame, frame_id)
        result = pipeline.get_result()
        if result:
            taken.append(result)
    pipeline.stop()
    while result := pipeline.get_result():
        taken.append(result)
    assert [result.frame_id for result in taken] == list(range(30))
    expected = model(torch.from_numpy(RGB).permute(2, 0, 1)[None] / 255)[0].detach().numpy()
    for result in taken:
        np.testing.assert_allclose(result.data, expected, atol=1e-5)
        assert set(result.metadata["stages"]) == {"decode", "preprocess", "infer", "postprocess"}
        assert sum(result.metadata["stages"].values()) > 0
        assert result.metadata["total_latency"] >= result.metadata["stages"]["postprocess"]
    stats = pipeline.get_stats()
    assert stats.fps > 0
    assert list(stats.stages) == [
        "submit", "decode", "preprocess", "gather", "infer", "postprocess", "deliver",
    ]  # fmt: skip
    assert stats.bottleneck_stage in stats.stages
    assert stats.bottleneck
    assert (stats.submitted, stats.delivered, stats.results_waiting) == (30, 30, 0)
    assert stats.stages["infer"].items == 30
    assert stats.latency.count == 30
    assert len(stats.queues) == 8
    assert stats.gpu_busy is None


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 40),
    config=st.builds(
        AsyncConfig,
        decode_threads=st.integers(1, 4),
        preprocess_streams=st.integers(1, 4),
        batch_size=st.integers(1, 7),
        postprocess_threads=st.integers(1, 4),
        encode_threads=st.integers(1, 4),
        queue_size=st.integers(1, 8),
        timeout_ms=st.sampled_from([0, 0.5, 20]),
    ),
    delays=st.lists(st.sampled_from([0, 0, 0.001]), min_size=1, max_size=7),
)
def test_nothing_is_lost_doubled_or_reordered(count, config, delays):
    seen = []

    def model(batch):
        seen.append(len(batch))
        time.sleep(delays[len(seen) % len(delays)])
        return batch * 2

    def postprocess(answer, frame):
        time.sleep(delays[int(frame[0, 0, 0]) % len(delays)])
        return answer

    pipeline = AsyncPipeline(
        model, config, device="cpu", postprocess=postprocess, encode=lambda data, _: data
    )
    results = run_through(pipeline, map(picture, range(count)))
    assert [result.frame_id for result in results] == list(range(count))
    assert [value_of(result) for result in results] == list(range(count))
    assert sum(seen) == count
    assert max(seen, default=0) <= config.batch_size


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (RGB, np.ndarray),
        (torch.from_numpy(RGB), torch.Tensor),
        (torch.from_numpy(RGB).permute(2, 0, 1).contiguous(), torch.Tensor),
        (random_frame(PIXEL_FORMATS["nv12"], (24, 32)), np.ndarray),
        ((RGB[..., 0], np.full((12, 16, 2), 128, np.uint8)), np.ndarray),
        (cv2.imencode(".png", RGB[..., ::-1])[1].tobytes(), np.ndarray),
    ],
)
def test_a_result_is_of_its_frames_kind(frame, kind):
    (result,) = run_through(AsyncPipeline(double, device="cpu", target_size=(12, 16)), [frame])
    assert type(result.data) is kind
    assert tuple(result.data.shape) == (3, 12, 16)


def test_picture_files_are_decoded(tmp_path):
    path = tmp_path / "picture.png"
    cv2.imwrite(str(path), RGB[..., ::-1])
    plain, read = run_through(AsyncPipeline(double, device="cpu"), [RGB, path])
    np.testing.assert_array_equal(plain.data, read.data)
    with pytest.raises(
        PipelineError, match=r"stage 'decode', item 0: frame 0: .*not a picture that OpenCV can read"
    ):
        run_through(AsyncPipeline(double, device="cpu"), [b"nonsense"])
    with pytest.raises(PipelineError, match=r"missing\.png") as caught:
        run_through(AsyncPipeline(double, device="cpu"), [tmp_path / "missing.png"])
    assert isinstance(caught.value.exceptions[0], InputError)


def test_masks_and_functions_of_the_users_own():
    def scores(batch):
        return np.stack([batch[:, 0], batch[:, 1] + 0.5, batch[:, 2]], 1)

    (result,) = run_through(AsyncPipeline(scores, device="cpu", postprocess="mask"), [RGB])
    np.testing.assert_array_equal(
        result.data, np.argmax(scores(np.moveaxis(RGB / np.float32(255), -1, 0)[None])[0], 0)
    )
    (result,) = run_through(AsyncPipeline(lambda b: b[:, :1], device="cpu", postprocess="mask"), [RGB])
    np.testing.assert_array_equal(result.data, (RGB[..., 0] >= 128) * np.uint8(255))
    pipeline = AsyncPipeline(
        double,
        device="cpu",
        decode=lambda frame: frame["picture"],
        preprocess=lambda frame: np.float32(frame[:2, :2]),
        postprocess=lambda answer, frame: answer.sum() + frame.shape[0],
        encode=lambda data, frame_id: f"{frame_id}: {data:.0f}",
    )
    (result,) = run_through(pipeline, [{"picture": np.ones((4, 4, 3), np.uint8)}])
    assert result.data == "0: 28"
    assert "encode" in result.metadata["stages"]


class BodySegmentation(torch.nn.Module):
    """Scores person and background by brightness."""

    def __init__(self, *, gives_scores=True):
        super().__init__()
        self.gives_scores = gives_scores

    def forward(self, pictures):
        person = pictures.mean(1)
        scores = torch.stack([torch.full_like(person, 0.5), person], 1)
        return {"out": scores, "aux": person} if self.gives_scores else person


def test_the_result_of_a_segmentation_network_is_a_mask():
    (result,) = run_through(AsyncPipeline(BodySegmentation(), {"batch_size": 1}, device="cpu"), [RGB])
    mask = result.data
    assert (mask.dtype, mask.shape) == (np.uint8, RGB.shape[:2])
    bright = RGB.mean(2) / 255
    sure = np.abs(bright - 0.5) > 1e-3
    np.testing.assert_array_equal(mask[sure], (bright > 0.5)[sure])
    (result,) = run_through(AsyncPipeline(BodySegmentation(), device="cpu", postprocess=None), [RGB])
    assert set(result.data) == {"out", "aux"}
    (result,) = run_through(AsyncPipeline(BodySegmentation(gives_scores=False), device="cpu"), [RGB])
    assert result.data.dtype == np.float32


@pytest.mark.parametrize(
    ("named", "kind", "is_mask"),
    [(True, "depth", False), (False, "semantic", True), (False, None, False), (True, None, True)],
)
def test_what_a_network_says_it_is_counts_more_than_its_name(named, kind, is_mask):
    class Estimator(torch.nn.Module):
        forward = BodySegmentation.forward
        gives_scores = True

    model = BodySegmentation() if named else Estimator()
    model.kind = kind
    (result,) = run_through(AsyncPipeline(model, device="cpu"), [RGB])
    assert isinstance(result.data, np.ndarray) is is_mask


def test_answers_of_several_arrays_and_numbers():
    def model(batch):
        return {"out": batch, "mean": batch.mean((1, 2, 3))}

    (result,) = run_through(AsyncPipeline(model, device="cpu"), [RGB])
    assert result.data["out"].shape == (3, 24, 32)
    assert float(result.data["mean"]) == pytest.approx(RGB.mean() / 255, abs=1e-4)


class HalfEngine:
    """An engine that only takes batches of 2 pictures of 8 x 8."""

    def __init__(self, device="cpu", inputs=1):
        tensor = TensorSpec("picture", np.dtype(np.float16), (2, 3, 8, 8))
        self.spec = EngineSpec((tensor,) * inputs, (tensor,), device)

    def run(self, inputs):
        assert inputs["picture"].shape == (2, 3, 8, 8)
        assert inputs["picture"].dtype == np.float16
        return {"answer": inputs["picture"] * 2}


def test_an_engine_says_what_it_takes():
    results = run_through(
        AsyncPipeline(HalfEngine(), {"batch_size": 2}), [RGB] * 3
    )  # the last batch is padded
    assert [result.data.shape for result in results] == [(3, 8, 8)] * 3
    with pytest.raises(ConfigError, match="batches of 2"):
        AsyncPipeline(HalfEngine(), {"batch_size": 4})
    with pytest.raises(EngineError, match="takes 2 inputs"):
        AsyncPipeline(HalfEngine(inputs=2))
    with pytest.raises(DeviceError, match="the engine computes on cuda"):
        AsyncPipeline(HalfEngine("cuda"), {"batch_size": 2}, device="cpu")
    with pytest.raises(TypeError, match="not SimpleNamespace"):
        AsyncPipeline(SimpleNamespace())


def test_an_engine_of_the_toolkit_says_on_which_gpu_it_is(monkeypatch):
    asked = []

    def chosen(kind, *, index):
        asked.append((kind, index))
        return Device("cpu", "in its place", index)

    monkeypatch.setattr(async_model, "select_device", chosen)
    engine = HalfEngine("cuda")
    AsyncPipeline(engine, {"batch_size": 2}, device_id=1).stop()
    engine.device = Device("cuda", "a GPU", 2)
    AsyncPipeline(engine, {"batch_size": 2}).stop()
    assert asked == [("cuda", 1), ("cuda", 2)]


def test_half_precision_modules_get_half_precision():
    class Echo(torch.nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, dtype=dtype))

        def forward(self, x):
            assert x.dtype == self.weight.dtype
            return {"out": x * 2}

    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        (result,) = run_through(AsyncPipeline(Echo(dtype), device="cpu"), [picture(40)])
        assert value_of(SimpleNamespace(data=result.data["out"])) == 40


# ---- every key of the configuration acts


@pytest.mark.parametrize(
    ("key", "stage"),
    [
        ("decode_threads", "decode"),
        ("preprocess_streams", "preprocess"),
        ("postprocess_threads", "postprocess"),
        ("encode_threads", "encode"),
    ],
)
def test_a_stage_has_as_many_threads_as_it_is_given(key, stage):
    """Check that three threads run: three frames wait inside for each other."""
    barrier = threading.Barrier(3)

    def meet(frame, *_):
        barrier.wait(timeout=10)
        return np.float32(frame)

    pipeline = AsyncPipeline(double, {key: 3, "batch_size": 1}, device="cpu", **{stage: meet})
    assert len(run_through(pipeline, [RGB] * 6)) == 6
    assert pipeline.get_stats().stages[stage].workers == 3


def test_batch_size_and_timeout():
    sizes = []

    def model(batch):
        sizes.append(len(batch))
        return batch

    def run():
        with AsyncPipeline(model, {"batch_size": 3, "timeout_ms": 60_000}, device="cpu") as pipeline:
            pipeline.submit_frame(RGB)
            pipeline.submit_frame(RGB)
            assert pipeline.get_result(timeout_s=0.1) is None  # two of three, so it waits
            pipeline.submit_frame(RGB)
            assert [pipeline.get_result(timeout_s=20).metadata["batch_size"] for _ in range(3)] == [3, 3, 3]
            assert pipeline.get_stats().mean_batch_size == 3
        with AsyncPipeline(model, {"batch_size": 3, "timeout_ms": 1}, device="cpu") as pipeline:
            pipeline.submit_frame(RGB)
            assert pipeline.get_result(timeout_s=20).metadata["batch_size"] == 1  # no third one came

    watched(run)
    assert sizes == [3, 1]


def test_queue_size_bounds_what_waits():
    def submitted_before_it_is_full(queue_size):
        gate = threading.Event()
        config = {"queue_size": queue_size, "batch_size": 1, "preprocess_streams": 1, "decode_threads": 1}

        def blocked(batch):
            gate.wait()
            return batch

        with AsyncPipeline(blocked, config, device="cpu") as pipeline:
            count = 0
            with pytest.raises(TimeoutError, match="no room for frame"):
                while True:
                    pipeline.submit_frame(RGB, timeout_s=0.8)
                    count += 1
            gate.set()
            pipeline.finish()
            watched(lambda: list(pipeline.results()))
        return count

    # Before submit, decode, preprocess and gather, one in each; and one call that waits for the network.
    assert submitted_before_it_is_full(1) == 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1
    assert submitted_before_it_is_full(5) == 1 + 1 + 5 + 1 + 5 + 1 + 5 + 1 + 1 + 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"postprocess": "masks"}, "postprocess is 'masks', expected a function, 'mask' or None"),
        ({"decode": "jpeg"}, "decode is 'jpeg', expected a function or None"),
        ({"target_size": 512}, "target_size is 512"),
        ({"target_size": (0, 4)}, "at least one pixel"),
        ({"mean": (0, 0)}, "expected 3 numbers"),
        ({"std": (1, 0, 1)}, "none to be 0"),
    ],
)
def test_what_frames_are_to_become_is_looked_at_before_the_first(option, message):
    with pytest.raises(ValueError, match=message):
        AsyncPipeline(double, device="cpu", **option)


def test_results_that_nobody_takes_hold_submissions_back_and_say_so():
    def run():
        with (
            AsyncPipeline(double, {"queue_size": 2}, device="cpu") as pipeline,
            pytest.raises(TimeoutError, match="2 results are waiting to be taken: call get_result"),
        ):
            for _ in range(200):
                pipeline.submit_frame(RGB, timeout_s=0.8)
        return pipeline  # stop() completed what was submitted, taken or not

    pipeline = watched(run)
    assert pipeline.get_stats().delivered == pipeline.get_stats().submitted
    assert len(list(pipeline.results())) == pipeline.get_stats().submitted


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"batchsize": 4}, "no setting 'batchsize'; did you mean batch_size"),
        ({"colour": 4}, "no setting 'colour'; expected one of decode_threads"),
        ({"batch_size": 0}, "batch_size is 0, expected a whole number from 1"),
        ({"batch_size": 2.0}, "expected a whole number"),
        ({"queue_size": True}, "expected a whole number"),
        ({"timeout_ms": -1}, "timeout_ms is -1, expected a number from 0"),
        ({"timeout_ms": float("nan")}, "timeout_ms is nan"),
        ({"timeout_ms": "soon"}, "timeout_ms is 'soon'"),
        ({"batch_size": 10**400}, "batch_size is 1000"),
        ({"timeout_ms": 10**400}, "timeout_ms is 1000"),
        ([("batch_size", 2)], "config is a list, expected a mapping such as"),
        (2, "config is a int, expected a mapping such as"),
    ],
)
def test_a_bad_configuration_is_refused_in_words(config, message):
    with pytest.raises(ConfigError, match=message):
        AsyncPipeline(double, config, device="cpu")


def test_a_configuration_takes_numbers_of_numpy():
    config = {"batch_size": np.int64(3), "timeout_ms": np.float32(5)}
    with AsyncPipeline(double, config, device="cpu", target_size=(8, 8)) as pipeline:
        for number in range(7):
            pipeline.submit_frame(RGB, number)
        pipeline.finish()
        assert [result.frame_id for result in pipeline.results()] == list(range(7))


def test_the_slowest_stage_is_named():
    def slow(answer, frame):
        time.sleep(0.02)
        return answer

    config = {"postprocess_threads": 1, "queue_size": 4, "batch_size": 2}
    pipeline = AsyncPipeline(double, config, device="cpu", postprocess=slow)
    run_through(pipeline, [RGB] * 30)
    stats = pipeline.get_stats()
    assert stats.bottleneck_stage == "postprocess"
    assert stats.stages["postprocess"].load > stats.stages["decode"].load
