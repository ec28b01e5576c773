from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from test_processor import ByDlpackAlone

from fake_cupy import FakeArray
from vitascope.errors import DeviceError
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_kind, to_numpy

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
    with pytest.raises(TypeError, match="is no array"):
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
