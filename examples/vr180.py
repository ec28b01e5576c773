"""Cut people out of stereo video, eye by eye, and see what each eye's matte covers.

Usage: python examples/vr180.py [VIDEO]; without one, the stereo example beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import vitascope


def main(video: Path) -> tuple[float, float]:
    """The share of the left and of the right eye's picture that people cover, in the mean over all frames."""
    left = right = 0.0
    count = 0
    # The layout is recognised by the file, its name or its frames; "video.stereo": "side-by-side" would say so.
    with vitascope.Segmenter(profile="fast") as segmenter:
        for frame, alpha in segmenter.stream(video):
            full_scale = 255 if alpha.dtype == "uint8" else 65535
            half = frame.width // 2
            left += alpha[:, :half].mean() / full_scale
            right += alpha[:, half:].mean() / full_scale
            count += 1
    print(
        f"{video.name}: {count} frames; people cover {left / count:.0%} on the left, {right / count:.0%} on the right"
    )
    return left / count, right / count


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "astronaut_sbs.mp4")
