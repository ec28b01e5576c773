"""Make ``astronaut_sbs.mp4``: scikit-image's astronaut as a moving stereo clip with sound.

The photograph sways and breathes, and the two eyes see it a few samples apart.

Usage: python examples/make_astronaut_sbs.py [out.mp4]
"""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt

try:
    from skimage import data
except ImportError:
    raise SystemExit("the photograph is scikit-image's: pip install scikit-image pooch") from None

FRAME_RATE = Fraction(24)
FRAME_COUNT = 96
EYE_SIZE = 512
SAMPLE_RATE = 48_000
Rgb = npt.NDArray[np.uint8]


def eye(frame_index: int, *, parallax_px: float) -> Rgb:
    """One eye's view: the astronaut photograph, slowly swaying and zooming, shifted by the parallax."""
    photograph = data.astronaut()
    phase = 2 * np.pi * frame_index / FRAME_COUNT
    scale = 1.06 + 0.04 * np.sin(phase)
    shift_x = 8 * np.sin(phase) + parallax_px
    shift_y = 5 * np.cos(phase)
    centre = EYE_SIZE / 2
    matrix = np.array(
        [[scale, 0, centre - scale * centre + shift_x], [0, scale, centre - scale * centre + shift_y]]
    )
    return np.asarray(
        cv2.warpAffine(
            photograph, matrix, (EYE_SIZE, EYE_SIZE), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT
        ),
        np.uint8,
    )


def tone(start: int, count: int) -> npt.NDArray[np.float32]:
    """A quiet two-note chime that repeats every second."""
    seconds = (start + np.arange(count)) / SAMPLE_RATE
    envelope = np.exp(-4 * (seconds % 1.0))
    notes = np.sin(2 * np.pi * 523.25 * seconds) + np.sin(2 * np.pi * 659.25 * seconds)
    return np.asarray(0.1 * envelope * notes, np.float32)[None]


def main(path: Path) -> None:
    """Write the clip."""
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "Astronaut, side by side"
        video = container.add_stream("libx264", rate=FRAME_RATE, options={"crf": "23", "preset": "slow"})
        video.width, video.height, video.pix_fmt = 2 * EYE_SIZE, EYE_SIZE, "yuv420p"
        context = video.codec_context
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = 1, 1, 1, 1
        audio = container.add_stream("aac", rate=SAMPLE_RATE)
        audio.layout = "mono"
        for index in range(FRAME_COUNT):
            both = np.concatenate([eye(index, parallax_px=3), eye(index, parallax_px=-3)], axis=1)
            picture = av.VideoFrame.from_ndarray(both, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=1
            )
            picture.pts, picture.time_base = index, 1 / FRAME_RATE
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
        for start in range(0, int(FRAME_COUNT / FRAME_RATE * SAMPLE_RATE), 1024):
            sound = av.AudioFrame.from_ndarray(tone(start, 1024), format="fltp", layout="mono")
            sound.sample_rate, sound.pts, sound.time_base = SAMPLE_RATE, start, Fraction(1, SAMPLE_RATE)
            container.mux(audio.encode(sound))
        container.mux(audio.encode(None))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("astronaut_sbs.mp4"))
