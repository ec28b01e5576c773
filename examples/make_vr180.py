"""Make a small VR180 video: the astronaut, cut out of the photograph, floats before and below a viewer.

The figure goes from straight ahead to 40 degrees below the horizon, where equirectangular pictures bend people.

Usage: python examples/make_vr180.py [astronaut_LR_180.mp4]
"""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np

import vitascope
from vitascope.vr.synthetic import Camera, Figure, Place, Scene, Surround, clip, drift, noise_surround

FRAME_RATE = Fraction(12)
FRAME_COUNT = 36
EYE_SIZE = 512


def scene() -> Scene:
    """The astronaut in front of a soft sky."""
    photograph = cv2.imread(str(Path(__file__).with_name("astronaut.jpg")))[..., ::-1]
    with vitascope.StillSegmenter(profile="fast") as segmenter:
        alpha = segmenter.mask(np.ascontiguousarray(photograph))
    figure = Figure(
        np.dstack([photograph, alpha]),
        drift(Place(distance_m=1.3), elevation_degrees_per_second=-13.0, azimuth_degrees_per_second=6.0),
        height_m=1.5,
    )
    sky = cv2.GaussianBlur(noise_surround(512), None, 9)
    return Scene((figure,), Surround(np.asarray(sky, np.uint8)), Camera(size=(EYE_SIZE, 2 * EYE_SIZE)))


def main(path: Path) -> None:
    """Write the video."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=FRAME_RATE, options={"crf": "18"})
        video.width, video.height, video.pix_fmt = 2 * EYE_SIZE, EYE_SIZE, "yuv420p"
        for view in clip(scene(), frame_rate=FRAME_RATE, frame_count=FRAME_COUNT):
            container.mux(video.encode(av.VideoFrame.from_ndarray(view.rgb, format="rgb24")))
        container.mux(video.encode(None))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("astronaut_LR_180.mp4"))
