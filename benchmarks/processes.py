"""Compare ``processing.use_multiprocessing`` with one process on the same video, and measure alpha at seams.

- ``speed``: the whole command in one process and in several, alternating, on the same video in the same run.
  Both write the same mask; their difference is checked first.
- ``cluster``: several processes of this machine, and as many of a Ray cluster of this machine alone,
  alternating, on the same video in the same run. Both write the same file, which is checked. CPU seconds are
  those of all processes, including Ray's: a busy machine disturbs them less.
- ``seams``: mean difference of RVM's alpha between a run that started a number of frames earlier and one that
  started with the video, all over the video: how many frames of overlap a seam needs.

Prediction: a process keeps all cores busy already (network, decoder and encoder have threads of their own),
    so on few cores processes gain only what the interpreter's lock and single-threaded stages lose, and pay
    for the overlap: ``fast`` gains a little, ``rvm`` loses. They help where one network's threads no longer
    scale: above 8 cores or so.

``cluster``: an order goes to a process through Ray in a millisecond or two, and a stretch takes seconds: some tenths of
a percent.

Usage: python benchmarks/processes.py CLIP.mp4 [--only speed|seams|cluster] [--rounds 3] [--profile fast] [--frames 600]
       [--overlaps 16 64 128 192]

Rows go to ``benchmarks/results/processes.json`` and ``seams.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np

from row_stamp import commit, write_rows
from vitascope.device import available_cores
from vitascope.frames import StereoLayout
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.segmentation.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results"
LARGEST_MEAN_DIFFERENCE = 4.0
OVERLAPS = (16, 64, 128, 192)
PLACES = 3


def repeated(clip: Path, target: Path, frames: int) -> Path:
    """Make a video of that many frames: the clip repeated forwards, packets copied."""
    with av.open(str(clip)) as source, av.open(str(target), "w") as made:
        video = source.streams.video[0]
        copy = made.add_stream_from_template(video)
        packets = [packet for packet in source.demux(video) if packet.size]
        first, last = (pick(packet.pts for packet in packets) for pick in (min, max))
        length = last - first + packets[0].duration
        for turn in range(-(-frames // len(packets))):
            for packet in packets:
                moved = av.Packet(bytes(packet))
                moved.pts, moved.dts = packet.pts + turn * length, packet.dts + turn * length
                moved.duration, moved.time_base = packet.duration, packet.time_base
                moved.is_keyframe, moved.stream = packet.is_keyframe, copy
                made.mux(moved)
    return target


def difference(one: Path, several: Path) -> float:
    """The largest mean difference of a frame, in codes of 255."""
    with av.open(str(one)) as ours, av.open(str(several)) as theirs:
        return max(
            float(np.abs(a.to_ndarray(format="gray").astype(int) - b.to_ndarray(format="gray")).mean())
            for a, b in zip(ours.decode(video=0), theirs.decode(video=0), strict=True)
        )


def speed(clip: Path, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Time one process and several, alternating."""
    film = repeated(clip, folder / "film.mp4", options.frames)
    seconds: dict[str, list[float]] = {"one": [], "several": []}
    reports = {}
    sides = {"one": {}, "several": {"processing.use_multiprocessing": True}}
    crews = {
        name: Segmenter(profile=options.profile, settings={"gpu.device": "cpu", **settings})
        for name, settings in sides.items()
    }
    for _ in range(options.rounds):
        for name, segmenter in crews.items():
            started = time.perf_counter()
            reports[name] = segmenter.write(film, [("mask", folder / f"{name}.mp4")])
            seconds[name].append(time.perf_counter() - started)
    for segmenter in crews.values():
        segmenter.close()
    apart = difference(folder / "one.mp4", folder / "several.mp4")
    if apart > LARGEST_MEAN_DIFFERENCE:
        raise SystemExit(f"the masks differ by {apart:.2f} of 255")
    one, several = reports["one"], reports["several"]
    return [
        {
            "claim": f"several processes against one, profile {options.profile}",
            "clip": clip.name,
            "frames": one.frame_count,
            "frames_worked_on": several.pipeline.stages[0].items,
            "one_fps": round(one.frame_count / median(seconds["one"]), 2),
            "several_fps": round(one.frame_count / median(seconds["several"]), 2),
            "ratio": round(median(a / b for a, b in zip(*seconds.values(), strict=True)), 3),
            "rounds": options.rounds,
            "device": several.device,
            "one_cores_busy": round(one.pipeline.cores_busy, 2),
            "several_cores_busy": round(several.pipeline.cores_busy, 2),
            "peak_memory_mb": [round((r.peak_memory_bytes or 0) / 1e6) for r in (one, several)],
            "worst_mean_difference": round(apart, 3),
        }
    ]


def cpu_seconds() -> float:
    """CPU time of this process and all that it started, ended ones included; from Linux's ``/proc``."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            words = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], ticks[pid] = int(words[1]), sum(map(int, words[11:15]))
    tree = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    return sum(ticks.get(pid, 0) for pid in tree) / os.sysconf("SC_CLK_TCK")


def cluster(clip: Path, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Time processes of this machine without Ray and with it, alternating."""
    import ray

    film = repeated(clip, folder / "film.mp4", options.frames)
    common = {"gpu.device": "cpu", "processing.num_threads": 1}
    sides = {
        "processes": {"processing.use_multiprocessing": True},
        "cluster": {"processing.cluster": "auto"},
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    used: dict[str, list[float]] = {name: [] for name in sides}
    reports = {}
    ray.init(num_cpus=max(available_cores(), 2), include_dashboard=False, log_to_driver=False)
    try:
        with ExitStack() as stack:
            crews = {
                name: stack.enter_context(Segmenter(profile=options.profile, settings=common | own))
                for name, own in sides.items()
            }
            for _ in range(options.rounds):
                for name, segmenter in crews.items():
                    before, started = cpu_seconds(), time.perf_counter()
                    reports[name] = segmenter.write(film, [("mask", folder / f"{name}.mp4")])
                    seconds[name].append(time.perf_counter() - started)
                    used[name].append(cpu_seconds() - before)
    finally:
        ray.shutdown()
    if (folder / "processes.mp4").read_bytes() != (folder / "cluster.mp4").read_bytes():
        raise SystemExit("the masks differ")
    ratio = median(b / a for a, b in zip(*seconds.values(), strict=True))
    return [
        {
            "claim": f"--cluster on one node against the same processes without it, profile {options.profile}",
            "clip": clip.name,
            "frames": reports["cluster"].frame_count,
            "processes_seconds": [round(value, 2) for value in seconds["processes"]],
            "cluster_seconds": [round(value, 2) for value in seconds["cluster"]],
            "overhead_percent": round(100 * (ratio - 1), 2),
            "processes_cpu_seconds": [round(value, 2) for value in used["processes"]],
            "cluster_cpu_seconds": [round(value, 2) for value in used["cluster"]],
            "cpu_overhead_percent": round(
                100 * (median(b / a for a, b in zip(*used.values(), strict=True)) - 1), 2
            ),
            "devices": [report.device for report in reports.values()],
            "rounds": options.rounds,
        }
    ]


def seams(clip: Path, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Compare alpha at three places, after some frames of overlap, with alpha from the video's start."""
    del folder
    with Segmenter(settings={"model.name": "rvm", "gpu.device": "cpu"}) as segmenter:
        with open_video(clip) as reader:
            frames = list(islice(reader, options.frames))

        def stream() -> StreamMatting:
            size = (frames[0].height, frames[0].width)
            network = segmenter.chosen.network
            return StreamMatting(
                network, size=size, layout=StereoLayout.MONO, options=MattingOptions(), waits=False
            )

        def alphas(numbers: range, wanted: list[int]) -> dict[int, np.ndarray]:
            matting = stream()
            found = {}
            for n in numbers:
                (estimate,) = matting.infer([matting.find_cuts(matting.prepare([frames[n]]))])
                if n in wanted:
                    found[n] = matting.refine(estimate).alpha.astype(np.int16)
            return found

        first = max(options.overlaps)
        places = [first + (len(frames) - 1 - first) * n // (PLACES - 1) for n in range(PLACES)]
        whole = alphas(range(len(frames)), places)
        rows = []
        for overlap in options.overlaps:
            apart = [
                float(np.abs(alphas(range(place - overlap, place + 1), [place])[place] - whole[place]).mean())
                for place in places
            ]
            rows.append(
                {
                    "claim": f"alpha at a seam after {overlap} frames of overlap, rvm",
                    "clip": clip.name,
                    "overlap_frames": overlap,
                    "places": places,
                    "mean_difference_of_255": [round(value, 3) for value in apart],
                    "worst": round(max(apart), 3),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print, and add the rows to those of other clips."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clip", type=Path)
    parser.add_argument("--only", choices=("speed", "seams", "cluster"), default="speed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", default="fast")
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--overlaps", type=int, nargs="+", default=OVERLAPS)
    options = parser.parse_args()
    stamp = {
        "machine": f"{platform.machine()}, {available_cores()} cores",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    with tempfile.TemporaryDirectory() as folder:
        made = {"speed": speed, "seams": seams, "cluster": cluster}[options.only](
            options.clip, options, Path(folder)
        )
    path = RESULTS / ("seams.json" if options.only == "seams" else "processes.json")
    key = "claim", "clip", "machine"
    rows = {tuple(row[k] for k in key): row for row in json.loads(path.read_text())} if path.exists() else {}
    for row in made:
        row |= stamp
        rows[tuple(row[k] for k in key)] = row
        print(json.dumps(row))
    write_rows(path, list(rows.values()))


if __name__ == "__main__":
    main()
