"""Measure whether a hand or mask over a mouth is noticed, and the mouth keeps its last visible shape.

A cover is painted over the mouth of a video's face, from below within four frames; it stays for a second and
leaves again. The mouth under it is known, and so is its shape before.

    python benchmarks/portrait_quality/covered_mouths.py a.mp4 b.mp4

A row for each video and cover gives the shares of covered frames, and of others, in which a cover is noticed,
and the differences of the lips' gap and width from the last visible ones, when held, and as a tracker reads
the cover. Rows go to ``benchmarks/results/covered_mouths.json``.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from measure import frames_of, tracked

from vitascope.animation.canonical_mesh import CanonicalMesh, read_canonical_mesh
from vitascope.animation.face import RgbPicture, TrackedFace
from vitascope.animation.mesh.lips import gap_cm, width_cm
from vitascope.animation.motion import MotionEstimator
from vitascope.animation.tracking import fetch_face_model
from vitascope.config import vitascope_home
from vitascope.models.store.store import ModelStore

RESULTS = Path(__file__).parents[1] / "results" / "covered_mouths.json"
COVERS: dict[str, tuple[int, int, int] | None] = {
    "a hand": None,  # of the cheeks' own colour
    "a white mask": (228, 230, 232),
    "a blue mask": (120, 165, 205),
    "a grey scarf": (96, 96, 100),
}
ARRIVES, STAYS, PAUSES = 4, 25, 20
"""Frames."""
_CORNERS, _EYES, _CHEEKS = (61, 291), (33, 263), (50, 205, 280, 425)
_HALF_PX = (0.55, 0.42)
"""Half of a cover's width and height, in distances of the eyes' outer corners."""
_GRAIN = 4.0


def covered_by(count: int) -> list[float]:
    """Compute the cover's progress in each frame, 0..1: none, full, none, and so on."""
    comes = np.linspace(0, 1, ARRIVES + 1)[1:].tolist()
    once = [0.0] * PAUSES + comes + [1.0] * STAYS + comes[-2::-1]
    return [once[frame % len(once)] for frame in range(count)]


def covered(
    rgb: RgbPicture, face: TrackedFace, came: float, colour: tuple[int, int, int] | None
) -> RgbPicture:
    """Paint a cover over a picture's mouth, raised by a share: 1 covers it fully."""
    places = face.landmarks[:, :2]
    unit = float(np.linalg.norm(np.subtract(*places[list(_EYES)])))
    if colour is None:
        nearby = places[list(_CHEEKS)].round().astype(int)
        colour = tuple(np.median(rgb[nearby[:, 1], nearby[:, 0]], axis=0).tolist())
    half = (_HALF_PX[0] * unit, _HALF_PX[1] * unit)
    x, y = places[list(_CORNERS)].mean(axis=0) + np.array([0, 0.1 * unit + (1 - came) * 2 * half[1]])
    mask = np.zeros(rgb.shape[:2], np.float32)
    cv2.ellipse(mask, ((float(x), float(y)), (2 * half[0], 2 * half[1]), 0.0), 1.0, -1)
    mask = cv2.GaussianBlur(mask, (0, 0), 0.02 * unit)[..., None]
    grain = np.random.default_rng(0).normal(0, _GRAIN, rgb.shape)
    rows = np.arange(rgb.shape[0])[:, None, None]
    shade = 1 - 0.15 * np.clip((rows - y) / half[1], -1, 1)  # light comes from above
    made = np.array(colour) * shade + grain
    return np.asarray(np.clip(np.rint(rgb + (made - rgb) * mask), 0, 255), np.uint8)


def measured(
    truth: list[tuple[float, RgbPicture]],
    faces: list[TrackedFace | None],
    cover: str,
    model: Path,
    mesh: CanonicalMesh,
) -> dict[str, Any]:
    """Measure how a cover is noticed, and what the mouth behind it does."""
    came = covered_by(len(truth))
    film = [
        (seconds, rgb if share == 0 or face is None else covered(rgb, face, share, COVERS[cover]))
        for (seconds, rgb), face, share in zip(truth, faces, came, strict=True)
    ]
    read = tracked(film, model)
    shapes = {}
    for name, followed, watched in (("held", read, True), ("read", read, False), ("seen", faces, False)):
        estimator = MotionEstimator(mesh, neutral="first", expression_window=1)
        made = []
        for (seconds, _), face in zip(film, followed, strict=True):
            seen = face if watched or face is None else replace(face, mouth_covered=False)
            vertices = estimator.update(seen, pts_seconds=seconds).vertices
            made.append((0.0, 0.0) if vertices is None else (gap_cm(vertices), width_cm(vertices)))
        shapes[name] = np.array(made)
    whole, clear = np.array(came) == 1, np.array(came) == 0
    noticed = np.array([face is not None and face.mouth_covered for face in read])
    starts = np.flatnonzero(whole & ~np.roll(whole, 1))
    before = np.zeros((len(truth), 2))
    for start in starts:
        before[start:] = shapes["seen"][start - ARRIVES // 2]  # half of the mouth is covered
    row: dict[str, Any] = {
        "covered_frames": int(whole.sum()),
        "noticed": round(float(noticed[whole].mean()), 3),
        "other_frames": int(clear.sum()),
        "noticed_of_others": round(float(noticed[clear].mean()), 3),
    }
    for name in ("held", "read"):
        off = np.abs(shapes[name] - before)[whole].mean(axis=0)
        row |= {
            f"gap_off_cm_{name}": round(float(off[0]), 3),
            f"width_off_cm_{name}": round(float(off[1]), 3),
        }
    return row


def main() -> None:
    """Measure videos, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("film", nargs="+", type=Path, help="films of one face each")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    sys.path.append(str(Path(__file__).parents[1]))  # where what all benchmarks share lies
    from row_stamp import commit, write_rows

    model, mesh = fetch_face_model(ModelStore(vitascope_home())), read_canonical_mesh()
    stamp = {"machine": platform.machine(), "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    rows = []
    for path in given.film:
        truth = frames_of(path)
        faces = tracked(truth, model)
        for cover in COVERS:
            row = {"claim": "a covered mouth keeps its shape", "film": path.name, "cover": cover}
            rows.append(row | measured(truth, faces, cover, model, mesh) | stamp)
            print(rows[-1], flush=True)
    write_rows(given.out, rows)


if __name__ == "__main__":
    main()
