"""Dynamic batching under CUDA graphs, against one-by-one calls of the same engine.

Sixteen streams have one picture each at a time: a stream submits its next picture when the answer to the last
is ready, as a recurrent network needs it. RobustVideoMatting's coarse network at 512x288 passes each stream's
state in its requests; DeepLabV3+ at 512x512 (random weights, 21 classes) has no state. Both run in FP16:
DeepLab on ``TorchEngine``, RVM on our fused kernels, and on PyTorch's operators where there is no CUDA graph.

* ``eager``, ``graphs``: one-by-one calls, of the engine without and with CUDA graphs, from one thread. ``in a row``
  launches call after call and waits at the end; ``awaited`` waits for each. ``shared`` has the sixteen threads take
  turns at a lock.
* ``batched``: sixteen threads at a ``DynamicBatcher`` with buckets, and a CUDA graph for each bucket. ``batched by
  eight`` sends eight at once.
* ``two in flight``: the same at a ``StreamBatcher`` with two engines and batches of eight, so that the host
    works on one batch while the GPU works on the other.
* ``paced``: the same sixteen threads at 30 pictures a second each, batched without a timeout, and taking turns: the
  latency of live input on a GPU that is not full.

Bars: batched at least 2x eager and 1.6x graphs, taking the faster of ``in a row`` and ``awaited`` for each.
    Before any timing, six steps of all streams are computed both ways and compared.

Prediction for one H200: RVM's frame takes 0.5 ms alone and 0.18 ms among sixteen, whose requests cost the host about
1 ms a batch: 16 * 0.5 / (16 * 0.18 + 1) = 2.1x. By eight, half of the threads prepare requests while the others' are
computed: 8 * 0.5 / (8 * 0.18 + 0.7) = 1.9x. Measured on an H100: 1.9x, and 1.4x by eight, because the thread that
answers one batch is the one that gathers the next.

Usage: python benchmarks/batching_cuda.py [--only rvm|deeplab] [--steps 150] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch
from torch import Tensor, nn

from deeplab_v3_plus import DeepLabV3Plus
from row_stamp import gpu_stamp, write_rows
from vitascope.config import vitascope_home
from vitascope.gpu import BatchConfig, DynamicBatcher, InferenceRequest, StreamBatcher
from vitascope.gpu.engines import TensorSpec
from vitascope.gpu.engines.plan_engine import PlanEngine, Recorded
from vitascope.gpu.engines.torch_engine import TorchEngine
from vitascope.models.rvm.structure import state_shapes
from vitascope.models.rvm.torch_network import RvmCoarseNetwork
from vitascope.models.rvm.triton_ops import record_network
from vitascope.models.rvm.weights import load_rvm_weights
from vitascope.models.store.store import ModelStore

STREAMS = 16
BUCKETS = (1, 2, 4, 8, 16)
# Long enough for sixteen threads to come back: a full batch does not wait for it.
CONFIG = BatchConfig(max_batch_size=STREAMS, timeout_ms=10.0, bucket_sizes=BUCKETS)
HALVES = BatchConfig(max_batch_size=STREAMS // 2, timeout_ms=10.0, bucket_sizes=BUCKETS[:-1])
# Batches form only while another one runs.
LIVE = BatchConfig(max_batch_size=STREAMS, timeout_ms=0.0, bucket_sizes=BUCKETS)
PACE_HZ = 30
PICTURES = 8  # of each stream, in turns: together more than the L2 cache holds
STATES = ("r1", "r2", "r3", "r4")


class Rvm:
    """A stream's request is its picture and its four states; the answer has the coefficients and the next states."""

    name, size, tolerance = "rvm coarse 512x288 fp16", (288, 512), 2e-2

    def __init__(self, *, cuda_graph: bool) -> None:
        self.weights = load_rvm_weights(ModelStore(vitascope_home()).pull("rvm"))
        self.shapes = [shape[1:] for shape in state_shapes(self.weights, 1, self.size)]
        self.module: nn.Module | None = None
        self.engine: PlanEngine | None = None
        if not cuda_graph:
            self.module = RvmCoarseNetwork(self.weights, precision="fp16").cuda()
            return
        self.engine = PlanEngine(self._record, key=("benchmark",), label="rvm", device_id=0, cache_dir=None)
        for rows in BUCKETS:
            self.engine.input_shapes((rows,))

    def infer(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One call: pictures [B, 3, h, w] and states [B, h, w, C]."""
        pictures, *states = batch
        if self.engine is None:
            assert self.module is not None  # one of them was created
            with torch.inference_mode():
                gain, offset, *after = self.module(pictures[None], *states)
            return gain[0], offset[0], *after
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            inputs = {name: cupy.from_dlpack(tensor) for name, tensor in zip(STATES, states, strict=True)}
            results = self.engine.run(
                (len(pictures),), {"pictures": cupy.from_dlpack(pictures.contiguous()), **inputs}
            )
            return tuple(torch.from_dlpack(results[name]) for name in ("gain", "offset", *STATES))

    def _record(self, sizes: Sequence[int]) -> Recorded:
        assert self.engine is not None  # it asks
        return record_network(
            self.weights,
            steps=1,
            eyes=sizes[0],
            size=self.size,
            result_dtype="float16",
            multiprocessors=self.engine.multiprocessors,
        )

    def request(self, picture: Tensor, answer: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        """Make a stream's next request from its last answer."""
        states = (
            [torch.zeros(shape, device="cuda") for shape in self.shapes] if answer is None else answer[2:]
        )
        return (picture, *states)


class DeepLab:
    """A stream's request is its picture; the answer has the classes' scores."""

    name, size, tolerance = "deeplabv3+ resnet50 512x512 fp16", (512, 512), 5e-2

    def __init__(self, *, cuda_graph: bool) -> None:
        half = np.dtype(np.float16)
        module = DeepLabV3Plus(num_classes=21).half().to(memory_format=torch.channels_last)
        self.engine = TorchEngine(
            module,
            inputs=[TensorSpec("pictures", half, ("batch", 3, *self.size))],
            outputs=[TensorSpec("scores", half, ("batch", 21, *self.size))],
            device="cuda:0",
            cuda_graph=cuda_graph,
        )

    def infer(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One call: pictures [B, 3, h, w]."""
        return self.engine.run_tensors(batch)

    def request(self, picture: Tensor, answer: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        """Make a stream's next request: there is no state."""
        del answer
        return (picture,)


Network = Rvm | DeepLab
Pictures = list[list[Tensor]]


def make_pictures(size: tuple[int, int]) -> Pictures:
    """Make random pictures for every stream."""
    torch.manual_seed(0)
    return [[torch.rand(3, *size, device="cuda").half() for _ in range(PICTURES)] for _ in range(STREAMS)]


def one(network: Network, request: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Time one stream's calls, without a batcher."""
    return tuple(leaf[0] for leaf in network.infer(tuple(leaf[None] for leaf in request)))


def from_one_thread(network: Network, pictures: Pictures, steps: int, *, awaited: bool) -> dict[str, Any]:
    """All streams in turns."""
    answers: list[Any] = [None] * STREAMS
    latencies = []
    torch.cuda.synchronize()
    began = time.perf_counter()
    for step in range(steps):
        for stream in range(STREAMS):
            called = time.perf_counter()
            answers[stream] = one(
                network, network.request(pictures[stream][step % PICTURES], answers[stream])
            )
            if awaited:
                torch.cuda.synchronize()
                latencies.append((time.perf_counter() - called) * 1e3)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return {"pictures_per_s": round(steps * STREAMS / seconds, 1), **percentiles(latencies)}


def from_threads(
    call: Callable[[int, tuple[Tensor, ...]], tuple[Tensor, ...]],
    network: Network,
    pictures: Pictures,
    steps: int,
    *,
    pace_hz: float | None = None,
) -> tuple[dict[str, Any], list[Any]]:
    """Run a thread for each stream; latency is the time from a ready picture to its answer."""
    answers: list[Any] = [None] * STREAMS
    latencies: list[list[float]] = [[] for _ in range(STREAMS)]
    together = threading.Barrier(STREAMS + 1)

    def client(stream: int) -> None:
        together.wait()
        due = time.perf_counter() + (stream / STREAMS / pace_hz if pace_hz else 0.0)
        for step in range(steps):
            if pace_hz:
                time.sleep(max(due - time.perf_counter(), 0.0))
            began = due if pace_hz else time.perf_counter()
            request = network.request(pictures[stream][step % PICTURES], answers[stream])
            answers[stream] = call(stream, request)
            latencies[stream].append((time.perf_counter() - began) * 1e3)
            due += 1 / pace_hz if pace_hz else 0.0

    threads = [threading.Thread(target=client, args=(stream,)) for stream in range(STREAMS)]
    for thread in threads:
        thread.start()
    together.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    flat = [latency for stream in latencies for latency in stream[1:]]
    return {"pictures_per_s": round(steps * STREAMS / seconds, 1), **percentiles(flat)}, answers


def turns(network: Network) -> Callable[[int, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """Calls of many threads, one at a time."""
    lock = threading.Lock()

    def call(_: int, request: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        with lock:
            answer = one(network, request)
            torch.cuda.synchronize()
            return answer

    return call


def through(batcher: DynamicBatcher | StreamBatcher) -> Callable[[int, tuple[Tensor, ...]], Any]:
    """Calls of many threads through a batcher."""

    def call(stream: int, request: tuple[Tensor, ...]) -> Any:
        return batcher.submit(InferenceRequest(request, stream, stream_id=stream)).data

    return call


def percentiles(latencies_ms: list[float]) -> dict[str, float]:
    """Compute p50, p95 and p99 of the latencies; empty without any."""
    if not latencies_ms:
        return {}
    return {f"p{share}_ms": round(float(np.percentile(latencies_ms, share)), 3) for share in (50, 95, 99)}


def worst_difference(network: Network, pictures: Pictures) -> float:
    """Largest difference between batched and one-by-one results after six steps, relative to the results' scale."""
    expected: list[Any] = [None] * STREAMS
    for step in range(6):
        for stream in range(STREAMS):
            expected[stream] = one(network, network.request(pictures[stream][step], expected[stream]))
    torch.cuda.synchronize()
    with DynamicBatcher(CONFIG, network.infer, device="cuda") as batcher:
        _, met = from_threads(through(batcher), network, pictures, 6)
    differences = [
        float((theirs.float() - ours.float()).abs().max() / theirs.float().abs().max())
        for ours_all, theirs_all in zip(met, expected, strict=True)
        for ours, theirs in zip(ours_all, theirs_all, strict=True)
    ]
    return max(differences)


def engine_alone(network: Network, pictures: Pictures) -> float:
    """Milliseconds per full batch in a row, without a batcher: the best that it could reach."""
    requests = [network.request(pictures[stream][0], None) for stream in range(STREAMS)]
    batch = tuple(torch.stack(leaves) for leaves in zip(*requests, strict=True))
    network.infer(batch)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        network.infer(batch)
    torch.cuda.synchronize()
    return round((time.perf_counter() - began) / 50 * 1e3, 3)


def measure(kind: type[Rvm] | type[DeepLab], steps: int) -> list[dict[str, Any]]:
    """Make all rows of one network."""
    pictures = make_pictures(kind.size)
    eager, graphs = kind(cuda_graph=False), kind(cuda_graph=True)
    record(graphs, pictures, BUCKETS)
    difference = worst_difference(graphs, pictures)
    print(
        f"{kind.name}: batched differs from one by one by {difference:.2e} of the results' scale", flush=True
    )
    if not difference <= kind.tolerance:
        raise SystemExit(f"{kind.name}: batched results are wrong")
    found: list[dict[str, Any]] = []

    def add(way: str, figures: dict[str, Any]) -> dict[str, Any]:
        row = {"claim": f"batching {kind.name} {way}", "streams": STREAMS, **figures}
        found.append(row)
        print(json.dumps(row), flush=True)
        return row

    one_by_one = {}
    for way, network in (("eager", eager), ("graphs", graphs)):
        rows = [
            add(f"{way} in a row", from_one_thread(network, pictures, steps, awaited=False)),
            add(f"{way} awaited", from_one_thread(network, pictures, max(steps // 4, 5), awaited=True)),
        ]
        one_by_one[way] = max(row["pictures_per_s"] for row in rows)
    add("graphs shared", from_threads(turns(graphs), graphs, pictures, steps)[0])
    alone_ms = engine_alone(graphs, pictures)

    def compared(batcher: DynamicBatcher | StreamBatcher) -> dict[str, Any]:
        from_threads(through(batcher), graphs, pictures, 10)
        before = batcher.stats()
        figures, _ = from_threads(through(batcher), graphs, pictures, steps)
        after = batcher.stats()
        requests, calls = after.completed - before.completed, after.batches - before.batches
        return figures | {
            "mean_batch_size": round(requests / calls, 2),
            "padding_share": round(1 - requests / (after.rows - before.rows), 4),
            "against_eager": round(figures["pictures_per_s"] / one_by_one["eager"], 2),
            "against_graphs": round(figures["pictures_per_s"] / one_by_one["graphs"], 2),
            "timeout_ms": batcher.config.timeout_ms,
        }

    with DynamicBatcher(CONFIG, graphs.infer, device="cuda") as batcher:
        figures = compared(batcher) | {
            "engine_alone_ms_per_batch": alone_ms,
            "engine_alone_pictures_per_s": round(STREAMS / alone_ms * 1e3, 1),
            "max_difference": difference,
        }
        add("batched", figures)
    with DynamicBatcher(HALVES, graphs.infer, device="cuda") as batcher:
        add("batched by eight", compared(batcher))
    second = kind(cuda_graph=True)
    record(second, pictures, HALVES.bucket_sizes)
    with StreamBatcher(HALVES, [graphs.infer, second.infer], device="cuda") as flights:
        add("two in flight", compared(flights))
    second.engine.close()
    with DynamicBatcher(LIVE, graphs.infer, device="cuda") as batcher:
        paced, _ = from_threads(through(batcher), graphs, pictures, 2 * PACE_HZ, pace_hz=PACE_HZ)
        add(f"batched, paced {PACE_HZ}/s", {**paced, "timeout_ms": LIVE.timeout_ms})
    paced, _ = from_threads(turns(graphs), graphs, pictures, 2 * PACE_HZ, pace_hz=PACE_HZ)
    add(f"graphs shared, paced {PACE_HZ}/s", paced)
    for network in (eager, graphs):
        if network.engine is not None:
            network.engine.close()
    return found


def record(network: Network, pictures: Pictures, buckets: tuple[int, ...]) -> None:
    """Make the CUDA graphs before anything is timed."""
    for rows in buckets:
        requests = [network.request(pictures[stream][0], None) for stream in range(rows)]
        network.infer(tuple(torch.stack(leaves) for leaves in zip(*requests, strict=True)))
    torch.cuda.synchronize()


def main() -> None:
    """Compare, time, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--only", choices=("rvm", "deeplab"))
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_intermixed_args()
    stamp = gpu_stamp()
    rows: list[dict[str, Any]] = []
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "rvm": lambda: measure(Rvm, options.steps),
        "deeplab": lambda: measure(DeepLab, options.steps),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            rows += [row | stamp for row in part()]
            if options.out is not None:  # keep these rows even if a later one fails
                write_rows(options.out, rows)
    missed = [
        f"{row['claim']}: {row['against_eager']}x eager, {row['against_graphs']}x graphs"
        for row in rows
        if row["claim"].endswith("batched") and (row["against_eager"] < 2 or row["against_graphs"] < 1.6)
    ]
    print("\n".join(["missed:", *missed]) if missed else "bars reached: 2x eager, 1.6x graphs")


if __name__ == "__main__":
    main()
