"""Measure one video, and a queue of videos, on several GPUs with ``--gpu-ids``, against one GPU.

Videos are those of ``segment_cuda.py``. Before any timing, a video's mask from several GPUs is compared with
that from one GPU, frame by frame, and the frame count of every written file is checked.

Prediction: with N GPUs the rate is N times that of one, less the warm-up (192 frames of each process but the first) and
what joining costs (reading packets from a pipe and muxing them: one thread, some 10 us a frame). All share
the CPU's encoder: key-colour video gains only while cores are idle. Videos of a queue are processed whole,
each on one GPU, without warm-up or joining: N times, less the wait for the last video.

Two more claims show a host's maximum: one command per GPU, each with a video or a queue of videos and its own
GPU, which share only the host. If these are not N times as fast as one alone, no way of sharing is. A virtual
machine's cores change from minute to minute, so variants alternate in rounds, and ratios are those of one
round. Each row tells how many cores were busy, and how many with work the host withheld.

With several GPUs a row also says when ``cluster_scale.py``, given what each piece of that run took, says that it ends.

Usage: python benchmarks/several_gpus_cuda.py [--only 4K] [--share 0.5] [--rounds 2] [--claims files] [--out ROWS.json]

Rows of other claims in the file stay.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import av
import cupy
import numpy as np

from cluster_scale import WARM_UP_FRAMES, fitted, on_gpus, predicted_seconds, timed_pieces
from host_cores import core_shares
from row_stamp import RESULTS, gpu_stamp, write_rows
from segment_cuda import RATE, SIZES, count_frames, make_film
from vitascope.device import available_cores
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.segmentation.batch import plan_batch, segment_all
from vitascope.segmentation.processes.local import LocalProcesses
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.segmenter import Segmenter

FRAMES = {"1080p": 48_000, "4K": 48_000, "8K": 9600}
OWN_FRAMES = {"1080p": 6000, "4K": 6000, "8K": 1200}
WARM_FRAMES = 600  # for each GPU: a shorter video is not shared, and leaves networks cold
MOST_WARMINGS = 10
LARGEST_MEAN_DIFFERENCE = 2.0
QUEUE = 16
"""Number of videos in a queue."""
QUEUE_SECONDS = 30
MASK = {"output.preset": "ultrafast", "output.mask_max_width": 2048}
SETTINGS = {"model.name": "rvm", "model.input_size": 512, **MASK}


def run(film: Path, warm: Path, out: Path, ids: str) -> dict[str, Any]:
    """Time one video on some GPUs, with warm networks."""
    with Segmenter(settings=SETTINGS | {"gpu.device_ids": ids}) as segmenter:
        # The first process may have cut all of it before the others had started.
        for _ in range(MOST_WARMINGS):
            warm_processes = processes_of(segmenter.write(warm, [("mask", out)]).device)
            if warm_processes == len(ids.split(",")):
                break
        with timed_pieces(LocalProcesses) as pieces, core_shares() as shares:
            report = segmenter.write(film, [("mask", out)])
    written, expected = count_frames(out), count_frames(film)
    if not written == expected == report.frame_count:
        raise SystemExit(f"{film}: {expected} frames in, {written} out")
    processes = processes_of(report.device)
    if warm_processes < processes:
        raise SystemExit(f"{warm}: {warm_processes} processes were warmed, {processes} worked on {film}")
    return {
        "processes": processes,
        "fps": round(report.frames_per_second, 1),
        "wall_seconds": round(report.wall_seconds, 2),
        "frames": written,
        "frames_decoded": report.pipeline.stages[0].items,
        "device": report.device,
        "decoder": report.decoder,
        "cores_busy": round(report.pipeline.cores_busy, 1),
        **shares,
        "stage_load": {stage.name: round(stage.load, 3) for stage in report.pipeline.stages},
        **stage_costs([report.pipeline]),
        **on_paper(pieces, [written], processes, report.wall_seconds),
    }


def stage_costs(pipelines: Sequence[PipelineReport]) -> dict[str, Any]:
    """What each stage took of a frame, in milliseconds: of the clock, and of a core."""
    stages = list(zip(*(pipeline.stages for pipeline in pipelines), strict=True))
    items = {column[0].name: sum(stage.items for stage in column) for column in stages}
    return {
        f"stage_{kind}_ms": {
            column[0].name: round(
                1000
                * sum(getattr(stage, f"{kind}_seconds") for stage in column)
                / max(items[column[0].name], 1),
                3,
            )
            for column in stages
        }
        for kind in ("busy", "cpu")
    }


def on_paper(
    pieces: Sequence[tuple[int, float]], films: Sequence[int], gpus: int, wall_seconds: float
) -> dict[str, Any]:
    """When the simulation says that a run of such pieces ends; nothing where one process made it all."""
    if gpus == 1 or not pieces:
        return {}
    here = json.loads((RESULTS / "cluster_scale.json").read_text())[0]["costs"]
    costs = fitted(pieces, {name: here[name] for name in ("film", "begin", "join")})
    predicted = predicted_seconds(films, gpus, costs, stretches_of=on_gpus, warm_up=WARM_UP_FRAMES)
    return {
        "pieces": len(pieces),
        "seconds_a_piece": round(sum(seconds for _, seconds in pieces) / len(pieces), 3),
        "frames_a_second_of_a_process": round(
            sum(count for count, _ in pieces) / sum(seconds for _, seconds in pieces), 1
        ),
        "predicted_seconds": round(predicted, 2),
        "predicted_over_measured": round(predicted / wall_seconds, 3),
    }


def run_queue(film: Path, folder: Path, ids: str) -> dict[str, Any]:
    """Time a queue of copies of a video on some GPUs, with warm networks."""
    settings = SETTINGS | {"gpu.device_ids": ids, "output.kinds": ["mask"]}
    videos = [folder / f"queued {number:02}.mp4" for number in range(QUEUE)]
    for video in videos:
        video.unlink(missing_ok=True)
        video.hardlink_to(film)
    with Segmenter(settings=settings) as segmenter:
        for queue in (videos[: QUEUE // 4], videos):  # the first one warms
            reports = []
            began = time.perf_counter()
            planned = plan_batch(queue, folder / "cut", segmenter.settings)
            with timed_pieces(LocalProcesses) as pieces, core_shares() as shares:
                for outcome in segment_all(segmenter, planned):
                    if outcome.error is not None or outcome.report is None:
                        raise SystemExit(f"{outcome.planned.video}: {outcome.error}")
                    reports.append(outcome.report)
            wall = time.perf_counter() - began
    frames = sum(count_frames(output) for plan in planned for _, output in plan.outputs)
    if frames != QUEUE * count_frames(film):
        raise SystemExit(f"{frames} frames of {QUEUE} films of {count_frames(film)}")
    return {
        "fps": round(frames / wall, 1),
        "wall_seconds": round(wall, 2),
        "frames": frames,
        **shares,
        **film_costs(reports),
        **on_paper(pieces, [count_frames(film)] * QUEUE, len(ids.split(",")), wall),
    }


def film_costs(reports: Sequence[SegmentReport]) -> dict[str, Any]:
    """Times of a video: in all, in its pipeline, and per frame in each stage."""
    pipelines = [report.pipeline for report in reports]
    return {
        "seconds_a_film": round(sum(report.wall_seconds for report in reports) / len(reports), 3),
        "seconds_in_a_pipeline": round(sum(map(ran_seconds, pipelines)) / len(reports), 3),
        **stage_costs(pipelines),
    }


def ran_seconds(pipeline: PipelineReport) -> float:
    """How long the threads of a film's pipelines ran: the rest of its time, files, decoders and encoders are opened."""
    busiest = max(pipeline.stages, key=lambda stage: stage.load)
    return busiest.busy_seconds / (busiest.load * busiest.workers)


def alone_on_a_gpu(films: Sequence[Path], warm: Path, out: Path, gpu: int, ready: Any, answers: Any) -> None:
    """Run one of several commands: its own videos on its own GPU, once all are ready."""
    with Segmenter(settings=SETTINGS | {"gpu.device": "cuda", "gpu.device_id": gpu}) as segmenter:
        segmenter.write(warm, [("mask", out)])
        ready.wait(timeout=300)
        began = time.perf_counter()
        reports = [segmenter.write(film, [("mask", out)]) for film in films]
        wall = time.perf_counter() - began
    answers.put((wall, reports))


def run_commands(film: Path, warm: Path, folder: Path, gpus: int, count: int = 1) -> dict[str, Any]:
    """Several commands at once, which share nothing but the host: each makes so many copies of a video."""
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(gpus + 1), context.Queue()
    commands = []
    for gpu in range(gpus):
        own = [folder / f"own {gpu} {number}.mp4" for number in range(count)]
        for copy in own:
            copy.unlink(missing_ok=True)
            copy.hardlink_to(film)
        arguments = own, warm, folder / f"cut {gpu}.mp4", gpu, ready, answers
        commands.append(context.Process(target=alone_on_a_gpu, args=arguments, daemon=True))
    for command in commands:
        command.start()
    ready.wait(timeout=300)
    with core_shares() as shares:
        made = [answers.get(timeout=300) for _ in commands]
    for command in commands:
        command.join()
    all_reports = [report for _, reports in made for report in reports]
    each = [sum(report.frame_count for report in reports) / wall for wall, reports in made]
    return {
        "fps": round(sum(each), 1),
        "fps_of_each": [round(fps, 1) for fps in each],
        "frames": sum(report.frame_count for report in all_reports),
        "wall_seconds": round(max(wall for wall, _ in made), 2),
        **shares,
        **film_costs(all_reports),
    }


def processes_of(device: str) -> int:
    """Read how many worked on a video from a report: ``..., 2 of 4 processes at work``."""
    said = re.search(r"(\d+) of \d+ processes", device)
    return 1 if said is None else int(said[1])


def compare(one: Path, several: Path) -> float:
    """The largest difference of a frame of two masks: mean of its samples, in codes of 255."""
    worst = 0.0
    with av.open(str(one)) as ours, av.open(str(several)) as theirs:
        for a, b in zip(ours.decode(video=0), theirs.decode(video=0), strict=True):
            apart = a.to_ndarray(format="gray").astype(int) - b.to_ndarray(format="gray")
            worst = max(worst, float(np.abs(apart).mean()))
    return worst


def ids_of(gpus: int, processes: int = 1) -> str:
    """What ``--gpu-ids`` is told for so many GPUs with so many processes each."""
    return ",".join(str(number) for number in range(gpus) for _ in range(processes))


def ways_of(folder: Path, name: str, share: float, gpus: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured on so many GPUs, by claim. Videos are made when they are needed first."""

    def film(kind: str, frames: int) -> Path:
        return make_film(folder, f"{name} {kind}", SIZES[name], frames)

    def one_film() -> dict[str, Any]:
        shared, warm = film("shared", round(FRAMES[name] * share)), film(f"warm {gpus}", WARM_FRAMES * gpus)
        return run(shared, warm, folder / "shared.mp4", ids_of(gpus))

    def queue(processes: int) -> dict[str, Any]:
        return run_queue(film("queued", QUEUE_SECONDS * RATE), folder, ids_of(gpus, processes))

    def commands(kind: str, frames: int, count: int) -> dict[str, Any]:
        return run_commands(film(kind, frames), film("warm 1", WARM_FRAMES), folder, gpus, count)

    queued = f"files of {QUEUE_SECONDS} s"
    return {
        f"file to mask {name}": one_film,
        f"{QUEUE} {queued} to masks {name}": partial(queue, 1),
        f"{QUEUE} {queued} to masks {name}, two processes on each GPU": partial(queue, 2),
        f"a file and a GPU of its own for each command, {name}": partial(
            commands, "own", OWN_FRAMES[name], 1
        ),
        f"{QUEUE // 2} {queued} and a GPU of its own for each command, {name}": partial(
            commands, "queued", QUEUE_SECONDS * RATE, QUEUE // 2
        ),
    }


def rows(
    folder: Path, names: list[str], share: float, round_count: int, claims: str
) -> Iterator[dict[str, Any]]:
    """Each size on 1, 2, 4 ... GPUs, with a share of the frames."""
    count = cupy.cuda.runtime.getDeviceCount()
    counts = [n for n in (1, 2, 4, 8) if n <= count]
    check = make_film(folder, "check", (1280, 720), 900)
    apart = {}
    for gpus in counts:
        run(check, check, folder / f"check_{gpus}.mkv", ids_of(gpus))
        apart[gpus] = compare(folder / "check_1.mkv", folder / f"check_{gpus}.mkv")
        if apart[gpus] > LARGEST_MEAN_DIFFERENCE:
            raise SystemExit(f"{gpus} GPUs: a mask differs by {apart[gpus]:.2f} of 255")
    for name in names:
        ways = {
            (claim, gpus): way
            for gpus in counts
            for claim, way in ways_of(folder, name, share, gpus).items()
            if claims in claim
        }
        rounds: list[dict[tuple[str, int], dict[str, Any]]] = [{} for _ in range(round_count)]
        for made in rounds:
            for key, way in ways.items():
                made[key] = way()
                print(*key, json.dumps(made[key]), file=sys.stderr, flush=True)
        for claim, gpus in ways:
            measured = [made[claim, gpus] for made in rounds]
            yield {
                "claim": f"{claim}, {gpus} GPU{'s' if gpus > 1 else ''}",
                "gpus": gpus,
                "frames": measured[0]["frames"],
                "fps": round(median(row["fps"] for row in measured), 1),
                "wall_seconds": round(median(row["wall_seconds"] for row in measured), 2),
                "ratio_to_one": [
                    round(made[claim, gpus]["fps"] / made[claim, 1]["fps"], 3) for made in rounds
                ],
                "rounds": measured,
                "worst_mean_difference": round(apart[gpus], 3),
                "cores": available_cores(),
                "film_rate": RATE,
            }


def main() -> None:
    """Check, time, print, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(SIZES))
    parser.add_argument("--share", type=float, default=1.0, help="of the frames: shorter films")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--claims", default="", help="those alone with these words")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "vitascope_films"
    folder.mkdir(exist_ok=True)
    kept = json.loads(options.out.read_text()) if options.out is not None and options.out.exists() else []
    for row in rows(folder, options.only or list(SIZES), options.share, options.rounds, options.claims):
        print(json.dumps(row), flush=True)
        kept = [other for other in kept if other["claim"] != row["claim"]] + [{**row, **gpu_stamp()}]
        if options.out is not None:
            write_rows(options.out, kept)


if __name__ == "__main__":
    main()
