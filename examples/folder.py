"""Cut people out of everything in a folder: videos, and photographs beside them.

Usage: python examples/folder.py [FOLDER [RESULTS]]; without a folder, the videos and pictures beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import vitascope
from vitascope.errors import VitascopeError, one_line
from vitascope.media.reading.discovery import find_videos


def main(folder: Path, results: Path) -> list[Path]:
    """Write each result under its input's name; what cannot be read is told, and the others go on."""
    results.mkdir(parents=True, exist_ok=True)
    written = []
    with vitascope.Segmenter(profile="fast") as segmenter:  # the network is opened once
        for found in find_videos([folder], recursive=False):
            is_picture = found.path.suffix.lower() in (".jpg", ".jpeg", ".png")
            target = results / f"{found.path.stem}{'.png' if is_picture else '.mp4'}"
            try:
                report = segmenter.write(found.path, [("key", target)])
            except VitascopeError as error:
                print(f"{found.path.name}: {one_line(error)}")
                continue
            print(f"{target}: {report.frame_count} frames, {report.frames_per_second:.0f} a second")
            written.append(target)
    return written


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent,
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path("cut"),
    )
