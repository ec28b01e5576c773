"""Measure what each lever of ``segment`` gains and costs on the CPU.

Clips, each a few dozen frames:

- the videos named on the command line, unchanged (``juggle``: one person, a still camera, a ball; ``coffee``:
  people who fill the picture);
- ``standstill``: the first video's first frame, held with sensor noise for half of the clip, then that video;
- ``far``: the first video's person, cut out at full resolution, small before a photograph in 1080p and
  walking; the truth is known.

For each lever: CPU seconds of the network's stage against the plain run in the same process (best of
``--rounds``, alternating), the share of samples that the network saw, and alpha's difference from the plain
run's, in codes of 255; on ``far`` also both runs' difference from the truth. For the cache: wall seconds of
whole runs, the second with another output. For the threshold of ``skip_static``: how much tiles change from
frame to frame.

Usage: python benchmarks/levers.py FILM.mp4 [FILM.mp4 ...] [--frames 48] [--rounds 2] [--only NAME] [--sheets FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import onnxruntime as ort
from skimage import data

from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.config.compute import InferenceSettings
from vitascope.config.home import HOME_VARIABLE
from vitascope.frames import Frame, StereoLayout
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.media.reading.reader import open_video
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.selfie.selfie import SelfieNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.batch import tile_means
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.report import LeverReport
from vitascope.segmentation.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results" / "levers.json"
FRAMES_PER_CALL = 4
WRONG = 64
"""Minimum error, in codes of 255, of a visibly wrong pixel."""

LEVERS = {
    "skip_static=0.01": InferenceSettings(skip_static=0.01),
    "skip_static=0.03": InferenceSettings(skip_static=0.03),
    "region=crop": InferenceSettings(region="crop"),
    "region=zoom": InferenceSettings(region="zoom"),
    "early_exit=smaller": InferenceSettings(early_exit="smaller"),
    "early_exit=smaller, confidence 0.5": InferenceSettings(early_exit="smaller", early_exit_confidence=0.5),
    "early_exit=selfie": InferenceSettings(early_exit="selfie"),
    "scales=[0.75, 1]": InferenceSettings(scales=(0.75, 1.0)),
    "scales=[1, 1.5]": InferenceSettings(scales=(1.0, 1.5)),
}


@dataclass
class Clip:
    """Frames, and alpha where it is known."""

    name: str
    frames: list[Frame]
    truth: np.ndarray | None = None
    """uint8 [T, H, W]."""


@dataclass
class Run:
    """One pass over a clip."""

    alphas: np.ndarray
    seconds: float
    report: LeverReport


def film_clip(path: Path, count: int) -> Clip:
    """Read the first frames of a video, as decoded."""
    with open_video(path) as reader:
        return Clip(path.stem, list(islice(reader, count)))


def written(folder: Path, name: str, pictures: Iterator[np.ndarray]) -> Path:
    """Write RGB pictures as a video: H.264 of high quality."""
    path = folder / f"{name}.mp4"
    with av.open(str(path), "w") as film:
        stream = film.add_stream("libx264", rate=24, options={"crf": "14", "preset": "fast"})
        stream.pix_fmt = "yuv420p"
        for index, picture in enumerate(pictures):
            if index == 0:
                stream.width, stream.height = picture.shape[1], picture.shape[0]
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 24)
            film.mux(stream.encode(frame))
        film.mux(stream.encode(None))
    return path


def rgb_frames(path: Path, count: int) -> list[np.ndarray]:
    """Read the first frames of a video, uint8 [H, W, 3]."""
    with av.open(str(path)) as film:
        return [frame.to_ndarray(format="rgb24") for frame in islice(film.decode(video=0), count)]


def standstill(path: Path, folder: Path, count: int) -> Clip:
    """Hold a frame for half of the clip, with noise (standard deviation 2 codes), then play the video."""
    moving = rgb_frames(path, count - count // 2)
    random = np.random.default_rng(0)
    pictures = [moving[0]] * (count // 2) + moving
    noisy = (
        np.clip(picture + random.normal(0, 2, picture.shape), 0, 255).astype(np.uint8) for picture in pictures
    )
    return Clip("standstill", film_clip(written(folder, "standstill", noisy), count).frames)


def far(path: Path, folder: Path, count: int) -> Clip:
    """Make the video's person walk before a photograph, at a third of the height of 1080p."""
    source = film_clip(path, count)
    alphas = run(source, InferenceSettings(), downsample_ratio=1.0).alphas
    behind = cv2.resize(data.rocket(), (1920, 1080), interpolation=cv2.INTER_CUBIC)
    pictures, truth = [], []
    for index, (rgb, alpha) in enumerate(zip(rgb_frames(path, count), alphas, strict=True)):
        size = (rgb.shape[1] * 360 // rgb.shape[0], 360)
        small = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        share = cv2.resize(alpha, size, interpolation=cv2.INTER_AREA).astype(np.float32)
        x, y = 200 + 8 * index, 520
        picture, matte = behind.astype(np.float32), np.zeros((1080, 1920), np.float32)
        weight = share[..., None] / 255
        place = slice(y, y + size[1]), slice(x, x + size[0])
        picture[place] = small * weight + picture[place] * (1 - weight)
        matte[place] = share
        pictures.append(picture.astype(np.uint8))
        truth.append(np.rint(matte).astype(np.uint8))
    clip = film_clip(written(folder, "far", iter(pictures)), count)
    return Clip("far", clip.frames, np.stack(truth))


def run(clip: Clip, options: InferenceSettings, *, downsample_ratio: float | None = None) -> Run:
    """Matte a clip with RVM as ``balanced`` does; only the network's stage is timed."""
    store = ModelStore(vitascope_home())
    network = RvmNetwork(store.pull("rvm"), downsample_ratio=downsample_ratio, near_people=True)
    first = None
    if options.early_exit == "selfie":
        first = SelfieNetwork(store.path("selfie"), store.path("selfie-landscape"))
    matting = StreamMatting(
        network,
        size=(clip.frames[0].height, clip.frames[0].width),
        layout=StereoLayout.MONO,
        options=MattingOptions(inference=options),
        waits=False,
        first_network=first,
    )
    alphas, seconds = [], 0.0
    for start in range(0, len(clip.frames), FRAMES_PER_CALL):
        prepared = [
            matting.find_cuts(matting.prepare([frame]))
            for frame in clip.frames[start : start + FRAMES_PER_CALL]
        ]
        began = time.process_time()
        estimated = matting.infer(prepared)
        seconds += time.process_time() - began
        alphas += [matting.refine(one).alpha for one in estimated]
    network.close()
    if first is not None:
        first.close()
    return Run(np.stack(alphas), seconds, matting.report())


def errors(alphas: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Measure the difference of two runs, in codes of 255, and the share of wrong pixels."""
    apart = np.abs(alphas.astype(np.int16) - other)
    frames = apart.reshape(len(apart), -1)
    return {
        "mean": round(float(apart.mean()), 3),
        "worst_frame": round(float(frames.mean(axis=1).max()), 3),
        "wrong_percent": round(float((apart >= WRONG).mean() * 100), 3),
    }


def measure(clip: Clip, rounds: int, only: str | None, sheets: Path | None) -> list[dict[str, Any]]:
    """Make a row for each lever on one clip."""
    names = [name for name in LEVERS if only is None or name.startswith(tuple(only.split(",")))]
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", *names)}
    runs: dict[str, Run] = {}
    for _ in range(rounds):
        for name in ("plain", *names):
            runs[name] = run(clip, LEVERS.get(name, InferenceSettings()))
            seconds[name].append(runs[name].seconds)
    rows = []
    for name in names:
        report, alphas = runs[name].report, runs[name].alphas
        row: dict[str, Any] = {
            "claim": name,
            "clip": clip.name,
            "frames": len(clip.frames),
            "cpu_speed": round(min(seconds["plain"]) / min(seconds[name]), 2),
            "network_share": report.network_share,
            "reused": report.reused_frames,
            "early": report.early_frames,
            "cropped": report.cropped_frames,
            "against_plain": errors(alphas, runs["plain"].alphas),
        }
        if clip.truth is not None:
            row["against_truth"] = errors(alphas, clip.truth)
            row["plain_against_truth"] = errors(runs["plain"].alphas, clip.truth)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if sheets is not None:
        _save_sheet(sheets / f"{clip.name}.png", clip, runs)
    return rows


def _save_sheet(path: Path, clip: Clip, runs: dict[str, Run]) -> None:
    """Draw mattes of six frames below one another, for each lever side by side."""
    columns = {} if clip.truth is None else {"truth": clip.truth}
    columns |= {name: run.alphas for name, run in runs.items()}
    step = max(len(clip.frames) // 6, 1)
    painted = []
    for name, alphas in columns.items():
        cells = [
            cv2.resize(alpha, (384, 216), interpolation=cv2.INTER_AREA) for alpha in alphas[step - 1 :: step]
        ]
        column = np.vstack(cells)
        cv2.putText(column, name, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, 255)
        painted.append(column)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.hstack(painted))


def cache(film: Path, folder: Path, frames: int, rounds: int) -> list[dict[str, Any]]:
    """Time whole runs: without the cache, filling it, and from it with another output."""
    store = ModelStore(vitascope_home())
    rows = []
    for profile in ("balanced", "fast"):
        times: dict[str, list[float]] = {"plain": [], "first": [], "second": []}
        for number in range(rounds):
            home = folder / f"home {profile} {number}"
            os.environ[HOME_VARIABLE] = str(home)
            for name, kind, caching in (("plain", "key", 0), ("first", "mask", 1), ("second", "key", 1)):
                flags = {
                    "processing.enable_caching": bool(caching),
                    "video.end_seconds": frames / 24,
                    "output.preset": "veryfast",
                }
                began = time.perf_counter()
                with Segmenter(profile=profile, settings=flags, store=store) as segmenter:
                    report = segmenter.write(film, [(kind, folder / f"{name}.mp4")])
                times[name].append(time.perf_counter() - began)
            assert report.levers is not None
            assert report.levers.cached_frames == report.frame_count
            same = rgb_frames(folder / "plain.mp4", frames), rgb_frames(folder / "second.mp4", frames)
            assert all(np.array_equal(one, other) for one, other in zip(*same, strict=True))
            size = sum(path.stat().st_size for path in (home / "mattes").rglob("*.vsarray"))
            count = report.frame_count
        rows.append(
            {
                "claim": "cache",
                "clip": f"{film.stem}, {profile}",
                "frames": count,
                "speed": round(min(times["plain"]) / min(times["second"]), 2),
                "filling": round(min(times["first"]) / min(times["plain"]), 2),
                "kilobytes_a_frame": round(size / count / 1e3),
                "pixels_that_differ": 0,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def stillness(film: Path, count: int) -> dict[str, Any]:
    """Measure the largest and the median change of tiles between every second frame."""
    tiles = []
    with open_video(film) as reader:
        for frame in islice(reader, 0, 2 * count, 2):
            scale = 768 / max(frame.width, frame.height)
            size = int(frame.height * scale), int(frame.width * scale)
            whole = Region(0, 0, frame.width, frame.height)
            tiles.append(tile_means(preprocess(frame, regions=[whole], size=size)[None])[0])
    changes = np.abs(np.diff(np.stack(tiles), axis=0)).mean(axis=1).reshape(len(tiles) - 1, -1)
    row = {
        "claim": "stillness",
        "clip": film.stem,
        "frames": count,
        "middle_tile": round(float(np.median(changes)), 4),
        "least_largest_tile": round(float(np.percentile(changes.max(axis=1), 5)), 4),
    }
    print(json.dumps(row), flush=True)
    return row


def noise_alone() -> dict[str, Any]:
    """Measure how noise of 2 codes changes the tile that changes most, in a grey picture."""
    random = np.random.default_rng(0)
    pictures = (0.5 + random.normal(0, 2 / 255, (6, 1, 3, 432, 768))).astype(np.float32)
    changes = np.abs(np.diff(tile_means(pictures), axis=0)).mean(axis=1)
    return {
        "claim": "stillness",
        "clip": "noise",
        "frames": 6,
        "largest_tile": round(float(changes.max()), 4),
    }


def main() -> None:
    """Measure the requested claims, and merge the rows into the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("films", type=Path, nargs="+")
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", help="levers, with commas between, or cache, or stillness")
    parser.add_argument("--clip", help="one clip alone")
    parser.add_argument("--sheets", type=Path, help="where contact sheets of all mattes go")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.only == "stillness":
            rows += [noise_alone(), *(stillness(film, 100) for film in options.films)]
        elif options.only != "cache":
            first = options.films[0]
            makers = {film.stem: lambda film=film: film_clip(film, options.frames) for film in options.films}
            makers["standstill"] = lambda: standstill(first, folder, options.frames)
            makers["far"] = lambda: far(first, folder, options.frames)
            for clip, make in makers.items():
                if options.clip in (None, clip):
                    rows += measure(make(), options.rounds, options.only, options.sheets)
        if options.only in (None, "cache") and options.clip is None:
            rows += cache(options.films[0], folder, 4 * options.frames, options.rounds)
    stamp = {
        "cores": os.cpu_count(),
        "onnxruntime": ort.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    new = {(row["claim"], row["clip"]) for row in rows}
    merged = [row for row in kept if (row["claim"], row["clip"]) not in new]
    RESULTS.parent.mkdir(exist_ok=True)
    write_rows(RESULTS, [*merged, *({**row, **stamp} for row in rows)])


if __name__ == "__main__":
    main()
