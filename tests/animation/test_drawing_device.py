"""Which device draws the mesh, and what is said where the GPU that is there does not."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

from vitascope import device as device_module
from vitascope.animation import opening
from vitascope.animation.face import FaceMotion, rotation_from_degrees
from vitascope.animation.mesh import gpu_drawing
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.opening import open_animator
from vitascope.animation.portrait import Portrait
from vitascope.config import load_settings
from vitascope.device import Device
from vitascope.errors import DeviceError, DeviceMemoryError, InputError, KernelCompileError

pytestmark = pytest.mark.choosing_devices
GPU = Device("cuda", "Some GPU (GPU 1)", 1)
MOTION = FaceMotion(rotation=rotation_from_degrees(5, 3, 0))


@pytest.fixture
def opened(astronaut, astronaut_face, mesh, face_model, tmp_path):
    """Open the mesh animator with settings."""
    with ExitStack() as stack:

        def opener(*assignments):
            return open_animator(
                Portrait(astronaut, astronaut_face),
                mesh=mesh,
                model=face_model,
                loaded=load_settings(
                    assignments=["animation.animator=mesh", "animation.calibrate=false", *assignments]
                ),
                home=tmp_path,
                stack=stack,
            )

        yield opener


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that seems usable; gives what was asked for."""
    asked = []

    def select(kind, *, index=0):
        asked.append((kind, index))
        return Device("cpu", "CPU") if kind == "cpu" else GPU

    monkeypatch.setattr(opening, "select_device", select)
    return asked


@pytest.fixture
def drawn_by(monkeypatch):
    """Pictures come from the processor; gives the GPUs that animators were opened with."""
    drawing = []

    class Recorded(MeshAnimator):
        def __init__(self, mesh, *, cuda_device=None, **rest):
            drawing.append(cuda_device)
            super().__init__(mesh, **rest)

    monkeypatch.setattr(opening, "MeshAnimator", Recorded)
    return drawing


@pytest.mark.parametrize(("wanted", "draws"), [("auto", 1), ("cuda", 1), ("cpu", None)])
def test_the_gpu_draws_unless_the_processor_is_asked_for(opened, gpu, drawn_by, wanted, draws):
    made = opened(f"gpu.device={wanted}", "animation.gpu_id=1")
    assert (gpu, drawn_by) == ([(wanted, 1)], [draws])
    assert made.device_label == ("CPU" if draws is None else GPU.label)
    assert made.notes == ()


def refusing(error):
    class Refusing:
        def __init__(self, *_, **__):
            raise error

    return Refusing


FAILURES = [
    (DeviceMemoryError("GPU 1 has too little memory left"), "too little memory"),
    (KernelCompileError("mesh.cu: NVRTC could not build cover"), "NVRTC could not build"),
    (DeviceError("GPU 1 cannot draw: an illegal address"), "illegal address"),
]


@pytest.mark.parametrize(("error", "says"), FAILURES)
def test_auto_draws_on_the_processor_and_says_why(opened, gpu, monkeypatch, error, says):
    monkeypatch.setattr(gpu_drawing, "GpuDrawing", refusing(error))
    made = opened()
    assert made.device_label == "CPU"
    (note,) = made.notes
    assert note.startswith("the processor draws, because the GPU cannot: ")
    assert says in note
    assert isinstance(made.animator.animate(MOTION), np.ndarray)
    with pytest.raises(type(error), match=says):
        opened("gpu.device=cuda")


def test_a_gpu_that_draws_something_else_is_not_taken(opened, gpu, drawn_by, monkeypatch):
    monkeypatch.setattr(MeshAnimator, "difference_to_processor", lambda _: 9.7)
    made = opened()
    assert drawn_by == [1, None]
    assert "differs from the processor's picture by 9.7 of 255 codes" in made.notes[0]
    with pytest.raises(DeviceError, match="differs from the processor's picture"):
        opened("gpu.device=cuda")


def test_a_face_that_is_too_small_is_no_matter_of_the_device(opened, gpu, drawn_by, monkeypatch):
    def refuse(*_, **__):
        raise InputError("the portrait's face is 12 pixels large")

    monkeypatch.setattr(MeshAnimator, "set_portrait", refuse)
    with pytest.raises(InputError, match="12 pixels"):
        opened()
    assert drawn_by == [1]


def test_a_gpu_that_lies_idle_is_spoken_of(opened, monkeypatch):
    def refuse(index):
        raise DeviceError("CuPy is not installed: pip install 'vitascope[cuda]'")

    monkeypatch.setattr(device_module, "_gpu_device", refuse)
    monkeypatch.setattr(device_module, "_has_nvidia_driver", lambda: True)
    made = opened()
    assert made.notes == ("the GPU is not used: CuPy is not installed: pip install 'vitascope[cuda]'",)
    assert made.device_label.startswith("CPU")
    monkeypatch.setattr(device_module, "_has_nvidia_driver", lambda: False)
    assert opened().notes == ()
    with pytest.raises(DeviceError, match="CuPy is not installed"):
        opened("gpu.device=cuda")


@pytest.mark.cuda
def test_the_gpu_of_this_machine_draws(opened):
    made = opened()
    assert made.device_label.startswith("NVIDIA")
    assert made.notes == ()
    picture = made.animator.animate(MOTION)
    with_processor = opened("gpu.device=cpu")
    assert with_processor.device_label.startswith("CPU")
    assert np.abs(picture.astype(int) - with_processor.animator.animate(MOTION)).mean() < 0.1
