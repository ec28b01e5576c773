"""Measure how mattes of two eyes differ: ``fast`` and ``balanced`` on stereo clips of known disparity.

People are cut out of a flat clip by RVM, and stand before the clip's own scenery on the walls of a room, or before
noise: ``two`` at two distances, ``near`` at 0.7 m, three that ``hide`` one another, a near one and one ``behind``, two
who ``touch``, a ``crowd`` of four, one ``low`` at 1 m, one ``aside``, one at the lower ``rim`` of VR180; ``mono`` shows
both eyes the same. The stereo clip is written as a nearly lossless H.264 file, and matted as ``vitascope segment``
would, with and without ``inference.stereo_agreement``. A row gives ``vitascope.vr.synthetic.eye_disagreement`` of each
matte, and of the truth, which is what reading between samples makes; that of each matte's difference from the truth
(``errors_apart``), in which this has no share; and the mean absolute error of alpha, times 1000. ``on_sphere`` weights
the samples of VR180 by the area that they show, next to nothing near a pole, as WS-PSNR does (Sun, Lu and Yu, IEEE
Signal Processing Letters 24(9), 2017). A seed other than 0 moves everybody: by 4 degrees and a tenth of the distance at
most, and mirrors some.

Usage: python benchmarks/vr_stereo.py CLIP.mp4 [--scenes two,near] [--seeds 1,2] [--frames 8] [--keep ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
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
    noise_surround,
    render,
)
from vr_elevation import cut_out, room

LENSES: dict[str, Lens] = {"flat": Rectilinear(80, 80), "VR180": Equirectangular()}


SCENES = ("two", "near", "hide", "behind", "touch", "crowd", "low", "aside", "mono", "rim")


def walk(azimuth: float, elevation: float, distance: float) -> Callable[[float], Place]:
    """To the right, by 8 degrees a second."""
    return drift(Place(azimuth, elevation, distance), azimuth_degrees_per_second=8)


def figures_of(scene: str, person: np.ndarray) -> tuple[Figure, ...]:
    """The people in a scene."""
    mirrored = person[:, ::-1]
    match scene:
        case "near":
            return (Figure(person, walk(5, -10, 0.7), height_m=1.2),)
        case "hide":
            return (
                Figure(person, Place(-8, -5, 0.9), height_m=1.0),
                Figure(mirrored, walk(6, -5, 1.6), height_m=1.75),
                Figure(person, Place(20, -5, 3), height_m=1.75),
            )
        case "behind":
            return (
                Figure(person, Place(4, -10, 0.8), height_m=1.1),
                Figure(mirrored, walk(-14, -3, 2.5), height_m=1.75),
            )
        case "touch":
            return (
                Figure(person, Place(-6, -5, 1), height_m=1.3),
                Figure(mirrored, Place(10, -5, 1.1), height_m=1.4),
            )
        case "crowd":
            return tuple(
                Figure(
                    (person, mirrored)[number % 2],
                    Place(20 * number - 30, -5, 1.2 + number / 2),
                    height_m=1.6,
                )
                for number in range(4)
            )
        case "low":
            return (Figure(person, Place(10, -50, 1), height_m=1.6),)
        case "aside":
            return (Figure(person, walk(55, -20, 1), height_m=1.5),)
        case "rim":
            return (Figure(person, walk(40, -70, 1), height_m=1.6),)
        case _:
            return (
                Figure(person, walk(-16, -5, 2), height_m=1.75),
                Figure(mirrored, Place(14, -8, 1.2), height_m=1.2),
            )


def moved(figure: Figure, random: np.random.Generator) -> Figure:
    """Somebody who stands a little elsewhere."""
    across, down, nearer = random.uniform(-1, 1, 3)
    is_mirrored = random.random() < 0.5

    def place(time_seconds: float) -> Place:
        usual = figure.place_at(time_seconds)
        return Place(
            usual.azimuth_degrees + 4 * across,
            usual.elevation_degrees + 4 * down,
            usual.distance_m * (1 + nearer / 10),
        )

    return replace(figure, rgba=figure.rgba[:, ::-1] if is_mirrored else figure.rgba, place=place)


def views(
    scene: str, people: list[np.ndarray], sphere: np.ndarray, camera: Camera, *, seed: int = 0
) -> Iterator[View]:
    """The clip; where everybody stands as written with a seed of 0."""
    surround = Surround(sphere, radius_m=4)
    for index, person in enumerate(people):
        figures = figures_of(scene, person)
        if seed:
            random = np.random.default_rng([seed, SCENES.index(scene)])
            figures = tuple(moved(figure, random) for figure in figures)
        yield render(Scene(figures, surround, camera), index / 24)


def measure(
    profile: str, path: Path, truth: list[View], camera: Camera, *, agreement: bool
) -> tuple[dict[str, float], Any]:
    """Means over the frames of the eyes' disagreement, that of their errors, and the matte's errors; the last matte."""
    found: dict[str, list[float]] = {
        "apart": [],
        "errors_apart": [],
        "mad_1000": [],
        "mad_on_sphere_1000": [],
    }
    areas = np.ones((1, 1))
    if isinstance(camera.lens, Equirectangular):
        areas = camera.lens.row_areas(camera.regions[0].height)[:, None]
    wishes = {"inference.stereo_agreement": agreement, "video.stereo": "sbs"}
    if camera.lens != LENSES["flat"]:
        wishes["video.projection"] = "equirect180"
    with Segmenter(profile=profile, settings=wishes) as segmenter:
        for (_, matte), view in zip(segmenter.stream(path), truth, strict=True):
            alpha = np.asarray(matte, np.float32) / 255
            wrong = np.abs(alpha - view.alpha)
            found["apart"].append(eye_disagreement(alpha, view, camera))
            found["errors_apart"].append(eye_disagreement(alpha - view.alpha, view, camera))
            found["mad_1000"].append(float(wrong.mean() * 1000))
            weights = np.broadcast_to(areas, wrong.shape)
            found["mad_on_sphere_1000"].append(float(np.average(wrong, weights=weights) * 1000))
    return {name: round(float(np.mean(each)), 4) for name, each in found.items()}, alpha


def main() -> None:
    """Print a row for each lens and profile; save them on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("film", type=Path)
    parser.add_argument("--first", type=int, default=24, help="first frame of the clip")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--side", type=int, default=1024, help="of an eye, in samples")
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("--lenses", default=",".join(LENSES))
    parser.add_argument("--seeds", default="0", help="of where people stand")
    parser.add_argument("--noise", action="store_true", help="before noise instead of the clip's own scenery")
    parser.add_argument("--profiles", default="fast,balanced")
    parser.add_argument("--sheets", type=Path, help="folder for pictures of the mattes")
    parser.add_argument("--keep", type=Path, help="JSON file that the rows are written to")
    options = parser.parse_args()
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    people, scenery = cut_out(options.film, network, options.first, options.frames)
    network.close()
    sphere = noise_surround(1024) if options.noise else room(scenery, 1024)
    rows: list[dict[str, Any]] = []
    chosen = (each.split(",") for each in (options.scenes, options.lenses, options.seeds))
    for scene, name, seed in product(*chosen):
        eye_distance_m = 1e-6 if scene == "mono" else 0.064
        camera = Camera(LENSES[name], (options.side, 2 * options.side), eye_distance_m=eye_distance_m)
        truth = list(views(scene, people, sphere, camera, seed=int(seed)))
        own = float(np.mean([eye_disagreement(view.alpha, view, camera) for view in truth]))
        with tempfile.TemporaryDirectory() as folder:
            path = written(Path(folder), f"{name}_LR", (view.rgb for view in truth))
            for profile in options.profiles.split(","):
                alone, _ = measure(profile, path, truth, camera, agreement=False)
                agreed, last = measure(profile, path, truth, camera, agreement=True)
                rows.append(
                    {
                        "claim": "vr stereo",
                        "profile": profile,
                        "clip": options.film.stem,
                        "scene": scene,
                        "lens": name,
                        "seed": int(seed),
                        "surround": "noise" if options.noise else "scenery",
                        "frames": options.frames,
                        "eye_samples": options.side,
                        "apart_of_truth": round(own, 4),
                        **{f"{name}_alone": value for name, value in alone.items()},
                        **{f"{name}_agreed": value for name, value in agreed.items()},
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
                        str(options.sheets / f"{scene}_{name}_{seed}_{profile}.png"),
                        cv2.cvtColor(sheet, cv2.COLOR_RGB2BGR),
                    )
    if options.keep is not None:
        write_rows(options.keep, rows)


if __name__ == "__main__":
    main()
