"""Alpha of the ``rvm`` path against the authors' ONNX graph, frame by frame, on a clip.

The official graph gets the full picture as RGB (swscale's exact conversion), the same ratio, and its recurrent states
back; ours runs as ``segment`` runs it, with and without the warm-up at the start of a shot. Scene cuts are off on both
sides. One row a ratio goes to ``benchmarks/results/rvm_alpha_error.json``.

Usage: python benchmarks/rvm_alpha_error.py CLIP.mp4 [RATIO ...]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import av
import numpy as np
import onnxruntime as ort
from av.video.reformatter import Interpolation

from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.device import available_cores
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.segmenter import Segmenter

RESULTS = Path(__file__).parent / "results" / "rvm_alpha_error.json"
EXACT = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND


def official_alphas(clip: Path, ratio: float):
    """Alpha of every frame from the uncut graph: float32 [H, W], 0..1."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = available_cores()
    session = ort.InferenceSession(
        str(ModelStore(vitascope_home()).pull("rvm")), options, providers=["CPUExecutionProvider"]
    )
    states = [np.zeros((1, 1, 1, 1), np.float32)] * 4
    with av.open(str(clip)) as container:
        for frame in container.decode(video=0):
            rgb = frame.reformat(format="rgb24", interpolation=EXACT).to_ndarray()
            source = (rgb.astype(np.float32) / 255).transpose(2, 0, 1)[None]
            inputs = {f"r{level}i": state for level, state in enumerate(states, start=1)}
            outputs = session.run(
                None, {"src": source, "downsample_ratio": np.array([ratio], np.float32), **inputs}
            )
            states = outputs[2:]
            yield outputs[1][0, 0]


def compare(clip: Path, ratio: float) -> dict[str, object]:
    """Mean and worst frame of the mean absolute difference, in codes of 255."""
    row: dict[str, object] = {"claim": "rvm alpha error", "clip": clip.name, "ratio": ratio}
    official = [np.rint(alpha * 255).astype(np.uint8) for alpha in official_alphas(clip, ratio)]
    for name, warm_up, ahead in (("without_warm_up", 0, 0), ("as_segment_runs", 3, 8)):
        settings = {
            "model.name": "rvm",
            "model.downsample_ratio": ratio,
            "model.warm_up_frames": warm_up,
            "model.look_ahead_frames": ahead,
            "video.scene_cut_threshold": 0,
        }
        with Segmenter(settings=settings) as segmenter:
            errors = [
                float(np.abs(alpha.astype(np.int16) - theirs).mean())
                for (_, alpha), theirs in zip(segmenter.stream(clip), official, strict=True)
            ]
        row[name] = {"mean_255": round(float(np.mean(errors)), 3), "worst_frame_255": round(max(errors), 3)}
    row["frames"] = len(official)
    return row


def main() -> None:
    """Compare at each ratio and write the rows."""
    clip = Path(sys.argv[1])
    ratios = [float(word) for word in sys.argv[2:]] or [0.375, 0.6]
    stamp = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "onnxruntime": ort.__version__,
    }
    rows = [{**compare(clip, ratio), **stamp} for ratio in ratios]
    write_rows(RESULTS, rows)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
