from __future__ import annotations

import gc

import numpy as np
import pytest

from vitascope.gpu.current_stream import external_stream, on_stream
from vitascope.gpu.engines.onnx_runtime import _as_cupy
from vitascope.gpu.engines.selection import Candidate, Machine, choose_engine


@pytest.mark.cuda
def test_work_goes_to_the_stream_that_is_asked_for():
    import cupy

    other = cupy.cuda.Stream(non_blocking=True)
    before = cupy.cuda.get_current_stream().ptr
    with on_stream(other.ptr, device_id=0) as stream:
        assert stream.ptr == other.ptr == cupy.cuda.get_current_stream().ptr
        array = cupy.arange(1000) * 2
    assert cupy.cuda.get_current_stream().ptr == before
    with on_stream(None, device_id=0) as stream:
        assert stream.ptr == before
    other.synchronize()
    np.testing.assert_array_equal(array.get(), np.arange(1000) * 2)


@pytest.mark.cuda
def test_a_stream_of_another_library_waits_for_events_and_is_not_destroyed():
    import cupy

    owner = cupy.cuda.Stream(non_blocking=True)
    borrowed = external_stream(owner.ptr)
    with owner:
        array = cupy.zeros(1 << 20, np.float32)
        for _ in range(50):
            array += 1
        event = cupy.cuda.Event(disable_timing=True)
        event.record()
    reader = cupy.cuda.Stream(non_blocking=True)
    reader.wait_event(event)
    with reader:
        total = array.sum()
    reader.synchronize()
    assert float(total) == 50 * (1 << 20)
    borrowed.synchronize()
    del borrowed
    gc.collect()
    with owner:
        array += 1
    owner.synchronize()


@pytest.mark.cuda
def test_memory_of_another_library_is_adopted_without_a_copy_and_kept_alive():
    import cupy

    freed = []

    class Value:
        """The part of an ``onnxruntime.OrtValue`` that the binding uses."""

        def __init__(self):
            self.memory = cupy.arange(12, dtype=np.float32)

        def data_type(self):
            return "tensor(float)"

        def shape(self):
            return [3, 4]

        def data_ptr(self):
            return self.memory.data.ptr

        def __del__(self):
            freed.append(True)

    value = Value()
    address = value.data_ptr()
    array = _as_cupy(value, 0)
    del value
    gc.collect()
    assert array.data.ptr == address
    assert freed == []
    np.testing.assert_array_equal(array.get(), np.arange(12, dtype=np.float32).reshape(3, 4))
    del array
    gc.collect()
    assert freed == [True]


class CupyEngine:
    """Computes x², or x² with an error, in CuPy."""

    def __init__(self, error):
        self.error, self.runs = error, 0

    def run(self, inputs):
        import cupy

        self.runs += 1
        return {"square": cupy.asnumpy(cupy.asarray(inputs["x"]) ** 2 * (1 + self.error))}

    def close(self):
        pass


@pytest.mark.cuda
def test_verdicts_are_kept_for_this_gpu_and_driver(tmp_path):
    opened = []

    def candidate(name, error):
        def open_engine():
            opened.append(CupyEngine(error))
            return opened[-1]

        return Candidate(
            name=name,
            precision="fp32",
            open=open_engine,
            describe=lambda engine: f"{name} 1.0",
            runner=lambda engine: engine.run,
        )

    machine = Machine.of_gpu(0)
    assert "compute capability" in machine.gpu
    # Without the driver's own tool, this is CUDA's number.
    assert machine.driver.removeprefix("CUDA ").split(".")[0].isdigit()
    for _ in range(2):
        chosen = choose_engine(
            [candidate("wrong", 0.1), candidate("right", 0.0)],
            reference=lambda inputs: {"square": inputs["x"] ** 2},
            make_inputs=lambda: {"x": np.random.default_rng(0).random(1000, dtype=np.float32)},
            model="ab" * 32,
            machine=machine,
            cache_dir=tmp_path,
        )
        assert chosen.name == "right"
        assert machine.gpu in chosen.reasons[0]
    assert [engine.runs for engine in opened] == [1, 1, 0, 0]
