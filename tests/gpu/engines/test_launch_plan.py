"""Check that launches which share memory are never alive together, and that plans survive JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.gpu.engines.launch_plan import (
    ALIGNMENT_BYTES,
    LaunchPlan,
    PlanRecorder,
    WeightBlock,
)


def interpreted(plan, weights, inputs):
    """Interpret launches of ``sum``: the last argument becomes the sum of a number and the others' first elements."""
    memory = np.full(plan.memory_bytes, 0xAA, np.uint8)

    def read(places):
        return {
            name: memory[at.offset :]
            .view(np.uint8)[: np.prod(at.shape, dtype=int) * 4]
            .view(np.int32)
            .reshape(at.shape)
            for name, at in places.items()
        }

    for name, own in read(plan.inputs).items():
        own[...] = inputs[name]
    for launch in plan.launches:
        total, target = 0, None
        for kind, value in launch.arguments:
            if kind == "int32":
                total += value
            else:
                block = memory if kind == "memory" else weights
                target = block[value : value + 4].view(np.int32)
                total += int(target[0])
        total -= int(target[0])
        # The kernel fills its whole output; the grid holds the number of elements.
        count = launch.grid[0]
        memory[value : value + 4 * count].view(np.int32)[:] = total
    return {name: own.copy() for name, own in read(plan.outputs).items()}


@given(data=st.data())
def test_reused_memory_changes_no_result(data):
    recorder, block, known = PlanRecorder(), WeightBlock(), []
    inputs = {}
    for number in range(data.draw(st.integers(1, 3))):
        size = data.draw(st.integers(1, 200))
        array = recorder.input(f"x{number}", (size,), np.int32)
        inputs[f"x{number}"] = data.draw(st.integers(-100, 100))
        known.append((array, inputs[f"x{number}"]))
    constant = block.array("c", lambda: np.array([7], np.int32))
    known.append((constant, 7))
    for _ in range(data.draw(st.integers(1, 25))):
        sources = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        number, size = data.draw(st.integers(-9, 9)), data.draw(st.integers(1, 300))
        made = recorder.empty((size,), np.int32)
        recorder.launch("sum", (size,), [number, *(array for array, _ in sources), made])
        known.append((made, number + sum(value for _, value in sources)))
    wanted = [one for one in known if one[0] is not constant]
    wanted = data.draw(st.lists(st.sampled_from(wanted), min_size=1, max_size=4, unique_by=id))
    for number, (array, _) in enumerate(wanted):
        recorder.output(f"y{number}", array)
    plan = recorder.plan()
    got = interpreted(plan, block.content(), inputs)
    for number, (_, value) in enumerate(wanted):
        assert (got[f"y{number}"] == value).all()
    again = LaunchPlan.from_json(json.loads(json.dumps(plan.to_json())), plan.kernels)
    assert again == plan


def test_arrays_begin_at_aligned_places_and_views_share_them():
    recorder = PlanRecorder()
    first, second = recorder.input("a", (2, 3, 5), np.float16), recorder.input("b", (7,), np.float32)
    parts = first.view(2, 15)
    recorder.launch("k", (1,), [first[1], parts[0], second])
    plan = recorder.plan()
    offsets = [plan.inputs[name].offset for name in ("a", "b")]
    assert all(offset % ALIGNMENT_BYTES == 0 for offset in offsets)
    assert abs(offsets[0] - offsets[1]) == ALIGNMENT_BYTES
    assert [value for _, value in plan.launches[0].arguments] == [offsets[0] + 30, offsets[0], offsets[1]]
    assert (parts.shape, first[1].shape) == ((2, 15), (3, 5))
    with pytest.raises(ValueError, match="cannot be seen"):
        first.view(4, 8)
    with pytest.raises(IndexError):
        first[2]


def test_equal_kernels_are_one_and_equal_weights_too():
    recorder, block = PlanRecorder(), WeightBlock()
    array = recorder.input("a", (1,), np.float32)
    for kernel in ("k", "m", "k"):
        recorder.launch(kernel, (1, 2), [array, 3])
    plan = recorder.plan()
    assert plan.kernels == ("k", "m")
    assert [launch.kernel for launch in plan.launches] == [0, 1, 0]
    assert plan.launches[0].grid == (1, 2, 1)
    assert block.array("w", lambda: np.ones(3)) is block.array("w", lambda: np.zeros(5))
    assert block.content().nbytes == ALIGNMENT_BYTES


def test_numbers_are_int32():
    with pytest.raises(ValueError, match="int32"):
        PlanRecorder().launch("k", (1,), [2**31])


@pytest.mark.parametrize(
    "change",
    [
        {"launches": [[1, [1, 1, 1], []]]},
        {"launches": [[0, [1, 1], []]]},
        {"launches": [[0, [1, 1, 1], [["nowhere", 0]]]]},
        {"memory_bytes": None},
        {"inputs": {"a": [0]}},
    ],
)
def test_a_document_that_is_no_plan_is_refused(change):
    recorder = PlanRecorder()
    recorder.launch("k", (1,), [recorder.input("a", (1,), np.float32)])
    document = {**recorder.plan().to_json(), **change}
    with pytest.raises((ValueError, TypeError, KeyError)):
        LaunchPlan.from_json(document, ["k"])
