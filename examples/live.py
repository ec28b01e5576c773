"""Cut people out live: a camera, or a capture file played at its own pace, into any sink.

Usage: python examples/live.py [SOURCE [SINK]]; SOURCE is a camera's number or address, or a video; SINK one of window,
file:PATH, virtualcam, ndi, spout, mjpeg:PORT, udp:HOST:PORT. Without them, the stereo example goes into live.mp4.
"""

from __future__ import annotations

import sys
from pathlib import Path

import vitascope
from vitascope.segmentation.live import LiveMattingReport, summarise_live

VIDEO = Path(__file__).parent / "astronaut_sbs.mp4"


def main(source: int | str | Path, sink: str, *, seconds: float | None = None) -> LiveMattingReport:
    """Show the people until the source ends, Ctrl-C is pressed or the time is over; what the run was like."""
    with vitascope.Segmenter(profile="fast", settings={"output.kinds": ["key"]}) as segmenter:
        report = segmenter.live(source, [sink], seconds=seconds, on_message=print)
    print("\n".join(summarise_live(report)))
    return report


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else str(VIDEO)
    main(int(given) if given.isdecimal() else given, sys.argv[2] if len(sys.argv) > 2 else "file:live.mp4")
