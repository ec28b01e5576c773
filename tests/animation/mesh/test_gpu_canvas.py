"""The mesh animator on a GPU draws what it draws on the processor."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from vitascope.animation.face import BLENDSHAPES, FaceMotion, TrackedFace, rotation_from_degrees
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.layers import Patch
from vitascope.errors import MissingDependencyError
from vitascope.gpu.kernels.remap import remap


def made_up_face(mesh, size):
    """A face without a tracker: the canonical one, in the middle of a picture."""
    from vitascope.animation.canonical_mesh import Pose

    points = np.zeros((478, 3), np.float32)
    points[:468] = mesh.vertices
    points[468:473], points[473:] = (
        mesh.vertices[[33, 133]].mean(axis=0),
        mesh.vertices[[263, 362]].mean(axis=0),
    )
    height, width = size
    placed = Pose(height / 45, np.eye(3), np.array([width / 2, height / 2, 0.0])).place(points)
    return TrackedFace(
        placed, np.zeros(len(BLENDSHAPES), np.float32), np.eye(4, dtype=np.float32), (width, height)
    )


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("size", "step"), [((97, 131), 1), ((540, 480), 3), ((1080, 1920), 5), ((2160, 3840), 9)]
)
def test_the_canvas_reads_as_the_reference_and_lays_patches_on_top(size, step):
    import cupy

    from vitascope.animation.mesh.gpu_canvas import GpuCanvas

    rng = np.random.default_rng(0)
    height, width = size
    rgb = rng.integers(0, 256, (height, width, 3), np.uint8)
    box = (width // 5, 3, width - 7, height - height // 6)
    shape = (box[3] - box[1], box[2] - box[0])
    # A little more map than is needed, as the animator gives it; a gentle bend.
    rows, columns = (-(-count // step) + 1 for count in shape)
    ys, xs = np.mgrid[:rows, :columns].astype(np.float32) * step
    bend = 0.02 * width * np.sin(ys / height * 7)
    coarse = np.stack((xs + box[0] + bend, ys + box[1] + 2), -1).astype(np.float32)
    canvas = GpuCanvas(rgb, box, step=step, device=0)
    patch = Patch(box[0] + 2, box[1] + 5, 11, 6)
    patch.of(canvas.scratch)[...] = 77
    made = canvas.draw(coarse, [patch])
    assert isinstance(made, cupy.ndarray)
    maps = [np.ascontiguousarray(coarse[..., axis]) for axis in (0, 1)]
    expected = rgb.copy()
    expected[box[1] : box[3], box[0] : box[2]] = remap(rgb, *maps, map_scale=step, size=shape)
    patch.of(expected)[...] = 77
    difference = np.abs(made.get().astype(int) - expected)
    # OpenCV rounds places to 1/32 of a pixel: of noise that is 1/32 of the distance between neighbours.
    assert difference.max() <= 10
    assert difference.mean() < 1
    out = cupy.zeros_like(made)
    assert canvas.draw(coarse, [patch], out=out) is out
    assert (out == made).all()


@pytest.mark.cuda
@pytest.mark.parametrize("size", [(540, 480), (1080, 1920), (2160, 1500)])
def test_both_draw_the_same(mesh, size):
    import cupy

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (size[0] // 12 + 1, size[1] // 12 + 1, 3), np.uint8)
    rgb = np.ascontiguousarray(np.kron(coarse, np.ones((12, 12, 1), np.uint8))[: size[0], : size[1]])
    face = made_up_face(mesh, size)
    weights = np.zeros(len(BLENDSHAPES), np.float32)
    weights[25] = 0.7
    motion = FaceMotion(rotation=rotation_from_degrees(12, -6, 8), blendshapes=weights)
    with MeshAnimator(mesh) as host, MeshAnimator(mesh, cuda_device=0) as device:
        for animator in (host, device):
            animator.set_portrait(rgb, face=face)
        for item in (FaceMotion(), motion, replace(motion, eye_closure=np.ones(2, np.float32))):
            expected, made = host.animate(item), device.animate(item)
            assert isinstance(made, cupy.ndarray)
            out = cupy.empty_like(made)
            assert device.animate(item, out=out) is out
            assert (out == made).all()
            # The maps are sampled at other places; blocks of noise have hard edges.
            difference = np.abs(made.get().astype(int) - expected)
            assert np.percentile(difference, 98) <= 6
            assert difference.mean() < 1.5


def test_without_cupy_the_extra_is_named(mesh, astronaut, astronaut_face, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[cuda\]"):
        MeshAnimator(mesh, cuda_device=0).set_portrait(astronaut, face=astronaut_face)
