from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from test_processor import ByDlpackAlone

from fake_cupy import FakeArray
from vitascope.errors import DeviceError
from vitascope.gpu.interchange import kind_of, lies_on_gpu, on_its_way, one_after_the_other, to_kind, to_numpy

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


class Subclass(torch.Tensor):
    pass


class OnDevice(ByDlpackAlone):
    def __init__(self, device):
        super().__init__(ARRAY)
        self._device = device

    def __dlpack_device__(self):
        return self._device, 0


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (ARRAY, "numpy"),
        (ARRAY.view(FakeArray), "cupy"),
        (torch.from_numpy(ARRAY), "torch"),
        (torch.nn.Parameter(torch.zeros(2)), "torch"),
        (torch.zeros(2).as_subclass(Subclass), "torch"),
        (ByDlpackAlone(ARRAY), "dlpack"),
    ],
)
def test_kinds_are_told_by_type(array, kind):
    assert kind_of(array) == kind
    assert lies_on_gpu(array) == (kind == "cupy")


def test_no_library_is_imported_for_the_question(monkeypatch):
    for name in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert kind_of(ARRAY) == "numpy"
    assert to_numpy(ARRAY) is ARRAY


@pytest.mark.parametrize("thing", [None, 3.0, "text", [1, 2], torch.nn.Conv2d(1, 1, 1)])
def test_what_is_no_array_is_refused(thing):
    with pytest.raises(TypeError, match="is not an array"):
        kind_of(thing)


@pytest.mark.parametrize(("device", "on_gpu"), [(1, False), (3, False), (2, True), (13, True)])
def test_dlpack_says_where_it_is(device, on_gpu):
    assert lies_on_gpu(OnDevice(device)) is on_gpu


def test_other_accelerators_are_refused():
    with pytest.raises(DeviceError, match="DLPack device 8:0"):
        lies_on_gpu(OnDevice(8))
    with pytest.raises(DeviceError, match="a tensor on meta"):
        lies_on_gpu(torch.zeros(1, device="meta"))


def test_memory_of_the_host_is_shared():
    tensor = torch.from_numpy(ARRAY.copy()).requires_grad_()
    view = to_numpy(tensor)
    view[0, 0] = 77
    assert float(tensor.detach()[0, 0]) == 77
    back = to_kind(view, "torch", on_gpu=False)
    back[0, 1] = 88
    assert view[0, 1] == 88
    assert np.shares_memory(to_numpy(ByDlpackAlone(ARRAY)), ARRAY)
    assert to_kind(view, "dlpack", on_gpu=False) is view


def test_read_only_memory_becomes_a_tensor_without_a_warning():
    frozen = ARRAY.copy()
    frozen.flags.writeable = False
    assert torch.equal(to_kind(frozen, "torch", on_gpu=False), torch.from_numpy(ARRAY))


def test_an_array_of_the_host_is_there_at_once():
    assert on_its_way(ARRAY)() is ARRAY


@pytest.mark.cuda
def test_an_array_comes_as_it_was_when_it_was_asked_for():
    import cupy

    array = cupy.asarray(np.tile(ARRAY, (500, 1)))
    coming = on_its_way(array[:, ::2])
    array += 1
    later = on_its_way(array)
    np.testing.assert_array_equal(coming()[:3], ARRAY[:, ::2])
    np.testing.assert_array_equal(later()[:3], ARRAY + 1)


@pytest.mark.cuda
def test_what_is_launched_meanwhile_is_not_waited_for():
    import cupy

    array, busy = cupy.asarray(ARRAY), cupy.cuda.Event(disable_timing=True)
    coming, load = on_its_way(array), cupy.ones((4096, 4096), "float32")
    for _ in range(60):
        load = load @ load
    busy.record()
    np.testing.assert_array_equal(coming(), ARRAY)
    assert not busy.done


def test_arrays_of_the_host_are_joined():
    np.testing.assert_array_equal(one_after_the_other([ARRAY[:1], ARRAY[1:]]), ARRAY)


@pytest.mark.cuda
def test_parts_of_one_array_on_a_gpu_are_joined_without_a_copy():
    import cupy

    whole = cupy.asarray(np.random.default_rng(0).random((6, 4, 3, 5), np.float32))
    parts = [whole[at : at + 2, -1:] for at in range(0, 6, 2)]
    joined = one_after_the_other(parts)
    np.testing.assert_array_equal(joined.get(), whole[:, -1:].get())
    assert joined.data.ptr == parts[0].data.ptr
    assert joined.strides == parts[0].strides
    for others in (
        [parts[0], parts[2]],
        [parts[1], parts[0]],
        [parts[0], parts[1].copy()],
        [parts[0], whole[2:3, -1:]],
        [parts[0], whole[2:4, :1]],
        [parts[0], parts[0]],
        [*parts, *parts[1:], parts[0]],
        [parts[0].copy(), *parts, whole[:1, -1:]],
    ):
        together = one_after_the_other(others)
        np.testing.assert_array_equal(together.get(), np.concatenate([each.get() for each in others]))
        assert together.data.mem is not whole.data.mem
