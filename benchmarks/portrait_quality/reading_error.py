"""Reads a portrait that moves by known lengths, to tell the reader's own error in slopes of ``measure.py``.

Each portrait is drawn in one expression, glance or turn after another, without calibration, and read as a video is.
The positions of drawn points are known; the slope of readings against them is 1 for a perfect reader.

    python benchmarks/portrait_quality/reading_error.py p.jpg q.jpg [--points PREDICTOR.dat] [--out ROWS.json]

MediaPipe reads, and with ``--points`` also dlib (``sixty_eight_points.py``), which nothing here is driven by; glances
to the side are also read by where eyes are darkest (``dark_disc.py``).

Rows go to ``benchmarks/results/reading_error.json``.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dark_disc import darkest_sideways
from drawn_face import DRAWN, drawn
from readings import READINGS, compared, readings_of
from sixty_eight_points import POINTS_READ, PointReader, read_points

from vitascope.animation.canonical_mesh import CanonicalMesh, read_canonical_mesh
from vitascope.animation.expression import basis_of
from vitascope.animation.face import FaceMotion, rotation_from_degrees
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Gains, bend
from vitascope.animation.portrait import load_portrait
from vitascope.animation.tracking import FaceTracker, fetch_face_model
from vitascope.config import vitascope_home
from vitascope.models.store.store import ModelStore

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "reading_error.json"
LONGEST_SIDE = 512
SHAPES: dict[str, tuple[str, dict[str, float]]] = {
    "smile": ("mouth width", {"mouthSmileLeft": 0.8, "mouthSmileRight": 0.8}),
    "grin": ("mouth width", {"mouthSmileLeft": 0.8, "mouthSmileRight": 0.8, "jawOpen": 0.3}),
    "pucker": ("mouth width", {"mouthPucker": 0.8}),
    "jaw": ("lip gap", {"jawOpen": 0.6}),
    "brows up": ("brows", {"browInnerUp": 1.0, "browOuterUpLeft": 1.0, "browOuterUpRight": 1.0}),
    "brows down": ("brows", {"browDownLeft": 1.0, "browDownRight": 1.0}),
}
"""The reading of each expression, and its weights."""
GLANCES = {"gaze sideways": 0.2, "gaze up": 0.1}
"""Widths of the eye, to either side."""
ANGLES = ("yaw", "pitch", "roll")
MOST_DEGREES = 12.0
WAVE = np.concatenate((np.zeros(6), np.sin(np.linspace(0, np.pi, 15)), np.zeros(4)))
BOTH_WAYS = np.concatenate((np.zeros(6), np.sin(np.linspace(0, 2 * np.pi, 30)), np.zeros(4)))


def known_motions(mesh: CanonicalMesh) -> Iterator[tuple[str, str, list[FaceMotion]]]:
    """Name, what is read of it, and the motions, whose vertices are displacements."""
    basis, still = basis_of(mesh), np.zeros((len(mesh.vertices), 3), np.float32)
    for name, (reading, weights) in SHAPES.items():
        shape = sum((basis.field(one) * np.float32(share) for one, share in weights.items()), still)
        yield name, reading, [FaceMotion(vertices=shape * np.float32(share)) for share in WAVE]
    for axis, (name, most) in enumerate(GLANCES.items()):
        glance = np.zeros((2, 2), np.float32)
        glance[:, axis] = most
        yield name, name, [FaceMotion(vertices=still, gaze=glance * np.float32(share)) for share in BOTH_WAYS]
    for axis, name in enumerate(ANGLES):
        turns = [np.eye(3)[axis] * MOST_DEGREES * share for share in BOTH_WAYS]
        rotations = [rotation_from_degrees(*map(float, turn)) for turn in turns]
        yield name, name, [FaceMotion(vertices=still, rotation=rotation) for rotation in rotations]


def read_of(
    animator: MeshAnimator,
    mesh: CanonicalMesh,
    motions: list[FaceMotion],
    model: Path,
    points: PointReader | None = None,
) -> dict[str, npt.NDArray[np.float64]]:
    """What is ``drawn``, what ``MediaPipe`` and ``dark disc`` read of it, and ``dlib``, if it is asked for.

    Each is [reading of ``DRAWN``, frame], of the frames with a face; it is not a number where nothing is read.
    """
    portrait = animator._loaded()
    readers = ("drawn", "MediaPipe", "dark disc", *(("dlib",) if points else ()))
    found: dict[str, list[list[float]]] = {reader: [] for reader in readers}
    at_rest, radii = portrait.rig.face.landmarks, [eye.radius for eye in portrait.eyes]
    with FaceTracker(model) as tracker:
        for step, motion in enumerate(motions):
            assert motion.vertices is not None  # made so
            bent = bend(portrait.rig, mesh, motion, displacement=motion.vertices, gains=Gains())
            rgb = np.asarray(animator.draw(bent))
            face = tracker.track(rgb, pts_seconds=step / 25)
            if face is None:
                continue
            read = dict(zip(READINGS, readings_of(mesh, face), strict=True))
            found["drawn"].append(drawn(bent, portrait.eyes, portrait.rig.sources))
            found["MediaPipe"].append([read[name] for name in DRAWN])
            looks = {"gaze sideways": darkest_sideways(rgb, at_rest, radii)}
            found["dark disc"].append([looks.get(name, float("nan")) for name in DRAWN])
            if points is not None:
                by_dlib = read_points(points.points(rgb, face, mesh), mesh)
                told = dict(zip(POINTS_READ, by_dlib, strict=True))
                found["dlib"].append([told.get(name, float("nan")) for name in DRAWN])
    return {name: np.array(values).T for name, values in found.items()}


def main() -> None:
    """Measure portraits, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("portrait", nargs="+", type=Path)
    parser.add_argument("--points", type=Path, help="dlib's predictor, which reads beside MediaPipe")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    sys.path.append(str(HERE.parent))  # where what all benchmarks share lies
    from row_stamp import commit, write_rows

    points = None if given.points is None else PointReader(given.points)
    model, mesh = fetch_face_model(ModelStore(vitascope_home())), read_canonical_mesh()
    stamp = {"machine": platform.machine(), "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    rows: list[dict[str, Any]] = []
    for path in given.portrait:
        portrait = load_portrait(path, model=lambda: model, face="largest", max_side=LONGEST_SIDE)
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(portrait.rgb, face=portrait.face)
            for name, reading, motions in known_motions(mesh):
                read = read_of(animator, mesh, motions, model, points)
                known = read.pop("drawn")[DRAWN.index(reading)]
                for reader, values in read.items():
                    read_of_it = values[DRAWN.index(reading)]
                    if np.isnan(read_of_it).any():
                        continue
                    found = compared(known, read_of_it)
                    row = {"claim": "what is read of what is drawn", "reader": reader, "portrait": path.name}
                    row |= {"drawn": name, "reading": reading, "drawn_std": found["driver_std"]}
                    row |= {"r": found["r"], "slope": found["slope"], "frames": len(known)} | stamp
                    print(reader, row["portrait"], name, reading, row["r"], row["slope"], flush=True)
                    rows.append(row)
    write_rows(given.out, rows)


if __name__ == "__main__":
    main()
