"""Tests of the launch plan engine with a fake CuPy; ``tests/models`` runs real plans on a GPU."""

from __future__ import annotations

import json
import os
import sys
from typing import ClassVar

import numpy as np
import pytest

from fake_cupy import fake_cupy
from vitascope.errors import DeviceMemoryError, EngineError
from vitascope.gpu.engines import plan_engine
from vitascope.gpu.engines.launch_plan import CompiledKernel, PlanRecorder
from vitascope.gpu.engines.plan_engine import PlanEngine, PlanStore, StoredPlan


class Ready:
    """Simulates a plan that returns its input."""

    made: ClassVar[list[Ready]] = []

    def __init__(self, plan, weights):
        self.plan, self.weights, self.closed = plan, weights, False
        self.memory, self.memory_bytes = None, plan.memory_bytes
        self.input_shapes = {name: place.shape for name, place in plan.inputs.items()}
        Ready.made.append(self)

    def work_in(self, memory):
        self.memory, self.closed = memory, False

    def __call__(self, inputs, stream):
        assert self.memory.nbytes >= self.memory_bytes
        return dict(inputs)

    def close(self):
        self.memory, self.closed = None, True


@pytest.fixture
def cupy(monkeypatch):
    fake = fake_cupy()
    fake.cuda.Device.synchronize = lambda self: fake.diary.append(("device waits",))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(plan_engine, "_ReadyPlan", Ready)
    monkeypatch.setattr(
        plan_engine,
        "compile_kernels",
        lambda kernels, *, capability: [CompiledKernel(b"code", one, 128, 0, 2) for one in kernels],
    )
    Ready.made = []
    return fake


def record(sizes):
    recorder = PlanRecorder()
    recorder.launch("kernel", (1,), [recorder.input("x", sizes, np.float32)])
    return recorder.plan(), np.arange(4, dtype=np.uint8)


def engine_in(folder, **given):
    return PlanEngine(record, key=("network",), label="net", device_id=0, cache_dir=folder, **given)


def test_a_size_is_recorded_once_and_kept_for_the_next_process(cupy, tmp_path):
    asked = []

    def counted(sizes):
        asked.append(tuple(sizes))
        return record(sizes)

    for _ in range(2):
        engine = PlanEngine(counted, key=("n",), label="net", device_id=0, cache_dir=tmp_path)
        for sizes in ((2, 3), (4,), (2, 3)):
            assert engine.input_shapes(sizes) == {"x": sizes}
            engine.run(sizes, {"x": np.zeros(sizes, np.float32)})
        assert engine.notes == []
        engine.close()
    assert asked == [(2, 3), (4,)]


def test_the_least_recently_used_plan_goes_once_the_gpu_is_through(cupy):
    engine = engine_in(None, most_plans=2)
    for sizes in ((3,), (2,), (3,), (1,)):
        engine.run(sizes, {"x": 0})
    assert [one.closed for one in Ready.made] == [False, True, False]
    assert cupy.diary.count(("device waits",)) == 2  # once for the memory of the first one
    assert engine.plan_count == 2
    assert all(one.weights is Ready.made[0].weights for one in Ready.made)


def test_plans_share_the_memory_of_the_largest(cupy):
    """Check a network that sees a video in several sizes in turn."""
    engine, large, small = engine_in(None), (1 << 16,), (1,)
    engine.run(small, {"x": 0})
    first = Ready.made[0].memory
    engine.run(large, {"x": 0})
    assert Ready.made[0].closed  # it must not hold the smaller memory
    assert first is not Ready.made[1].memory
    engine.run(small, {"x": 0})
    engine.run(large, {"x": 0})
    assert Ready.made[0].memory is Ready.made[1].memory
    assert Ready.made[1].memory.nbytes == Ready.made[1].memory_bytes
    assert len(Ready.made) == 2


def test_memory_that_cannot_be_had_leaves_an_engine_that_works(cupy, monkeypatch):
    engine, empty = engine_in(None), cupy.empty
    engine.run((1,), {"x": 0})

    def too_much(*given):
        raise MemoryError("Out of memory allocating 9 bytes")

    monkeypatch.setattr(cupy, "empty", too_much, raising=False)
    with pytest.raises(DeviceMemoryError):
        engine.run((1 << 16,), {"x": 0})
    monkeypatch.setattr(cupy, "empty", empty)
    engine.run((1,), {"x": 0})


def test_a_call_on_another_stream_waits_for_the_one_before(cupy):
    engine = engine_in(None)
    first, second = cupy.cuda.Stream(), cupy.cuda.Stream()
    for stream in (first, first, second):
        with stream:
            engine.run((1,), {"x": 0})
    noted = [entry[:2] for entry in cupy.diary if entry[0] in ("record", "wait")]
    expected = [("record", first), ("record", first), ("wait", second), ("record", second)]
    assert noted == [(what, stream.ptr) for what, stream in expected]


def test_a_call_waits_for_what_a_failed_one_has_queued(cupy, monkeypatch):
    engine = engine_in(None)
    first, second = cupy.cuda.Stream(), cupy.cuda.Stream()
    with first:
        engine.run((1,), {"x": 0})

    def too_much(self, inputs, stream):
        raise MemoryError("Out of memory allocating 9 bytes")

    with monkeypatch.context() as patched, second:
        patched.setattr(Ready, "__call__", too_much)
        with pytest.raises(DeviceMemoryError):
            engine.run((1,), {"x": 0})
    cupy.diary.clear()
    with first:
        engine.run((1,), {"x": 0})
    noted = [entry[:2] for entry in cupy.diary if entry[0] in ("record", "wait")]
    assert noted == [("wait", first.ptr), ("record", first.ptr)]


def test_a_closed_engine_says_so(cupy):
    engine = engine_in(None)
    engine.run((1,), {"x": 0})
    engine.close()
    engine.close()
    assert Ready.made[0].closed
    with pytest.raises(EngineError, match="closed"):
        engine.run((1,), {"x": 0})


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("the driver fell over"), EngineError, "net: inference of 1x2 failed: the driver fell"),
        (MemoryError("Out of memory allocating 9 bytes"), DeviceMemoryError, r"3.0 of 80.0 GiB free"),
    ],
)
def test_errors_of_libraries_are_ours(cupy, monkeypatch, error, kind, words):
    def fail(self, inputs, stream):
        raise error

    monkeypatch.setattr(Ready, "__call__", fail)
    with pytest.raises(kind, match=words):
        engine_in(None).run((1, 2), {"x": 0})


def test_a_damaged_plan_is_told_and_made_anew(cupy, tmp_path):
    heard = []
    engine_in(tmp_path).run((1,), {"x": 0})
    for path in tmp_path.glob("*.cubin"):
        path.write_bytes(b"else")
    engine = engine_in(tmp_path, on_note=heard.append)
    engine.run((1,), {"x": 0})
    assert heard == engine.notes
    assert "rebuilt" in heard[0]


def test_a_gpu_that_is_not_there_is_named(cupy):
    def missing(device):
        raise cupy.cuda.runtime.CUDARuntimeError("invalid device ordinal")

    cupy.cuda.runtime.getDeviceProperties = missing
    with pytest.raises(EngineError, match="net: GPU 0 cannot be used: invalid device"):
        engine_in(None)


SIZES = (1, 2, 16, 32)


@pytest.fixture
def stored():
    recorder = PlanRecorder()
    array = recorder.input("a", (4,), np.float32)
    recorder.launch(CompiledKernel(b"\x7fELF one", "k", 128, 512, 2), (3,), [array, 5])
    recorder.output("a", array)
    return StoredPlan(recorder.plan(), np.arange(256, dtype=np.uint8))


@pytest.fixture
def notes():
    return []


def store(folder, notes, key=("network", "triton 3.6")):
    return PlanStore(folder, label="rvm", key=key, on_note=notes.append)


def test_a_kept_plan_is_found_again(tmp_path, stored, notes):
    store(tmp_path, notes).keep(SIZES, stored)
    found = store(tmp_path, notes).load(SIZES)
    assert found.plan == stored.plan
    np.testing.assert_array_equal(found.weights, stored.weights)
    assert notes == []


def test_other_sizes_keys_and_no_folder_find_nothing(tmp_path, stored, notes):
    store(tmp_path, notes).keep(SIZES, stored)
    assert store(tmp_path, notes).load((1, 1, 16, 32)) is None
    assert store(tmp_path, notes, key=("network", "triton 3.7")).load(SIZES) is None
    nowhere = store(None, notes)
    nowhere.keep(SIZES, stored)
    assert nowhere.load(SIZES) is None
    assert notes == []


@pytest.mark.parametrize("suffix", [".plan", ".cubin", ".weights"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "removed", "nested"])
def test_damage_is_told_and_the_plan_made_anew(tmp_path, stored, notes, suffix, damage):
    store(tmp_path, notes).keep(SIZES, stored)
    (path,) = tmp_path.glob(f"*{suffix}")
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
        path.write_bytes({"cut": content[:-2], "flipped": flipped, "nested": b"[" * 100_000}[damage])
    if (suffix, damage) == (".plan", "removed"):
        assert store(tmp_path, notes).load(SIZES) is None
        return
    if (suffix, damage) != (".plan", "flipped"):
        assert store(tmp_path, notes).load(SIZES) is None
        assert len(notes) == 1
        assert "rebuilt" in notes[0]
    path.unlink(missing_ok=True)
    again = store(tmp_path, notes)
    again.keep(SIZES, stored)
    assert again.load(SIZES).plan == stored.plan


def test_a_plan_under_anothers_name_is_not_taken(tmp_path, stored, notes):
    kept = store(tmp_path, notes)
    kept.keep(SIZES, stored)
    (path,) = tmp_path.glob("*.plan")
    document = json.loads(path.read_bytes())
    document["key"][0] = "another network"
    path.write_text(json.dumps(document))
    assert kept.load(SIZES) is None
    assert "another network" in notes[0]


def test_a_checksum_names_no_path(tmp_path, stored, notes):
    kept = store(tmp_path / "kept", notes)
    kept.keep(SIZES, stored)
    (path,) = (tmp_path / "kept").glob("*.plan")
    document = json.loads(path.read_bytes())
    document["weights"] = "../elsewhere"
    path.write_text(json.dumps(document))
    assert kept.load(SIZES) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_costs_a_note(tmp_path, stored, notes):
    tmp_path.chmod(0o500)
    store(tmp_path, notes).keep(SIZES, stored)
    assert "cannot be stored" in notes[0]


def test_a_folder_that_is_a_file_costs_a_note(tmp_path, stored, notes):
    (tmp_path / "file").write_text("")
    store(tmp_path / "file", notes).keep(SIZES, stored)
    assert "cannot be stored" in notes[0]
