"""Measure the host's cost per request in a batcher, and per frame in ``AsyncPipeline``, without a GPU.

A network on a GPU is one launch and a wait that leaves the interpreter's lock to others. The rest of a
batch's time is Python: submitting, gathering, stacking, splitting, answering. So it can be measured without a
GPU:

* ``free``: the network returns its batch. Microseconds of wall time and of the process's CPU time per
    request, and per frame.
* ``asleep``: it sleeps, as a thread does that waits for a GPU. The batcher's ``us`` is what a batch takes beyond that
  sleep, for each request. The pipeline's ``ratio`` is its frames a second over those of the same sleeps in a row.
  ``busy`` is the share of its time in which the network was at work, and ``idle_us`` how long it stood still between
  two calls: other programs, which make sleeps longer now and then, disturb these less.
* ``pinned round trip``: up and down through ``PinnedMemoryPool`` with a stand-in for CuPy in which nothing is copied.

Sixteen threads hand in one request at a time, as in ``batching_cuda.py``; a request is one array, or a picture and the
four states of a recurrent network as torch tensors. The pipeline's frames are small arrays that need no preparation.

If other programs keep the machine busy, start it with ``chrt -f 1`` (Linux, root): a thread that waits for a
core may block all others by holding the interpreter's lock. Rows tell which it was; compare ``cpu_us`` only
within a row.

With ``--against``, every measurement is also made with another version of the sources, alternating, in
separate processes. Bar: the pipeline reaches 0.95 of a network that sleeps 5 ms.

Usage: python benchmarks/host_cost.py [--against OTHER/src] [--only TEXT] [--rounds 7] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from row_stamp import commit, write_rows
from vitascope.device import Device, available_cores
from vitascope.gpu import AsyncPipeline, BatchConfig, DynamicBatcher, InferenceRequest
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool

HERE = Path(__file__).resolve()
RESULTS = HERE.parent / "results" / "host_cost.json"
STREAMS = 16
STEPS = 150
FRAMES = 4000
ASLEEP_SECONDS = 0.005
LEAST_RATIO = 0.95

Figures = dict[str, float]


class Asleep:
    """A network like a GPU's for a waiting thread."""

    def __init__(self) -> None:
        self.slept_seconds = self.began = self.ended = 0.0
        self.calls = 0

    def __call__(self, batch: Any) -> Any:
        """Sleep; the batch is the answer."""
        began = time.perf_counter()
        time.sleep(ASLEEP_SECONDS)
        self.ended = time.perf_counter()
        self.slept_seconds += self.ended - began
        self.began = self.began or began
        self.calls += 1
        return batch

    @property
    def idle_us(self) -> float:
        """Microseconds between the end of a call and the beginning of the next."""
        return (self.ended - self.began - self.slept_seconds) / max(self.calls - 1, 1) * 1e6


def asleep_alone(calls: int = 60) -> float:
    """Measure seconds per call, in a row: timers are late."""
    network = Asleep()
    began = time.perf_counter()
    for _ in range(calls):
        network(None)
    return (time.perf_counter() - began) / calls


def free(batch: Any) -> Any:
    """A network that costs nothing."""
    return batch


def batcher_cost(*, recurrent: bool, sleeps: bool) -> Figures:
    """Sixteen streams, each with one request at a time."""
    data = recurrent_request() if recurrent else np.zeros((3, 8, 8), np.float32)
    config = BatchConfig(max_batch_size=STREAMS, timeout_ms=50.0, bucket_sizes=(1, 2, 4, 8, 16))
    answered = [0] * STREAMS
    together = threading.Barrier(STREAMS + 1)

    def client(stream: int, steps: int) -> None:
        together.wait()
        for _ in range(steps):
            batcher.submit(InferenceRequest(data, stream, stream_id=stream))
            answered[stream] += 1

    def run(steps: int) -> tuple[float, float]:
        threads = [threading.Thread(target=client, args=(stream, steps)) for stream in range(STREAMS)]
        for thread in threads:
            thread.start()
        together.wait()
        began, cpu_began = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began, time.process_time() - cpu_began

    alone = asleep_alone() if sleeps else 0.0
    with DynamicBatcher(config, Asleep() if sleeps else free, device="cpu") as batcher:
        run(20)
        before = batcher.stats()
        seconds, cpu_seconds = run(STEPS)
        after = batcher.stats()
    requests, calls = after.completed - before.completed, after.batches - before.batches
    if requests != STEPS * STREAMS or set(answered) != {20 + STEPS}:
        raise SystemExit(f"{requests} requests were answered, {STEPS * STREAMS} handed in")
    return {
        "us": (seconds - calls * alone) / requests * 1e6,
        "cpu_us": cpu_seconds / requests * 1e6,
        "mean_batch_size": requests / calls,
    }


def recurrent_request() -> Any:
    """A picture and four states: small, so that copying them costs little beside the calls."""
    import torch

    torch.set_num_threads(1)
    return tuple(torch.zeros(shape) for shape in ((3, 8, 8), (4, 4, 4), (2, 2, 5), (1, 2, 10), (1, 1, 16)))


def pipeline_cost(*, batch_size: int, sleeps: bool, frames: int = FRAMES) -> Figures:
    """One thread submits, another takes the results."""
    picture = np.zeros((3, 8, 8), np.float32)
    config = {
        "batch_size": batch_size, "timeout_ms": 50, "queue_size": 4 * batch_size, "decode_threads": 1,
        "preprocess_streams": 2, "postprocess_threads": 2,
    }  # fmt: skip
    alone = asleep_alone() if sleeps else 0.0

    def run(network: Callable[[Any], Any], count: int) -> tuple[float, float]:
        running = AsyncPipeline(network, config, device="cpu", preprocess=lambda frame: frame)

        def submit() -> None:
            for n in range(count):
                running.submit_frame(picture, n)
            running.finish()

        with running:
            thread = threading.Thread(target=submit)
            began, cpu_began = time.perf_counter(), time.process_time()
            thread.start()
            names = [result.frame_id for result in running.results()]
            seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
            thread.join()
        if names != list(range(count)):
            raise SystemExit("the pipeline lost or reordered frames")
        return seconds, cpu_seconds

    run(free, 10 * batch_size)
    network = Asleep()
    seconds, cpu_seconds = run(network if sleeps else free, frames)
    found = {"us": seconds / frames * 1e6, "cpu_us": cpu_seconds / frames * 1e6}
    if sleeps:
        alone = (alone + asleep_alone()) / 2  # before and after: other programs come and go
        busy = network.slept_seconds / (network.ended - network.began)
        found |= {
            "ratio": alone * frames / batch_size / seconds,
            "busy": busy,
            "idle_us": network.idle_us,
        }
    return found


def round_trip(nbytes: int, trips: int = 4000) -> Figures:
    """Up and down through ``PinnedMemoryPool`` out of a lease, on a stand-in for CuPy that copies nothing."""
    from fake_cupy import FakeArray, fake_cupy  # of the tests: without a GPU there is no other

    cupy = sys.modules["cupy"] = fake_cupy()
    memory = np.empty(nbytes, np.uint8)
    cupy.empty = lambda *_: memory.view(FakeArray)
    cupy.asarray = lambda array: array
    cupy.cuda.runtime.memcpyAsync = lambda *_: None
    pool = PinnedMemoryPool(1.0, device=Device("cuda", "stand-in", 0))
    lease = pool.lease(nbytes)

    def run(count: int) -> tuple[float, float]:
        began, cpu_began = time.perf_counter(), time.process_time()
        for _ in range(count):
            pool.download(pool.upload(lease.array)).wait()
            cupy.diary.clear()
        return time.perf_counter() - began, time.process_time() - cpu_began

    run(200)
    seconds, cpu_seconds = run(trips)
    return {"us": seconds / trips * 1e6, "cpu_us": cpu_seconds / trips * 1e6}


MEASURES: dict[str, Callable[[], Figures]] = {
    "batcher, one array, free": partial(batcher_cost, recurrent=False, sleeps=False),
    "batcher, picture and states, free": partial(batcher_cost, recurrent=True, sleeps=False),
    "batcher, one array, asleep": partial(batcher_cost, recurrent=False, sleeps=True),
    "batcher, picture and states, asleep": partial(batcher_cost, recurrent=True, sleeps=True),
    "pipeline, batch 4, free": partial(pipeline_cost, batch_size=4, sleeps=False),
    "pipeline, batch 16, free": partial(pipeline_cost, batch_size=16, sleeps=False),
    "pipeline, batch 1, asleep": partial(pipeline_cost, batch_size=1, sleeps=True, frames=300),
    "pipeline, batch 4, asleep": partial(pipeline_cost, batch_size=4, sleeps=True, frames=1200),
    "pipeline, batch 16, asleep": partial(pipeline_cost, batch_size=16, sleeps=True, frames=4000),
    "pinned round trip, 1 MB": partial(round_trip, 1 << 20),
    "pinned round trip, 12 MB": partial(round_trip, 3840 * 2160 * 3 // 2),
}


def in_its_own_process(claim: str, source: Path) -> Figures:
    """One measurement of one state of the sources."""
    done = subprocess.run(
        [sys.executable, str(HERE), "--measure", claim],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(HERE.parents[1] / "tests")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{claim}: {done.stderr.strip() or done.stdout.strip()}")
    figures: Figures = json.loads(done.stdout)
    return figures


def row_of(claim: str, sources: dict[str, Path], rounds: int) -> dict[str, Any]:
    """All rounds of one measurement, the states of the sources in turns."""
    runs: dict[str, list[Figures]] = {state: [] for state in sources}
    for _ in range(rounds):
        for state, source in sources.items():
            runs[state].append(in_its_own_process(claim, source))
    row: dict[str, Any] = {"claim": claim}
    for state, met in runs.items():
        figures: dict[str, Any] = {
            name: round(median(one[name] for one in met), 3 if name in ("ratio", "busy") else 1)
            for name in met[0]
        }
        for name, worst in (("us", max), ("ratio", min)):
            if name in figures:
                figures[f"{name}_worst"] = round(worst(one[name] for one in met), 3 if name == "ratio" else 1)
        row |= figures if state == "now" else {state: figures}
    return row


def scheduling() -> str:
    """Return how the system schedules this process: real time keeps other programs from disturbing it."""
    if sys.platform != "linux":
        return "usual"
    return "real time" if os.sched_getscheduler(0) == os.SCHED_FIFO else "usual"


def main() -> None:
    """Measure, print, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, metavar="SRC", help="sources of another state")
    parser.add_argument("--only", default="", help="a part of the claims' names")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("out", nargs="?", type=Path, default=RESULTS)
    options = parser.parse_intermixed_args()
    if options.measure is not None:
        print(json.dumps(MEASURES[options.measure]()))
        return
    sources = {"before": options.against.resolve()} if options.against else {}
    sources["now"] = HERE.parents[1] / "src"
    stamp: dict[str, Any] = {"cores": available_cores(), "machine": platform.machine()}
    stamp |= {"python": platform.python_version(), "scheduling": scheduling()}
    stamp |= {"rounds": options.rounds, "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    for claim in (claim for claim in MEASURES if options.only in claim):
        row = row_of(claim, sources, options.rounds) | stamp
        print(json.dumps(row), flush=True)
        rows = [other for other in rows if other["claim"] != claim] + [row]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(options.out, rows)
    missed = [row["claim"] for row in rows if row.get("ratio", 1.0) < LEAST_RATIO]
    print(f"below {LEAST_RATIO}: {', '.join(missed)}" if missed else f"every ratio is {LEAST_RATIO} or more")


if __name__ == "__main__":
    main()
