"""Tests of comparing a quantised network with its reference, and of the gate."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from vitascope.errors import EngineError, UsageError
from vitascope.gpu import ModelQuantizer
from vitascope.gpu.toolkit.quantization.quantizer import Comparison, QuantizationLimits

FRAMES = np.linspace(0.5, 1.5, 24, dtype=np.float32).reshape(4, 6)
GOOD = Comparison(
    frames=4,
    mean_error=0.001,
    worst_frame_error=0.002,
    max_error=0.01,
    relative_error=0.001,
    reference_ms=2.0,
    quantized_ms=1.0,
    finite=True,
)


def test_errors_are_what_they_are_called():
    offsets = np.float32([0, 0, 0, 0.4])[:, None]

    def off(frame):
        index = int(np.flatnonzero((frame == FRAMES).all(axis=1))[0])
        return frame + offsets[index]

    comparison = ModelQuantizer.compare(lambda frame: frame, off, FRAMES, iterations=2)
    assert comparison.frames == 4
    assert comparison.mean_error == pytest.approx(0.1)
    assert comparison.worst_frame_error == pytest.approx(0.4)
    assert comparison.max_error == pytest.approx(0.4, abs=1e-6)
    assert comparison.relative_error == pytest.approx(0.1 / FRAMES.mean())
    assert comparison.finite


def test_the_slower_one_is_the_slower_one():
    def slow(frame):
        time.sleep(0.02)
        return frame

    comparison = ModelQuantizer.compare(slow, lambda frame: frame, FRAMES, iterations=3)
    assert comparison.reference_ms >= 20
    assert comparison.speedup > 1


def test_named_outputs_can_be_chosen():
    def both(frame):
        return {"matte": frame, "other": 100 * frame}

    def worse(frame):
        return {"matte": frame + 0.1, "other": 0 * frame}

    comparison = ModelQuantizer.compare(both, worse, FRAMES, outputs=["matte"], iterations=1)
    assert comparison.mean_error == pytest.approx(0.1, abs=1e-6)
    with pytest.raises(UsageError, match="'alpha'"):
        ModelQuantizer.compare(both, worse, FRAMES, outputs=["alpha"], iterations=1)


def test_outputs_of_another_shape_are_refused():
    with pytest.raises(UsageError, match=r"\(1, 3\), and \(1, 6\) in the reference"):
        ModelQuantizer.compare(lambda frame: frame, lambda frame: frame[:, :3], FRAMES, iterations=1)


@pytest.mark.parametrize("thing", [3, None])
def test_what_does_not_run_is_refused(thing):
    with pytest.raises(UsageError, match="is not a module, ONNX network, engine or callable"):
        ModelQuantizer.compare(lambda frame: frame, thing, FRAMES)


def test_no_iterations_are_refused_before_anything_runs():
    def never(frame):
        raise AssertionError("it ran")

    with pytest.raises(UsageError, match=r"^iterations is 0, expected a whole number, at least 1"):
        ModelQuantizer.compare(never, never, FRAMES, iterations=0)


@pytest.mark.parametrize("frames", [None, [], [np.zeros((3, 4)), np.zeros((3, 5))], 3])
def test_what_is_no_list_of_frames_is_refused(frames):
    with pytest.raises(
        UsageError, match="calibration data is an array with the frames along its first axis, or a"
    ):
        ModelQuantizer.compare(lambda frame: frame, lambda frame: frame, frames)


def test_a_network_that_fails_is_named_with_what_it_got():
    def picky(frame):
        raise RuntimeError("Expected 4D input\nand more")

    with pytest.raises(
        EngineError, match=r"^the network does not take \[1, 1, 3\]: Expected 4D input \(frames are along"
    ):
        ModelQuantizer.compare(picky, picky, [np.zeros((1, 3))])


def test_what_keeps_to_the_limits_is_accepted():
    verdict = ModelQuantizer.accept(GOOD)
    assert verdict
    assert verdict.reasons == ()
    assert str(verdict) == "accepted"


@pytest.mark.parametrize(
    ("changes", "limits", "reason"),
    [
        ({"relative_error": 0.03}, {}, "error relative to the outputs 0.03, but at most 0.02"),
        ({"quantized_ms": 2.5}, {}, r"0\.80x the reference's speed .*at least 1\.00x"),
        ({}, {"speedup": 2.1}, r"at least 2\.10x"),
        ({"mean_error": 0.005}, {"mean_error": 1 / 255}, "mean error 0.005, but at most 0.00392"),
        ({"worst_frame_error": 0.1}, {"worst_frame_error": 0.05}, "worst frame 0.1"),
        ({"finite": False}, {}, "NaN or infinity"),
        ({"relative_error": float("nan")}, {}, "nan"),
    ],
)
def test_each_limit_refuses_what_breaks_it(changes, limits, reason):
    verdict = ModelQuantizer.accept(replace(GOOD, **changes), QuantizationLimits(**limits))
    assert not verdict
    assert len(verdict.reasons) == 1
    assert pytest.importorskip("re").search(reason, str(verdict))


def test_every_broken_limit_is_named():
    bad = replace(GOOD, relative_error=1.0, quantized_ms=4.0)
    assert len(ModelQuantizer.accept(bad).reasons) == 2


def test_the_size_is_held_against_its_limit():
    limits = QuantizationLimits(size_ratio=3.5)
    assert ModelQuantizer.accept(GOOD, limits, size_ratio=3.9)
    assert "3.20x smaller, at least 3.50x" in str(ModelQuantizer.accept(GOOD, limits, size_ratio=3.2))
    with pytest.raises(UsageError, match="no sizes"):
        ModelQuantizer.accept(GOOD, limits)


@pytest.mark.parametrize("limit", [-1.0, float("nan")])
def test_limits_are_not_negative(limit):
    with pytest.raises(UsageError, match="speedup"):
        QuantizationLimits(speedup=limit)


def test_the_gate_gives_back_what_may_be_used():
    def exact(frame):
        return frame

    def near(frame):
        return frame + 1e-4

    def far(frame):
        return frame + 1

    limits = QuantizationLimits(speedup=None)
    kept = ModelQuantizer.gate(exact, near, FRAMES, limits, iterations=1)
    assert kept.model is near
    assert kept.verdict
    refused = ModelQuantizer.gate(exact, far, FRAMES, limits, iterations=1)
    assert refused.model is exact
    assert "error relative" in refused.verdict.reasons[0]


def test_the_gate_measures_sizes_where_they_are_asked():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(64, 64)
    rows = np.random.default_rng(0).random((20, 64), dtype=np.float32)
    quantized = ModelQuantizer.quantize_int8(layer, rows)
    limits = QuantizationLimits(speedup=None, size_ratio=3.5)
    assert ModelQuantizer.gate(layer, quantized, rows, limits, iterations=1).model is quantized
    tight = replace(limits, size_ratio=4.1)
    assert ModelQuantizer.gate(layer, quantized, rows, tight, iterations=1).model is layer
