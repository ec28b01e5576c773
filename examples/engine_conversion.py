"""A network becomes an engine in a file, and is timed: a PyTorch module, or without PyTorch an ONNX network.

Usage: python examples/engine_conversion.py [--device cpu] [--engine tensorrt|inductor|onnx] [--iterations 100]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, Literal

from small_network import ENGINES, INSTALLED, SUFFIXES, build, make_model


def main(
    *,
    device: Literal["auto", "cuda", "cpu"] = "auto",
    engine: str | None = None,
    iterations: int = 100,
) -> dict[str, Any]:
    """Build, time, print; the figures."""
    engine = engine or INSTALLED
    your_model = make_model()

    # Define shapes
    sizes = {"min": (1, 3, 512, 512), "opt": (4, 3, 512, 512), "max": (8, 3, 512, 512)}

    with tempfile.TemporaryDirectory() as folder:
        # Build engine
        built = ENGINES[engine](fp16_mode=True, device=device)
        build(built, your_model, sizes, Path(folder) / f"model_fp16{SUFFIXES[engine]}")

        # Benchmark
        results: dict[str, Any] = built.benchmark(num_iterations=iterations)
        print(built.name)
        print(f"Average latency: {results['avg_latency_ms']:.2f} ms")
        print(f"Throughput: {results['throughput_fps']:.2f} FPS")
        built.close()
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--engine", choices=sorted(ENGINES))
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    main(device=options.device, engine=options.engine, iterations=options.iterations)
