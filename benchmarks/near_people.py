"""Compare RVM on the CPU near people with RVM on whole pictures, in VR180 with a truth, and in a plain video.

The scenes are those of ``vr_stereo.py``, in motion, of longer clips; ``flat`` is the clip itself. A row gives the CPU
time of the network on one thread, from the frame on at which windows begin; the largest and the mean difference of
alpha, in codes of 255; and, where there is a truth, the mean absolute error of both, times 1000.

Usage: python benchmarks/near_people.py CLIP.mp4 [--scenes flat,two] [--frames 30] [--ratio 0.25] [--keep ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.frames import Frame, StereoLayout
from vitascope.media.reading.reader import open_video
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.vr.synthetic import Camera, View
from vr_elevation import as_frame, cut_out, room
from vr_stereo import LENSES, views

SETTLED_FRAMES = 8
"""First frame from which the network may leave out areas far from people."""


def mattes(network: RvmNetwork, frames: list[Frame], *, is_flat: bool) -> tuple[list[np.ndarray], float]:
    """Alpha of each frame, float32 0..255, and the CPU seconds of a frame in the network's stage."""
    matting = StreamMatting(
        network,
        size=(frames[0].height, frames[0].width),
        layout=StereoLayout.MONO if is_flat else StereoLayout.SIDE_BY_SIDE,
        lens=None if is_flat else LENSES["VR180"],
        options=MattingOptions(),
        waits=False,
    )
    alphas, seconds = [], 0.0
    for frame in frames:
        batch = matting.find_cuts(matting.prepare([frame]))
        begun = time.process_time()
        matted = matting.infer([batch])
        seconds += time.process_time() - begun if len(alphas) >= SETTLED_FRAMES else 0
        alphas += [matting.refine(one).alpha.astype(np.float32) for one in matted]
    return alphas, seconds / (len(frames) - SETTLED_FRAMES)


def mean_error(alphas: list[np.ndarray], truth: list[View]) -> float:
    """Compute the mean absolute difference of alpha, 0..255, from the truth, as a share of full scale."""
    return float(
        np.mean([np.abs(one / 255 - view.alpha).mean() for one, view in zip(alphas, truth, strict=True)])
    )


def main() -> None:
    """Print a row for each scene; save them on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("film", type=Path)
    parser.add_argument("--first", type=int, default=24, help="first frame of the clip")
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--side", type=int, default=1024, help="of an eye, in samples")
    parser.add_argument("--ratio", type=float, help="the network's picture relative to the video's or eye's")
    parser.add_argument("--scenes", default="two,near,behind,crowd,low,aside")
    parser.add_argument("--keep", type=Path, help="JSON file that the rows are written to")
    options = parser.parse_args()
    path = ModelStore(vitascope_home()).pull("rvm")
    networks = {
        name: RvmNetwork(path, threads=1, downsample_ratio=options.ratio, near_people=name == "near")
        for name in ("all", "near")
    }
    people, scenery = cut_out(options.film, networks["all"], options.first, options.frames)
    sphere = room(scenery, 1024)
    camera = Camera(LENSES["VR180"], (options.side, 2 * options.side))
    rows: list[dict[str, Any]] = []
    for scene in options.scenes.split(","):
        is_flat = scene == "flat"
        truth = [] if is_flat else list(views(scene, people, sphere, camera))
        frames = [as_frame(view.rgb, index) for index, view in enumerate(truth)]
        if is_flat:
            with open_video(options.film) as reader:
                frames = list(islice(reader, options.first, options.first + options.frames))
        found = {name: mattes(network, frames, is_flat=is_flat) for name, network in networks.items()}
        wrong = {
            f"mad_1000_{name}": round(1000 * mean_error(alphas, truth), 3)
            for name, (alphas, _) in found.items()
            if truth
        }
        apart = np.abs(np.array(found["all"][0]) - np.array(found["near"][0]))
        rows.append(
            {
                "claim": "near people" if is_flat else "vr near people",
                "clip": options.film.stem,
                "scene": scene,
                "frames": options.frames,
                **({"size": list(apart.shape[1:])} if is_flat else {"eye_samples": options.side}),
                **({} if options.ratio is None else {"ratio": options.ratio}),
                "cpu_seconds_all": round(found["all"][1], 3),
                "cpu_seconds_near": round(found["near"][1], 3),
                "mean_codes_apart": round(float(apart.mean()), 5),
                "most_codes_apart": float(apart.max()),
                "share_over_a_code": round(float((apart > 1).mean()), 6),
                **wrong,
                "commit": commit(),
                "date": time.strftime("%Y-%m-%d"),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    for network in networks.values():
        network.close()
    if options.keep is not None:
        write_rows(options.keep, rows)


if __name__ == "__main__":
    main()
