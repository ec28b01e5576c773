"""Compare alpha of a real video on a GPU, by precision, with the same job on the CPU.

The CPU runs the official ONNX network under ONNX Runtime in FP32 and the reference kernels in NumPy; the GPU
runs its own network and kernels. Both see the same decoded frames in order, each with its own recurrent
state, so early differences persist. In codes of 255.

Bars: a mean of 0.5 in FP32 and 1.5 in FP16.

Prediction for an H200: 0.1 in FP32, mostly from the decoders' chroma and from sums in another order; FP16 at
most 0.2.

Usage: python benchmarks/gpu_against_cpu.py FILM.mp4 [--frames 120] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from row_stamp import gpu_stamp, write_rows
from vitascope.config import load_settings
from vitascope.gpu.interchange import to_numpy
from vitascope.segmentation.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results" / "gpu_against_cpu.json"
BARS = {"fp32": 0.5, "fp16": 1.5}


def alphas(film: Path, frames: int, settings: dict[str, Any]) -> np.ndarray:
    """Alpha of the first frames, float32 [T, H, W] in 0..255."""
    flags = {"model.name": "rvm", "model.input_size": 512} | settings
    with Segmenter(loaded=load_settings(flags=flags)) as segmenter, closing(segmenter.stream(film)) as steps:
        return np.stack([to_numpy(one.alpha).astype(np.float32) for one in islice(steps, frames)])


def main() -> None:
    """Matte, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("film", type=Path)
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    expected = alphas(options.film, options.frames, {"gpu.device": "cpu"})
    rows = []
    for precision, bar in BARS.items():
        made = alphas(options.film, options.frames, {"gpu.device": "cuda", "gpu.precision": precision})
        errors = np.abs(made - expected).mean(axis=(1, 2))
        rows.append(
            {
                "claim": f"alpha on the GPU in {precision} against the processor",
                "film": options.film.name,
                "frames": len(made),
                "mean_alpha_255": round(float(expected.mean()), 2),
                "mean_error_255": round(float(errors.mean()), 4),
                "worst_frame_255": round(float(errors.max()), 4),
                "share_off_by_more_than_16": round(float((np.abs(made - expected) > 16).mean()), 6),
                "bar_255": bar,
                **gpu_stamp(),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    write_rows(options.out, rows)


if __name__ == "__main__":
    main()
