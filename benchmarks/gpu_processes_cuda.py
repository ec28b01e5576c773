"""Measure 1 to 3 processes on one GPU (``--gpu-ids 0,0``): 1080p videos to masks and key-colour videos.

In one process, decoder, kernels, network and encoders share an interpreter, which a 1080p video keeps so busy
that the decoder waits for it. Videos, settings and checks are those of ``segment_cuda.py``; so are the
decoder alone (one session) and the encoder alone (all cores), in the same run. ``share_of_slowest_stage`` is
relative to the encoder alone: each process has its own decoder session.

Prediction: two processes gain a third, three a half; then the CPU's cores are the limit. Each process except
    the first mattes 192 frames that it does not write.

Usage: python benchmarks/gpu_processes_cuda.py [--size 1080p] [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from row_stamp import gpu_stamp, write_rows
from segment_cuda import FRAMES, SIZES, decoder_alone, encoder_alone, make_film, run_segment
from vitascope.device import available_cores

RESULTS = Path(__file__).parent / "results" / "gpu_processes_cuda.json"
IDS = ("0", "0,0", "0,0,0")
WARM_FRAMES = 1500
"""Enough frames for three processes to share."""
SETTINGS: dict[str, Any] = {
    "output.mask_max_width": 2048,
    "output.preset": "ultrafast",
    "model.input_size": 512,
    "dataloader.persistent_workers": True,
}


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="1080p")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    folder = Path(tempfile.gettempdir()) / "vitascope_films"
    folder.mkdir(exist_ok=True)
    film = make_film(folder, options.size, SIZES[options.size], FRAMES[options.size])
    decoder = round(decoder_alone(film, 1), 1)
    rows: list[dict[str, Any]] = []
    for kind in ("mask", "key"):
        out = folder / f"{kind}.mp4"
        encoder = None
        for ids in IDS:
            settings = SETTINGS | {"output.kinds": [kind], "gpu.device_ids": ids}
            row = run_segment(film, out, settings, warm_frames=WARM_FRAMES)
            encoder = encoder or encoder_alone(out, folder / "alone.mp4", FRAMES[options.size])
            rows.append(
                {
                    "claim": f"file to {kind} {options.size}, processes on one GPU: {ids.count(',') + 1}",
                    **row,
                    "decoder_alone_fps": decoder,
                    "encoder_alone_fps": round(encoder, 1),
                    "share_of_slowest_stage": round(row["fps"] / encoder, 3),
                    "cores": available_cores(),
                    **gpu_stamp(),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
            write_rows(options.out, rows)


if __name__ == "__main__":
    main()
