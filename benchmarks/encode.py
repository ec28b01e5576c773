"""x264 alone: how fast several encoders write a video, how many cores they keep busy, what presets cost in quality.

The named videos are scaled, and played forwards and backwards through their first frames until ``--frames``
are written; frames are in memory, like those downloaded from a GPU, so only the encoders work. For each size,
preset, CRF and number of encoders: frames/s, busy cores (CPU seconds per wall second), cores that a virtual
machine's host withheld, milliseconds of CPU time per frame, kilobytes per frame, and SSIM of luma (Gaussian
window of 1.5, Wang et al. 2004) of every eighth frame against the input. Each file is decoded and its frames
counted.

``serial_share`` is of one encoder: the part of its work that the busiest thread does, which bounds the busy cores.

Film of a person on key colour: ``vitascope segment FILM.mp4 -o key.mp4 --crf 4 --preset superfast``.

Without a video, uses the stereo example. How many cores 4K keeps busy, by default and with one encoder:
``python benchmarks/encode.py --sizes 4K --presets veryfast --encoders 1,auto --keep``.

Usage: python benchmarks/encode.py [KEY.mp4 FILM.mp4 …] [--sizes 1080p,4K,8K] [--presets veryfast,…] [--crfs 20]
       [--encoders 1,4,8,auto] [--frames 480] [--rounds 2] [--quick] [--keep]

``--quick`` writes 48 frames of 1080p once. ``--keep`` merges the rows into the results; leave it out on a machine that
does other things, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from host_cores import core_shares
from row_stamp import commit, write_rows
from vitascope.device import available_cores
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, VideoInfo
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter

RESULTS = Path(__file__).parent / "results" / "encode.json"
EXAMPLE = Path(__file__).parents[1] / "examples" / "astronaut_sbs.mp4"
SIZES = {"1080p": (1920, 1080), "4K": (3840, 2160), "8K": (7680, 4320)}
FORMAT = PIXEL_FORMATS["yuv420p"]
COLOR = ColorSpec(matrix="bt709", matrix_code=1, primaries=1, transfer=1)
TICK = Fraction(1, 25)
MOST_BYTES = 1 << 30
"""Maximum bytes of pictures in memory; encoders of 8K need the rest."""
COMPARED = 8


def pictures(film: Path, size: tuple[int, int], count: int) -> list[np.ndarray]:
    """Read a video's first frames, scaled, each as one array of I420, read-only like those from a GPU."""
    width, height = size
    most = min(count, MOST_BYTES // (width * height * 3 // 2))
    found = []
    with av.open(str(film)) as container:
        for frame in itertools.islice(container.decode(video=0), most):
            scaled = frame.reformat(width=width, height=height, format="yuv420p", interpolation="BICUBIC")
            array = np.ascontiguousarray(scaled.to_ndarray())
            array.flags.writeable = False
            found.append(array)
    return found


def frame_of(picture: np.ndarray, number: int, size: tuple[int, int]) -> Frame:
    """Make a frame from a picture, without a copy."""
    width, height = size
    flat = picture.reshape(-1)
    luma, blue, red = np.split(flat, [width * height, width * height * 5 // 4])
    planes = (
        luma.reshape(height, width),
        blue.reshape(height // 2, width // 2),
        red.reshape(height // 2, width // 2),
    )
    return Frame(planes, FORMAT, COLOR, number, number, TICK)


def written(
    path: Path, source: list[np.ndarray], size: tuple[int, int], count: int, **wishes: Any
) -> dict[str, Any]:
    """Write a video, and measure it."""
    info = VideoInfo(
        path=path,
        width=size[0],
        height=size[1],
        format=FORMAT,
        source_format=FORMAT.name,
        color=COLOR,
        time_base=TICK,
        average_frame_rate=1 / TICK,
        frame_count_estimate=count,
    )
    encoding = choose_encoding(path, source_format=FORMAT, size=size, **wishes)
    order = forth_and_back(len(source), count)
    began, used = time.perf_counter(), processor_seconds()
    with (
        core_shares() as shares,
        VideoWriter(path, info=info, encoding=encoding, spherical=None, hdr=None) as writer,
    ):
        before = thread_seconds()
        for number, place in enumerate(order):
            writer.write(frame_of(source[place], number, size))
        threads = {thread: seconds - before.get(thread, 0) for thread, seconds in thread_seconds().items()}
    wall, used = time.perf_counter() - began, processor_seconds() - used
    row = {
        "encoders": encoding.parallel_encoders,
        "fps": round(count / wall, 1),
        "cores_busy": round(used / wall, 2),
        **shares,
        "cpu_ms": round(1000 * used / count, 1),
        "kilobytes_a_frame": round(path.stat().st_size / count / 1e3, 1),
    }
    if encoding.parallel_encoders == 1 and threads:
        row["serial_share"] = round(max(threads.values()) / max(sum(threads.values()), 1e-9), 2)
    return row


def forth_and_back(there: int, count: int) -> list[int]:
    """Yield indices of consecutive pictures without a jump."""
    cycle = [*range(there), *range(there - 2, 0, -1)] or [0]
    return list(itertools.islice(itertools.cycle(cycle), count))


def processor_seconds() -> float:
    """CPU time of this process, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def thread_seconds() -> dict[int, float]:
    """CPU time of each thread of this process; empty where the system does not tell."""
    seconds = {}
    tick = os.sysconf("SC_CLK_TCK")
    for task in Path("/proc/self/task").glob("*/stat"):
        fields = task.read_text().rpartition(")")[2].split()
        seconds[int(task.parent.name)] = (int(fields[11]) + int(fields[12])) / tick
    return seconds


def quality(path: Path, source: list[np.ndarray], size: tuple[int, int], count: int) -> float:
    """Mean SSIM of luma.

    Raises:
        SystemExit: Pictures are missing.
    """
    found, number = [], 0
    with open_video(path) as reader:
        for number, (frame, place) in enumerate(
            zip(reader, forth_and_back(len(source), count), strict=True), 1
        ):
            if number % COMPARED == 1:
                found.append(ssim(frame.planes[0], source[place][: size[1]]))
    if number != count:
        raise SystemExit(f"{path} has {number} of {count} pictures")
    return round(float(np.mean(found)), 4)


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Structural similarity of two 8-bit planes (Wang et al., 2004)."""

    def smooth(plane: np.ndarray) -> np.ndarray:
        return cv2.GaussianBlur(plane, (11, 11), 1.5)

    x, y = a.astype(np.float32), b.astype(np.float32)
    mean_x, mean_y = smooth(x), smooth(y)
    var_x, var_y = smooth(x * x) - mean_x**2, smooth(y * y) - mean_y**2
    both = smooth(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    top = (2 * mean_x * mean_y + c1) * (2 * both + c2)
    return float((top / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))).mean())


def main() -> None:
    """Measure the requested variants; keep the best of all rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("films", type=Path, nargs="*", default=[EXAMPLE])
    parser.add_argument("--sizes", default="1080p,4K,8K")
    parser.add_argument("--presets", default="ultrafast,superfast,veryfast")
    parser.add_argument("--crfs", default="20")
    cores = available_cores()
    usual = ",".join(map(str, dict.fromkeys((1, max(cores // 4, 1), max(cores // 2, 1)))))
    parser.add_argument("--encoders", default=f"{usual},auto")
    parser.add_argument("--frames", type=int, default=480)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="48 frames of 1080p, once")
    parser.add_argument("--keep", action="store_true", help="merge the rows into the results")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.frames, options.rounds = "1080p", 48, 1
    rows = []
    stamp = {
        "cores": cores,
        "pyav": av.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    encoders = dict.fromkeys(one if one == "auto" else int(one) for one in options.encoders.split(","))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.mp4"
        for film, name in itertools.product(options.films, options.sizes.split(",")):
            source = pictures(film, SIZES[name], options.frames)
            for preset, crf in itertools.product(
                options.presets.split(","), map(int, options.crfs.split(","))
            ):
                best: dict[int | str, dict[str, Any]] = {}
                for _, count in itertools.product(range(options.rounds), encoders):
                    wishes = {"preset": preset, "crf": crf, "parallel_encoders": count}
                    row = written(path, source, SIZES[name], options.frames, **wishes)
                    same = best.get(count)
                    # Encoders take chunks in turn: a file is the same every time.
                    row["ssim"] = same["ssim"] if same else quality(path, source, SIZES[name], options.frames)
                    best[count] = max(same or row, row, key=lambda one: one["fps"])
                for count, row in best.items():
                    claim = f"x264 {preset}, CRF {crf}, {name}, {count} encoders"
                    rows.append({"claim": claim, "clip": film.stem, "frames": options.frames, **row, **stamp})
                    print(json.dumps(rows[-1]), flush=True)
    if not options.keep:
        return
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    new = {(row["claim"], row["clip"]) for row in rows}
    merged = [row for row in kept if (row["claim"], row["clip"]) not in new]
    write_rows(RESULTS, [*merged, *rows])


if __name__ == "__main__":
    main()
