"""Simulate when N videos on M machines are done, from the queue's rules and the measured costs of its parts.

- ``measure``: a queue on a real Ray cluster of this machine, with one maker and with two. The time of each
  piece of work goes into the simulation of the same queue, and both end times are compared.
- ``curve``: the same simulation for 1 to 1000 GPUs, with the pace of the rows of ``several_gpus_cuda.json``, and with
  what joining costs by ``measure``. The row states what cannot be measured here (how often a node is lost,
  how fast a store is).

Prediction: with few makers, all are busy except during the last stretches; with many, the joiner or the store
    is the limit.

Usage: python benchmarks/cluster_scale.py measure [--out FILE]
       python benchmarks/cluster_scale.py curve [--out FILE] [--chart docs/images/cluster-scale.png]

Rows go to ``benchmarks/results/cluster_scale.json``.
"""

from __future__ import annotations

import argparse
import heapq
import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import av
import numpy as np

from row_stamp import RESULTS, commit, write_rows
from vitascope.config import load_settings
from vitascope.device import available_cores
from vitascope.segmentation.processes import film_queue
from vitascope.segmentation.processes.stretches import stretch_count

WARM_UP_FRAMES = 192
OPENING_FRAMES = 300
FRAMES_AFTER = 10
GPUS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SEEDS = 9


@dataclass(frozen=True)
class Costs:
    """Costs of a queue's parts, in seconds unless stated otherwise."""

    start: float
    """Time until a maker has opened its network."""
    open: float
    """Opening decoder and encoders of a stretch, and Ray's round trip."""
    frame: float
    """One frame of a maker."""
    film: float
    """One video, for the distributing process: its headers, the order, the answer."""
    begin: float
    """The files of a video of several stretches, for the distributing process."""
    join: float
    """One frame whose packets the distributing process copies."""
    spread: tuple[float, ...] = (1.0,)
    """Times of pieces, relative to the prediction from ``open`` and ``frame``: factors to draw from."""
    losses_per_hour: float = 0.0
    """How often each maker is lost."""
    back: float = 60.0
    """Time until a lost maker is back."""
    frame_bytes: float = 0.0
    """Bytes read and written per frame."""
    store_bytes_per_second: float = float("inf")


@dataclass(frozen=True)
class Outcome:
    """Result of a simulated run."""

    seconds: float
    makers_busy: float
    """Share of time in which makers are busy."""
    driver_busy: float
    """Share of time in which the distributing process is busy."""
    lost: int
    """Number of pieces that were made again."""


on_gpus = partial(stretch_count, warm_up_frames=WARM_UP_FRAMES, opening_frames=OPENING_FRAMES)
"""Told frames; how many stretches GPUs cut a video into."""


@dataclass(slots=True, eq=False)
class _Film:
    rank: int
    frames: int
    stretches: int
    left: int = 0


def simulate(
    films: Sequence[int],
    makers: int,
    costs: Costs,
    *,
    stretches_of: Callable[[int], int],
    warm_up: int = WARM_UP_FRAMES,
    seed: int = 0,
) -> Outcome:
    """Simulate a queue by the rules of ``FilmQueue`` and ``Hands``.

    Args:
        films: Number of frames of each video.
        makers: Number of makers, each with one piece at a time.
        costs: Costs of all parts.
        stretches_of: Returns the number of stretches for a number of frames.
        warm_up: Frames that each stretch except the first sees before its own.
        seed: Seed of the random spread and losses.
    """
    random, order = Random(seed), count()
    queue = [_Film(rank, n, stretches_of(n)) for rank, n in enumerate(sorted(films, reverse=True))][::-1]
    events: list[tuple[float, int, str, Any]] = []
    for _ in range(makers):
        heapq.heappush(events, (costs.start, next(order), "free", None))
    waiting: list[tuple[int, int, _Film, int]] = []
    idle = coming = shared = lost = 0
    opening, driver, driver_busy, busy, now, last = False, 0.0, 0.0, 0.0, 0.0, 0.0

    def drive(seconds: float) -> float:
        """Let the distributing process work; return when it is done."""
        nonlocal driver, driver_busy
        driver = max(driver, now) + seconds
        driver_busy += seconds
        return driver

    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "free":
            idle += 1
        elif kind == "whole":
            coming -= 1
            heapq.heappush(waiting, (what.rank, 0, what, what.frames))
        elif kind == "opened":
            opening, what.left = False, what.stretches
            for n in range(what.stretches):
                own = what.frames * (n + 1) // what.stretches - what.frames * n // what.stretches
                heapq.heappush(waiting, (what.rank, n, what, own))
        elif kind == "lost":
            heapq.heappush(waiting, what)
            lost += 1
        elif kind == "done":
            idle += 1
            film, own = what
            if film.stretches > 1:
                joined = drive(own * costs.join)
                film.left -= 1
                if not film.left:
                    heapq.heappush(events, (joined, next(order), "joined", film))
        elif kind == "joined":
            shared -= 1
        last = max(last, now) if kind != "free" else last
        while (
            queue and not opening and len(waiting) + coming < makers and shared < film_queue._SHARED_AT_ONCE
        ):
            film = queue.pop()
            if film.stretches == 1:
                coming += 1
                heapq.heappush(events, (drive(costs.film), next(order), "whole", film))
            else:
                opening, shared = True, shared + 1
                heapq.heappush(events, (drive(costs.film + costs.begin), next(order), "opened", film))
        while idle and waiting:
            idle -= 1
            piece = heapq.heappop(waiting)
            _, n, film, own = piece
            seen = own + (warm_up if n else 0) + (FRAMES_AFTER if n + 1 < film.stretches else 0)
            seconds = (costs.open + seen * costs.frame) * random.choice(costs.spread)
            seconds = max(seconds, seen * costs.frame_bytes * (makers - idle) / costs.store_bytes_per_second)
            at = random.expovariate(costs.losses_per_hour / 3600) if costs.losses_per_hour else seconds + 1
            if at < seconds:
                busy += at
                heapq.heappush(events, (now + at, next(order), "lost", piece))
                heapq.heappush(events, (now + at + costs.back, next(order), "free", None))
            else:
                busy += seconds
                heapq.heappush(events, (now + seconds, next(order), "done", (film, own)))
    end = max(last, driver)
    return Outcome(end, busy / (end * makers), driver_busy / end, lost)


def fitted(pieces: Sequence[tuple[int, float]], driver: dict[str, float]) -> Costs:
    """Fit costs to the frames and seconds of pieces: least squares, neither cost below zero."""
    frames, seconds = np.array(pieces, float).T
    matrix = np.stack([np.ones_like(frames), frames], 1)
    opened, frame = np.linalg.lstsq(matrix, seconds, rcond=None)[0]
    if opened < 0:
        opened, frame = 0.0, float(seconds.sum() / frames.sum())
    if frame < 0:
        opened, frame = float(seconds.mean()), 0.0
    spread = seconds / (opened + frame * frames)
    return Costs(0.0, float(opened), float(frame), spread=tuple(map(float, spread)), **driver)


@contextmanager
def timed_pieces(makers: type) -> Iterator[list[tuple[int, float]]]:
    """Record frames and seconds of each piece of work that makers of this kind do in the meantime."""
    pieces: list[tuple[int, float]] = []

    def timed(method: Any) -> Any:
        def made(self: Any, number: int, order: Any, *, tell: Any) -> Any:
            began = time.perf_counter()
            answer = method(self, number, order, tell=tell)
            pieces.append((answer.pipeline.stages[0].items, time.perf_counter() - began))
            return answer

        return made

    own = makers.make, makers.make_film  # type: ignore[attr-defined]
    makers.make, makers.make_film = map(timed, own)  # type: ignore[attr-defined]
    try:
        yield pieces
    finally:
        makers.make, makers.make_film = own  # type: ignore[attr-defined]


def predicted_seconds(
    films: Sequence[int],
    makers: int,
    costs: Costs,
    *,
    stretches_of: Callable[[int], int],
    warm_up: int,
) -> float:
    """Simulate when a queue is done: the median of some runs with other seeds."""
    return median(
        simulate(films, makers, costs, stretches_of=stretches_of, warm_up=warm_up, seed=seed).seconds
        for seed in range(SEEDS)
    )


def moving(path: Path, frames: int) -> Path:
    """Make a video of something that moves, with a keyframe every twelve frames."""
    random = np.random.default_rng(frames)
    wall = random.integers(0, 255, (180, 2 * frames + 240, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast", "g": "12"})
        stream.width, stream.height, stream.pix_fmt = 240, 180, "yuv420p"
        for n in range(frames):
            picture = np.ascontiguousarray(wall[:, 2 * n : 2 * n + 240])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    return path


def queue_here(folder: Path, makers: int) -> dict[str, Any]:
    """Run a real queue with that many makers, and simulate it."""
    import ray

    from vitascope.segmentation.batch import plan_batch, segment_all
    from vitascope.segmentation.processes import cluster, film_joiner
    from vitascope.segmentation.segmenter import Segmenter

    begins: list[float] = []
    joins: list[tuple[int, float]] = []

    def begun(write: Any) -> Any:
        def written(self: Any, *words: Any, on_start: Any, **options: Any) -> Any:
            began = time.thread_time()

            def started(event: Any) -> None:
                begins.append(time.thread_time() - began)
                on_start(event)

            return write(self, *words, on_start=started, **options)

        return written

    def joined(join: Any) -> Any:
        def timed_join(*words: Any) -> Any:
            began = time.thread_time()
            done = join(*words)
            joins.append((sum(stretch.frame_count for stretch in done), time.thread_time() - began))
            return done

        return timed_join

    joiner = film_joiner.FilmJoiner
    own, join_alone = joiner.write, film_joiner._join
    film_joiner._join = joined(join_alone)
    joiner.write = begun(own)  # type: ignore[method-assign]
    settings = {
        "processing.cluster": "auto",
        "processing.num_threads": 1,
        "processing.chunk_size": 60,
        "processing.overlap_frames": 24,
        "gpu.device": "cpu",
    }
    loaded = load_settings(profile="fast", flags=settings)
    ray.init(
        num_cpus=makers, include_dashboard=False, namespace=cluster.CLUSTER_NAMESPACE, log_to_driver=False
    )
    try:
        began = time.perf_counter()
        with timed_pieces(cluster.ClusterMakers) as pieces, Segmenter(loaded=loaded) as segmenter:
            start = time.perf_counter() - began
            films = plan_batch([folder / "in"], folder / f"cut{makers}", loaded.settings)
            queues: list[film_queue.FilmQueue] = []
            began = time.perf_counter()
            frames = []
            for outcome in segment_all(segmenter, films, on_queue=queues.append):
                assert outcome.report is not None, outcome.error
                frames.append(outcome.report.frame_count)
            wall = time.perf_counter() - began
    finally:
        ray.shutdown()
        joiner.write, film_joiner._join = own, join_alone  # type: ignore[method-assign]

    stretches_of = partial(
        stretch_count, warm_up_frames=24, opening_frames=10, most_frames=settings["processing.chunk_size"]
    )
    (queue,) = json.loads((RESULTS / "cluster_queue.json").read_text())
    driver = {
        "film": queue["driver_ms_a_video"] / 1000,
        "begin": median(begins),
        "join": sum(seconds for _, seconds in joins) / sum(count for count, _ in joins),
    }
    costs = fitted(pieces, driver)
    predicted = predicted_seconds(frames, makers, costs, stretches_of=stretches_of, warm_up=24)
    told = asdict(replace(costs, start=start))
    del told["spread"], told["store_bytes_per_second"], told["frame_bytes"]
    return {
        "claim": f"a queue on paper against the same queue on this machine, {makers} who cut",
        "makers": makers,
        "videos": len(frames),
        "frames": sum(frames),
        "pieces": len(pieces),
        "seconds": round(wall, 2),
        "predicted_seconds": round(predicted, 2),
        "predicted_over_measured": round(predicted / wall, 3),
        "costs": {name: round(value, 6) for name, value in told.items()},
    }


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare queues of this machine with their simulation."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        for n, frames in enumerate((180, 150, 48, 44, 40, 36, 32, 28, 24, 20)):
            moving(folder / "in" / f"{n}.mp4", frames)
        return [queue_here(folder, makers) for makers in options.makers]


def curve(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Simulate a thousand videos of an hour, to see how many GPUs help."""
    several = json.loads((RESULTS / "several_gpus_cuda.json").read_text())
    one = next(row for row in several if row["claim"] == "file to mask 1080p, 1 GPU")
    here = [row for row in json.loads(options.out.read_text()) if "makers" in row]
    frame = one["wall_seconds"] / one["frames"]
    costs = Costs(
        start=here[0]["costs"]["start"],
        open=OPENING_FRAMES * frame,
        frame=frame,
        film=here[0]["costs"]["film"],
        begin=here[0]["costs"]["begin"],
        join=here[0]["costs"]["join"],
        losses_per_hour=0.02,
        back=120.0,
        frame_bytes=2 * 8e6 / 8 / 30,
        store_bytes_per_second=10e9,
    )
    films = [108_000] * 1000
    rows = []
    for gpus in GPUS:
        sides = {
            "all": costs,
            "without_joining": replace(costs, join=0.0),
            "with_any_store": replace(costs, store_bytes_per_second=float("inf")),
        }
        ends = {name: simulate(films, gpus, side, stretches_of=on_gpus) for name, side in sides.items()}
        run = ends["all"]
        rows.append(
            {
                "claim": f"1000 videos of an hour of 1080p on paper, {gpus} GPUs",
                "gpus": gpus,
                "hours": round(run.seconds / 3600, 3),
                "speed_up": 0.0,
                "makers_busy": round(run.makers_busy, 3),
                "driver_busy": round(run.driver_busy, 3),
                "pieces_lost": run.lost,
                "hours_without_joining": round(ends["without_joining"].seconds / 3600, 3),
                "hours_with_any_store": round(ends["with_any_store"].seconds / 3600, 3),
                "costs": {k: v for k, v in asdict(costs).items() if k != "spread"},
            }
        )
    for row in rows:
        row["speed_up"] = round(rows[0]["hours"] / row["hours"], 1)
    if options.chart:
        draw(rows, options.chart)
    return rows


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The curve."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), dpi=100)
    gpus = [row["gpus"] for row in rows]
    axes.loglog(gpus, gpus, color="0.8", label="as many times as GPUs")
    for key, label, color in (
        ("hours_without_joining", "if joining cost nothing", "tab:orange"),
        ("hours_with_any_store", "if the store were of any speed", "tab:green"),
        ("hours", "all of it", "tab:blue"),
    ):
        axes.loglog(gpus, [rows[0]["hours"] / row[key] for row in rows], "o-", ms=3, color=color, label=label)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("times as fast as one")
    axes.grid(True, which="major", color="0.9")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure or draw, print, and save the rows beside those of the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("measure", "curve"))
    parser.add_argument("--makers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "cluster_scale.json")
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    stamp = {
        "machine": f"{platform.machine()}, {available_cores()} cores",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    made = [row | stamp for row in {"measure": measure, "curve": curve}[options.what](options)]
    for row in made:
        print(json.dumps(row))
    kept = json.loads(options.out.read_text()) if options.out.exists() else []
    claims = {row["claim"] for row in made}
    write_rows(options.out, [row for row in kept if row["claim"] not in claims] + made)


if __name__ == "__main__":
    main()
