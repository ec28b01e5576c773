"""How far the mattes of two eyes are apart: ``fast`` and ``balanced`` over stereo clips whose disparity is known.

People are cut out of a flat clip by RVM, and stand at two distances before the clip's own scenery on the walls of a
room. The stereo clip is written as a nearly lossless H.264 file, and matted as ``vitascope segment`` would. A row gives
``vitascope.vr.synthetic.eye_disagreement`` of the matte, and of the truth, which is what reading between samples makes.

Usage: python benchmarks/vr_stereo.py CLIP.mp4 [--frames 8] [--keep ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from levers import written
from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.segmenter import Segmenter
from vitascope.vr.projection import Equirectangular, Lens, Rectilinear
from vitascope.vr.synthetic import (
    Camera,
    Figure,
    Place,
    Scene,
    Surround,
    View,
    drift,
    eye_disagreement,
    render,
)
from vr_elevation import cut_out, room

LENSES: dict[str, Lens] = {"flat": Rectilinear(80, 80), "VR180": Equirectangular()}


def views(people: list[np.ndarray], scenery: np.ndarray, camera: Camera) -> Iterator[View]:
    """The clip: one person who walks at 2 m, and the same, mirrored, who stands at 1.2 m."""
    surround = Surround(room(scenery, 1024), radius_m=4)
    walk = drift(Place(-16, -5, 2), azimuth_degrees_per_second=8)
    for index, person in enumerate(people):
        figures = (
            Figure(person, walk, height_m=1.75),
            Figure(person[:, ::-1], Place(14, -8, 1.2), height_m=1.2),
        )
        yield render(Scene(figures, surround, camera), index / 24)


def measure(
    profile: str, path: Path, truth: list[View], camera: Camera
) -> tuple[list[float], list[float], Any]:
    """The eyes' disagreement and the matte's error of each frame, and the last matte."""
    apart, wrong = [], []
    with Segmenter(profile=profile) as segmenter:
        for (_, matte), view in zip(segmenter.stream(path), truth, strict=True):
            alpha = np.asarray(matte, np.float32) / 255
            apart.append(eye_disagreement(alpha, view, camera))
            wrong.append(float(np.abs(alpha - view.alpha).mean() * 1000))
    return apart, wrong, alpha


def main() -> None:
    """Print a row for each lens and profile; keep them when asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("film", type=Path)
    parser.add_argument("--first", type=int, default=24, help="first frame of the clip")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--side", type=int, default=1024, help="of an eye, in samples")
    parser.add_argument("--profiles", default="fast,balanced")
    parser.add_argument("--sheets", type=Path, help="folder for pictures of the mattes")
    parser.add_argument("--keep", type=Path, help="JSON file that the rows are written to")
    options = parser.parse_args()
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    people, scenery = cut_out(options.film, network, options.first, options.frames)
    network.close()
    rows: list[dict[str, Any]] = []
    for name, lens in LENSES.items():
        camera = Camera(lens, (options.side, 2 * options.side))
        truth = list(views(people, scenery, camera))
        own = float(np.mean([eye_disagreement(view.alpha, view, camera) for view in truth]))
        with tempfile.TemporaryDirectory() as folder:
            path = written(Path(folder), f"{name}_LR", (view.rgb for view in truth))
            for profile in options.profiles.split(","):
                apart, wrong, last = measure(profile, path, truth, camera)
                rows.append(
                    {
                        "claim": "vr stereo",
                        "profile": profile,
                        "clip": options.film.stem,
                        "lens": name,
                        "frames": options.frames,
                        "eye_samples": options.side,
                        "disagreement": round(float(np.mean(apart)), 4),
                        "of_truth": round(own, 4),
                        "mad_1000": round(float(np.mean(wrong)), 2),
                        "commit": commit(),
                        "date": time.strftime("%Y-%m-%d"),
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
                if options.sheets is not None:
                    painted = np.vstack([truth[-1].rgb, np.repeat(last[..., None] * 255, 3, axis=2)])
                    sheet = cv2.resize(
                        painted.astype(np.uint8), None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA
                    )
                    cv2.imwrite(
                        str(options.sheets / f"{name}_{profile}.png"), cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR)
                    )
    if options.keep is not None:
        write_rows(options.keep, rows)


if __name__ == "__main__":
    main()
