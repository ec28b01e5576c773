"""Measure what each lever of ``segment`` gains and costs on a GPU, from video to mask.

The video: 1080p, a person at a third of its height before a photograph, who stands for a third of it, then
walks; 480 frames of H.264. Each lever runs once to warm up, then three times for the median; alpha of every
frame is compared with the plain run's. The cache: a run that fills it, then one with another output.

Prediction: on an H200, RVM takes 0.2 ms per frame in batches of sixteen at 512x288 and 0.4 at 768x432, and
    the decoder or the encoder sets the pace, so levers that reduce the network's work gain little in the
    whole run; each lever that looks at
mattes to decide waits for the GPU where the plain run does not.

Usage: python benchmarks/levers_cuda.py [ROWS.json]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from skimage import data

from row_stamp import gpu_stamp, write_rows
from vitascope.config import vitascope_home
from vitascope.config.home import HOME_VARIABLE
from vitascope.segmentation.matting.cached_film import cache_contents
from vitascope.segmentation.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results" / "levers_cuda.json"
FRAMES = 480
RUNS = 3
WRONG = 64
"""Minimum error, in codes of 255, of a visibly wrong pixel."""
LEVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "skip_static=0.01": {"inference.skip_static": 0.01},
    "region=crop": {"inference.region": "crop"},
    "region=zoom": {"inference.region": "zoom"},
    "early_exit=smaller": {"inference.early_exit": "smaller"},
    "early_exit=selfie": {"inference.early_exit": "selfie"},
    "scales=[1, 1.5]": {"inference.scales": [1.0, 1.5]},
    "bidirectional": {"inference.bidirectional": True},
}


def make_film(folder: Path) -> Path:
    """Make the video, with a little noise, as from a camera."""
    path = folder / "film.mp4"
    random = np.random.default_rng(0)
    behind = cv2.resize(data.rocket(), (1920, 1080), interpolation=cv2.INTER_CUBIC).astype(np.int16)
    person = cv2.resize(data.astronaut()[:480, 60:420], (270, 360), interpolation=cv2.INTER_AREA)
    with av.open(str(path), "w") as film:
        stream = film.add_stream("libx264", rate=30, options={"preset": "ultrafast", "crf": "16"})
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        for index in range(FRAMES):
            picture = behind.copy()
            x = 400 + 3 * max(index - FRAMES // 3, 0)
            picture[560:920, x : x + 270] = person
            picture += random.integers(-2, 3, (1080, 1, 1), np.int16) + random.integers(
                -2, 3, (1, 1920, 1), np.int16
            )
            frame = av.VideoFrame.from_ndarray(np.clip(picture, 0, 255).astype(np.uint8), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 30)
            film.mux(stream.encode(frame))
        film.mux(stream.encode(None))
    return path


def run(
    film: Path, folder: Path, settings: dict[str, Any], *, kind: str = "mask"
) -> tuple[Any, np.ndarray, float]:
    """Return the median run's report, alpha of every fourth pixel each way, and its pipeline's seconds."""
    flags = {"gpu.device": "cuda", "output.preset": "ultrafast", "output.mask_max_width": 1024, **settings}
    with Segmenter(profile="balanced", settings=flags) as segmenter:
        alphas = np.stack([np.array(step.alpha[::4, ::4]) for step in segmenter.stream(film)])
        segmenter.write(film, [(kind, folder / "out.mp4")])
        runs = [segmenter.write(film, [(kind, folder / "out.mp4")]) for _ in range(RUNS)]
        report = sorted(runs, key=lambda run: run.pipeline.wall_seconds)[RUNS // 2]
        return report, alphas, report.pipeline.wall_seconds


def main() -> None:
    """Measure every lever, then the cache."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        film = make_film(folder)
        plain: tuple[Any, np.ndarray, float] | None = None
        for lever, settings in LEVERS.items():
            made = run(film, folder, settings)
            plain = plain or made
            report, alphas, seconds = made
            assert report.frame_count == FRAMES
            assert alphas.max() > 200
            apart = np.abs(alphas.astype(np.int16) - plain[1])
            rows.append(
                {
                    "claim": lever,
                    "frames": FRAMES,
                    "network_size": report.network_size,
                    "fps": round(FRAMES / report.pipeline.wall_seconds, 1),
                    "speed": round(plain[2] / seconds, 2),
                    "network_ms": round(report.gpu.span_seconds["network"] / FRAMES * 1e3, 3),
                    "network_speed": round(
                        plain[0].gpu.span_seconds["network"] / report.gpu.span_seconds["network"], 2
                    ),
                    "network_share": report.levers.network_share,
                    "reused": report.levers.reused_frames,
                    "early": report.levers.early_frames,
                    "cropped": report.levers.cropped_frames,
                    "mean": round(float(apart.mean()), 3),
                    "wrong_percent": round(float((apart >= WRONG).mean() * 100), 3),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
        # its own cache, but the existing engines and networks
        home, own = vitascope_home(), folder / "home"
        own.mkdir()
        for shared in ("models", "engines"):
            (home / shared).mkdir(parents=True, exist_ok=True)
            (own / shared).symlink_to(home / shared)
        os.environ[HOME_VARIABLE] = str(own)
        seconds = {}
        for lever, kind, caching in (("plain", "key", 0), ("first", "mask", 1), ("second", "key", 1)):
            began = time.perf_counter()
            flags = {
                "gpu.device": "cuda",
                "output.preset": "ultrafast",
                "processing.enable_caching": bool(caching),
            }
            with Segmenter(profile="balanced", settings=flags) as segmenter:
                report = segmenter.write(film, [(kind, folder / f"{lever}.mp4")])
            seconds[lever] = time.perf_counter() - began
        assert report.levers.cached_frames == FRAMES
        size = cache_contents().size_bytes
        rows.append(
            {
                "claim": "cache",
                "frames": FRAMES,
                "seconds": {lever: round(value, 2) for lever, value in seconds.items()},
                "speed": round(seconds["plain"] / seconds["second"], 2),
                "filling": round(seconds["first"] / seconds["plain"], 2),
                "kilobytes_a_frame": round(size / FRAMES / 1e3),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    target.parent.mkdir(exist_ok=True)
    write_rows(target, [{**row, **gpu_stamp()} for row in rows])


if __name__ == "__main__":
    main()
