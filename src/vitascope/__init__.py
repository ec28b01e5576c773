"""Cut people out of (VR) video, and bring still portraits to life.

    import vitascope

    report = vitascope.segment("in.mp4", "out.mp4", profile="fast")

    with vitascope.Segmenter(profile="balanced") as segmenter:
        for frame, alpha in segmenter.stream("in.mp4"):
            ...

    vitascope.animate("portrait.jpg", "driver.mp4", "talking.mp4")

    with vitascope.Animator("portrait.jpg") as animator:
        picture = animator.render(frame)

Names are loaded when they are first used: importing the package touches neither CUDA nor a codec.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitascope.animation.animator import Animator
    from vitascope.animation.offline import animate
    from vitascope.media.reading.reader import open_video
    from vitascope.segmentation.batch import segment
    from vitascope.segmentation.segmenter import Segmenter
    from vitascope.segmentation.stills import StillSegmenter

__version__ = "0.1.0"

__all__ = ["Animator", "Segmenter", "StillSegmenter", "__version__", "animate", "open_video", "segment"]

_HOMES = {
    "Animator": "vitascope.animation.animator",
    "Segmenter": "vitascope.segmentation.segmenter",
    "StillSegmenter": "vitascope.segmentation.stills",
    "animate": "vitascope.animation.offline",
    "open_video": "vitascope.media.reading.reader",
    "segment": "vitascope.segmentation.batch",
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vitascope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Public names, for completion in a shell."""
    return sorted(__all__)
