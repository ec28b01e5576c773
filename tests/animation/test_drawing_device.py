"""Tests of which device draws the mesh, and of the message if the GPU cannot."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitascope import device as device_module
from vitascope.animation.animator import Animator, OpenedAnimator, open_animator, open_on_several
from vitascope.animation.face import BLENDSHAPES, FaceMotion, rotation_from_degrees
from vitascope.animation.mesh import gpu_drawing
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.portrait import Portrait
from vitascope.config import load_settings
from vitascope.device import Device
from vitascope.errors import DeviceError, DeviceMemoryError, InputError, KernelCompileError, UsageError

pytestmark = pytest.mark.choosing_devices
EXAMPLE = Path(__file__).parents[2] / "examples" / "astronaut.jpg"
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
                model=lambda: face_model,
                loaded=load_settings(
                    assignments=["animation.animator=mesh", "animation.calibrate=false", *assignments]
                ),
                home=tmp_path,
                stack=stack,
            )

        yield opener


@pytest.fixture
def gpu(monkeypatch):
    """Simulate a usable GPU; returns the requests to it."""
    asked = []

    def select(kind, *, index=0):
        asked.append((kind, index))
        return Device("cpu", "CPU") if kind == "cpu" else GPU

    monkeypatch.setattr("vitascope.animation.animator.select_device", select)
    return asked


@pytest.fixture
def drawn_by(monkeypatch):
    """Let the CPU draw, and record the GPUs that animators are opened with."""
    drawing = []

    class Recorded(MeshAnimator):
        def __init__(self, mesh, *, cuda_device=None, **rest):
            drawing.append(cuda_device)
            super().__init__(mesh, **rest)

    monkeypatch.setattr("vitascope.animation.animator.MeshAnimator", Recorded)
    return drawing


@pytest.mark.parametrize(("wanted", "draws"), [("auto", 1), ("cuda", 1), ("cpu", None)])
def test_the_gpu_draws_unless_the_cpu_is_asked_for(opened, gpu, drawn_by, wanted, draws):
    made = opened(f"gpu.device={wanted}", "animation.gpu_id=1")
    assert (gpu, drawn_by) == ([(wanted, 1)], [draws])
    assert made.device_label == ("CPU" if draws is None else GPU.label)
    assert made.notes == ()


@pytest.mark.parametrize(("wanted", "says"), [("auto", 1), ("cpu", 0)])
def test_the_number_of_a_gpu_that_is_not_there_is_said_to_do_nothing(opened, monkeypatch, wanted, says):
    monkeypatch.setattr("vitascope.animation.animator.select_device", lambda *_, **__: Device("cpu", "CPU"))
    said = "animation.gpu_id has no effect: no GPU draws here"
    assert opened(f"gpu.device={wanted}", "animation.gpu_id=1").notes == (said,) * says
    assert opened(f"gpu.device={wanted}").notes == ()


@pytest.mark.parametrize("has_dark_glasses", [True, False])
def test_it_is_said_that_eyes_behind_dark_glasses_stay_still(opened, monkeypatch, has_dark_glasses):
    monkeypatch.setattr(MeshAnimator, "has_dark_glasses", has_dark_glasses)
    said = "dark glasses cover the portrait's eyes: they neither blink nor look aside"
    assert opened("gpu.device=cpu").notes == (said,) * has_dark_glasses


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
def test_auto_draws_on_the_cpu_and_says_why(opened, gpu, monkeypatch, error, says):
    monkeypatch.setattr(gpu_drawing, "GpuDrawing", refusing(error))
    made = opened()
    assert made.device_label == "CPU"
    (note,) = made.notes
    assert note.startswith("drawing on the CPU, because the GPU cannot: ")
    assert says in note
    assert isinstance(made.animator.animate(MOTION), np.ndarray)
    with pytest.raises(type(error), match=says):
        opened("gpu.device=cuda")


class Nothing:
    """An eye or a mouth that is not drawn."""

    def draw(self, *_):
        pass


class Drawing:
    """The CPU in place of a GPU."""

    lacks = frozenset()
    adds = 0
    fails_at = None

    def __init__(self, mesh, rgb, rig, eyes, mouth, creases):
        self._animator = MeshAnimator(mesh)
        self._animator.set_portrait(rgb, face=rig.face)
        seen = tuple(Nothing() if name in self.lacks else eye for name, eye in zip("rl", eyes, strict=True))
        portrait = self._animator._portrait
        self._animator._portrait = replace(
            portrait, eyes=seen, mouth=Nothing() if "m" in self.lacks else mouth, creases=creases
        )
        self.drawn = 0
        self.threads = set()

    def draw(self, bent, *, out=None):
        self.drawn += 1
        self.threads.add(threading.current_thread())
        if self.drawn == self.fails_at:
            raise DeviceMemoryError("GPU 1 has too little memory left for the mesh animator")
        return np.clip(self._animator.draw(bent, out=out), 0, 255 - self.adds) + np.uint8(self.adds)

    def close(self):
        self._animator.close()


@pytest.fixture
def drawing(mesh, monkeypatch):
    """Simulate a GPU's drawing; its attributes set what is wrong, and ``made`` lists all instances."""

    class Ours(Drawing):
        def __init__(self, rgb, cut, rig, maps, eyes, mouth, creases, *, device, keeps_on_gpu):
            super().__init__(mesh, rgb, rig, eyes, mouth, creases)
            Ours.made.append(self)
            Ours.devices.append(device)

    Ours.made, Ours.devices = [], []
    monkeypatch.setattr(gpu_drawing, "GpuDrawing", Ours)
    return Ours


def test_a_gpu_that_draws_as_the_cpu_is_taken(opened, gpu, drawing):
    made = opened()
    assert (made.device_label, made.notes) == (GPU.label, ())
    assert np.array_equal(made.animator.animate(MOTION), opened("gpu.device=cpu").animator.animate(MOTION))


@pytest.mark.parametrize(
    ("lacks", "adds", "differs"),
    [
        ("rl", 0, ["at the right eye by 100%", "at the left eye by 100%"]),
        ("l", 0, ["at the left eye by 100% of what drawing it changes (at most 50%)"]),
        ("m", 0, ["at the mouth by 100% of what drawing it changes (at most 50%)"]),
        ("", 1, [" of 255 codes on average (at most 0.25)"]),
    ],
)
def test_a_gpu_that_draws_something_else_is_not_taken(opened, gpu, drawing, lacks, adds, differs):
    drawing.lacks, drawing.adds = lacks, adds
    made = opened()
    assert made.device_label == "CPU"
    (note,) = made.notes
    assert "what Some GPU (GPU 1) draws differs from the CPU's picture " in note
    assert all(part in note for part in differs)
    assert note.endswith("; update its driver, or set gpu.device=cpu")
    for letter, name in (("r", "right eye"), ("l", "left eye"), ("m", "mouth")):
        assert (name in note) == (letter in lacks)
    with pytest.raises(DeviceError, match="differs from the CPU's picture"):
        opened("gpu.device=cuda")


@pytest.fixture
def quick_reader(monkeypatch, astronaut_face):
    """Replace MediaPipe, which takes five seconds, with a reader of a picture's distance from the first one."""

    @contextmanager
    def reader(_):
        first = []

        def read(rgb):
            first.append(rgb.astype(np.int16))
            change = np.abs(first[-1] - first[0]).mean() / 10
            weights = np.full(len(BLENDSHAPES), min(change, 1), np.float32)
            return replace(astronaut_face, blendshapes=weights)

        yield read

    monkeypatch.setattr("vitascope.animation.animator.steady_reader", reader)


def test_a_calibration_that_the_gpu_ends_begins_again_on_the_cpu(opened, gpu, drawing, quick_reader):
    drawing.fails_at = 12  # one picture is compared, 27 are read
    made = opened("animation.calibrate=true")
    assert made.device_label == "CPU"
    assert made.notes == (
        "drawing on the CPU, because the GPU cannot: GPU 1 has too little memory left for the mesh animator",
    )
    assert [one.drawn for one in drawing.made] == [12]
    assert drawing.made[0]._animator._portrait is None  # closed
    alone = opened("animation.calibrate=true", "gpu.device=cpu")
    weights = np.zeros(len(BLENDSHAPES), np.float32)
    weights[BLENDSHAPES.index("jawOpen")] = 0.5
    shout = FaceMotion(blendshapes=weights)
    shouting = alone.animator.animate(shout)
    assert np.array_equal(made.animator.animate(shout), shouting)
    assert not np.array_equal(opened("gpu.device=cpu").animator.animate(shout), shouting)  # it has an effect
    with pytest.raises(DeviceMemoryError, match="too little memory"):
        opened("animation.calibrate=true", "gpu.device=cuda")


@pytest.fixture
def two_gpus(monkeypatch):
    """Simulate two usable GPUs."""

    def select(kind, *, index=0):
        if kind == "cpu":
            return Device("cpu", "CPU")
        if index > 1:
            raise DeviceError(f"there is no GPU {index}: this machine has 2, numbered from 0")
        return Device("cuda", f"GPU {index}", index)

    monkeypatch.setattr("vitascope.animation.animator.select_device", select)
    monkeypatch.setattr("vitascope.config.loading.select_device", select)


SEVERAL = [FaceMotion(rotation=rotation_from_degrees(3 * step, 0, 0)) for step in range(5)]


def test_several_gpus_share_a_film(opened, two_gpus, drawing):
    made = opened("gpu.device_ids=1,0,1")
    assert drawing.devices == [1, 0, 1]
    assert (made.device_label, made.batch_size, made.notes) == ("GPU 1, GPU 0, GPU 1", 3, ())
    before = [one.drawn for one in drawing.made]
    pictures = made.animate_batch(SEVERAL)
    assert [one.drawn - then for one, then in zip(drawing.made, before, strict=True)] == [2, 2, 1]
    alone = opened("gpu.device=cpu").animator
    for picture, motion in zip(pictures, SEVERAL, strict=True):
        assert np.array_equal(picture, alone.animate(motion))
    assert {thread.name for one in drawing.made for thread in one.threads} == {
        "vitascope-gpu-1_0",
        "vitascope-gpu-0_0",
    }
    assert all(len(one.threads) == 1 for one in drawing.made)
    made.set_strength(0.0)
    still = made.animate_batch(SEVERAL[-2:])
    assert np.array_equal(still[0], still[1])


def test_several_gpus_measure_the_portrait_once(opened, two_gpus, drawing, quick_reader):
    opened("gpu.device_ids=0,1", "animation.calibrate=true")
    assert [one.drawn for one in drawing.made] == [63, 1]  # one picture is compared, 62 are read


def test_one_of_the_list_is_that_gpu(opened, two_gpus, drawing):
    made = opened("gpu.device_ids=1")
    assert (drawing.devices, made.device_label, made.batch_size) == ([1], "GPU 1", 1)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        (["gpu.device_ids=0,2"], DeviceError, "there is no GPU 2"),
        (["gpu.device_ids=0,1", "gpu.device=cpu"], UsageError, "gpu.device is cpu"),
        (
            ["gpu.device_ids=0,1", "animation.gpu_id=1"],
            UsageError,
            "animation.gpu_id 1 and gpu.device_ids 0,1",
        ),
    ],
)
def test_lists_of_gpus_that_cannot_be(opened, two_gpus, drawing, settings, error, says):
    with pytest.raises(error, match=says):
        opened(*settings)
    assert drawing.made == []


def test_a_gpu_of_several_that_draws_wrongly_is_an_error(opened, two_gpus, drawing):
    drawing.adds = 1
    with pytest.raises(DeviceError, match="what GPU 0 draws differs"):
        opened("gpu.device_ids=0,1")


def test_a_live_picture_is_drawn_by_one_gpu(two_gpus, drawing, astronaut):
    settings = {"animation.animator": "mesh", "animation.calibrate": False}
    with pytest.raises(UsageError, match="a live picture is drawn by one GPU"):
        Animator(EXAMPLE, settings=settings | {"gpu.device_ids": "0,1"})
    with Animator(EXAMPLE, settings=settings | {"gpu.device_ids": "1"}) as animator:
        assert animator.device_label == "GPU 1"


def test_a_lost_face_goes_back_from_where_it_was_seen():
    """LivePortrait remembers the last face that it saw itself."""

    class Reader:
        needs_driver_picture = True

    given = []

    def open_on(gpu, first):
        return OpenedAnimator(
            Reader(), float, lambda part: given.append((gpu, *part)) or part, f"GPU {gpu}", 2
        )

    picture, face = np.zeros((2, 2, 3), np.uint8), object()
    seen = [FaceMotion(face=face, driver_rgb=picture, pts_seconds=second) for second in range(3)]
    lost = [FaceMotion(presence=share) for share in (1.0, 0.4, 0.0)]
    with ExitStack() as stack:
        several = open_on_several([0, 1], open_on, stack)
        drawn = several.animate_batch([*seen, lost[0]]) + several.animate_batch(lost[1:])
    assert (several.batch_size, sorted(gpu for gpu, *_ in given)) == (4, [0, 0, 1])
    assert [motion.pts_seconds for motion in drawn] == [0, 1, 2, 2, 2, 2]
    assert [motion.presence for motion in drawn[3:]] == [1.0, 0.4, 0.0]


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
    with_cpu = opened("gpu.device=cpu")
    assert with_cpu.device_label.startswith("CPU")
    assert np.abs(picture.astype(int) - with_cpu.animator.animate(MOTION)).mean() < 0.1
