from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from vitascope import device as device_module
from vitascope.device import (
    Gpu,
    ask_driver,
    available_cores,
    peak_memory_bytes,
    physical_memory_bytes,
    select_device,
    simd_features,
)
from vitascope.errors import DeviceError

pytestmark = pytest.mark.choosing_devices


def test_figures_are_plausible():
    assert available_cores() >= 1
    memory = physical_memory_bytes()
    assert memory is None or memory > 2**28
    peak = peak_memory_bytes()
    assert peak is None or 2**22 < peak < 2**40
    assert all(isinstance(name, str) for name in simd_features())


def test_the_cpu_can_always_be_had():
    device = select_device("cpu")
    assert (device.kind, device.note) == ("cpu", None)
    assert str(available_cores()) in device.label


def test_auto_takes_the_gpu_exactly_where_one_can_be_had():
    try:
        device = select_device("cuda")
    except DeviceError as error:
        assert "CuPy" in str(error) or "GPU" in str(error)
        assert select_device("auto").kind == "cpu"
    else:
        assert select_device("auto") == device


class FakeCuda:
    """The part of CuPy that choosing a device needs."""

    class CUDARuntimeError(RuntimeError):
        pass

    def __init__(self, *, capability=(9, 0), count=1, failure=None):
        self.cuda = SimpleNamespace(runtime=self, Device=self.device)
        self._capability, self._count, self._failure = capability, count, failure

    def getDeviceCount(self):
        if self._failure:
            raise self.CUDARuntimeError(self._failure)
        return self._count

    def getDeviceProperties(self, index):
        major, minor = self._capability
        return {"name": b"Test GPU", "major": major, "minor": minor, "totalGlobalMem": 8 << 30}

    def device(self, index):
        return SimpleNamespace(pci_bus_id=f"0000:{0xB0 + index:02X}:00.0")


def test_a_gpu_is_named_with_memory_and_capability(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", FakeCuda(count=2))
    device = select_device("auto", index=1)
    assert (device.kind, device.index) == ("cuda", 1)
    assert device.label == "Test GPU (GPU 1, 8 GiB, compute capability 9.0)"
    assert (device.memory_bytes, device.pci_address) == (8 << 30, "0000:b1:00.0")


def test_the_driver_says_what_gpus_have_free(monkeypatch):
    answer = (
        "Test GPU, 570.1, 15360, 00000000:B1:00.0, 15000\nShared, 570.1, [N/A], 0000000A:01:00.0, [N/A]\n\n"
    )
    monkeypatch.setattr(device_module.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(
        device_module.subprocess,
        "run",
        lambda *_, **__: SimpleNamespace(returncode=0, stdout=answer),
    )
    assert ask_driver() == (
        Gpu("Test GPU", "570.1", 15360 << 20, "0000:b1:00.0", 15000 << 20),
        Gpu("Shared", "570.1", None, "000a:01:00.0", None),
    )


@pytest.mark.parametrize("unknown", ["[N/A]", "N/A", "[Not Supported]", ""])
def test_what_the_driver_does_not_know_is_none(monkeypatch, unknown):
    answer = ", ".join([unknown] * 5) + "\nTest GPU, 570.1, 15360, 00000000:B1:00.0, 15000\n"
    monkeypatch.setattr(device_module.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(
        device_module.subprocess,
        "run",
        lambda *_, **__: SimpleNamespace(returncode=0, stdout=answer),
    )
    assert ask_driver() == (
        Gpu(unknown, unknown, None),
        Gpu("Test GPU", "570.1", 15360 << 20, "0000:b1:00.0", 15000 << 20),
    )


@pytest.mark.parametrize(
    ("fake", "index", "said"),
    [
        (FakeCuda(count=1), 1, "there is no GPU 1: this machine has 1"),
        (FakeCuda(count=1), -1, "there is no GPU -1: this machine has 1"),
        (FakeCuda(count=0), 0, "no NVIDIA GPU was found"),
        (FakeCuda(capability=(6, 1)), 0, "compute capability 6.1; the kernels need 7.5"),
        (FakeCuda(failure="cudaErrorInsufficientDriver: CUDA driver version"), 0, "driver is too old"),
        (
            FakeCuda(failure="cudaErrorNoDevice: no CUDA-capable device is detected"),
            0,
            "no CUDA-capable device",
        ),
    ],
)
def test_a_gpu_that_cannot_be_used_says_why(monkeypatch, fake, index, said):
    monkeypatch.setitem(sys.modules, "cupy", fake)
    with pytest.raises(DeviceError, match=said):
        select_device("cuda", index=index)


@pytest.mark.parametrize("word", ["gpu", "cuda:1", "CPU", "", None])
def test_a_word_that_is_no_device_is_not_taken_for_auto(monkeypatch, word):
    monkeypatch.setitem(sys.modules, "cupy", FakeCuda())
    with pytest.raises(DeviceError, match="is no device; expected auto, cpu or cuda"):
        select_device(word)


def test_auto_says_why_a_gpu_that_is_there_lies_idle(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", FakeCuda(failure="cudaErrorInsufficientDriver: too old"))
    monkeypatch.setattr(device_module, "_has_nvidia_driver", lambda: True)
    device = select_device("auto")
    assert device.kind == "cpu"
    assert "the GPU is not used: no NVIDIA GPU can be used: its driver is too old" in device.note


@pytest.mark.parametrize(
    "module",
    # Settings and commands, which ``--help`` also lists.
    [
        "vitascope",
        "vitascope.config.loading",
        "vitascope.cli.segment",
        "vitascope.cli.bench",
        "vitascope.cli.doctor",
    ],
)
def test_importing_loads_no_heavy_library(module):
    heavy = ("numpy", "torch", "cupy", "cv2", "av", "onnxruntime", "importlib.metadata")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
