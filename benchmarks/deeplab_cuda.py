"""DeepLabV3+ (ResNet-50, output stride 16, 21 classes) at 512x512 through ``InductorEngine``: precisions and batches.

The specification gives 45 ms for FP32 and batch 1, 22, 50 and 85 ms for FP16 and batches 1, 4 and 8, and 45
ms for INT8 and batch 8, on an RTX 3090 under TensorRT. Here each engine's output on the GPU is first compared
with FP32 in PyTorch on the same GPU (and that once with the CPU), then its own ``benchmark`` measures calls
with CUDA graphs, from inputs on the GPU to fresh outputs there. Weights are random: errors show the loss of
the arithmetic, not of masks.

FP8 is e4m3 in the 1x1 convolutions (``torch._scaled_mm``) and FP16 elsewhere; INT8 is ``torch._int_mm`` in the same
places and rounded FP16 elsewhere: PyTorch has no 8-bit convolution of larger kernels.

Prediction: about 130 GFLOP a picture. FP16 at 400 TFLOP/s of the 990 that an H200 has on paper is 0.33 ms a picture at
batch 8; batch 1 fills a tenth of the multiprocessors in the deep layers, and some 90 kernels of 5 us or more
limit it to 0.6 ms and above. A third of the operations are in 1x1 convolutions: FP8 that doubled their speed
would gain 15 %, less the cost of rounding the activations. Measured on an H200, compiled: 1.06 ms for one
picture and 0.48 ms a picture at batch 8 in FP16; rounding costs more than 8 bits gain (FP8 takes 1.07 times
FP16's time, INT8 1.12).

Usage: python benchmarks/deeplab_cuda.py [--quick] [--only int8] [OUT.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeplab_v3_plus import DeepLabV3Plus
from row_stamp import gpu_stamp, write_rows
from vitascope.gpu import InductorEngine, ModelQuantizer

RESULTS = Path(__file__).parent / "results" / "deeplab_cuda.json"
SIDE = 512
# Precision, batch -> milliseconds on an RTX 3090, from the specification.
RTX_3090_MS = {("fp32", 1): 45, ("fp16", 1): 22, ("fp16", 4): 50, ("fp16", 8): 85, ("int8", 8): 45}
# Precision, mode, batches. Each compiled batch costs seconds; where a row of the table is not reached, eager stands in.
VARIANTS = (
    ("fp32", "eager", (1, 4, 8)),
    ("tf32", "eager", (1, 4, 8)),
    ("fp16", "eager", (1, 4, 8)),
    ("fp16", "compile", (1, 4, 8)),
    ("fp8", "compile", (1, 4, 8)),
    ("int8", "compile", (1, 4, 8)),
    ("fp32", "compile", (1,)),
)
MOST_RELATIVE_ERROR = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2, "fp8": 2e-1, "int8": 2e-1}


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Smooth random pictures, normalised: float32 [N, 3, 512, 512]."""
    random = np.random.default_rng(seed)
    coarse = torch.from_numpy(random.standard_normal((count, 3, SIDE // 16, SIDE // 16), dtype=np.float32))
    fine = torch.from_numpy(random.standard_normal((count, 3, SIDE, SIDE), dtype=np.float32))
    smooth = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return (0.9 * smooth + 0.3 * fine).numpy()


def open_engine(model: torch.nn.Module, precision: str, mode: Any) -> InductorEngine:
    """An engine of one precision for batches of 1 to 16."""
    if precision == "fp8":
        model = ModelQuantizer.quantize_fp8(model, pictures(2, seed=1))
    elif precision == "int8":
        products = [name for name, layer in model.named_modules() if _is_larger(layer)]
        model = ModelQuantizer.quantize_int8(model, pictures(2, seed=1), method="minmax", skip=products)
    engine = InductorEngine(
        fp16_mode=precision in ("fp16", "fp8", "int8"),
        device="cuda",
        mode=mode,
        allow_tf32=precision != "fp32",
    )
    shape = (3, SIDE, SIDE)
    sizes = {"input": {"min": (1, *shape), "opt": (4, *shape), "max": (16, *shape)}}
    engine.build_engine_from_pytorch(model, sizes)
    return engine


def _is_larger(layer: torch.nn.Module) -> bool:
    return isinstance(layer, torch.nn.Conv2d) and (layer.kernel_size != (1, 1) or layer.stride != (1, 1))


def main() -> None:
    """Compare, time, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?", default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="leave out what compiles")
    parser.add_argument(
        "--only", action="append", choices=sorted(MOST_RELATIVE_ERROR), help="these precisions"
    )
    options = parser.parse_args()
    stamp = gpu_stamp()
    model = DeepLabV3Plus(num_classes=21)
    given = torch.from_numpy(pictures(8)).cuda()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        expected = DeepLabV3Plus(num_classes=21).cuda()(given)
        on_cpu = model(given[:1].cpu())
    error = float((expected[:1].cpu() - on_cpu).abs().mean() / on_cpu.abs().mean())
    print(f"FP32 on the GPU against the CPU: {error:.2g} of the mean magnitude", flush=True)
    if error > 1e-4:
        raise SystemExit("the reference is wrong")
    rows: list[dict[str, Any]] = []
    for precision, mode, batches in VARIANTS:
        if (options.quick and mode != "eager") or (options.only and precision not in options.only):
            continue
        try:
            engine = open_engine(model, precision, mode)
            for batch in batches:
                begun = time.perf_counter()
                result = engine.infer(given[:batch])
                torch.cuda.synchronize()
                start_s = time.perf_counter() - begun
                theirs = expected[:batch]
                relative = float((result - theirs).abs().mean() / theirs.abs().mean())
                agreement = float((result.argmax(1) == theirs.argmax(1)).float().mean())
                if not relative <= MOST_RELATIVE_ERROR[precision]:
                    print(
                        f"{precision} {mode} {batch}: wrong by {relative:.3g} of the mean magnitude: no row"
                    )
                    continue
                measured = engine.benchmark(100, batch_size=batch)
                rows.append(
                    {
                        "claim": "deeplab",
                        "precision": precision,
                        "mode": mode,
                        "batch": batch,
                        **{key: round(measured[key], 3) for key in ("p50_ms", "p95_ms", "p99_ms")},
                        "avg_latency_ms": round(measured["avg_latency_ms"], 3),
                        "throughput_fps": round(measured["throughput_fps"], 1),
                        "rtx_3090_ms": RTX_3090_MS.get((precision, batch)),
                        "relative_error": round(relative, 5),
                        "argmax_agreement": round(agreement, 4),
                        "start_s": round(start_s, 1),
                        "weights_mb": round(ModelQuantizer.measure_model_size(model) / 1e6, 1),
                        "engine": measured["engine"],
                        **stamp,
                    }
                )
                print(json.dumps({key: rows[-1][key] for key in rows[-1] if key not in stamp}), flush=True)
                write_rows(options.out, rows)
            engine.close()
        except Exception as problem:  # one variant that fails must not cost the others' rows
            print(f"{precision} {mode}: {type(problem).__name__}: {problem}", flush=True)
    fastest = {
        name: min(
            (row["p50_ms"] for row in rows if row["precision"] == name and row["batch"] == 8), default=None
        )
        for name in ("fp16", "fp8", "int8")
    }
    print("batch 8, fastest of each precision:", json.dumps(fastest))


if __name__ == "__main__":
    main()
