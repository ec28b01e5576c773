"""How fast a VR180 video is matted on a GPU by some profiles, from its file to alpha on the device.

The film: a half-equirectangular LR video of 4096x2048 in H.264, four people at 1.2 to 2.7 m before scenery on the walls
of a room (``crowd`` of ``vr_stereo.py``), to and fro without a cut. Each profile streams it once to warm up, then
thrice on the clock, of which the median counts, opening the file included. Nothing is drawn or encoded.
``one_decoder_fps`` is one decoder session alone, in the same run; ``speed`` is relative to the first
profile.

Prediction: ``balanced`` is bound by the decoder or by what launches its kernels, ``quality`` by both; it shows each
frame four times, larger, and takes about twice the time.

Usage: python benchmarks/vr_cuda.py CLIP.mp4 [--frames 960] [--film FILM.mp4] [--rows ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from row_stamp import gpu_stamp, write_rows
from vitascope.config import vitascope_home
from vitascope.media.reading.reader import open_video
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.segmenter import Segmenter
from vitascope.vr.synthetic import Camera
from vr_elevation import cut_out, room
from vr_stereo import LENSES, views

RESULTS = Path(__file__).parent / "results" / "vr_cuda.json"
RUNS = 3
SIZE = 2048, 4096
SEED = 51
"""Where everybody stands, see ``vr_stereo.py``."""
_RENDERED = 12
"""Frames that are rendered, at half the size: the rest shows them again."""


def make_film(path: Path, clip: Path, frames: int) -> None:
    """Write the film, of so many frames."""
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    people, scenery = cut_out(clip, network, 24, _RENDERED)
    network.close()
    camera = Camera(LENSES["VR180"], (SIZE[0] // 2, SIZE[1] // 2), eye_distance_m=0.064)
    pictures = [
        cv2.resize(view.rgb, SIZE[::-1], interpolation=cv2.INTER_CUBIC)
        for view in views("crowd", people, room(scenery, 1024), camera, seed=SEED)
    ]
    with av.open(str(path), "w") as film:
        stream = film.add_stream("libx264", rate=30, options={"preset": "ultrafast", "crf": "20"})
        stream.width, stream.height, stream.pix_fmt = SIZE[1], SIZE[0], "yuv420p"
        for index, picture in enumerate(islice(cycle([*pictures, *pictures[::-1]]), frames)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 30)
            film.mux(stream.encode(frame))
        film.mux(stream.encode(None))


def decoding_seconds(film: Path) -> float:
    """How long it takes to open the film and to read all of it onto the GPU."""
    began = time.perf_counter()
    with open_video(film, cuda_device=0) as reader:
        for _ in reader:
            pass
    return time.perf_counter() - began


def main() -> None:
    """Measure every profile."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clip", type=Path, help="of one person, who is cut out of it")
    parser.add_argument("--frames", type=int, default=960)
    parser.add_argument("--profiles", default="balanced,quality")
    parser.add_argument("--film", type=Path, help="where the film is kept, to be used again")
    parser.add_argument("--rows", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        film = options.film or Path(name) / "film_LR_180.mp4"
        if not film.exists():
            make_film(film, options.clip, options.frames)
        usual_seconds = None
        decoding = min(decoding_seconds(film) for _ in range(2))
        for profile in options.profiles.split(","):
            seconds = []
            with Segmenter(profile=profile, settings={"gpu.device": "cuda"}) as segmenter:
                for _ in range(1 + RUNS):
                    began = time.perf_counter()
                    count = sum(1 for _ in segmenter.stream(film, device_arrays=True))
                    seconds.append(time.perf_counter() - began)
                    assert count == options.frames
            taken = sorted(seconds[1:])[RUNS // 2]
            usual_seconds = usual_seconds or taken
            rows.append(
                {
                    "claim": "VR180 4096x2048 to alpha on the device",
                    "profile": profile,
                    "frames": options.frames,
                    "fps": round(options.frames / taken, 1),
                    "spread_fps": [round(options.frames / each, 1) for each in sorted(seconds[1:])],
                    "one_decoder_fps": round(options.frames / decoding, 1),
                    "speed": round(usual_seconds / taken, 3),
                    **gpu_stamp(),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    write_rows(options.rows, rows)


if __name__ == "__main__":
    main()
