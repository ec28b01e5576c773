from __future__ import annotations

import json
import re

import numpy as np
import pytest

from vitascope.errors import DeviceMemoryError
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.gpu.engines.selection import (
    TOLERANCES,
    Machine,
    SelfCheck,
    Subject,
    Tolerance,
    compare,
    host_runner,
)

MACHINE = Machine("Some GPU, compute capability 9.0", "580.95.05")
SUBJECT = Subject(model="ab" * 32, engine="engine 1.0 (fp16)", precision="fp16", machine=MACHINE)
INPUTS = {"x": np.random.default_rng(0).random((4, 5), dtype=np.float32)}


class Counted:
    """Doubles its input, with a relative error, and counts its runs."""

    def __init__(self, error=0.0):
        self.error, self.calls = error, 0

    def __call__(self, inputs):
        self.calls += 1
        return {"twice": 2 * inputs["x"] * (1 + self.error)}


def check_with(reference, cache_dir):
    return SelfCheck(reference=reference, make_inputs=lambda: INPUTS, cache_dir=cache_dir)


@pytest.mark.parametrize("precision", TOLERANCES)
def test_the_tolerance_is_the_precisions(precision):
    tolerance = TOLERANCES[precision]
    reference = {"a": np.ones(100)}
    assert compare({"a": np.full(100, 1 + 0.9 * tolerance.mean)}, reference, tolerance).passed
    assert not compare({"a": np.full(100, 1 + 1.1 * tolerance.mean)}, reference, tolerance).passed
    outlier = np.ones(100_000)
    outlier[7] += 1.1 * tolerance.largest
    assert not compare({"a": outlier}, {"a": np.ones(100_000)}, tolerance).passed


def test_the_worst_output_decides_and_is_named():
    expected = {"gain": np.ones(3), "offset": np.ones(3)}
    verdict = compare({"gain": np.ones(3), "offset": np.full(3, 1.5)}, expected, Tolerance(0.1, 0.1))
    assert not verdict.passed
    assert "its offset differs" in verdict.reason
    assert "0.5 of the mean" in verdict.reason


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        ({}, "gives no a"),
        ({"a": np.ones((3, 1))}, r"gives a as \[3, 1\] instead of \[3\]"),
        ({"a": np.array([1, np.nan, 1])}, "not numbers"),
        ({"a": np.array([1, np.inf, 1])}, "not numbers"),
    ],
)
def test_outputs_of_another_kind_fail(outputs, complaint):
    verdict = compare(outputs, {"a": np.ones(3)}, TOLERANCES["int8"])
    assert not verdict.passed

    assert re.search(complaint, verdict.reason)


def test_outputs_that_are_zero_are_compared_without_dividing_by_zero():
    assert compare({"a": np.zeros(3)}, {"a": np.zeros(3)}, TOLERANCES["fp32"]).passed
    assert not compare({"a": np.full(3, 1e-3)}, {"a": np.zeros(3)}, TOLERANCES["fp32"]).passed


def test_a_verdict_is_kept_and_neither_side_runs_again(tmp_path):
    for error, passed in ((0.001, True), (0.5, False)):
        cache = tmp_path / str(error)
        reference, engine = Counted(), Counted(error)
        first = check_with(reference, cache).verdict(SUBJECT, engine)
        second = check_with(reference, cache).verdict(SUBJECT, engine)
        assert first == second
        assert first.passed is passed
        assert (reference.calls, engine.calls) == (1, 1)


def test_the_reference_runs_once_for_several_engines(tmp_path):
    reference = Counted()
    check = check_with(reference, tmp_path)
    for name in ("one", "two"):
        subject = Subject(model=SUBJECT.model, engine=name, precision="fp16", machine=MACHINE)
        assert check.verdict(subject, Counted()).passed
    assert reference.calls == 1


@pytest.mark.parametrize(
    "other",
    [
        Subject(model="cd" * 32, engine=SUBJECT.engine, precision="fp16", machine=MACHINE),
        Subject(model=SUBJECT.model, engine="engine 1.1 (fp16)", precision="fp16", machine=MACHINE),
        Subject(model=SUBJECT.model, engine=SUBJECT.engine, precision="fp32", machine=MACHINE),
        Subject(
            model=SUBJECT.model, engine=SUBJECT.engine, precision="fp16", machine=Machine(MACHINE.gpu, "581")
        ),
        Subject(
            model=SUBJECT.model, engine=SUBJECT.engine, precision="fp16", machine=Machine("B", MACHINE.driver)
        ),
    ],
)
def test_another_model_version_precision_driver_or_gpu_is_checked_anew(tmp_path, other):
    engine = Counted()
    check_with(Counted(), tmp_path).verdict(SUBJECT, engine)
    check_with(Counted(), tmp_path).verdict(other, engine)
    assert engine.calls == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_other_tolerances_are_checked_anew(tmp_path, monkeypatch):
    engine = Counted(0.01)
    assert check_with(Counted(), tmp_path).verdict(SUBJECT, engine).passed
    strict = {**TOLERANCES, "fp16": Tolerance(1e-6, 1e-6)}
    monkeypatch.setattr("vitascope.gpu.engines.selection.TOLERANCES", strict)
    assert not check_with(Counted(), tmp_path).verdict(SUBJECT, engine).passed


def test_another_vitascope_checks_anew(tmp_path, monkeypatch):
    engine = Counted()
    check_with(Counted(), tmp_path).verdict(SUBJECT, engine)
    monkeypatch.setattr("vitascope.gpu.engines.selection.__version__", "99.0")
    check_with(Counted(), tmp_path).verdict(SUBJECT, engine)
    assert engine.calls == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: "",
        lambda content: content[: len(content) // 2],
        lambda content: "[]",
        lambda content: json.dumps({**json.loads(content), "passed": "yes"}),
        lambda content: json.dumps({**json.loads(content), "about": {}}),
        lambda content: json.dumps({**json.loads(content), "format": "other"}),
    ],
)
def test_a_damaged_verdict_is_removed_and_the_check_done_again(tmp_path, damage):
    engine = Counted()
    check_with(Counted(), tmp_path).verdict(SUBJECT, engine)
    (kept,) = tmp_path.iterdir()
    intact = kept.read_text()
    kept.write_text(damage(intact))
    assert check_with(Counted(), tmp_path).verdict(SUBJECT, engine).passed
    assert engine.calls == 2
    assert kept.read_text() == intact


def test_bytes_that_are_no_text_are_a_damaged_verdict(tmp_path):
    engine = Counted()
    check_with(Counted(), tmp_path).verdict(SUBJECT, engine)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(b"\xff\xfe\x00")
    assert check_with(Counted(), tmp_path).verdict(SUBJECT, engine).passed
    assert engine.calls == 2


def test_a_folder_that_cannot_be_written_means_a_check_each_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    engine = Counted()
    for _ in range(2):
        assert check_with(Counted(), blocked / "verdicts").verdict(SUBJECT, engine).passed
    assert check_with(Counted(), None).verdict(SUBJECT, engine).passed
    assert engine.calls == 3


def test_what_the_engine_raises_is_no_verdict(tmp_path):
    def out_of_memory(inputs):
        raise DeviceMemoryError("too little")

    with pytest.raises(DeviceMemoryError):
        check_with(Counted(), tmp_path).verdict(SUBJECT, out_of_memory)
    assert list(tmp_path.iterdir()) == []
    assert check_with(Counted(), tmp_path).verdict(SUBJECT, Counted()).passed


def test_an_engine_on_the_cpu_gets_the_arrays_as_they_are(doubling):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with OnnxRuntimeEngine(doubling) as engine:
        np.testing.assert_array_equal(host_runner(engine)({"x": x})["twice"], 2 * x)


def test_the_machine_is_its_gpu_and_its_driver(cupy, monkeypatch):
    monkeypatch.setattr("vitascope.gpu.engines.selection.probe_gpus", lambda: ())
    assert Machine.of_gpu(0) == Machine("Fake GPU, compute capability 9.0", "CUDA 13000")
