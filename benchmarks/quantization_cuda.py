"""RVM's coarse network on a GPU in FP32, TF32, mixed, FP16, INT8 and FP8: alpha error on real frames, and speed.

The reference is FP32 in PyTorch's operators; each variant mattes the same clip with a recurrent state of its own. INT8
and FP8 are ``ModelQuantizer``'s modules: matrix products in 8 bits, larger convolutions with rounded values in FP16.
Calibration takes other frames of the clip than the comparison. The selfie networks run on the CPU
(``benchmarks/quantization.py``).

Prediction: at one frame the network is bound by launches, and the fused kernels have the fewest; 8-bit products add
rounding to each layer and cannot win. They exist for networks that spend their time in large matrix products.
Measured on an H200: confirmed; with 16 frames, INT8 takes 2.5 times as long as FP16 in the same operators.

Usage: python benchmarks/quantization_cuda.py [--model RVM.onnx] [--clip FILE] [--only fp8] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
import torch

from quantization_frames import EXAMPLE, alpha_of, clip_pictures
from row_stamp import gpu_stamp, write_rows
from vitascope.config import vitascope_home
from vitascope.gpu import ModelQuantizer
from vitascope.gpu.engines import TensorSpec
from vitascope.gpu.engines.torch_engine import TorchEngine
from vitascope.models.rvm.fused_network import RvmFusedNetwork
from vitascope.models.rvm.structure import state_shapes
from vitascope.models.rvm.torch_network import RvmCoarseNetwork
from vitascope.models.rvm.weights import load_rvm_weights
from vitascope.models.store.store import ModelStore

RESULTS = Path(__file__).parent / "results" / "quantization_cuda.json"
SIZE = (288, 512)
STATES = ("r1", "r2", "r3", "r4")
NAMES = ("pictures", *STATES)
CALIBRATION, COMPARED = 6, 24
# The guided filter's learned mean is a difference of large numbers, and stays FP32 in every precision.
KEPT = ("head.box_filter",)

Infer = Callable[[Any], tuple[Any, Any]]


class Operators:
    """A module of the coarse network on ``TorchEngine``, with the state of one stream."""

    def __init__(
        self, module: RvmCoarseNetwork, shapes: Any, *, mode: Any = "eager", tf32: bool = False
    ) -> None:
        float32 = np.dtype(np.float32)
        self.dtype = np.dtype(np.float32 if module.compute_dtype == torch.float32 else np.float16)
        result = np.dtype(np.float16 if module.result_dtype == torch.float16 else np.float32)
        free = ("steps", "eyes", None, "height", "width")
        states = [TensorSpec(name, float32, (None,) * 4) for name in STATES]
        self.engine = TorchEngine(
            module,
            inputs=[TensorSpec("pictures", self.dtype, free), *states],
            outputs=[TensorSpec("gain", result, free), TensorSpec("offset", result, free), *states],
            device="cuda:0",
            mode=mode,
            allow_tf32=tf32,
        )
        self.name = self.engine.name
        self.state = [torch.zeros(shape, device="cuda") for shape in shapes]

    def infer(self, pictures: Any) -> tuple[Any, Any]:
        """CuPy [T, 1, 3, h, w] to gain and offset."""
        tensor = torch.from_dlpack(cupy.ascontiguousarray(pictures.astype(self.dtype)))
        gain, offset, *self.state = self.engine.run_tensors([tensor, *self.state])
        return cupy.from_dlpack(gain), cupy.from_dlpack(offset)

    def close(self) -> None:
        """Free the engine."""
        self.engine.close()


class Fused:
    """The network as ``segment`` runs it."""

    def __init__(self, path: Path, precision: Any) -> None:
        self.network = RvmFusedNetwork(path, precision=precision)
        self.name, self.state = self.network.engine_name, self.network.new_state()
        self.dtype = np.dtype(self.network.input_for(SIZE).dtype)

    def infer(self, pictures: Any) -> tuple[Any, Any]:
        """As ``Operators.infer``."""
        estimates = self.network.infer(cupy.ascontiguousarray(pictures.astype(self.dtype)), self.state)
        return cupy.stack([e.gain for e in estimates]), cupy.stack([e.offset for e in estimates])

    def close(self) -> None:
        """Free the network."""
        self.network.close()


def matte(infer: Infer, pictures: np.ndarray) -> np.ndarray:
    """Alpha of a clip, frame by frame, on the host."""
    alphas = []
    for picture in pictures:
        gain, offset = (cupy.asnumpy(part).astype(np.float32) for part in infer(cupy.asarray(picture[None])))
        alphas.append(alpha_of(gain[0], offset[0], picture))
    return np.stack(alphas)


def call_ms(infer: Infer, frames: int) -> dict[str, float]:
    """Milliseconds of one call, by CUDA events, on torch's and CuPy's default stream."""
    pictures = cupy.random.random((frames, 1, 3, *SIZE), dtype=np.float32)
    for _ in range(5):
        infer(pictures)
    samples = []
    for _ in range(60):
        events = [cupy.cuda.Event() for _ in range(2)]
        events[0].record()
        infer(pictures)
        events[1].record()
        events[1].synchronize()
        samples.append(cupy.cuda.get_elapsed_time(*events))
    p20, p50, p80 = (round(float(np.percentile(samples, share)), 3) for share in (20, 50, 80))
    return {"ms_p20": p20, "ms_p50": p50, "ms_p80": p80}


def calibration_frames(module: RvmCoarseNetwork, shapes: Any, pictures: np.ndarray) -> dict[str, np.ndarray]:
    """Yield the network's inputs along a clip: pictures, and the states after the previous frame."""
    states = [torch.zeros(shape, device="cuda") for shape in shapes]
    seen: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    with torch.inference_mode():
        for picture in pictures:
            for name, tensor in zip(STATES, states, strict=True):
                seen[name].append(tensor.cpu().numpy())
            seen["pictures"].append(picture[None])
            _, _, *states = module(torch.from_numpy(picture[None]).cuda(), *states)
    return {name: np.concatenate(arrays) for name, arrays in seen.items()}


def main() -> None:
    """Compare, time, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--clip", type=Path, default=EXAMPLE)
    parser.add_argument("--only", action="append", help="part of a variant's name; the reference always runs")
    options = parser.parse_args()
    path = options.model or ModelStore(vitascope_home()).path("rvm")
    pictures = clip_pictures(options.clip, CALIBRATION + COMPARED, SIZE)
    weights = load_rvm_weights(path)
    shapes = state_shapes(weights, 1, SIZE)
    exact = RvmCoarseNetwork(weights, precision="fp32").eval().cuda()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    calibration = calibration_frames(exact, shapes, pictures[:CALIBRATION])
    half = RvmCoarseNetwork(weights, precision="fp16").eval().cuda()
    given = {
        name: array.astype(np.float16) if name == "pictures" else array for name, array in calibration.items()
    }

    def int8(method: Any) -> Any:
        return ModelQuantizer.quantize_int8(half, given, method=method, skip=KEPT)

    def fp8() -> Any:
        return ModelQuantizer.quantize_fp8(half, given, skip=KEPT)

    variants: dict[str, Callable[[], Any]] = {
        "operators fp32": lambda: Operators(exact, shapes),
        "operators tf32": lambda: Operators(exact, shapes, tf32=True),
        "operators fp16": lambda: Operators(half, shapes),
        "fused mixed": lambda: Fused(path, "mixed"),
        "fused fp16": lambda: Fused(path, "fp16"),
        "operators int8 entropy": lambda: Operators(int8("entropy"), shapes),
        "operators int8 percentile": lambda: Operators(int8("percentile"), shapes),
        "operators int8 percentile, compiled": lambda: Operators(int8("percentile"), shapes, mode="compile"),
        "operators fp8": lambda: Operators(fp8(), shapes),
        "operators fp8, compiled": lambda: Operators(fp8(), shapes, mode="compile"),
    }
    rows: list[dict[str, Any]] = []
    expected: np.ndarray | None = None
    for name, make in variants.items():
        if expected is not None and options.only and not any(part in name for part in options.only):
            continue
        try:
            begun = time.perf_counter()
            variant = make()
            alphas = matte(variant.infer, pictures[CALIBRATION:])
            start_s = time.perf_counter() - begun
            expected = alphas if expected is None else expected
            errors = np.abs(alphas - expected).mean(axis=(1, 2, 3)) * 255
            for frames in (1, 16) if "compiled" not in name else (1,):
                row = {
                    "claim": f"quantization rvm {name}",
                    "clip": options.clip.name,
                    "size": f"{SIZE[1]}x{SIZE[0]}",
                    "frames": frames,
                    "alpha_error_255": round(float(errors.mean()), 3),
                    "worst_frame_255": round(float(errors.max()), 3),
                    "mean_alpha": round(float(expected.mean()), 3),
                    **call_ms(variant.infer, frames),
                    "start_s": round(start_s, 1),
                    "engine": variant.name,
                    **gpu_stamp(),
                }
                rows.append(row)
                print(json.dumps(row), flush=True)
                write_rows(options.out, rows)
            variant.close()
        except Exception as problem:  # a failing variant must not cost the others' rows
            print(f"{name}: {type(problem).__name__}: {problem}", flush=True)


if __name__ == "__main__":
    main()
