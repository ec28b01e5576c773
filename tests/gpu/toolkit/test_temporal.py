from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pictures import random_frame
from vitascope.errors import UsageError
from vitascope.frames import PIXEL_FORMATS, ColorSpec
from vitascope.gpu.toolkit.temporal import StillnessGate, TemporalOptimizer, change, thumbnail


def picture(value=100, size=(60, 80)):
    return np.full((*size, 3), value, np.uint8)


class Counting:
    def __init__(self):
        self.seen = []

    def __call__(self, frame):
        self.seen.append(np.array(frame[0, 0]))
        return object()


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_change_is_the_mean_absolute_difference_in_shares_of_the_full_scale(make):
    before, after = picture(100), picture(100)
    after[:30] = 151  # a fifth of the range, in half of the picture
    assert change(make(before), make(after)) == pytest.approx(0.1)
    assert change(make(after), make(before)) == pytest.approx(0.1)  # unsigned values must not wrap
    halves = make(before / np.float32(255)), make(after / np.float32(255))
    assert change(*halves) == pytest.approx(0.1)
    wide = make(before.astype(np.uint16) * 257), make(after.astype(np.uint16) * 257)
    assert change(*wide) == pytest.approx(0.1)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_tiles_find_a_small_thing_that_moves(make):
    before = np.zeros((1, 3, 40, 40), np.float32)
    after = before.copy()
    after[..., :4, :4] = 1
    assert change(make(before), make(after)) == pytest.approx(0.01)
    assert change(make(before), make(after), tiles=(10, 10)) == pytest.approx(1.0)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="cannot compare"):
        change(picture(size=(4, 4)), picture(size=(4, 5)))
    with pytest.raises(ValueError, match="cannot compare"):
        change(picture(), picture().astype(np.float32))
    with pytest.raises(ValueError, match="nothing to compare"):
        change(np.zeros((0, 3)), np.zeros((0, 3)))
    with pytest.raises(ValueError, match="tiles do not fit"):
        change(np.zeros((4, 4)), np.zeros((4, 4)), tiles=(5, 1))


@pytest.mark.parametrize(
    ("frame", "shape"),
    [
        (picture(size=(1080, 1920)), (1, 3, 72, 128)),
        (np.zeros((40, 50), np.uint8), (1, 1, 40, 50)),
        (np.zeros((3, 300, 200), np.float32), (1, 3, 128, 85)),
        (np.zeros((5, 30, 20), np.float16), (5, 1, 30, 20)),
        (np.zeros((2, 3, 256, 256), np.float64), (2, 3, 128, 128)),
        (torch.zeros(2, 3, 256, 256, dtype=torch.bfloat16), (2, 3, 128, 128)),
        (torch.zeros(1, 1, dtype=torch.uint8), (1, 1, 1, 1)),
        (random_frame(PIXEL_FORMATS["yuv420p10le"], (64, 128)), (1, 3, 64, 128)),
    ],
)
def test_a_thumbnail_of_anything(frame, shape):
    small = thumbnail(frame)
    assert small.shape == shape
    assert small.dtype == np.float32


def test_a_thumbnail_is_an_area_mean_and_no_view():
    frame = np.random.default_rng(0).random((1, 3, 256, 128), np.float32)
    expected = frame.reshape(1, 3, 128, 2, 64, 2).mean((3, 5))
    np.testing.assert_allclose(thumbnail(frame), expected, atol=1e-5)
    small = np.zeros((1, 3, 16, 16), np.float32)
    assert not np.may_share_memory(thumbnail(small), small)
    with pytest.raises(ValueError, match="2 to 4 axes"):
        thumbnail(np.zeros(5))


def test_a_result_is_reused_while_the_picture_stands_still():
    model = Counting()
    optimizer = TemporalOptimizer(skip_threshold=0.01, model=model)
    buffer = picture(100)
    first = optimizer.process(buffer)
    buffer[...] = 101  # in the same memory, as from decoders: 0.4 % of the range
    assert optimizer.process(buffer) is first
    buffer[...] = 140
    assert optimizer.process(buffer) is not first
    assert (optimizer.computed, optimizer.reused, len(model.seen)) == (2, 1, 2)


def test_drift_adds_up():
    model = Counting()
    optimizer = TemporalOptimizer(0.01, model=model, most_reuses=None)
    for value in range(100, 130):
        optimizer.process(picture(value))
    # 3 levels are 1.2 %: every third picture is computed, although neighbours only differ by 0.4 %.
    assert [int(seen[0]) for seen in model.seen] == list(range(100, 130, 3))


def test_reuse_is_bounded():
    optimizer = TemporalOptimizer(0.5, model=Counting(), most_reuses=3)
    for _ in range(12):
        optimizer.process(picture())
    assert (optimizer.computed, optimizer.reused) == (3, 9)


def test_streams_do_not_see_each_other():
    optimizer = TemporalOptimizer(0.01, model=Counting())
    left, right = (optimizer.process(picture(value), stream=value) for value in (10, 200))
    assert optimizer.process(picture(10), stream=10) is left
    assert optimizer.process(picture(200), stream=200) is right
    optimizer.reset(stream=10)
    assert optimizer.process(picture(10), stream=10) is not left
    assert optimizer.process(picture(200), stream=200) is right


def test_another_size_or_type_is_another_picture():
    optimizer = TemporalOptimizer(1.0, model=Counting())
    optimizer.process(picture(size=(20, 20)))
    optimizer.process(picture(size=(20, 30)))
    optimizer.process(np.zeros((20, 30), np.uint8))
    assert optimizer.computed == 3


def test_a_failed_picture_leaves_no_reference():
    calls = []

    def model(frame):
        calls.append(frame)
        if len(calls) == 2:
            raise RuntimeError("boom")
        return len(calls)

    optimizer = TemporalOptimizer(0.01, model=model)
    assert optimizer.process(picture(0)) == 1
    with pytest.raises(RuntimeError, match="boom"):
        optimizer.process(picture(200))
    assert optimizer.process(picture(200)) == 3  # neither the black picture's result, nor the one that failed


def test_nan_and_a_threshold_of_nothing_reuse_nothing():
    optimizer = TemporalOptimizer(1.0, model=Counting())
    for _ in range(3):
        optimizer.process(np.full((8, 8), np.nan, np.float32))
    assert optimizer.reused == 0
    optimizer = TemporalOptimizer(0.0, model=Counting())
    for _ in range(3):
        optimizer.process(picture())
    assert optimizer.reused == 0


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.integers(1, 5), st.floats(0, 0.2))
def test_a_reused_result_is_never_further_off_than_the_threshold(values, most_reuses, threshold):
    gate = StillnessGate(threshold, most_reuses=most_reuses)
    reference, run = None, 0
    for value in values:
        if gate.is_still(np.full((1, 1, 2, 2), value, np.uint8)):
            run += 1
            assert abs(value - reference) / 255 < threshold
            assert gate.last_change == pytest.approx(abs(value - reference) / 255, abs=1e-6)
        else:
            reference, run = value, 0
        assert run <= most_reuses


@pytest.mark.parametrize(
    "options", [{"skip_threshold": -1}, {"skip_threshold": 2}, {"most_reuses": 0}, {"tiles": (0, 1)}]
)
def test_numbers_out_of_range_are_refused_at_once(options):
    with pytest.raises(ValueError, match="expected"):
        TemporalOptimizer(model=Counting(), **options)


@pytest.mark.cuda
def test_a_gpu_decides_as_the_processor_does():
    import cupy

    rng = np.random.default_rng(1)
    before = rng.integers(0, 256, (270, 480, 3), dtype=np.uint8)
    after = np.clip(before.astype(int) + rng.integers(-9, 10, before.shape), 0, 255).astype(np.uint8)
    expected = change(thumbnail(before), thumbnail(after), tiles=(3, 4))
    small = [thumbnail(cupy.asarray(frame)) for frame in (before, after)]
    assert change(*small, tiles=(3, 4)) == pytest.approx(expected, abs=1e-5)
    small = [thumbnail(torch.from_numpy(frame).cuda()) for frame in (before, after)]
    assert change(*small, tiles=(3, 4)) == pytest.approx(expected, abs=1e-5)
    assert change(*(torch.from_numpy(frame).cuda() for frame in (before, after))) == pytest.approx(
        change(before, after), abs=1e-5
    )
    centred = ColorSpec(chroma_location="center")
    frames = [random_frame(PIXEL_FORMATS["nv12"], (128, 256), color=centred, seed=seed) for seed in (0, 1)]
    on_gpu = [frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes)) for frame in frames]
    assert change(*map(thumbnail, on_gpu)) == pytest.approx(change(*map(thumbnail, frames)), abs=2e-3)


def test_a_model_may_come_later_and_its_absence_is_said():
    optimizer = TemporalOptimizer(skip_threshold=0.01)
    with pytest.raises(UsageError, match="give it a model"):
        optimizer.process(picture())
    optimizer.model = lambda frame: frame + 1
    first = optimizer.process(torch.zeros(3, 20, 20))
    assert optimizer.process(torch.zeros(3, 20, 20)) is first
    assert (optimizer.computed, optimizer.reused) == (1, 1)
