"""Measure how fast profiles matte videos on a GPU, from the file to alpha on the device.

``VR180``: a half-equirectangular LR video of 4096x2048, four people at 1.2 to 2.7 m before scenery on the walls of a
room (``crowd`` of ``vr_stereo.py``). ``one``, ``several``, ``crossing``, ``close-up``: 1080p videos of
``matte_quality`` with a moving camera. All are H.264, played forwards and backwards without a cut, so that
crossing people cross twice in three seconds. Each profile streams a video once to warm up, then three times
for the median, opening the file included. Nothing is drawn or encoded. ``one_decoder_fps`` is one decoder
session alone, in the same run; ``speed`` is relative to the first profile. Closing NVDEC waits for its next tick,
every 0.25 s, so times of short films are multiples of that: use a thousand frames or more.

Prediction: ``balanced`` is bound by the decoder or by its kernel launches. ``quality`` shows each frame four
times, larger, and takes about twice the time; where people cross, its looks differ in many windows, and the CPU's steps
that settle between them take as long again.

Usage: python benchmarks/profiles_cuda.py CLIP.mp4... [--films VR180,crossing] [--frames 1920] [--limit-gb 8]
    [--rows ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from fractions import Fraction
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import av
import cupy
import cv2
import numpy as np

from matte_quality import truth
from row_stamp import gpu_stamp, write_rows
from vitascope.config import vitascope_home
from vitascope.media.reading.reader import open_video
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.segmenter import Segmenter
from vitascope.vr.synthetic import Camera
from vr_elevation import cut_out, room
from vr_stereo import LENSES, views

RESULTS = Path(__file__).parent / "results" / "profiles_cuda.json"
RUNS = 3
VR180 = "VR180"
VR180_SIZE = 2048, 4096
FLAT_SIZE = 1080, 1920
FILMS = (VR180, "one", "several", "crossing", "close-up")
SEED = 51
"""The people, and where they stand."""
_RENDERED = {VR180: 12, "flat": 48}
"""Frames that are rendered, at half the size: the rest shows them again."""


def make_film(kind: str, path: Path, clips: Sequence[Path], frames: int) -> None:
    """Write a video of that many frames."""
    if kind == VR180:
        size = VR180_SIZE
        with closing(RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))) as network:
            people, scenery = cut_out(clips[0], network, 24, _RENDERED[VR180])
        camera = Camera(LENSES[VR180], (size[0] // 2, size[1] // 2), eye_distance_m=0.064)
        shown = [view.rgb for view in views("crowd", people, room(scenery, 1024), camera, seed=SEED)]
    else:
        size = FLAT_SIZE
        half, count = (size[0] // 2, size[1] // 2), _RENDERED["flat"]
        figures, places = zip(*_cast(tuple(clips)), strict=True)
        shown = list(truth.make_film(kind, figures, places, seed=SEED, size=half, frames=count).rgb)
    pictures = [cv2.resize(each, size[::-1], interpolation=cv2.INTER_CUBIC) for each in shown]
    with av.open(str(path), "w") as film:
        stream = film.add_stream("libx264", rate=30, options={"preset": "ultrafast", "crf": "20"})
        stream.width, stream.height, stream.pix_fmt = *size[::-1], "yuv420p"
        for index, picture in enumerate(islice(cycle([*pictures, *pictures[::-1]]), frames)):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 30)
            film.mux(stream.encode(frame))
        film.mux(stream.encode(None))


@cache
def _cast(clips: tuple[Path, ...]) -> list[Any]:
    """Cut the person out of each clip; return the rest, too."""
    with closing(RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))) as network:
        return [truth.cut_figure(clip, network, count=_RENDERED["flat"]) for clip in clips]


def decoding_seconds(film: Path) -> float:
    """Measure the time to open the video and to read all of it onto the GPU."""
    began = time.perf_counter()
    with open_video(film, cuda_device=0) as reader:
        for _ in reader:
            pass
    return time.perf_counter() - began


def measured(
    kind: str, film: Path, frames: int, profiles: Sequence[str], limit_gb: float | None
) -> list[dict[str, Any]]:
    """Make the row of each profile, within a limit of memory (10^9 bytes) that simulates a smaller GPU."""
    rows: list[dict[str, Any]] = []
    usual_seconds = None
    decoding = min(decoding_seconds(film) for _ in range(2))
    size = VR180_SIZE if kind == VR180 else FLAT_SIZE
    settings: dict[str, Any] = {"gpu.device": "cuda"}
    if limit_gb is not None:
        settings["gpu.max_vram_usage"] = limit_gb * 1e9 / cupy.cuda.runtime.memGetInfo()[1]
    for profile in profiles:
        seconds = []
        with Segmenter(profile=profile, settings=settings) as segmenter:
            for _ in range(1 + RUNS):
                began = time.perf_counter()
                count = sum(1 for _ in segmenter.stream(film, device_arrays=True))
                seconds.append(time.perf_counter() - began)
                assert count == frames
        taken = sorted(seconds[1:])[RUNS // 2]
        usual_seconds = usual_seconds or taken
        rows.append(
            {
                "claim": f"{kind} {size[1]}x{size[0]} to alpha on the device"
                + ("" if limit_gb is None else f", within {limit_gb:g} GB"),
                "film": kind,
                "profile": profile,
                "frames": frames,
                "fps": round(frames / taken, 1),
                "spread_fps": [round(frames / each, 1) for each in sorted(seconds[1:])],
                "one_decoder_fps": round(frames / decoding, 1),
                "speed": round(usual_seconds / taken, 3),
                **gpu_stamp(),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure every profile on every video."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="+", help="one person each, before a plain background")
    parser.add_argument("--films", default=",".join(FILMS))
    parser.add_argument("--frames", type=int, default=1920)
    parser.add_argument("--profiles", default="balanced,quality")
    parser.add_argument("--limit-gb", type=float, help="memory that all processes may use: a smaller GPU")
    parser.add_argument("--keep", type=Path, help="folder where films are kept, to be used again")
    parser.add_argument("--rows", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in options.films.split(","):
            film = folder / (f"film_{kind}" + ("_LR_180.mp4" if kind == VR180 else ".mp4"))
            if not film.exists():
                make_film(kind, film, options.clips, options.frames)
            rows += measured(kind, film, options.frames, options.profiles.split(","), options.limit_gb)
    write_rows(options.rows, rows)


if __name__ == "__main__":
    main()
