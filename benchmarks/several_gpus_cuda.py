"""One film, and a queue of films, on one, two, ... GPUs with ``--gpu-ids``, against one GPU; and that all is right.

Films are those of ``segment_cuda.py``. Before anything is timed, a film's mask from several GPUs is compared with the
one from one GPU, frame by frame, and the frame count of every file that was written is checked.

Prediction: with N GPUs the rate is N times that of one, less the warm-up (192 frames of each process but the first) and
what joining costs (reading packets from a pipe and muxing them: one thread, some 10 us a frame). The processor's
encoder is shared by all: key-colour video gains only while cores are left. Films of a queue are cut whole, each on one
GPU, and neither warm-up nor joining is paid: N times, less what the last film waits for.

Usage: python benchmarks/several_gpus_cuda.py [--only 4K] [--share 0.5] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import cupy
import numpy as np

from row_stamp import gpu_stamp, write_rows
from segment_cuda import RATE, SIZES, count_frames, make_film
from vitascope.device import available_cores
from vitascope.segmentation.batch import plan_batch, segment_all
from vitascope.segmentation.segmenter import Segmenter

FRAMES = {"1080p": 12_000, "4K": 12_000, "8K": 2400}
WARM_FRAMES = 600  # for each GPU: a shorter film is not shared, and leaves networks cold
MOST_WARMINGS = 10
LARGEST_MEAN_DIFFERENCE = 2.0
QUEUE = 16
"""Films of a queue."""
QUEUE_FRAMES = 600
MASK = {"output.preset": "ultrafast", "output.mask_max_width": 2048}
SETTINGS = {"model.name": "rvm", "model.input_size": 512, **MASK}


def run(film: Path, warm: Path, out: Path, ids: str) -> dict[str, Any]:
    """One film on some GPUs, with warm networks."""
    with Segmenter(settings=SETTINGS | {"gpu.device_ids": ids}) as segmenter:
        # The first process may have cut all of it before the others had started.
        for _ in range(MOST_WARMINGS):
            warm_processes = processes_of(segmenter.write(warm, [("mask", out)]).device)
            if warm_processes == len(ids.split(",")):
                break
        report = segmenter.write(film, [("mask", out)])
    written, expected = count_frames(out), count_frames(film)
    if not written == expected == report.frame_count:
        raise SystemExit(f"{film}: {expected} frames in, {written} out")
    processes = processes_of(report.device)
    if warm_processes < processes:
        raise SystemExit(f"{warm}: {warm_processes} processes were warmed, {processes} worked on {film}")
    return {
        "gpus": len(ids.split(",")),
        "processes": processes,
        "fps": round(report.frames_per_second, 1),
        "wall_seconds": round(report.wall_seconds, 2),
        "frames": written,
        "frames_decoded": report.pipeline.stages[0].items,
        "device": report.device,
        "decoder": report.decoder,
        "cores_busy": round(report.pipeline.cores_busy, 1),
        "stage_load": {stage.name: round(stage.load, 3) for stage in report.pipeline.stages},
    }


def run_queue(film: Path, folder: Path, ids: str) -> dict[str, Any]:
    """A queue of copies of a film on some GPUs, with warm networks."""
    settings = SETTINGS | {"gpu.device_ids": ids, "output.kinds": ["mask"]}
    videos = [folder / f"queued {number:02}.mp4" for number in range(QUEUE)]
    for video in videos:
        video.unlink(missing_ok=True)
        video.hardlink_to(film)
    with Segmenter(settings=settings) as segmenter:
        for queue in (videos[: QUEUE // 2], videos):  # the first one warms
            began = time.perf_counter()
            planned = plan_batch(queue, folder / "cut", segmenter.settings)
            for outcome in segment_all(segmenter, planned):
                if outcome.error is not None or outcome.report is None:
                    raise SystemExit(f"{outcome.planned.video}: {outcome.error}")
            wall = time.perf_counter() - began
    frames = sum(count_frames(output) for plan in planned for _, output in plan.outputs)
    if frames != QUEUE * count_frames(film):
        raise SystemExit(f"{frames} frames of {QUEUE} films of {count_frames(film)}")
    return {
        "gpus": len(ids.split(",")),
        "fps": round(frames / wall, 1),
        "wall_seconds": round(wall, 2),
        "frames": frames,
    }


def processes_of(device: str) -> int:
    """How many worked on a film, as a report says it: ``..., 2 of 4 processes at work``."""
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


def rows(folder: Path, names: list[str], share: float) -> Iterator[dict[str, Any]]:
    """Each size on 1, 2, 4 ... GPUs, with a share of the frames."""
    count = cupy.cuda.runtime.getDeviceCount()
    counts = [n for n in (1, 2, 4, 8) if n <= count]
    for name in names:
        film = make_film(folder, f"{name} shared", SIZES[name], round(FRAMES[name] * share))
        check = make_film(folder, "check", (1280, 720), 900)
        first: dict[str, Any] = {}
        for gpus in counts:
            ids = ",".join(map(str, range(gpus)))
            run(check, check, folder / f"check_{gpus}.mkv", ids)
            worst = compare(folder / "check_1.mkv", folder / f"check_{gpus}.mkv")
            if worst > LARGEST_MEAN_DIFFERENCE:
                raise SystemExit(f"{gpus} GPUs: a mask differs by {worst:.2f} of 255")
            warm = make_film(folder, f"{name} warm {gpus}", SIZES[name], WARM_FRAMES * gpus)
            row = run(film, warm, folder / "shared.mp4", ids)
            first = first or row
            yield {
                "claim": f"file to mask {name}, {gpus} GPU{'s' if gpus > 1 else ''}",
                **row,
                "ratio_to_one": round(row["fps"] / first["fps"], 3),
                "worst_mean_difference": round(worst, 3),
                "cores": available_cores(),
                "film_rate": RATE,
            }
        short = make_film(folder, f"{name} queued", SIZES[name], QUEUE_FRAMES)
        alone: dict[str, Any] = {}
        for gpus in counts:
            row = run_queue(short, folder, ",".join(map(str, range(gpus))))
            alone = alone or row
            yield {
                "claim": f"{QUEUE} files to masks {name}, {gpus} GPU{'s' if gpus > 1 else ''}",
                **row,
                "ratio_to_one": round(row["fps"] / alone["fps"], 3),
                "cores": available_cores(),
                "film_rate": RATE,
            }


def main() -> None:
    """Check, time, print, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(SIZES))
    parser.add_argument("--share", type=float, default=1.0, help="of the frames: shorter films")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "vitascope_films"
    folder.mkdir(exist_ok=True)
    made = []
    for row in rows(folder, options.only or list(SIZES), options.share):
        print(json.dumps(row), flush=True)
        made.append({**row, **gpu_stamp()})
        if options.out is not None:
            write_rows(options.out, made)


if __name__ == "__main__":
    main()
