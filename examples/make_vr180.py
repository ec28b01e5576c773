"""Make a small VR180 video: the astronaut, cut out of the photograph, floats before and below a viewer.

The figure goes from straight ahead to 40 degrees below the horizon, where equirectangular pictures bend people.

Usage: python examples/make_vr180.py [astronaut_LR_180.mp4] [--eye 512] [--frames 36] [--rate 12]
"""

from __future__ import annotations

import argparse
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

import vitascope
from vitascope.vr.synthetic import Camera, Figure, Place, Scene, Surround, clip, drift, noise_surround


def scene(eye_size: int, seconds: float) -> Scene:
    """The astronaut in front of a soft sky, on the way for so many seconds."""
    photograph = cv2.imread(str(Path(__file__).with_name("astronaut.jpg")))[..., ::-1]
    with vitascope.StillSegmenter(profile="fast") as segmenter:
        alpha = segmenter.mask(np.ascontiguousarray(photograph))
    figure = Figure(
        np.dstack([photograph, alpha]),
        drift(
            Place(distance_m=1.3),
            elevation_degrees_per_second=-40 / seconds,
            azimuth_degrees_per_second=18 / seconds,
        ),
        height_m=1.5,
    )
    sky = cv2.GaussianBlur(noise_surround(512), None, 9)
    return Scene((figure,), Surround(np.asarray(sky, np.uint8)), Camera(size=(eye_size, 2 * eye_size)))


def main() -> None:
    """Write the video."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path, nargs="?", default=Path("astronaut_LR_180.mp4"))
    parser.add_argument("--eye", type=int, default=512, help="samples along the side of an eye")
    parser.add_argument("--frames", type=int, default=36)
    parser.add_argument("--rate", type=int, default=12, help="frames a second")
    options = parser.parse_args()
    made = scene(options.eye, options.frames / options.rate)
    with av.open(str(options.path), "w") as container:
        video = container.add_stream("libx264", rate=options.rate, options={"crf": "18"})
        video.width, video.height, video.pix_fmt = 2 * options.eye, options.eye, "yuv420p"
        for view in clip(made, frame_rate=Fraction(options.rate), frame_count=options.frames):
            container.mux(video.encode(av.VideoFrame.from_ndarray(view.rgb, format="rgb24")))
        container.mux(video.encode(None))


if __name__ == "__main__":
    main()
