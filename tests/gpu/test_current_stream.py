"""Check that recording a graph completes, whatever other threads do meanwhile."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress

import pytest

from vitascope.gpu.current_stream import recorded

BROKEN = "cudaErrorStreamCaptureInvalidated: operation failed due to a previous error during capture"


class Recorder:
    """Breaks a number of times."""

    def __init__(self, times: int, words: str = BROKEN) -> None:
        self.left, self.words, self.tries, self.collected = times, words, 0, []

    def __call__(self) -> str:
        self.tries += 1
        self.collected.append(gc.isenabled())
        if self.left:
            self.left -= 1
            raise RuntimeError(self.words)
        return "graph"


def test_a_broken_recording_is_made_again():
    record = Recorder(2)
    assert recorded(record) == "graph"
    assert record.tries == 3


def test_one_that_never_works_says_why():
    with pytest.raises(RuntimeError, match="previous error during capture"):
        recorded(Recorder(1000))


def test_other_errors_are_not_tried_again():
    record = Recorder(1, "out of memory")
    with pytest.raises(RuntimeError, match="out of memory"):
        recorded(record)
    assert record.tries == 1


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_collected_meanwhile(fails):
    assert gc.isenabled()
    record = Recorder(int(fails), "out of memory")
    if fails:
        with pytest.raises(RuntimeError):
            recorded(record)
    else:
        recorded(record)
    assert record.collected == [False]
    assert gc.isenabled()


@pytest.mark.cuda
def test_a_thread_that_waits_for_the_whole_gpu_breaks_no_graph():
    import cupy

    values = cupy.zeros(8, cupy.float32)
    add = cupy.ElementwiseKernel("", "float32 x", "x += 1", "add_one")
    add(values)
    waits = [True]

    def wait():
        with suppress(cupy.cuda.runtime.CUDARuntimeError):
            cupy.cuda.runtime.deviceSynchronize()

    def record():
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
            try:
                add(values)
                if waits.pop() if waits else False:
                    other = threading.Thread(target=wait)
                    other.start()
                    other.join()
                add(values)
            except BaseException:
                with suppress(Exception):
                    stream.end_capture()
                raise
            return stream.end_capture(), stream

    graph, stream = recorded(record)
    assert not waits
    graph.launch(stream)
    stream.synchronize()
    assert values.get().tolist() == [3.0] * 8
