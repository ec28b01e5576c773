"""Make ``docs/images/animate.jpg``: the astronaut in six moments of ``talk.motion``, drawn by the mesh animator.

Usage: python examples/make_animate_picture.py [out.jpg]
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

from vitascope.animation.canonical_mesh import read_canonical_mesh
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.response import steady_reader
from vitascope.animation.motion_file import MotionReader
from vitascope.animation.portrait import load_portrait
from vitascope.animation.tracking import fetch_face_model
from vitascope.config import vitascope_home
from vitascope.errors import MissingDependencyError
from vitascope.models.store.store import ModelStore

HERE = Path(__file__).parent
MOMENTS_SECONDS = (2.15, 3.63, 4.5, 5.15, 6.45, 8.0)
CROP = np.s_[8:280, 88:360]


def main() -> None:
    """Draw the moments beside the photograph."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "docs" / "images" / "animate.jpg"
    model = fetch_face_model(ModelStore(vitascope_home()))
    portrait = load_portrait(HERE / "astronaut.jpg", model=lambda: model)
    pictures = [portrait.rgb]
    with MotionReader(HERE / "talk.motion") as reader:
        motions: list[FaceMotion] = list(reader)
    with MeshAnimator(read_canonical_mesh()) as animator:
        animator.set_portrait(portrait.rgb, face=portrait.face)
        with steady_reader(model) as read:
            animator.calibrate(read)
        for seconds in MOMENTS_SECONDS:
            nearest = min(motions, key=lambda motion: abs(motion.pts_seconds - seconds))
            pictures.append(animator.animate(nearest))
    sheet = np.hstack([picture[CROP] for picture in pictures])
    cv2.imwrite(str(out), sheet[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
    print(f"{out}: {out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    try:
        main()
    except MissingDependencyError as error:
        raise SystemExit(f"{error}") from None
