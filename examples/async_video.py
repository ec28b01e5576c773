"""A video through the asynchronous pipeline: frames as the decoder gives them, masks in their order.

Usage: python examples/async_video.py [VIDEO] [--device cpu] [--frames 120]
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Literal

from small_network import HAS_TORCH, make_model
from vitascope import open_video
from vitascope.gpu import AsyncPipeline, OnnxEngine
from vitascope.gpu.toolkit.async_pipeline import AsyncResult, AsyncStats

VIDEO = Path(__file__).parent / "astronaut_sbs.mp4"


def main(
    path: Path = VIDEO, *, device: Literal["auto", "cuda", "cpu"] = "auto", frames: int = 120
) -> tuple[list[AsyncResult], AsyncStats]:
    """Run the video through; results and figures."""
    model = make_model()
    if not HAS_TORCH:  # the pipeline takes modules, engines and callables
        network, model = model, OnnxEngine(device=device)
        model.build_engine_from_onnx(network)

    # Configure
    config = {
        "decode_threads": 8,
        "preprocess_streams": 4,
        "batch_size": 4,
        "postprocess_threads": 16,
        "queue_size": 100,
    }

    # Create and start
    pipeline = AsyncPipeline(
        model, config, device_id=0, device=device, target_size=(256, 512), postprocess="mask"
    )
    pipeline.start()

    # Process video
    taken = []
    with open_video(path) as video:
        for frame_id, frame in enumerate(islice(video, frames)):
            pipeline.submit_frame(frame, frame_id)

            result = pipeline.get_result()
            if result:
                taken.append(result)
                mask = result.data
                latency = result.metadata["total_latency"]
                print(f"Frame {result.frame_id}: {latency * 1000:.2f} ms, {mask.mean():.3f} is foreground")

    # What is still on its way
    pipeline.stop()
    while result := pipeline.get_result():
        taken.append(result)

    # Statistics
    stats = pipeline.get_stats()
    print(f"FPS: {stats.fps:.2f}")
    print(f"Bottleneck: {stats.bottleneck_stage}")
    return taken, stats


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?", type=Path, default=VIDEO)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--frames", type=int, default=120)
    options = parser.parse_args()
    main(options.path, device=options.device, frames=options.frames)
