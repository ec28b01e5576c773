"""Peak memory of many jobs in a row, against that of one alone.

A process's peak is the operating system's figure (``ru_maxrss``). How many frames the threads hold at once differs from
run to run, so the highest of many peaks is compared with the highest of as many: the jobs in one process,
against the same jobs in one process each (at most 10). Videos are cut from CLIP and scaled: their size
matters, their content hardly.

- ``batch``: ``vitascope segment`` on a folder of 20 videos of 12 frames, against its largest video alone.
- ``large``: the same with 8 videos of 9 frames of 5760x2880.
- ``loop``: one ``Segmenter`` that writes a video 50 times, against once.
- ``animate``: ``vitascope.animate`` 10 times, against once.
- ``bench``: ``vitascope bench run --quick``, against its largest size alone.
- ``optimize``: 15 trials of the same settings as ``vitascope optimize`` makes them, against one.
- ``gpu``: the loop on a GPU, 200 times; the memory is the GPU's, in use by any process. Runs only by name, as
  do
- ``gpu-animate`` and ``gpu-optimize``: 30 and 15 of them on a GPU; what is in use after the last, against the first.

Prediction: a finished job leaves its network alone, so every ratio is 1 but for a few per cent of free memory.

Usage: python benchmarks/memory_over_jobs.py CLIP.mp4 [--only NAME] [--profile fast]

Rows go to ``benchmarks/results/memory_over_jobs.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

import av

from row_stamp import commit, write_rows
from vitascope.device import available_cores

RESULTS = Path(__file__).parent / "results" / "memory_over_jobs.json"
EXAMPLES = Path(__file__).parents[1] / "examples"
MOST_ALONE = 10
COMMAND = [sys.executable, "-m", "vitascope"]
LOOP = """
import sys, vitascope
with vitascope.Segmenter(profile=sys.argv[3]) as segmenter:
    for _ in range(int(sys.argv[4])):
        segmenter.write(sys.argv[1], [("key", __import__("pathlib").Path(sys.argv[2]))])
"""
GPU_LOOP = """
import sys, vitascope
with vitascope.Segmenter(profile=sys.argv[3], settings={"gpu.device": "cuda"}) as segmenter:
    reports = [segmenter.write(sys.argv[1], [("key", sys.argv[2])]) for _ in range(int(sys.argv[4]))]
print(max(report.gpu.peak_memory_bytes for report in reports) / 2**20)
"""
ANIMATE = """
import sys, vitascope
for _ in range(int(sys.argv[4])):
    vitascope.animate(sys.argv[1], sys.argv[2], sys.argv[3])
"""
OPTIMIZE = """
import sys
from pathlib import Path
from vitascope.config import SettingsSource
from vitascope.tune.optimizer import ClipTrials
trials = ClipTrials(SettingsSource(profile=sys.argv[2]), Path(sys.argv[1]), seconds=1.0)
for _ in range(int(sys.argv[3])):
    assert trials.measure({}).failure is None
"""

GPU_USED = """
def used_mb():
    import cupy
    free, total = cupy.cuda.runtime.memGetInfo()
    return (total - free) / 2**20
"""
GPU_ANIMATE = (
    GPU_USED
    + """
import sys, vitascope
used = []
for _ in range(int(sys.argv[4])):
    vitascope.animate(sys.argv[1], sys.argv[2], sys.argv[3], settings={"gpu.device": "cuda"})
    used.append(used_mb())
print(used[0], used[-1])
"""
)
GPU_OPTIMIZE = (
    GPU_USED
    + """
import sys
from pathlib import Path
from vitascope.config import SettingsSource
from vitascope.tune.optimizer import ClipTrials
source = SettingsSource(profile=sys.argv[2], flags={"gpu.device": "cuda"})
trials = ClipTrials(source, Path(sys.argv[1]), seconds=1.0)
used = []
for _ in range(int(sys.argv[3])):
    assert trials.measure({}).failure is None
    used.append(used_mb())
print(used[0], used[-1])
"""
)


def scaled(clip: Path, target: Path, *, width: int, height: int, frames: int) -> Path:
    """The first frames of a clip, at another size."""
    with av.open(str(clip)) as source, av.open(str(target), "w") as made:
        stream = made.add_stream("h264", rate=24, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number, frame in enumerate(source.decode(video=0)):
            if number == frames:
                break
            picture = frame.reformat(width, height, "yuv420p")
            picture.pts, picture.time_base = number, Fraction(1, 24)
            made.mux(stream.encode(picture))
        made.mux(stream.encode())
    return target


def peak_mb(*command: str | Path) -> float:
    """The peak resident size of a process that must end well."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {status}: {said.decode()[-1000:]}")
    return used.ru_maxrss / 1024


def folder_of(clip: Path, folder: Path, *, films: int, width: int, height: int, frames: int) -> Path:
    """Make copies of one video of that size in a folder."""
    folder.mkdir()
    first = scaled(clip, folder / "00.mp4", width=width, height=height, frames=frames)
    for number in range(1, films):
        (folder / f"{number:02}.mp4").write_bytes(first.read_bytes())
    return folder


def segment(what: Path, out: Path, profile: str) -> float:
    """Measure the command's peak on a video or a folder."""
    return peak_mb(*COMMAND, "segment", what, "--out", out, "--profile", profile, "--device", "cpu")


def batch(
    clip: Path, folder: Path, profile: str, *, films: int, size: tuple[int, int, int]
) -> dict[str, Any]:
    """Compare a folder of videos with one of them."""
    width, height, frames = size
    source = folder_of(clip, folder / "films", films=films, width=width, height=height, frames=frames)
    alone = min(films, MOST_ALONE)
    one = [segment(source / "00.mp4", folder / f"{n}.mp4", profile) for n in range(alone)]
    many = segment(source, folder / "cut", profile)
    return {"jobs": films, "film": f"{width}x{height}, {frames} frames", **compared(one, many)}


def loop(clip: Path, folder: Path, profile: str) -> dict[str, Any]:
    """One segmenter in a loop."""
    film = scaled(clip, folder / "film.mp4", width=1920, height=1080, frames=12)
    written = sys.executable, "-c", LOOP, film, folder / "out.mp4", profile
    one = [peak_mb(*written, "1") for _ in range(MOST_ALONE)]
    return {"jobs": 50, "film": "1920x1080, 12 frames", **compared(one, peak_mb(*written, "50"))}


def gpu(clip: Path, folder: Path, profile: str) -> dict[str, Any]:
    """One segmenter in a loop on a GPU."""
    film = scaled(clip, folder / "film.mp4", width=1920, height=1080, frames=48)

    def peak(jobs: int) -> float:
        written = sys.executable, "-c", GPU_LOOP, film, folder / "out.mp4", profile, str(jobs)
        return float(subprocess.run(written, check=True, stdout=subprocess.PIPE, text=True).stdout)

    return {"jobs": 200, "film": "1920x1080, 48 frames", **compared([peak(1) for _ in range(3)], peak(200))}


def gpu_animate(clip: Path, folder: Path, profile: str) -> dict[str, Any]:
    """The astronaut on a GPU, again and again."""
    del clip, profile
    jobs = 30
    example = EXAMPLES / "astronaut.jpg", EXAMPLES / "talk.motion", folder / "a.mp4"
    return {"jobs": jobs, "film": "512x512, the example", **first_and_last(GPU_ANIMATE, *example, jobs)}


def gpu_optimize(clip: Path, folder: Path, profile: str) -> dict[str, Any]:
    """Trials in a row on a GPU."""
    jobs, film = 15, scaled(clip, folder / "film.mp4", width=1280, height=720, frames=48)
    return {"jobs": jobs, "film": "1280x720, 48 frames", **first_and_last(GPU_OPTIMIZE, film, profile, jobs)}


def first_and_last(program: str, *arguments: Any) -> dict[str, Any]:
    """What is in use of the GPU after the first and the last of some jobs, as a program prints it."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    first, last = map(float, printed.split()[-2:])
    return compared([first], last)


def animate(clip: Path, folder: Path, profile: str) -> dict[str, Any]:
    """The astronaut, again and again."""
    del clip, profile
    made = (
        sys.executable,
        "-c",
        ANIMATE,
        EXAMPLES / "astronaut.jpg",
        EXAMPLES / "talk.motion",
        folder / "a.mp4",
    )
    one = [peak_mb(*made, "1") for _ in range(MOST_ALONE)]
    return {"jobs": 10, "film": "512x512, the example", **compared(one, peak_mb(*made, "10"))}


def bench(clip: Path, folder: Path, profile: str) -> dict[str, Any]:
    """The quick suite against its largest size alone."""
    film = scaled(clip, folder / "film.mp4", width=1920, height=1080, frames=48)
    suite = [*COMMAND, "bench", "run", "--quick", "--profile", profile, "--output-dir"]
    one = [peak_mb(*suite, folder / f"one {n}", "--input", film) for n in range(2)]
    return {"jobs": 4, "film": "1920x1080, 48 frames", **compared(one, peak_mb(*suite, folder / "many"))}


def optimize(clip: Path, folder: Path, profile: str) -> dict[str, Any]:
    """Trials in a row against one: of the same settings, since others need other memory."""
    film = scaled(clip, folder / "film.mp4", width=1280, height=720, frames=48)
    trials = sys.executable, "-c", OPTIMIZE, film, profile
    one = [peak_mb(*trials, "1") for _ in range(5)]
    return {"jobs": 15, "film": "1280x720, 48 frames", **compared(one, peak_mb(*trials, "15"))}


def compared(one: list[float], many: float) -> dict[str, Any]:
    """The figures of a row."""
    return {
        "alone_mb": round(max(one)),
        "alone_mb_median": round(median(one)),
        "in_a_row_mb": round(many),
        "ratio": round(many / max(one), 3),
    }


MEASURED = {
    "batch": lambda *where: batch(*where, films=20, size=(1920, 1080, 12)),
    "large": lambda *where: batch(*where, films=8, size=(5760, 2880, 9)),
    "loop": loop,
    "animate": animate,
    "bench": bench,
    "optimize": optimize,
    "gpu": gpu,
    "gpu-animate": gpu_animate,
    "gpu-optimize": gpu_optimize,
}


def main() -> None:
    """Measure the requested claims."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clip", type=Path)
    parser.add_argument("--only", choices=list(MEASURED))
    parser.add_argument("--profile", default="fast")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for name in [options.only] if options.only else [name for name in MEASURED if not name.startswith("gpu")]:
        with tempfile.TemporaryDirectory() as folder:
            figures = MEASURED[name](options.clip, Path(folder), options.profile)
        row = {
            "claim": name,
            "profile": options.profile,
            **figures,
            "cores": available_cores(),
            "machine": platform.machine(),
            "commit": commit(),
            "date": time.strftime("%Y-%m-%d"),
        }
        print(row)
        same = ("claim", "profile", "cores")
        kept = [old for old in kept if any(old[key] != row[key] for key in same)] + [row]
        write_rows(RESULTS, kept)


if __name__ == "__main__":
    main()
