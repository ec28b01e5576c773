"""Measure the mesh animator on a GPU: pictures per second and time per picture, at 1080 and 2160 lines.

A picture of noise wears the canonical face, turned as it is (the animator's work does not depend on what the picture
shows), and does what ``examples/talk.motion`` says. First compares the GPU's picture with the CPU's; ``gate``
is the comparison that ``vitascope animate`` makes before it uses a GPU.

- ``fps``: pictures drawn one after the other into four arrays, with the CPU running ahead; the animator's
  stage alone.
- ``latency``: from the call until the picture is ready.
- ``downloaded``: from the call until a picture is in page-locked memory of the host, as ``vitascope animate`` takes it.
- ``processor``: the same motions drawn by the CPU, in the same run.

The CPU is the limit: points, eyes and mouth take it 0.5 to 0.6 ms (one H200), and their description and the
launches take as long, at either size; the kernels run during the next picture's points. Predicted for
``downloaded``: the latency, and 0.2 ms at 1080 lines (6 MB), 0.6 ms at 2160 (25 MB). Measured: 0.2 and 1.2
ms.

Usage: python benchmarks/animate_mesh_cuda.py [--frames 600] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from row_stamp import gpu_stamp, write_rows
from vitascope.animation.canonical_mesh import CanonicalMesh, Pose, read_canonical_mesh
from vitascope.animation.face import BLENDSHAPES, FaceMotion, RgbPicture, TrackedFace
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.motion_file import MotionReader

RESULTS = Path(__file__).parent / "results" / "animate_mesh_cuda.json"
TALK = Path(__file__).parent.parent / "examples" / "talk.motion"
SIZES = {1080: (1080, 1920), 2160: (2160, 3840)}


def noise(size: tuple[int, int]) -> RgbPicture:
    """uint8 [H, W, 3]."""
    return np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)


def face_in(mesh: CanonicalMesh, size: tuple[int, int]) -> TrackedFace:
    """Place the canonical face, half as high as the picture, in its middle; eyes look ahead."""
    points = np.zeros((478, 3), np.float32)
    points[:468] = mesh.vertices
    rim = 0.55 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0]], np.float32)
    for iris, corners in ((468, [33, 133]), (473, [263, 362])):
        points[iris : iris + 5] = mesh.vertices[corners].mean(axis=0) + rim
    height, width = size
    placed = Pose(height / 35, np.eye(3), np.array([width / 2, height / 2, 0.0])).place(points)
    return TrackedFace(
        placed, np.zeros(len(BLENDSHAPES), np.float32), np.eye(4, dtype=np.float32), (width, height)
    )


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    return {f"p{at}": round(float(np.percentile(seconds, at)) * 1e3, 3) for at in (50, 95, 99)}


def checked(host: MeshAnimator, device: MeshAnimator, motions: list[FaceMotion]) -> dict[str, Any]:
    """Measure the difference of the two, in codes of 255, over all pixels of a few pictures."""
    differences = [
        np.abs(device.animate(motion).get().astype(np.int16) - host.animate(motion)) for motion in motions
    ]
    mean = float(np.mean([difference.mean() for difference in differences]))
    assert mean < 0.5, mean
    return {
        "mean_difference_255": round(mean, 4),
        "p999_difference_255": float(np.percentile(np.stack(differences), 99.9)),
    }


def row(mesh: CanonicalMesh, lines: int, motions: list[FaceMotion], frames: int) -> dict[str, Any]:
    """Check, then time."""
    size = SIZES[lines]
    rgb, face = noise(size), face_in(mesh, size)
    with MeshAnimator(mesh) as host, MeshAnimator(mesh, cuda_device=0, keeps_on_gpu=True) as device:
        for animator in (host, device):
            animator.set_portrait(rgb, face=face)
        agreement = checked(host, device, motions[:: len(motions) // 5])
        gate = device.difference_to_cpu()
        assert gate is not None
        agreement |= {
            "gate_everywhere_255": round(gate.everywhere, 4),
            "gate_eyes_and_mouth": [round(share, 3) for share in gate.eyes_and_mouth],
        }
        outs = [cupy.empty((*size, 3), np.uint8) for _ in range(4)]
        many = list(islice(cycle(motions), frames))
        for motion, out in zip(many[:50], cycle(outs), strict=False):
            device.animate(motion, out=out)
        cupy.cuda.Device().synchronize()
        began = time.perf_counter()
        for motion, out in zip(many, cycle(outs), strict=False):
            device.animate(motion, out=out)
        cupy.cuda.Device().synchronize()
        fps = frames / (time.perf_counter() - began)
        latencies, points, drawn = [], [], []
        for motion in many:
            began = time.perf_counter()
            bent = device.bent(motion)
            moved = time.perf_counter()
            device.draw(bent, out=outs[0])
            launched = time.perf_counter()
            cupy.cuda.Device().synchronize()
            latencies.append(time.perf_counter() - began)
            points.append(moved - began)
            drawn.append(launched - moved)
        with MeshAnimator(mesh, cuda_device=0) as down:
            down.set_portrait(rgb, face=face)
            for motion in many[:20]:
                down.animate(motion)
            downloaded = []
            for motion in many:
                began = time.perf_counter()
                down.animate(motion)
                downloaded.append(time.perf_counter() - began)
        on_host = []
        out = np.empty_like(rgb)
        for motion in many[:60]:
            began = time.perf_counter()
            host.animate(motion, out=out)
            on_host.append(time.perf_counter() - began)
    return {
        "claim": f"mesh animator on a GPU, {lines} lines",
        "fps": round(fps, 1),
        "latency_ms": percentiles(latencies),
        "points_ms": percentiles(points),
        "description_and_launches_ms": percentiles(drawn),
        "downloaded_ms": percentiles(downloaded),
        "processor_ms": percentiles(on_host),
        **agreement,
        "frames": frames,
    }


def main() -> None:
    """Measure and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    mesh = read_canonical_mesh()
    with MotionReader(TALK) as reader:
        motions = list(reader)
    rows = []
    for lines in SIZES:
        rows.append(row(mesh, lines, motions, arguments.frames) | gpu_stamp() | {"cupy": cupy.__version__})
        print(json.dumps(rows[-1]))
    write_rows(arguments.out, rows)


if __name__ == "__main__":
    main()
