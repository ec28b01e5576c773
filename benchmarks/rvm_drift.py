"""Measure whether RVM in FP16 drifts from FP32 over a long video, by its recurrent state.

The same pictures run through both arithmetics, each with its own state, which is never reset. Pictures are
moving smooth noise, or a clip played forwards and backwards. A row gives the mean difference of alpha, in
codes of 255, over each tenth of the frames: a flat row is right, a growing one shows drift. Alpha of noise is
not clipped to 0..1, that of a clip is.

Usage: python benchmarks/rvm_drift.py RVM.onnx [--frames 5000] [--size 288x512] [--clip FILE] [--precision fp16|mixed]
    [OUT.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from row_stamp import gpu_stamp, write_rows
from vitascope.models.network_check import random_pictures
from vitascope.models.rvm.fused_network import RvmFusedNetwork
from vitascope.models.rvm.torch_network import RvmTorchNetwork

BATCH = 16
PRECISIONS = ("fp16", "mixed")


def noise(size: tuple[int, int]) -> Any:
    """Pictures [16, 1, 3, h, w], float16, that the caller shifts along."""
    return random_pictures(steps=BATCH, size=size)()["pictures"].astype(np.float16)


def film(clip: Path, size: tuple[int, int], most: int = 256) -> Any:
    """The first frames of a clip, scaled, forth and back: [T, 1, 3, h, w], float16, T a multiple of 16."""
    import av

    frames = []
    with av.open(str(clip)) as container:
        for frame in container.decode(video=0):
            rgb = frame.reformat(width=size[1], height=size[0], format="rgb24").to_ndarray()
            frames.append(rgb.transpose(2, 0, 1)[None].astype(np.float16) / np.float16(255))
            if len(frames) == most:
                break
    frames = frames[: len(frames) // BATCH * BATCH]
    return np.stack(frames + frames[::-1])


def alphas(estimates: Any, pictures: Any, *, clipped: bool) -> Any:
    """Alpha at the network's size, [T, E, h, w] on the GPU."""
    grey = pictures.astype(np.float32).mean(axis=2)
    gain, offset = (
        cupy.stack([getattr(one, name)[:, 3].astype(np.float32) for one in estimates])
        for name in ("gain", "offset")
    )
    alpha = gain * grey + offset
    return cupy.clip(alpha, 0, 1) if clipped else alpha


def compare(model: Path, precision: str, pictures: Any, frames: int, *, moves: bool) -> dict[str, Any]:
    """Differences over time."""
    ours: Any = RvmFusedNetwork(model, precision=precision)  # type: ignore[arg-type]
    exact = RvmTorchNetwork(model, precision="fp32")
    states = ours.new_state(), exact.new_state()
    differences = []
    resident = cupy.asarray(pictures)
    for first in range(0, frames, BATCH):
        start = first % len(pictures)
        batch = resident[start : start + min(BATCH, frames - first)]
        if moves:
            batch = cupy.ascontiguousarray(cupy.roll(batch, first // BATCH, axis=-1))
        # Noise shows nobody, so clipped alpha would be 0 everywhere.
        theirs = alphas(exact.infer(batch.astype(np.float32), states[1]), batch, clipped=not moves)
        difference = cupy.abs(alphas(ours.infer(batch, states[0]), batch, clipped=not moves) - theirs)
        differences.append((float(difference.mean()) * 255, float(theirs.mean())))
    codes = np.array([one for one, _ in differences])
    tenths = [round(float(part.mean()), 4) for part in np.array_split(codes, 10)]
    row = {
        "claim": f"rvm drift {precision}",
        "frames": frames,
        "size": f"{pictures.shape[4]}x{pictures.shape[3]}",
        "mean_255": round(float(codes.mean()), 4),
        "worst_batch_255": round(float(codes.max()), 4),
        "tenths_255": tenths,
        "mean_alpha": round(float(np.mean([mean for _, mean in differences])), 3),
    }
    ours.close()
    exact.close()
    return row


def main() -> None:
    """Compare both half-precision arithmetics with FP32, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--frames", type=int, default=5000)
    parser.add_argument("--size", default="288x512", help="height x width of the network's picture")
    parser.add_argument("--clip", type=Path)
    parser.add_argument("--precision", choices=PRECISIONS, help="both when omitted")
    options = parser.parse_intermixed_args()
    height, width = (int(side) for side in options.size.split("x"))
    pictures = noise((height, width)) if options.clip is None else film(options.clip, (height, width))
    stamp = {
        "pictures": "moving noise" if options.clip is None else options.clip.name,
        **gpu_stamp(),
    }
    rows = []
    for precision in [options.precision] if options.precision else PRECISIONS:
        row = compare(options.model, precision, pictures, options.frames, moves=options.clip is None)
        rows.append({**row, **stamp})
        print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        write_rows(options.out, rows)


if __name__ == "__main__":
    main()
