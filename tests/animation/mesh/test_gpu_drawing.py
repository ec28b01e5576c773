"""Check that the mesh animator draws the same on a GPU as on the CPU."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from faces import face_with_rims, made_face
from kernels_on_host import compile_for_host, install_stand_in

from cuda_sources import architectures, assert_compiles, assert_has_layout, needs_nvcc
from vitascope.animation.face import BLENDSHAPES, FaceMotion, TrackedFace, rotation_from_degrees
from vitascope.animation.mesh import animator, gpu_drawing
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.gpu_drawing import SCENE, frame_type, inverse
from vitascope.animation.mesh.maps import draw_folds
from vitascope.errors import DeviceError, DeviceMemoryError, MissingDependencyError, UsageError
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
POINTS = 828
SOURCE = Path(gpu_drawing._SOURCE)


def made_up_face(mesh, size):
    """Make the canonical face in the middle of a picture, without a tracker."""
    from vitascope.animation.canonical_mesh import Pose

    points = np.zeros((478, 3), np.float32)
    points[:468] = mesh.vertices
    for iris, corners in ((468, [33, 133]), (473, [263, 362])):
        middle = mesh.vertices[corners].mean(axis=0)
        rim = 0.55 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]])
        points[iris : iris + 5] = middle + rim
    height, width = size
    placed = Pose(height / 45, np.eye(3), np.array([width / 2, height / 2, 0.0])).place(points)
    return TrackedFace(
        placed, np.zeros(len(BLENDSHAPES), np.float32), np.eye(4, dtype=np.float32), (width, height)
    )


def soft_picture(size):
    """Make a picture of smooth colours, which differ little a fraction of a pixel aside."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (size[0] // 40 + 2, size[1] // 40 + 2, 3), np.uint8)
    return np.ascontiguousarray(cv2.resize(small, (size[1], size[0]), interpolation=cv2.INTER_CUBIC))


def motions():
    """Make motions: at rest, turned with the jaw open, smiling, eyes closed, looking aside, and all at once."""
    weights = np.zeros(len(BLENDSHAPES), np.float32)
    weights[BLENDSHAPES.index("jawOpen")] = 0.7
    smile = weights.copy()
    for side in ("Left", "Right"):
        smile[BLENDSHAPES.index(f"mouthSmile{side}")] = 0.8
    turned = FaceMotion(rotation=rotation_from_degrees(12, -6, 8), blendshapes=weights)
    gaze = np.array([[0.2, 0.1], [0.2, 0.1]], np.float32)
    aside = FaceMotion(translation=np.array([1.5, -2.0], np.float32), scale=1.1, blendshapes=smile, gaze=gaze)
    return [
        FaceMotion(),
        turned,
        FaceMotion(blendshapes=smile),
        FaceMotion(eye_closure=np.ones(2, np.float32)),
        aside,
        replace(turned, eye_closure=np.array([0.6, 0.9], np.float32), gaze=gaze),
    ]


def box_of(animator):
    """Return the box that moves, in a drawn picture."""
    portrait = animator._portrait
    left, top, right, bottom = portrait.rig.box
    return (
        left - portrait.shown.left,
        top - portrait.shown.top,
        right - portrait.shown.left,
        bottom - portrait.shown.top,
    )


def assert_alike(made, expected, box):
    """Check that pictures are equal outside the moving box, and inside it except for soft edges of eyes and mouth."""
    left, top, right, bottom = box
    difference = np.abs(made.astype(int) - expected).max(axis=2)
    inside = difference[top:bottom, left:right].copy()
    difference[top:bottom, left:right] = 0
    assert not difference.any()
    assert inside.mean() < 0.15
    assert np.percentile(inside, 99) <= 8
    assert np.percentile(inside, 99.9) <= 40


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(541, 483), (1080, 1920), (2160, 1500), None])
def test_both_draw_the_same(mesh, size):
    """The last one wears glasses."""
    import cupy

    rgb, face = face_with_rims(mesh)[:2] if size is None else (soft_picture(size), made_up_face(mesh, size))
    with MeshAnimator(mesh) as host, MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as device:
        for animator in (host, device):
            animator.set_portrait(rgb, face=face)
        box = box_of(host)
        for motion in motions():
            expected, made = host.animate(motion), device.animate(motion)
            assert isinstance(made, cupy.ndarray)
            out = cupy.zeros_like(made)
            assert device.animate(motion, out=out) is out
            assert (out == made).all()
            assert_alike(made.get(), expected, box)


@pytest.mark.cuda
def test_pictures_come_down_to_the_host(mesh):
    size = (541, 483)
    rgb, face = soft_picture(size), made_up_face(mesh, size)
    with (
        MeshAnimator(mesh, cuda_device=0) as down,
        MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as up,
    ):
        for animator in (down, up):
            animator.set_portrait(rgb, face=face)
        made = [down.animate(motion) for motion in motions()]
        for motion, picture in zip(motions(), made, strict=True):
            assert type(picture) is np.ndarray
            assert np.array_equal(picture, up.animate(motion).get())
            out = np.zeros_like(rgb)
            assert down.animate(motion, out=out) is out
            assert np.array_equal(out, picture)


@pytest.mark.cuda
def test_pictures_on_several_streams_do_not_mix(mesh):
    import cupy

    size = (700, 600)
    with MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as animator:
        animator.set_portrait(soft_picture(size), face=made_up_face(mesh, size))
        alone = [animator.animate(motion).get() for motion in motions()]
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        made = []
        for number in range(60):
            with streams[number % 3]:
                made.append(animator.animate(motions()[number % 6]))
        for stream in streams:
            stream.synchronize()
        for number, picture in enumerate(made):
            assert np.array_equal(picture.get(), alone[number % 6])


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Compile the kernels for the CPU."""
    return compile_for_host(tmp_path_factory.mktemp("kernels"), points=POINTS)


@needs_compiler
@pytest.mark.parametrize("face", ["astronaut", "made up", "with glasses"])
def test_the_kernels_arithmetic_is_the_cpus(mesh, astronaut, astronaut_face, library, monkeypatch, face):
    rgb, tracked = astronaut, astronaut_face
    if face == "made up":
        rgb, tracked = soft_picture((421, 377)), made_up_face(mesh, (421, 377))
    elif face == "with glasses":
        rgb, tracked, _ = face_with_rims(mesh)
    with MeshAnimator(mesh) as host, MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as device:
        host.set_portrait(rgb, face=tracked)
        assert len(host._portrait.rig.sources) == POINTS
        assert all((eye.rim is not None) == (face == "with glasses") for eye in host._portrait.eyes)
        diary = install_stand_in(monkeypatch, library)
        device.set_portrait(rgb, face=tracked)
        changed = 0
        diary.clear()
        for motion in motions():
            expected = host.animate(motion)
            made = np.asarray(device.animate(motion))
            assert_alike(made, expected, box_of(host))
            changed += int((made != rgb).sum())
        assert changed > (30_000 if face == "with glasses" else 100_000)  # one colour, but for the eyes
    # A picture waits for the previous one, which used the same memory; the portrait is freed after the last
    # one.
    drawn = ["wait", "cover", "resolve", "resolve", "resolve", "paint", "record"]
    assert [word for word in diary if word != "host waits"] == drawn * len(motions())
    assert diary[-1] == "host waits"


@needs_compiler
def test_colours_are_mixed_at_the_same_folds(mesh, library, monkeypatch):
    """Check a turned face on a dark background, whose cheek covers what is behind it."""
    size = (421, 377)
    face = made_face(mesh, yaw=-35, scale=11, centre=(188, 210))
    face = replace(face, picture_size=(size[1], size[0]))
    rgb = np.zeros((*size, 3), np.uint8)
    cv2.fillConvexPoly(
        rgb, cv2.convexHull(np.rint(face.landmarks[:468, :2]).astype(np.int32)), (220, 180, 160)
    )
    folds = np.zeros(size, bool)

    def recorded(out, *given, **named):
        before = out.copy()
        draw_folds(out, *given, **named)
        folds[(out != before).any(axis=2)] = True

    install_stand_in(monkeypatch, library)
    with MeshAnimator(mesh) as host, MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as device:
        host.set_portrait(rgb, face=face)
        device.set_portrait(rgb, face=face)
        monkeypatch.setattr(animator, "draw_folds", recorded)
        turned = FaceMotion(rotation=rotation_from_degrees(-9, 4, 10))
        expected = host.animate(turned).astype(int)
        monkeypatch.undo()
        install_stand_in(monkeypatch, library)
        made = np.asarray(device.animate(turned)).astype(int)
    assert folds.sum() > 30
    assert np.abs(made - expected)[folds].mean() < 1


@pytest.fixture
def stand_in(library, monkeypatch):
    """Simulate a GPU with pools of ordinary memory; returns the fake CuPy and the pools."""
    install_stand_in(monkeypatch, library)
    pools = []

    def pool(**_):
        pools.append(PinnedMemoryPool(device="cpu"))
        return pools[-1]

    monkeypatch.setattr(gpu_drawing, "PinnedMemoryPool", pool)
    return sys.modules["cupy"], pools


@needs_compiler
def test_pictures_come_down_once_and_are_the_callers_own(mesh, astronaut, astronaut_face, stand_in):
    _, pools = stand_in
    with MeshAnimator(mesh, cuda_device=0) as animator:
        animator.set_portrait(astronaut, face=astronaut_face)
        pictures = [animator.animate(motions()[1]) for _ in range(2)]
        (pool,) = pools
        assert all(pool.is_lent(picture) for picture in pictures)
        assert not np.shares_memory(*pictures)
        assert np.array_equal(*pictures)
    assert np.array_equal(*pictures)  # pictures may outlive the animator
    del pictures
    assert pool.stats().leased_bytes == pool.stats().idle_bytes == 0


@needs_compiler
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.5])
def test_a_right_drawing_is_near_the_cpus_and_lacks_nothing(
    mesh, astronaut, astronaut_face, stand_in, monkeypatch, scale
):
    rgb = cv2.resize(astronaut, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    size = (rgb.shape[1], rgb.shape[0])
    face = replace(astronaut_face, landmarks=astronaut_face.landmarks * np.float32(scale), picture_size=size)

    def without(*, eyes):
        def describe(frame, bent, maps, placed_eyes, mouth, creases):
            if eyes:
                return fill_frame(frame, bent, maps, (None, None), mouth, creases)
            return fill_frame(frame, bent, maps, placed_eyes, None, creases)

        return describe

    fill_frame = gpu_drawing.fill_frame
    with MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as animator:
        animator.set_portrait(rgb, face=face)
        right = animator.difference_to_cpu()
        assert 0 < right.everywhere < 0.1
        assert all(0 < share < 0.25 for share in right.eyes_and_mouth)
        monkeypatch.setattr(gpu_drawing, "fill_frame", without(eyes=True))
        blind = animator.difference_to_cpu()
        assert blind.eyes_and_mouth[:2] == pytest.approx((1, 1), abs=0.1)
        assert blind.eyes_and_mouth[2] == right.eyes_and_mouth[2]
        monkeypatch.setattr(gpu_drawing, "fill_frame", without(eyes=False))
        mute = animator.difference_to_cpu()
        assert mute.eyes_and_mouth[2] == pytest.approx(1, abs=0.1)
        assert mute.eyes_and_mouth[:2] == right.eyes_and_mouth[:2]


@needs_compiler
def test_memory_that_is_short_leaves_both_buffers_or_none(
    mesh, astronaut, astronaut_face, stand_in, monkeypatch
):
    cupy, _ = stand_in
    make, refused = cupy.empty, []

    def refuse_samples_once(shape, dtype):
        if np.ndim(shape) == 1 and dtype is np.float32 and not refused:
            refused.append(shape)
            raise type("OutOfMemoryError", (MemoryError,), {})("Out of memory allocating 9 bytes")
        return make(shape, dtype)

    with MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as animator:
        animator.set_portrait(astronaut, face=astronaut_face)
        drawing = animator._portrait.on_gpu
        monkeypatch.setattr(cupy, "empty", refuse_samples_once)
        with pytest.raises(DeviceMemoryError, match="too little memory left"):
            animator.animate(motions()[1])
        assert len(drawing._samples) == len(drawing._keys) == 0
        again = animator.animate(motions()[1])
        assert len(drawing._samples) == len(drawing._keys) >= refused[0][0] > 0
        assert_alike(
            np.asarray(again),
            animator._drawn_by_cpu(animator._portrait, animator.bent(motions()[1]), None),
            box_of(animator),
        )


@needs_compiler
def test_what_the_host_has_no_memory_for_is_not_the_gpus(
    mesh, astronaut, astronaut_face, stand_in, monkeypatch
):
    def fail(*_):
        raise MemoryError("Unable to allocate 9 GiB")

    with MeshAnimator(mesh, cuda_device=0) as animator:
        animator.set_portrait(astronaut, face=astronaut_face)
        for name in ("fill_frame", "_triangles_of"):
            with monkeypatch.context() as short:
                short.setattr(gpu_drawing, name, fail)
                with pytest.raises(MemoryError, match="Unable to allocate"):
                    animator.animate(FaceMotion())
                    animator.set_portrait(astronaut, face=astronaut_face)


@needs_compiler
def test_a_gpu_that_fails_at_the_end_keeps_nothing(mesh, astronaut, astronaut_face, stand_in, monkeypatch):
    cupy, pools = stand_in

    def fail():
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorIllegalAddress")

    animator = MeshAnimator(mesh, cuda_device=0)
    animator.set_portrait(astronaut, face=astronaut_face)
    animator.animate(FaceMotion())
    monkeypatch.setattr(animator._portrait.on_gpu._drawn, "synchronize", fail)
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        animator.close()
    with pytest.raises(UsageError, match="no portrait"):
        animator.animate(FaceMotion())
    with pytest.raises(ValueError, match="closed"):
        pools[0].empty(1)
    animator.close()


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "says", "becomes", "message"),
    [
        ("OutOfMemoryError", "Out of memory allocating 9 bytes", DeviceMemoryError, "too little memory left"),
        (
            "CUDARuntimeError",
            "cudaErrorMemoryAllocation: out of memory",
            DeviceMemoryError,
            "set gpu.device=cpu",
        ),
        (
            "CUDARuntimeError",
            "cudaErrorIllegalAddress",
            DeviceError,
            "GPU 0 cannot draw: cudaErrorIllegalAddress",
        ),
    ],
)
def test_failures_of_the_gpu_are_said_in_a_line(
    mesh, astronaut, astronaut_face, stand_in, kind, says, becomes, message
):
    cupy, _ = stand_in
    error = (
        cupy.cuda.runtime.CUDARuntimeError if kind == "CUDARuntimeError" else type(kind, (MemoryError,), {})
    )

    def fail(*_, **__):
        raise error(says)

    with MeshAnimator(mesh, cuda_device=0) as animator:
        animator.set_portrait(astronaut, face=astronaut_face)
        copy, cupy.cuda.runtime.memcpyAsync = cupy.cuda.runtime.memcpyAsync, fail
        with pytest.raises(becomes, match=message):
            animator.animate(FaceMotion())
        cupy.cuda.runtime.memcpyAsync, cupy.empty = copy, fail
        with pytest.raises(becomes, match=message):
            animator.set_portrait(astronaut, face=astronaut_face)


def test_without_cupy_the_extra_is_named(mesh, astronaut, astronaut_face, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[cuda\]"):
        MeshAnimator(mesh, cuda_device=0).set_portrait(astronaut, face=astronaut_face)


def test_the_way_back_of_a_matrix():
    matrix = np.array([[1.5, 0.3, 20], [-0.2, 0.8, -4]], np.float32)
    back = inverse(matrix).reshape(2, 3)
    there = matrix[:, :2] @ (3, 7) + matrix[:, 2]
    assert np.allclose(back[:, :2] @ there + back[:, 2], (3, 7), atol=1e-4)
    # A plane seen from its edge shows nothing.
    assert (inverse(np.array([[1, 2, 0], [2, 4, 0]], np.float32)) == [0, 0, 1e6, 0, 0, 1e6]).all()


@needs_nvcc
@pytest.mark.parametrize("architecture", architectures(SOURCE))
def test_the_source_compiles_to_ptx(tmp_path, architecture):
    assert_compiles(tmp_path, SOURCE, architecture, ["cover", "resolve", "paint"])


@needs_nvcc
def test_structs_have_the_layout_that_is_filled(tmp_path):
    structs = {"Scene": SCENE, "Frame": frame_type(POINTS)}
    assert_has_layout(tmp_path, SOURCE, structs, POINTS=POINTS)
