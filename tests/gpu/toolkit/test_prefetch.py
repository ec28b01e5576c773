from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from watched_runs import BoomError, ClosingSource, our_threads, watched

from vitascope.errors import DeviceError, PipelineError
from vitascope.gpu import PrefetchDataLoader
from waiting import eventually

pytestmark = pytest.mark.usefixtures("no_thread_outlives_its_pipeline")


class Sample(NamedTuple):
    picture: object
    name: str


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers()), st.integers(1, 5))
def test_every_batch_comes_once_and_in_order(batches, factor):
    """Regression: the guide's loader began its loader twice, and lost the last batch."""
    loader = PrefetchDataLoader(batches, "cpu", prefetch_factor=factor)
    assert len(loader) == len(batches)
    assert watched(lambda: list(loader)) == batches
    assert watched(lambda: list(loader)) == batches  # the next epoch


def test_a_loader_is_iterated_once_for_each_iteration():
    class Loader:
        begun = 0

        def __iter__(self):
            self.begun += 1
            yield from range(5)

    loader = Loader()
    assert list(PrefetchDataLoader(loader, "cpu")) == list(range(5))
    assert loader.begun == 1
    with pytest.raises(TypeError):
        len(PrefetchDataLoader(loader, "cpu"))


@pytest.mark.parametrize("factor", [1, 4])
def test_prefetch_factor_is_how_far_ahead_it_reads(factor):
    source = ClosingSource()
    batches = iter(PrefetchDataLoader(source, "cpu", prefetch_factor=factor))
    assert next(batches) == 0
    eventually(lambda: source.given == 1 + factor + 1)  # taken, waiting, and in progress
    assert next(batches) == 1
    eventually(lambda: source.given == 2 + factor + 1)
    batches.close()
    assert source.closed_in == "vitascope-prefetch"
    assert our_threads() == []


def test_the_next_batch_is_read_while_this_one_is_worked_on():
    second = threading.Event()

    def batches():
        yield 1
        second.set()
        yield 2

    for batch in PrefetchDataLoader(batches(), "cpu"):
        if batch == 1:
            assert second.wait(timeout=10)


def test_a_failing_loader_is_told_behind_what_it_gave():
    def batches():
        yield 1
        raise BoomError("boom")

    taken = []
    with pytest.raises(PipelineError, match="stage 'prefetch'"):
        for batch in PrefetchDataLoader(batches(), "cpu", prefetch_factor=3):
            taken.append(batch)
    assert taken in ([], [1])


def test_a_torch_loader():
    data = torch.utils.data.TensorDataset(torch.arange(20).reshape(10, 2), torch.arange(10))
    loader = PrefetchDataLoader(torch.utils.data.DataLoader(data, batch_size=4), torch.device("cpu"))
    assert [names.tolist() for _, names in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_what_is_no_device_is_refused():
    with pytest.raises(DeviceError, match="is not a device"):
        PrefetchDataLoader([], "gpu")
    with pytest.raises(DeviceError, match="GPU 1"):
        PrefetchDataLoader([], "cuda:1")
    with pytest.raises(ValueError, match="at least 1"):
        PrefetchDataLoader([], "cpu", prefetch_factor=0)


@pytest.mark.cuda
@pytest.mark.parametrize("pin_memory", [True, False])
def test_batches_arrive_on_the_gpu_in_their_form(pin_memory):
    import cupy

    batches = [
        {"rgb": torch.full((64, 64, 3), n), "more": (Sample(np.full(1000, n), str(n)), [n])}
        for n in range(50)
    ]
    loader = PrefetchDataLoader(batches, "cuda", prefetch_factor=3, pin_memory=pin_memory)
    for n, batch in enumerate(loader):
        sample, (number,) = batch["more"]
        assert batch["rgb"].is_cuda
        assert isinstance(sample, Sample)
        assert isinstance(sample.picture, cupy.ndarray)
        assert (sample.name, number) == (str(n), n)
        assert float(batch["rgb"].float().mean()) == n
        assert float(sample.picture.mean()) == n
    assert n == 49


@pytest.mark.cuda
def test_memory_is_not_written_again_while_the_callers_stream_reads_it():
    sums = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for batch in PrefetchDataLoader((torch.full((512, 512), float(n)) for n in range(60)), "cuda"):
            torch.cuda._sleep(2_000_000)
            sums.append(batch.mean())
            del batch
    torch.cuda.synchronize()
    assert [float(value) for value in sums] == list(map(float, range(60)))
