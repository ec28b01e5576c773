"""How well cuts are found: clips made here, and splices of real clips. Writes rows, prints a table.

python benchmarks/shot_quality/measure.py [--clips FOLDER] [--out benchmarks/results/shot_quality.json]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from truth import KINDS, Spliced, make_clip, splice_clips

from vitascope.segmentation.matting.batch import tile_means
from vitascope.segmentation.matting.scene_cuts import SceneCutDetector
from vitascope.segmentation.matting.stream import MattingOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from row_stamp import commit, write_rows

_FIRST_SEED = 200
"""The detector was fitted on seeds below."""


def found(clip: Spliced) -> tuple[list[int], float]:
    """Frames that begin a shot, and the milliseconds a frame that it took to find them."""
    planes = np.ascontiguousarray(clip.frames.transpose(0, 3, 1, 2)[:, None]).astype(np.float32) / 255
    tiles = np.concatenate([tile_means(picture[None]) for picture in planes])
    detector = SceneCutDetector(MattingOptions().scene_cut_threshold)
    begun = process_time()
    changes = [change for decided in detector.see(tiles) for change in decided] + detector.finish()
    spent = process_time() - begun
    return [number for number, change in enumerate(changes) if change.starts_shot], spent * 1e3 / len(tiles)


def row_of(kind: str, clips: Iterator[Spliced]) -> dict[str, Any]:
    """Right, false and missed cuts of some clips; a cut is right within its span, once."""
    right = false = missed = frames = count = 0
    milliseconds = []
    for clip in clips:
        starts, spent = found(clip)
        left = list(starts)
        for first, last in clip.cuts:
            hit = next((start for start in left if first <= start <= last), None)
            if hit is not None:
                left.remove(hit)
                right += 1
            else:
                missed += 1
        false += len(left)
        count, frames = count + 1, frames + len(clip.frames)
        milliseconds.append(spent)
    return {
        "kind": kind, "clips": count, "frames": frames, "cuts": right + missed, "right": right, "false": false,
        "missed": missed, "f1": _f1(right, false, missed), "ms_a_frame": round(float(np.median(milliseconds)), 3),
    }  # fmt: skip


def _f1(right: int, false: int, missed: int) -> float:
    return round(2 * right / max(2 * right + false + missed, 1), 3)


def _sum(kind: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total = {
        name: sum(row[name] for row in rows)
        for name in ("clips", "frames", "cuts", "right", "false", "missed")
    }
    return {"kind": kind, **total, "f1": _f1(total["right"], total["false"], total["missed"])}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=Path, help="folder of real clips to splice; none without")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    seeds = range(_FIRST_SEED, _FIRST_SEED + given.seeds)
    rows = [row_of(kind, (make_clip(kind, seed=seed) for seed in seeds)) for kind in KINDS]
    rows.append(_sum("all that was made here", rows))
    if given.clips is not None:
        paths = sorted(given.clips.glob("*.mp4"))
        for kind, within in (("splices of several clips", False), ("jumps within a clip", True)):
            rows.append(row_of(kind, (splice_clips(paths, seed=seed, within=within) for seed in seeds)))
        rows.append(row_of("real clips, uncut", (splice_clips([path], seed=0, shots=1) for path in paths)))
    for row in rows:
        print(" | ".join(str(value) for value in row.values()), flush=True)
    if given.out is not None:
        write_rows(given.out, [{**row, "commit": commit()} for row in rows])


if __name__ == "__main__":
    main()
