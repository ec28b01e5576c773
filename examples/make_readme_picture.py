"""Make the README's picture: the demo clip's left eye as source, matte, key colour and blurred background.

Usage: python examples/make_readme_picture.py [out.jpg]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import av
import cv2
import numpy as np

import vitascope

CLIP = Path(__file__).with_name("astronaut_sbs.mp4")
PAGE = Path(__file__).parents[1] / "docs" / "images" / "astronaut.jpg"
FRAME = 60


def left_eye(path: Path) -> np.ndarray:
    """RGB of one frame's left half."""
    with av.open(str(path)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index == FRAME:
                return frame.to_ndarray(format="rgb24")[:, : frame.width // 2]
    raise SystemExit(f"{path} has no frame {FRAME}")


def main(page: Path) -> None:
    """Segment the clip and put four pictures side by side."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.mp4"
        report = vitascope.segment(
            CLIP, out, output=["mask", "key", "blur"], settings={"edges.decontaminate": True}
        )
        pictures = [left_eye(CLIP), *(left_eye(output.path) for output in report.outputs)]
    strip = np.concatenate(pictures, axis=1)
    strip = cv2.resize(strip, None, fx=0.55, fy=0.55, interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(page), strip[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 88])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
