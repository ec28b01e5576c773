"""Dynamic batching: threads hand in one frame each, and a network computes them together.

Usage: python examples/dynamic_batching.py [--device cpu] [--frames 32]
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np

from small_network import onnx_network
from vitascope.gpu import BatchConfig, DynamicBatcher, InferenceRequest, InferenceResponse, OnnxEngine


def main(*, device: Literal["auto", "cuda", "cpu"] = "auto", frames: int = 32) -> list[InferenceResponse]:
    """Send frames one by one, then from eight threads at a time; print what that made of them."""
    engine = OnnxEngine(device=device)
    engine.build_engine_from_onnx(onnx_network())

    # Configure
    config = BatchConfig(min_batch_size=1, max_batch_size=8, timeout_ms=50)

    # Define inference function
    def inference_fn(batch: np.ndarray) -> np.ndarray:
        scores: np.ndarray = engine.infer(np.asarray(batch))
        return scores

    frame = np.random.default_rng(0).random((3, 72, 128), np.float32)

    # Start batcher
    batcher = DynamicBatcher(config, inference_fn, device=device)
    batcher.start()

    # Submit requests
    request = InferenceRequest(data=frame, request_id="frame_001", timestamp=time.perf_counter())
    response = batcher.submit(request)

    print(f"Latency: {response.latency_ms:.2f} ms")
    print(f"Batch size: {response.batch_size}")

    # A lone client waits for the timeout. Several clients do not: they fill batches.
    with ThreadPoolExecutor(8) as clients:
        responses = list(
            clients.map(lambda n: batcher.submit(InferenceRequest(frame, f"frame_{n:03}")), range(frames))
        )
    stats = batcher.stats()
    batcher.stop()
    engine.close()
    print(f"{frames} frames of 8 clients: {stats.mean_batch_size:.1f} a call on average", end=", ")
    print(f"95 % within {stats.latency.p95_seconds * 1e3:.1f} ms")
    return [response, *responses]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--frames", type=int, default=32)
    options = parser.parse_args()
    main(device=options.device, frames=options.frames)
