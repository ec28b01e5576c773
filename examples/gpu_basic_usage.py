"""Preprocess with the kernels, infer with an engine, profile it: the first page of the toolkit.

TensorRT is taken where its package is installed, else PyTorch, else ONNX Runtime, which always is; ``--engine`` takes
another one, by the same methods.

Usage: python examples/gpu_basic_usage.py [--device cpu] [--engine tensorrt|inductor|onnx]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from small_network import ENGINES, INSTALLED, SUFFIXES, build, make_model
from vitascope.gpu import CUDAKernelProcessor, Profiler


def main(
    *,
    device: Literal["auto", "cuda", "cpu"] = "auto",
    engine: str | None = None,
) -> np.ndarray:
    """Run it once; the network's answer."""
    engine = engine or INSTALLED
    frame = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), dtype=np.uint8)

    # 1. Preprocess with custom CUDA kernels
    processor = CUDAKernelProcessor(device_id=0, device=device)
    preprocessed = processor.fused_preprocess(frame, target_size=(512, 512))

    # 2. Inference: build once, load, infer
    with tempfile.TemporaryDirectory() as folder, ENGINES[engine](fp16_mode=True, device=device) as network:
        path = Path(folder) / f"model_fp16{SUFFIXES[engine]}"
        sizes = {"min": (1, 3, 512, 512), "opt": (4, 3, 512, 512), "max": (8, 3, 512, 512)}
        build(network, make_model(), sizes, path)
        network.load_engine(path)
        output: np.ndarray = network.infer(preprocessed)

        # 4. Profile performance
        profiler = Profiler(device="cpu" if device == "cpu" else "auto")
        for _ in range(3):
            with profiler.profile("preprocess"):
                input_batch = processor.fused_preprocess(frame, target_size=(512, 512))
            with profiler.profile("inference"):
                output = network.infer(input_batch)
        print(network.name)
    profiler.print_summary()
    processor.close()
    return output


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--engine", choices=sorted(ENGINES))
    options = parser.parse_args()
    main(device=options.device, engine=options.engine)
