"""Compare RVM's pictures of 768 and 512 samples on people of all sizes, whose alpha is known.

Each clip is one person of ``matte_quality/truth.py``, whole or without a head, matted as ``balanced`` does.

Usage: python benchmarks/close_ups.py CLIP.mp4 [...] [--seeds 80,81] [--frames 10] [--keep FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.close_ups import CLOSE_UP_SIDE, largest_share
from vitascope.segmentation.segmenter import Segmenter

sys.path.insert(0, str(Path(__file__).parent / "matte_quality"))
from metrics import scores
from truth import CLASSES, Walk, cut_figure, make_film, write_film

_SIZES = (768, CLOSE_UP_SIDE)
_PLACES = {"0.6": (0.6, 0.95), "1.2": (1.2, 1.3), "1.8 headless": (1.8, 1.45), "2.5 headless": (2.5, 1.8)}
"""Heights of the person and of their lower edge, in heights of the picture."""


def main() -> None:
    """Print a row for each clip and size; save them on request."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="+", help="one person each, before a plain background")
    parser.add_argument("--seeds", default="80,81")
    parser.add_argument("--frames", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="JSON file that the rows are written to")
    options = parser.parse_args()
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"), longest_side=768)
    figures, scenery = zip(*(cut_figure(clip, network) for clip in options.clips), strict=True)
    network.close()
    rows = []
    for name, (height, foot) in _PLACES.items():
        CLASSES[name] = (Walk(height, lambda time: 0.5 + 0.03 * float(np.sin(5 * time)), foot),)
        for seed in map(int, options.seeds.split(",")):
            film = make_film(name, figures, scenery, seed=seed, size=(540, 960), frames=options.frames)
            with tempfile.TemporaryDirectory() as folder:
                path = write_film(film, Path(folder) / "film.mp4")
                for side in _SIZES:
                    settings = {"gpu.device": "cpu", "model.input_size": side}
                    with Segmenter(profile="balanced", settings=settings) as segmenter:
                        codes = [(alpha, np.iinfo(alpha.dtype).max) for _, alpha in segmenter.stream(path)]
                    found = [alpha.astype(np.float32) / most for alpha, most in codes]
                    before = [None, *zip(found, film.alpha, strict=True)]
                    figures_of = [
                        scores(*one, before=last)
                        for one, last in zip(zip(found, film.alpha, strict=True), before, strict=False)
                    ]
                    rows.append({
                        "claim": "close-ups",
                        "clip": f"{name}, seed {seed}",
                        "share": round(largest_share(film.alpha[0]), 3),
                        "side": side,
                        "frames": len(found),
                        **{
                            key: round(float(np.mean([one[key] for one in figures_of if key in one])), 3)
                            for key in ("sad", "grad", "dtssd")
                        },
                        "commit": commit(),
                        "date": time.strftime("%Y-%m-%d"),
                    })  # fmt: skip
                    print(json.dumps(rows[-1]), flush=True)
    if options.keep is not None:
        write_rows(options.keep, rows)


if __name__ == "__main__":
    main()
